"""`assay export`: circuits as files for other programs and as pages."""

import base64
import json
import zlib
from pathlib import Path

import pytest
import torch
from command_line import invoke

from assay.circuits import EdgeScores
from assay.core.random import torch_stream
from assay.graph import Graph
from assay.models import load_model


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_model("mini").graph


@pytest.fixture
def circuit(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A circuit file beside its scores."""
    monkeypatch.chdir(tmp_path)
    values = torch.randn(graph.n_sources, graph.n_targets, generator=torch_stream(0, "export"))
    scores = EdgeScores(graph, values)
    scores.save(tmp_path / "scores.safetensors")
    scores.top(40).save(tmp_path / "circuit.safetensors")
    return tmp_path / "circuit.safetensors"


@pytest.mark.parametrize("ending", ["html", "json"])
def test_the_ending_chooses_the_format(ending: str, circuit: Path, tmp_path: Path) -> None:
    out = tmp_path / f"made.{ending}"
    result = invoke("export", str(circuit), "--save", str(out), "--json")
    assert json.loads(result.stdout)["n_edges"] == 40
    assert out.read_bytes().startswith({"html": b"<!DOCTYPE html>", "json": b"{"}[ending])


def test_a_page_gets_patterns_where_model_and_task_are_given(circuit: Path, tmp_path: Path) -> None:
    given = ("--scores", "scores.safetensors", "--model", "mini", "--task", "ioi", "--prompts", "2")
    result = invoke("export", circuit, *given, "--save", "page.html")
    assert result.exit_code == 0, result.stderr
    text = (tmp_path / "page.html").read_text()
    packed = text.partition('class="data">')[2].partition("</script>")[0]
    data = json.loads(zlib.decompress(base64.b64decode(packed)))
    assert len(data["attention"]["prompts"]) == 2
    assert data["attention"]["heads"]
    assert invoke("export", circuit, *given, "--save", "graph.json").exit_code == 0
    metadata = json.loads((tmp_path / "graph.json").read_text())["metadata"]
    assert metadata["scan"] == "mini"
    assert "".join(metadata["prompt_tokens"]) == metadata["prompt"] != ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("circuit.safetensors", "--save", "c.png"),
            "ends in '.png'; a circuit is exported as .html or .json",
        ),
        (("none.safetensors",), "none.safetensors does not exist; give a circuit file or the id"),
        (("circuit.safetensors", "--model", "mini"), "--model and --task go together"),
        (("circuit.safetensors", "--model", "colour-digits", "--task", "ioi"), "images"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    arguments: tuple[str, ...], message: str, circuit: Path
) -> None:
    result = invoke("export", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr

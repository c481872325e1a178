"""`assay monitor evaluate`: documents, files, domains of every layout, going on, and what it refuses."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import invoke
from PIL import Image
from tiny_classifier import draw_files, tiny_classifier

from assay.analyses.generalization.domain_evaluation import DomainProbe


Run = Callable[..., Any]
SMALL = ("--n", "8", "--rated", "16", "--least", "8", "--steps", "1", "--quiet", "--subset-size", "2")
CORRUPTED = ("--corruptions", "fog-1,fog-5,solarize")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory, and folders of drawn images laid out as PACS: DOMAIN/CLASS/IMAGE."""
    root = tmp_path_factory.mktemp("evaluate")
    tiny_classifier(root / "model")
    for style in ("flat", "neon", "sketch", "stripes"):
        draw_files(root / "styles" / style, style, 36, start=1000, by_class=True)
    return root


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in an empty directory, on the model."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: Any, reference: str = "styles/flat") -> Any:
        source = folder / reference if reference.startswith("styles") else reference
        given = ("--model", folder / "model", "--reference", source)
        return invoke("monitor", "evaluate", *given, *SMALL, *arguments)

    return call


def test_folders_of_domains_give_a_document_a_page_a_table_and_figures(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    found = run("--images", folder / "styles", *CORRUPTED, "--parts", "2", "--out", "out", "--json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    # The reference's own folder is not a test domain; every other one is cut into two parts.
    assert [each["domain"] for each in document["test"]] == [
        f"{style}/{part}" for style in ("neon", "sketch", "stripes") for part in (1, 2)
    ]
    assert {each["group"] for each in document["test"]} == {"neon", "sketch", "stripes"}
    assert [each["n"] for each in document["test"]] == [8] * 6
    assert [each["domain"] for each in document["known"]] == ["flat+fog-1", "flat+fog-5", "flat+solarize"]
    assert document["own"]["n"] == 8
    # 28 images are left besides the reference: 8 to learn from, 20 to corrupt.
    assert document["own"]["n_labelled"] == document["known"][0]["n_labelled"] == 20
    assert document["curves"]["always"]["deltas"] == [round(0.5 + step / 100, 2) for step in range(46)]
    out = tmp_path / "out"
    assert json.loads((out / "evaluation.json").read_text()) == document
    assert "What goes with performance" in (out / "report.html").read_text()
    rows = list(csv.DictReader((out / "domains.csv").read_text().splitlines()))
    assert [row["use"] for row in rows] == ["in distribution", *["calibration"] * 3, *["test"] * 6]
    assert float(rows[-1]["spearman"]) == document["test"][-1]["shifts"]["spearman"]
    figures = {path.name for path in (out / "figures").iterdir()}
    assert {"domains.png", "alarms.png", "rank-shift-best.png", "rank-shift-worst.png"} <= figures
    shown = json.loads(invoke("show", document["id"], "--json").stdout)
    assert shown["payload"]["id"] == document["id"]


def test_what_was_measured_is_not_measured_again(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--images", folder / "styles", "--corruptions", "none", "--json")
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["curves"] is None

    def measured(self: DomainProbe, images: Any, **more: Any) -> None:
        raise AssertionError(f"{images.domain} was measured again")

    monkeypatch.setattr(DomainProbe, "measure", measured)
    assert json.loads(run(*arguments).stdout) == json.loads(first.stdout)


def test_a_severity_of_a_corruption_is_a_domain_and_small_domains_are_left_out(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    for severity, n in ((1, 16), (4, 16), (5, 4)):
        draw_files(tmp_path / "corrupted" / "fog" / str(severity), "neon", n, by_class=True)
    found = run("--images", tmp_path / "corrupted", "--corruptions", "none", "--json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert [each["domain"] for each in document["test"]] == ["fog/1", "fog/4"]
    (left_out,) = document["left_out"]
    assert (left_out["domain"], left_out["n"]) == ("fog/5", 4)
    assert "4 images, fewer than the 8 needed" in left_out["reason"]


def test_rows_of_a_table_are_domains_by_its_columns(run: Run, tmp_path: Path) -> None:
    lines = ["path,label,camera,season"]
    for camera, style in enumerate(("neon", "sketch")):
        for place, path in enumerate(draw_files(tmp_path / style, style, 20, by_class=True)):
            lines.append(f"{path.relative_to(tmp_path)},{path.parent.name},{camera},{'ab'[place % 2]}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    found = run(
        "--images", "list.csv:season=a", "--domains-by", "camera,season", "--corruptions", "none", "--json"
    )
    assert found.exit_code == 0, found.output
    names = [each["domain"] for each in json.loads(found.stdout)["test"]]
    assert names == ["camera 0/a", "camera 1/a"]


def test_published_options_reach_the_circuits(run: Run, folder: Path) -> None:
    arguments = ("--images", folder / "styles", "--corruptions", "none", "--json")
    usual = json.loads(run(*arguments).stdout)
    published = run(
        *arguments, "--quadrature", "left", "--weights", "signed", "--top-k", "20", "--granularity",
        "sublayer", "--no-normalized", "--include-input", "--measure", "macro-f1",
    )  # fmt: skip
    assert published.exit_code == 0, published.output
    document = json.loads(published.stdout)
    assert document["reference"]["quadrature"] == "left"
    view = document["settings"]["view"]
    assert (view["weights"], view["top_k"], view["normalized"]) == ("signed", 20, False)
    assert len(document["test"][0]["dependency"]) == 8
    assert document["test"][0]["performance"] == document["test"][0]["macro_f1"]
    assert document["test"][0]["shifts"] != usual["test"][0]["shifts"]


def refused(run: Run, *arguments: Any, reference: str = "styles/flat") -> str:
    found = run(*arguments, reference=reference)
    assert found.exit_code == 2, found.output
    return str(found.stderr)


def test_bad_input_is_named_before_a_model_runs(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "assay.pipeline.domain_evaluation.reference_of", lambda *a: pytest.fail("the model ran")
    )
    draw_files(tmp_path / "other" / "neon", "neon", 12, by_class=True)
    Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(tmp_path / "loose.png")
    (tmp_path / "other" / "neon" / "giraffe").mkdir()
    assert "domain 'neon' has the classes giraffe" in refused(run, "--images", tmp_path / "other")
    (tmp_path / "unlabelled").mkdir()
    (tmp_path / "loose.png").rename(tmp_path / "unlabelled" / "loose.png")
    assert "unlabelled has no labels" in refused(run, "--images", tmp_path / "unlabelled")
    styles = ("--images", folder / "styles")
    assert "holds no domain besides that of the reference" in refused(
        run, "--images", folder / "styles" / "flat"
    )
    assert "such as 0.5,0.95" in refused(run, *styles, "--deltas", "half")
    assert "need a table" in refused(run, *styles, "--domains-by", "slide")
    assert "did you mean 'fog-1'" in refused(run, *styles, "--corruptions", "fog1")
    assert "needs --reference" in str(invoke("monitor", "evaluate", "--model", folder / "model").stderr)


def test_a_reference_scored_with_other_options_is_refused(run: Run, folder: Path, tmp_path: Path) -> None:
    images = ("--images", folder / "styles" / "flat", "--n", "8", "--steps", "1")
    files = ("--top", "20", "--scores-out", "scores.safetensors", "--quiet")
    scored = invoke("discover", "--model", folder / "model", *images, *files)
    assert scored.exit_code == 0, scored.output
    file = str(tmp_path / "scores.safetensors")
    styles = ("--images", folder / "styles", "--known", folder / "styles" / "flat")
    assert "quadrature is left, but the circuit of" in refused(
        run, *styles, "--quadrature", "left", reference=file
    )

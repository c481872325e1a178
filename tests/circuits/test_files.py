import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from assay.circuits import (
    Circuit,
    EdgeScores,
    load_circuit,
    load_scores,
    published_circuit,
    published_circuits,
)
from assay.circuits.naming import named_circuit
from assay.core.errors import (
    FileFormatError,
    GraphMismatchError,
    HubError,
    InputError,
    OutputError,
    UnknownNameError,
)
from assay.graph import build_graph


GRAPH = build_graph(2, 3)


@pytest.fixture
def circuit_file(tmp_path: Path) -> Path:
    circuit = Circuit.from_heads(GRAPH, [(0, 1)])
    return circuit.save(tmp_path / "circuit.safetensors")


def test_circuits_and_scores_come_back_as_they_were(circuit_file: Path, tmp_path: Path) -> None:
    circuit = load_circuit(circuit_file, GRAPH)
    assert circuit == Circuit.from_heads(GRAPH, [(0, 1)])
    assert circuit.heads == ((0, 1),)
    values = torch.randn(GRAPH.n_sources, GRAPH.n_targets)
    scores = EdgeScores(
        GRAPH,
        values,
        per_example=torch.randn(4, *values.shape),
        provenance={"method": "eap", "objective": "kl"},
        details={"completeness_gap": 0.01},
    )
    loaded = load_scores(scores.save(tmp_path / "scores.safetensors"))
    assert torch.equal(loaded.values, scores.values)
    assert loaded.per_example is not None
    assert scores.per_example is not None
    assert torch.equal(loaded.per_example, scores.per_example)
    assert dict(loaded.provenance) == {"method": "eap", "objective": "kl"}
    assert loaded.details["completeness_gap"] == 0.01


def test_a_truncated_or_changed_file_is_refused(circuit_file: Path) -> None:
    content = circuit_file.read_bytes()
    for length in (0, 7, 40, len(content) - 1):
        circuit_file.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match="not a readable safetensors file"):
            load_circuit(circuit_file)
    circuit_file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(FileFormatError, match="hash mismatch"):
        load_circuit(circuit_file)
    circuit_file.write_bytes(content)
    with safe_open(circuit_file, framework="pt") as file:
        metadata, mask = file.metadata(), file.get_tensor("mask")
    save_file({"mask": mask, "more": torch.tensor(1.0)}, circuit_file, metadata)  # a number without an axis
    with pytest.raises(FileFormatError, match="hash mismatch"):
        load_circuit(circuit_file)


def test_failed_write_leaves_the_old_file(circuit_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = circuit_file.read_bytes()

    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        Circuit.full(GRAPH).save(circuit_file)
    assert circuit_file.read_bytes() == before
    assert [path.name for path in circuit_file.parent.iterdir()] == [circuit_file.name]


def test_what_is_no_circuit_of_the_graph_is_refused(circuit_file: Path, tmp_path: Path) -> None:
    weights, scores = tmp_path / "weights.safetensors", tmp_path / "scores.safetensors"
    save_file({"mask": torch.zeros(3)}, weights)
    EdgeScores(GRAPH, torch.zeros(GRAPH.n_sources, GRAPH.n_targets)).save(scores)
    for path, error, said in (
        (weights, FileFormatError, "is not a circuit written by"),
        (scores, FileFormatError, "holds 'scores', not 'circuit'"),
        (tmp_path / "nothing", FileFormatError, "nothing does not exist"),
        (circuit_file, GraphMismatchError, "belongs to another model"),
    ):
        with pytest.raises(error, match=said):
            load_circuit(path, build_graph(2, 4))
    with pytest.raises(OutputError, match="choose a writable directory"):
        Circuit.full(GRAPH).save(tmp_path / "nowhere" / "c.safetensors")


# ---- names ----------------------------------------------------------------------------------------------


def test_a_circuit_is_a_file_heads_or_a_published_name(tmp_path: Path) -> None:
    graph = build_graph(4, 4)
    circuit = Circuit.from_heads(graph, [(2, 3)])
    file = circuit.save(tmp_path / "c.safetensors")
    assert named_circuit(file, graph) == named_circuit("a2.h3", graph) == circuit
    assert Circuit.from_heads(graph, ["a2.h3"]) == Circuit.from_heads(graph, "a2.h3") == circuit
    published = published_circuit("ioi_gpt2")
    assert named_circuit("ioi_gpt2", published.graph) == published
    assert getattr(named_circuit("ioi_gpt2_wang26", graph), "id", None) == "ioi_gpt2_wang26"
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: named_circuit("ioi_gpt2", graph), GraphMismatchError, "'ioi_gpt2' belongs to another model"),
        (lambda: named_circuit(file, build_graph(1, 1)), GraphMismatchError, "belongs to another model"),
        (lambda: named_circuit("a2.h3,b1", graph), InputError, "write heads as in a0.h3,a2.h1"),
        (lambda: Circuit.from_heads(graph, ["a2h3"]), InputError, "'a2h3' is not a pair .* such as 'a2.h3'"),
        (lambda: Circuit.from_heads(graph, ["a2.h3", (2, 3)]), InputError, "listed twice"),
        (lambda: named_circuit("ioi_gpt3", graph), UnknownNameError, "did you mean 'ioi_gpt2'"),
        (lambda: published_circuit("ioi_gpt"), UnknownNameError, "did you mean 'ioi_gpt2'"),
    ]
    for call, error, message in refused:
        with pytest.raises(error, match=message):
            call()


def test_an_address_of_the_hub_is_fetched(circuit_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def download(repository: str, file: str, *, revision: str | None) -> str:
        asked.append((repository, file, revision))
        if repository != "acme/ioi":
            raise OSError("Repository Not Found")
        return str(circuit_file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    for address in ("hf://acme/ioi", "hf://acme/ioi@v1/more/c.safetensors"):
        assert named_circuit(address, GRAPH) == load_circuit(circuit_file)
    assert asked == [("acme/ioi", "circuit.safetensors", None), ("acme/ioi", "more/c.safetensors", "v1")]
    for address, message in (("hf://acme/other", "Not Found"), ("hf://acme", "write hf://OWNER/NAME")):
        with pytest.raises(HubError, match=message):
            load_circuit(address)


SIZES = {"ioi_gpt2": 963, "ioi_gpt2_autocircuit": 739, "greater_than_gpt2": 235, "docstring_attn_only_4l": 24}


def test_shipped_circuits_are_the_reference_files(shared: Callable[[str], Path]) -> None:
    assert {name: published_circuit(name).n_edges for name in published_circuits()} == SIZES
    for name in published_circuits():
        stored = json.loads(shared(f"data/circuits_edges/{name}.json").read_text())
        edges = sorted(f"{source}->{target}" for source, target in stored["edges"])
        assert edges == sorted(published_circuit(name).edges())

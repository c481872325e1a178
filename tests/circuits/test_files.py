import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from assay.circuits import Circuit, EdgeScores, load_circuit, load_scores
from assay.core.errors import FileFormatError, GraphMismatchError, OutputError
from assay.graph import build_graph


GRAPH = build_graph(2, 3)


@pytest.fixture
def circuit_file(tmp_path: Path) -> Path:
    circuit = Circuit.from_heads(GRAPH, [(0, 1)])
    return circuit.save(tmp_path / "circuit.safetensors")


def test_circuits_come_back_as_they_were(circuit_file: Path) -> None:
    circuit = load_circuit(circuit_file, GRAPH)
    assert circuit == Circuit.from_heads(GRAPH, [(0, 1)])
    assert circuit.heads == ((0, 1),)


def test_scores_come_back_as_they_were(tmp_path: Path) -> None:
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


def test_truncated_file_is_refused(circuit_file: Path) -> None:
    content = circuit_file.read_bytes()
    for length in (0, 7, 40, len(content) - 1):
        circuit_file.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match="not a readable safetensors file"):
            load_circuit(circuit_file)


def test_every_changed_byte_of_the_mask_is_noticed(circuit_file: Path) -> None:
    content = bytearray(circuit_file.read_bytes())
    content[-1] ^= 1
    circuit_file.write_bytes(bytes(content))
    with pytest.raises(FileFormatError, match="hash mismatch"):
        load_circuit(circuit_file)


def test_changed_metadata_is_noticed(circuit_file: Path) -> None:
    content = circuit_file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + length].replace(b"[[0, 1]]", b"[[0, 2]]")
    circuit_file.write_bytes(content[:8] + header + content[8 + length :])
    with pytest.raises(FileFormatError, match="hash mismatch"):
        load_circuit(circuit_file)


def test_a_further_number_without_an_axis_is_noticed(circuit_file: Path) -> None:
    with safe_open(circuit_file, framework="pt") as file:
        metadata, mask = file.metadata(), file.get_tensor("mask")
    save_file({"mask": mask, "more": torch.tensor(1.0)}, circuit_file, metadata)
    with pytest.raises(FileFormatError, match="hash mismatch"):
        load_circuit(circuit_file)


def test_plain_safetensors_are_not_circuits(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"mask": torch.zeros(3)}, path)
    with pytest.raises(FileFormatError, match="is not a circuit written by"):
        load_circuit(path)


def test_scores_are_not_circuits(tmp_path: Path) -> None:
    path = EdgeScores(GRAPH, torch.zeros(GRAPH.n_sources, GRAPH.n_targets)).save(
        tmp_path / "scores.safetensors"
    )
    with pytest.raises(FileFormatError, match="holds 'scores', not 'circuit'"):
        load_circuit(path)


def test_circuit_of_another_model_is_refused(circuit_file: Path) -> None:
    with pytest.raises(GraphMismatchError, match="belongs to another model"):
        load_circuit(circuit_file, build_graph(2, 4))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"nothing\.safetensors does not exist"):
        load_circuit(tmp_path / "nothing.safetensors")


def test_writing_into_a_missing_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="choose a writable directory"):
        Circuit.full(GRAPH).save(tmp_path / "nowhere" / "c.safetensors")


def test_failed_write_leaves_the_old_file(circuit_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = circuit_file.read_bytes()

    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        Circuit.full(GRAPH).save(circuit_file)
    assert circuit_file.read_bytes() == before
    assert [path.name for path in circuit_file.parent.iterdir()] == [circuit_file.name]

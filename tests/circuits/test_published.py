import json
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.circuits import published_circuit, published_circuits
from assay.core.errors import UnknownNameError


SIZES = {
    "ioi_gpt2": 963,
    "ioi_gpt2_autocircuit": 739,
    "greater_than_gpt2": 235,
    "docstring_attn_only_4l": 24,
}


def test_all_shipped_circuits_have_their_published_sizes() -> None:
    assert {name: published_circuit(name).n_edges for name in published_circuits()} == SIZES


def test_shipped_files_are_the_reference_files(shared: Callable[[str], Path]) -> None:
    for name in published_circuits():
        stored = json.loads(shared(f"data/circuits_edges/{name}.json").read_text())
        assert sorted(f"{source}->{target}" for source, target in stored["edges"]) == sorted(
            published_circuit(name).edges()
        )


def test_unknown_circuit_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ioi_gpt2'"):
        published_circuit("ioi_gpt")

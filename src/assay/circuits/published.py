"""Published circuits, shipped as data: edges between named nodes, with where they come from."""

import json
from importlib import resources
from typing import Any

from assay.circuits.circuit import Circuit
from assay.core.errors import check_name
from assay.graph import build_graph


def published_circuits() -> tuple[str, ...]:
    """Names of the shipped circuits."""
    files = resources.files("assay.circuits").joinpath("data").iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


def published_circuit(name: str) -> Circuit:
    """A published circuit at edge level.

    Args:
        name: `ioi_gpt2` (Wang et al. 2022, arXiv:2211.00593), `ioi_gpt2_autocircuit` (the same in Miller et
            al. 2024's reading), `greater_than_gpt2` (Hanna et al. 2023, arXiv:2305.00586) or
            `docstring_attn_only_4l` (Heimersheim and Janiak 2023); edges as in Conmy et al. 2023,
            arXiv:2304.14997.

    Raises:
        UnknownNameError: For any other name.

    Example:
        >>> published_circuit("ioi_gpt2").n_edges
        963
    """
    check_name("published circuit", name, published_circuits())
    text = resources.files("assay.circuits").joinpath("data", f"{name}.json").read_text(encoding="utf-8")
    stored: dict[str, Any] = json.loads(text)
    model = stored["model"]
    graph = build_graph(model["n_layers"], model["n_heads"], mlps=model["has_mlp"])
    circuit = Circuit.from_edges(graph, stored["edges"])
    return Circuit(
        graph=graph, mask=circuit.mask, provenance={"published": name, "references": stored["references"]}
    )

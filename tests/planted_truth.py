"""The truth files of the planted models: one JSON document each, equal to what its builder derives."""

import json
from pathlib import Path
from typing import Any

from assay.models import planted as package
from assay.models.planted import Planted


FOLDER = Path(package.__file__).parent / "truth"
VERSION = 1


def truth_path(name: str) -> Path:
    """Where the truth of a planted model lies: `program-layout-extras.json`."""
    return FOLDER / f"{name.replace('/', '-')}.json"


def truth_document(planted: Planted) -> dict[str, Any]:
    """What a truth file holds: the edges, the sizes of the model.

    Args:
        planted: The model.

    Returns:
        JSON values: `format` (version of the file), `name`, `graph` (its fingerprint), `n_edges`
        (of the whole graph), `sizes`, `ablation` (under which the edges are the
        circuit), `edges`.
    """
    model, graph = planted.model, planted.model.graph
    return {
        "format": VERSION,
        "name": planted.name,
        "graph": graph.fingerprint,
        "n_edges": graph.n_edges,
        "sizes": {
            "n_layers": graph.n_layers,
            "n_heads": graph.n_heads,
            "n_kv_heads": graph.n_kv_heads,
            "d_model": model.d_model,
            "d_head": model.d_head,
            "d_vocab": len(planted.tokens),
        },
        "ablation": "resample",
        "edges": list(planted.edges),
    }


def read_truth(name: str) -> dict[str, Any]:
    """The stored truth of a planted model."""
    document: dict[str, Any] = json.loads(truth_path(name).read_text(encoding="utf-8"))
    return document


def write_truth(planted: Planted) -> None:
    """Write a model's truth file to its place in the package."""
    text = json.dumps(truth_document(planted), indent=2) + "\n"
    truth_path(planted.name).write_text(text, encoding="utf-8")


if __name__ == "__main__":  # after a program has changed: write every file again
    for each in FOLDER.glob("*.json"):
        write_truth(package.planted_model(json.loads(each.read_text(encoding="utf-8"))["name"]))

"""The truth as files: one JSON document per planted language model, equal to what its builder derives."""

import json
from pathlib import Path
from typing import Any

from assay.core.errors import FileFormatError
from assay.core.untrusted import parse_json
from assay.models.planted.planted import Planted


FOLDER = Path(__file__).parent / "truth"
VERSION = 1


def truth_path(name: str) -> Path:
    """Where the truth of a planted model lies: `program-layout-extras.json`."""
    return FOLDER / f"{name.replace('/', '-')}.json"


def truth_document(planted: Planted) -> dict[str, Any]:
    """What a truth file holds: the edges, what each node does, the sizes of the model.

    Args:
        planted: The model.

    Returns:
        JSON values: `format` (version of the file), `name`, `graph` (its fingerprint), `n_edges`
        (of the whole graph), `sizes`, `ablation` (under which the edges are the
        circuit), `edges`, `roles`, `notes`.
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
        "roles": dict(planted.roles),
        "notes": list(planted.notes),
    }


def read_truth(path: Path) -> dict[str, Any]:
    """The document of a truth file.

    Args:
        path: A file as `write_truth` makes them.

    Raises:
        FileFormatError: If it is no JSON object of this version.
    """
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"cannot read {path} as JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != VERSION:
        came = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise FileFormatError(
            f"{path} is not a truth file: expected a JSON object with format {VERSION}, got {came!r}"
        )
    return document


def write_truth(planted: Planted, path: Path | None = None) -> Path:
    """Write a model's truth file.

    Args:
        planted: The model.
        path: Where to; default: its place in the package.
    """
    path = path or truth_path(planted.name)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(truth_document(planted), indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
    return path

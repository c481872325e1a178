"""Roles of nodes put into the document of a page with a circuit viewer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.circuits import load_roles
from assay.core.errors import InputError
from assay.page.circuit import graph_of


def with_roles(document: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """The document of an audit or a circuit, with the roles and labels of a file.

    Args:
        document: What the page is made from; it is not changed.
        path: A roles file, saved by the circuit viewer or by `NodeRoles.save`.

    Raises:
        InputError: If the page of the document does not draw a circuit.
        GraphMismatchError: If the file belongs to another graph.
        FileFormatError: If it is not a roles file.
    """
    if not isinstance(document.get("graph"), Mapping) or "edges" not in document:
        raise InputError(
            "roles belong to a drawn circuit, and this page has none; give an audit or a circuit"
        )
    return {**document, "roles": load_roles(path, graph_of(document["graph"])).to_dict()}

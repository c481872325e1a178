"""Circuits out of files, local ones and those of the Hugging Face Hub."""

from dataclasses import replace
from pathlib import Path

from assay.circuits.circuit import Circuit
from assay.circuits.files import flags, read_edges
from assay.circuits.heads import check_heads
from assay.circuits.hub_file import HubFile, is_address
from assay.circuits.spans import Spans
from assay.core.untrusted import malformed
from assay.graph import Graph


def load_circuit(path: str | Path, graph: Graph | None = None, *, token: str | None = None) -> Circuit:
    """Read a circuit written by `Circuit.save`.

    Args:
        path: The file, or an address of the Hugging Face Hub: `hf://OWNER/NAME`, where needed with
            `@REVISION` and `/PATH`. The circuit's provenance then names the repository, the commit and the
            file under `hub`.
        graph: The graph it must belong to; default: the one it was saved with.
        token: Access token for an address. Default: that of `HF_TOKEN` or of `hf auth login`.

    Raises:
        FileFormatError: If the file is truncated, tampered with, of another kind or too new.
        GraphMismatchError: If it belongs to another graph.
        InputError: If an address is malformed.
        HubError: If the file cannot be fetched.

    Example:
        >>> circuit = load_circuit("hf://acme/ioi-mini@v1")  # doctest: +SKIP
        >>> circuit.provenance["hub"]["revision"]  # doctest: +SKIP
        '0123456789abcdef0123456789abcdef01234567'
    """
    if not is_address(path):
        return _read(path, graph)
    address = HubFile.parse(str(path))
    file, commit = address.fetch(token)
    circuit = _read(file, graph)
    return replace(circuit, provenance={**circuit.provenance, "hub": address.at(commit).describe()})


def _read(path: str | Path, graph: Graph | None) -> Circuit:
    stored, arrays, metadata = read_edges(path, "circuit", graph)
    with malformed(path, "a circuit written by .save()"):
        heads, spans = metadata.get("heads"), metadata.get("spans")
        return Circuit(
            graph=stored,
            mask=flags(arrays["mask"]),
            heads=None if heads is None else check_heads(heads, stored.n_layers, stored.n_heads),
            roles={
                name: check_heads(pairs, stored.n_layers, stored.n_heads)
                for name, pairs in metadata.get("roles", {}).items()
            },
            provenance=dict(metadata["provenance"]),
            spans=None if spans is None else Spans.restored(spans),
        )

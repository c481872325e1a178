"""Circuits out of files, local ones and those of the Hugging Face Hub."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.circuits.circuit import Circuit
from assay.circuits.files import flags, read_edges
from assay.circuits.heads import check_heads
from assay.circuits.spans import Spans
from assay.core.errors import InputError
from assay.core.extras import needs_extra
from assay.core.untrusted import malformed, printable
from assay.graph import Graph


_ADDRESS = re.compile(
    r"hf://(?P<repository>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?(/(?P<path>.+\.safetensors))?"
)


def is_address(source: object) -> bool:
    """Whether a text is an address of the Hugging Face Hub."""
    return isinstance(source, str) and source.startswith("hf://")


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
    file, origin = _fetched(str(path), token)
    circuit = _read(file, graph)
    return replace(circuit, provenance={**circuit.provenance, "hub": origin})


def _fetched(address: str, token: str | None) -> tuple[Path, dict[str, Any]]:
    """The file of an address in the cache of the hub's client, and where it comes from."""
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        raise InputError(
            f"the address is {printable(address)[:200]!r}; write hf://OWNER/NAME, with @REVISION and "
            "/PATH.safetensors where needed"
        )
    with needs_extra("hub", f"{address} needs huggingface_hub"):
        from huggingface_hub import hf_hub_download
    from assay.models.hub import hub_errors

    repository, name = parts["repository"], parts["path"] or "circuit.safetensors"
    with hub_errors(address):
        file = Path(hf_hub_download(repository, name, revision=parts["revision"], token=token))
    commit = file.parents[name.count("/")].name  # the folder of a snapshot is its commit
    return file, {"repository": repository, "revision": commit, "file": name}


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

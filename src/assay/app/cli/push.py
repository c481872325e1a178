"""`assay push`: a circuit to a repository of the Hugging Face Hub."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.cli.parsing import CIRCUITS, command
from assay.app.console import echo, print_json
from assay.app.option_groups import DEFAULT_STORE, OUTPUT
from assay.app.running import Storing, Talking


if TYPE_CHECKING:
    from assay.circuits import Circuit
    from assay.store import Store

SHOWN = 20  # measurements of a card, the newest


@dataclass(frozen=True, kw_only=True)
class PushSettings(Storing, Talking):
    """Where a circuit is uploaded to.

    Attributes:
        private: Make the repository private; one that exists must be.
        branch: Branch to commit to, made if need be. Default: the main branch.
        path: The file in the repository, for several circuits in one.
    """

    private: Annotated[bool, OUTPUT] = False
    branch: Annotated[str | None, OUTPUT] = None
    path: Annotated[str, OUTPUT] = "circuit.safetensors"


@command(CIRCUITS, example="assay push circuit.safetensors acme/ioi-mini --private")
def push(
    circuit: Annotated[str, Parameter(name="CIRCUIT")],
    repository: Annotated[str, Parameter(name="OWNER/NAME")],
    /,
    *,
    settings: PushSettings,
) -> None:
    """Upload a circuit to the Hugging Face Hub, with a card.

    The card shows what the store has measured of the circuit. The access token is that of `hf auth login` or
    of HF_TOKEN.

    Args:
        circuit: Circuit file, hf://OWNER/NAME, or id in the store.
        repository: The repository; it is made if need be.
        settings: The options.
    """
    store = settings.existing_store() if settings.store is not None or DEFAULT_STORE.exists() else None
    found = _circuit(circuit, store)
    address = found.push_to_hub(
        repository,
        private=settings.private or None,
        revision=settings.branch,
        path=settings.path,
        measurements=_measured(found, store),
    )
    if settings.json:
        print_json({"circuit": found.hash, "n_edges": found.n_edges, "address": address})
    else:
        echo(f"circuit  {found.hash}")
        echo(f"address  {address}")


def _circuit(text: str, store: "Store | None") -> "Circuit":
    from assay.circuits import load_circuit
    from assay.circuits.hub_file import is_address
    from assay.pipeline.circuits import stored_circuit

    path = Path(text)
    if store is None or is_address(text) or path.is_file() or path.suffix == ".safetensors":
        return load_circuit(text)
    return stored_circuit(store.get(text))


def _measured(circuit: "Circuit", store: "Store | None") -> list[Mapping[str, Any]]:
    """What a store holds of a circuit, the newest measurements first."""
    if store is None:
        return []
    where = [f'circuit = "{circuit.hash}"']
    found = store.query("measurement", where=where, order="-created", limit=SHOWN)
    return [store.get(each.id).payload for each in found]

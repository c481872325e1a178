"""What a store holds less the facts of its runs: equal for stores of the same results."""

from typing import Any

from assay.store import Store


FACTS_OF_A_RUN = frozenset({"machine", "seconds", "created"})


def content(store: Store) -> dict[str, Any]:
    """Results by id: kind, provenance, payload and the hash of the arrays."""
    return {
        each.id: (each.kind, _less_run(each.provenance), _less_run(each.payload), each.digest)
        for each in store.results()
    }


def _less_run(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _less_run(inner) for key, inner in value.items() if key not in FACTS_OF_A_RUN}
    return [_less_run(inner) for inner in value] if isinstance(value, list) else value

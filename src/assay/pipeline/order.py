"""The order of what needs what."""

import graphlib
from collections.abc import Iterable, Mapping

from assay.core.errors import InputError


def in_order(needs: Mapping[str, Iterable[str]], called: Mapping[str, str] | None = None) -> list[str]:
    """Names such that each stands behind those that it needs.

    Args:
        needs: Names by name; a name without an entry needs nothing.
        called: What messages call them.

    Raises:
        InputError: If they need each other in a circle, which the message spells out.

    Example:
        >>> in_order({"a": ["b"], "b": []})
        ['b', 'a']
    """
    try:
        return list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as error:
        names = reversed(error.args[1])  # it lists the needed before the needing
        circle = " -> ".join((called or {}).get(name, name) for name in names)
        raise InputError(f"jobs need each other in a cycle: {circle}; remove one of these needs") from error

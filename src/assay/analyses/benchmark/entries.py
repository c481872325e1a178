"""Which methods are judged, each with its options: what `methods=` and `options=` mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.core.errors import InputError, unknown_name
from assay.discovery.edges.method import METHODS, get_method


# Arguments of `discover` that a benchmark may set method by method.
SHARED_OPTIONS = ("steps", "quadrature", "objective", "batch_size")


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One competitor.

    Attributes:
        name: What results call it: the key of its method, or `KEY@WORD` where one method enters twice.
        key: Registered key of the method.
        options: Keyword arguments of `discover`: options of the method, and `steps`, `quadrature`,
            `objective`, `batch_size`.
    """

    name: str
    key: str
    options: Mapping[str, Any] = field(default_factory=dict)


def choose_entries(
    methods: Sequence[str] | None = None, options: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Contender, ...]:
    """The competitors that names and options describe, checked before any work is done.

    Args:
        methods: Keys of registered methods; `KEY@WORD` enters the method KEY under a name of its own, so that
            one method can compete with two settings. Default: every registered method, in order of
            registration, and every `KEY@WORD` that `options` names.
        options: Options by name of the competitor, e.g. `{"ugs": {"updates": 300}}`.

    Raises:
        UnknownNameError: For a method or option that does not exist; near matches are named.
        InputError: For a method named twice, none at all, or options of one that does not compete.

    Example:
        >>> entries = choose_entries(["eap", "eap-ig-inputs@ten"], {"eap-ig-inputs@ten": {"steps": 10}})
        >>> [each.key for each in entries]
        ['eap', 'eap-ig-inputs']
    """
    own_options = dict(options or {})
    names = (
        list(methods) if methods is not None else [*METHODS, *(name for name in own_options if "@" in name)]
    )
    if not names:
        raise InputError("methods is empty; name at least one, or leave it out to judge every method")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(
            f"method {repeated[0]!r} is named twice; give the second one its own name, e.g. "
            f"{repeated[0]}@second"
        )
    entries = []
    for name in names:
        key, _, word = name.partition("@")
        if "@" in name and not word:
            raise InputError(f"method {name!r} ends in @; add a word after it, or remove the @")
        settings = dict(own_options.pop(name, {}))
        METHODS[key]
        get_method(key, **{each: value for each, value in settings.items() if each not in SHARED_OPTIONS})
        entries.append(Contender(name=name, key=key, options=settings))
    if own_options:
        raise unknown_name("method with options among those judged", next(iter(own_options)), names)
    return tuple(entries)

"""Which methods compete, each with its options, and one competitor's turn: its scores and what they cost."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.analyses.benchmark.cost import Cost, measured
from assay.circuits import EdgeScores
from assay.core.errors import AssayError, AssayWarning, InputError, unknown_name
from assay.core.record import plain
from assay.discovery.edges import discover
from assay.discovery.edges.method import METHODS, get_method
from assay.execution import Ablation
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.tasks import Task


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """What one method gave.

    Attributes:
        scores: Its edge scores; None where it gave none.
        reason: Why not: what the method itself says; None where it gave some.
        cost: Seconds and memory.
        warnings: What it warned of, such as masks that did not converge.
        details: What it reports beside its scores, JSON-able.
    """

    scores: EdgeScores | None
    reason: str | None
    cost: Cost
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


def take_turn(
    entry: Contender,
    model: Model,
    task: Task,
    *,
    objective: str | Objective | Loss | None,
    ablation: str | Ablation | None,
    batch_size: int | None,
    seed: int,
) -> Turn:
    """Let one method score the edges; a refusal of these settings is a result, not a failure.

    Errors that are not the package's own pass through.
    """
    asked: dict[str, Any] = {"objective": objective, "batch_size": batch_size} | dict(entry.options)
    with warnings.catch_warnings(record=True) as caught, measured(model) as cost:
        warnings.simplefilter("always")
        scores, reason = None, None
        try:
            scores = discover(model, task, entry.key, ablation=ablation, seed=seed, **asked)
        except AssayError as error:
            reason = str(error)
    said = tuple(
        dict.fromkeys(str(each.message) for each in caught if issubclass(each.category, AssayWarning))
    )
    details = {} if scores is None else json_details(scores.details)
    return Turn(scores=scores, reason=reason, cost=cost, warnings=said, details=details)


def json_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """Details as JSON can say them; what it cannot is written out as text."""
    kept: dict[str, Any] = {}
    for name, value in details.items():
        try:
            kept[str(name)] = plain(value)
        except InputError:
            kept[str(name)] = str(value)
    return kept

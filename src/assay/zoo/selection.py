"""The second stage of a zoo: which configurations of a wide sweep are worth training on every domain."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from assay.core.errors import InputError
from assay.core.record import Record
from assay.zoo.archive import Zoo


@final
@dataclass(frozen=True, kw_only=True)
class Selection(Record):
    """Configurations kept from a sweep.

    Attributes:
        configurations: Fields of a recipe without its `init`; what `Grid.with_configurations` takes.
        shortfall: Per initialisation, how far its best kept configuration lies below its best of all, in
            accuracy, 0 .. 1.
        tolerance: What counted as near-optimal, in accuracy.
        sweep: Name of the zoo that was swept.
        domain: Domain it was swept on.
    """

    configurations: tuple[Mapping[str, Any], ...]
    shortfall: Mapping[str, float]
    tolerance: float
    sweep: str
    domain: str | None


def select_configurations(sweep: Zoo, *, tolerance: float | int = 0.02, size: int | None = None) -> Selection:
    """Few configurations such that each initialisation has at least one near-optimal one among them.

    A configuration is near-optimal for an initialisation if its validation accuracy lies at most `tolerance`
    below the best of that initialisation. Configurations are taken one by one: the one that serves most
    initialisations without one, then the one with the smaller mean shortfall, then the earlier one.

    Args:
        sweep: A zoo trained on one domain; models that failed are left out.
        tolerance: In accuracy, 0 or more.
        size: Number of configurations to keep; if the initialisations need fewer, those with the smallest
            mean shortfall are added. Default: as few as they need.

    Raises:
        InputError: If no model is done, a number is out of range, or `size` is too small to serve every
            initialisation.

    References:
        Peng et al. (CVPR 2026), appendix: a wide sweep on one domain, then configurations such that every
        initialisation has a near-optimal one. The order in which they are taken is not printed; it is ours.
    """
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance is {tolerance}; give an accuracy of at least 0 and below 1")
    accuracies: dict[str, dict[str, float]] = {}
    for entry in sweep.entries:
        if entry.status == "done" and entry.id_accuracy is not None and entry.recipe:
            rest = {name: value for name, value in entry.recipe.items() if name not in ("init", "start")}
            configuration = json.dumps(rest, sort_keys=True)
            accuracies.setdefault(str(entry.recipe["init"]), {})[configuration] = entry.id_accuracy
    if not accuracies:
        raise InputError(
            f"the zoo {sweep.name!r} does not have a trained model with a recipe; train the sweep first"
        )
    short = {
        init: {configuration: max(found.values()) - value for configuration, value in found.items()}
        for init, found in accuracies.items()
    }
    every = list(dict.fromkeys(configuration for found in accuracies.values() for configuration in found))
    if size is not None and not 1 <= size <= len(every):
        raise InputError(f"size is {size}, but the sweep has {len(every)} configurations")

    def mean_shortfall(configuration: str) -> float:
        values = [found[configuration] for found in short.values() if configuration in found]
        return sum(values) / len(values)

    kept: list[str] = []
    unserved = set(short)
    while unserved:
        serves = {
            configuration: {i for i in unserved if short[i].get(configuration, 1.0) <= tolerance}
            for configuration in every
        }
        chosen = min(every, key=lambda each: (-len(serves[each]), mean_shortfall(each)))
        kept.append(chosen)
        unserved -= serves[chosen]
    if size is not None and size < len(kept):
        raise InputError(
            f"{len(kept)} configurations are needed so that each of {len(short)} initialisations has one "
            f"within {tolerance:g}, but size is {size}; raise size or tolerance"
        )
    others = sorted((each for each in every if each not in kept), key=mean_shortfall)
    kept += others[: (size or len(kept)) - len(kept)]
    return Selection(
        configurations=tuple(json.loads(each) for each in kept),
        shortfall={init: min(found[each] for each in kept if each in found) for init, found in short.items()},
        tolerance=float(tolerance),
        sweep=sweep.name,
        domain=sweep.id_domain,
    )

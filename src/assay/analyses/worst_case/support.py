"""Every distinct prompt of a grammar with its probability."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from assay.core.errors import InputError
from assay.tasks import Grammar, Prompt


@dataclass(frozen=True, kw_only=True)
class Enumeration:
    """Distinct prompts and their probabilities.

    Attributes:
        clean: Distinct clean prompts, or the clean prompts of distinct pairs.
        corrupted: The corrupted ones; of pairs, in the same order.
        clean_weights: Probability of each clean prompt, or of each pair; they sum to 1.
        corrupted_weights: Probability of each corrupted prompt; of pairs, that of the pair.
    """

    clean: list[Prompt]
    corrupted: list[Prompt]
    clean_weights: Float64[np.ndarray, " n_clean"]
    corrupted_weights: Float64[np.ndarray, " n_corrupted"]


class _Tally:
    """Prompts by what the model reads, with their probabilities added up, in order of first occurrence."""

    def __init__(self) -> None:
        self._prompts: dict[Hashable, tuple[Prompt, ...]] = {}
        self._weights: dict[Hashable, float] = {}

    def add(self, weight: float, *prompts: Prompt) -> None:
        key = tuple((prompt.text, prompt.ids) for prompt in prompts)
        self._prompts.setdefault(key, prompts)
        self._weights[key] = self._weights.get(key, 0.0) + weight

    def side(self, place: int = 0) -> list[Prompt]:
        return [prompts[place] for prompts in self._prompts.values()]

    @property
    def weights(self) -> Float64[np.ndarray, " n"]:
        return np.array(list(self._weights.values()))

    def __len__(self) -> int:
        return len(self._prompts)


def distinct_product(grammar: Grammar, max_pairs: int) -> Enumeration:
    """Every distinct clean and every distinct corrupted prompt, for crossing.

    Raises:
        InputError: If their product exceeds `max_pairs`, or the grammar does not enumerate its prompts.
    """
    counts = (grammar.population, grammar.corrupted_population)
    if counts[0] is not None and counts[0] * (counts[1] or 1) > max_pairs:
        raise _too_many(grammar, max_pairs)
    clean, corrupted = _Tally(), _Tally()
    for values, weight in grammar.support():
        clean.add(weight, grammar.render(values))
        if len(clean) > max_pairs:
            raise _too_many(grammar, max_pairs)
    for values, weight in grammar.support():
        for changed, share in grammar.corrupted_support(values):
            corrupted.add(weight * share, grammar.render(changed))
            if len(clean) * len(corrupted) > max_pairs:
                raise _too_many(grammar, max_pairs, n_clean=len(clean))
    return Enumeration(
        clean=clean.side(),
        corrupted=corrupted.side(),
        clean_weights=clean.weights,
        corrupted_weights=corrupted.weights,
    )


def distinct_matched(grammar: Grammar, max_pairs: int) -> Enumeration:
    """Every distinct pair of a clean prompt and one of its corruptions.

    Raises:
        InputError: If there are more than `max_pairs`, or the grammar does not enumerate its prompts.
    """
    if grammar.population is not None and grammar.population > max_pairs:
        raise _too_many(grammar, max_pairs)
    tally = _Tally()
    for clean, corrupted, weight in _matched(grammar):
        tally.add(weight, clean, corrupted)
        if len(tally) > max_pairs:
            raise _too_many(grammar, max_pairs)
    return Enumeration(
        clean=tally.side(0),
        corrupted=tally.side(1),
        clean_weights=tally.weights,
        corrupted_weights=tally.weights,
    )


def _matched(grammar: Grammar) -> Iterator[tuple[Prompt, Prompt, float]]:
    for values, weight in grammar.support():
        clean = grammar.render(values)
        for changed, share in grammar.corrupted_support(values):
            yield clean, grammar.render(changed), weight * share


def _too_many(grammar: Grammar, max_pairs: int, *, n_clean: int | None = None) -> InputError:
    """The error of a population that is too large, with the counts that are known."""
    population = n_clean if grammar.population is None else grammar.population
    first = f"more than {max_pairs:,}" if population is None else f"{population:,}"
    second = grammar.corrupted_population
    other = "" if second is None else f" and {second:,} distinct corrupted prompts"
    return InputError(
        f"{grammar.key} has {first} distinct clean{' prompts' if second is None else ''}{other}, which make "
        f"more than max_pairs = {max_pairs:,} pairs; raise max_pairs, restrict the word lists, or sample "
        "instead of enumerating"
    )

"""Climbing over a grammar: one slot of one prompt at a time, always to the filler that diverges most."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Float64

from assay.core.errors import InputError, NonFiniteError, ShapeError, check_least, check_name
from assay.core.random import stream
from assay.core.record import HIDDEN, Record
from assay.tasks import Grammar, Prompt


Pair = tuple[Prompt, Prompt]  # clean, corrupted
EvaluatePrompts = Callable[[Sequence[Prompt], Sequence[Prompt]], Float[np.ndarray, " pairs"]]
RankFillers = Callable[[Pair, str, Sequence[Prompt]], Float[np.ndarray, " fillers"]]

SIDES = ("clean", "corrupted")
SECONDS = ("corrupted", "clean", "same")  # what the second prompt of a pair is
LARGE_SLOT = 128  # more fillers than this are ranked beforehand
TRIED = 16  # of which so many are evaluated
DRAWS = 100  # attempts to draw two prompts of one length


@dataclass(frozen=True, kw_only=True)
class Ascent(Record):
    """One climb.

    Attributes:
        clean: Clean prompt at its end.
        corrupted: Corrupted prompt at its end.
        value: Divergence there.
        start: Divergence of the random pair it began with.
        sweeps: Passes over the slots, the last of which changed nothing unless the climb was cut short.
        finished: Whether no single slot leads further up, as far as its fillers were evaluated.
    """

    clean: Prompt = field(metadata=HIDDEN)
    corrupted: Prompt = field(metadata=HIDDEN)
    value: float
    start: float
    sweeps: int
    finished: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Climbs:
    """Several climbs with everything they evaluated.

    Attributes:
        ascents: In the order of their restarts.
        pairs: Every pair evaluated, once, in order of evaluation.
        values: Their divergences.
    """

    ascents: tuple[Ascent, ...]
    pairs: tuple[Pair, ...]
    values: Float64[np.ndarray, " n_evaluations"]

    @property
    def n_evaluations(self) -> int:
        """Pairs evaluated."""
        return len(self.pairs)


def grammar_ascent(
    evaluate_prompts: EvaluatePrompts,
    grammar: Grammar,
    *,
    restarts: int = 16,
    budget: int | None = None,
    seed: int = 0,
    rank_fillers: RankFillers | None = None,
    large: int = LARGE_SLOT,
    tried: int = TRIED,
    second: str = "corrupted",
) -> Climbs:
    """Look for pairs of large divergence among all that a grammar can produce, by coordinate ascent.

    From a random pair: take every slot of either prompt in random order, evaluate all its fillers in one
    batch, keep the best; stop when a sweep over the slots changes nothing. Every prompt on the way is one
    that the grammar can draw, on its own side.

    Args:
        evaluate_prompts: `(clean prompts, corrupted prompts) -> [pairs]`, row by row.
        grammar: What the prompts are drawn from; it must describe its slots.
        restarts: Random pairs to begin with.
        budget: Most evaluations over all restarts, shared out among those still to come. Default: no limit.
        seed: Root seed; restart r draws from the stream `ascent:r`.
        rank_fillers: `(pair, side, variants of that side) -> [variants]`, larger is more promising: which
            fillers of a large slot are evaluated. Default: a random choice.
        large: Most fillers of a slot that are all evaluated.
        tried: Fillers evaluated of a larger one.
        second: What the second prompt of a pair is: `corrupted`; another `clean` one; or the `same`, of which
            then only the slots of the clean prompt are varied.

    Returns:
        The climbs and every value met.

    Raises:
        InputError: If a count is below 1, the grammar describes no slots, or its prompts agree in no length.
        UnknownNameError: If `second` is another word.
        NonFiniteError: If a divergence is NaN or infinite.

    Notes:
        A pair met again costs nothing. Of equal fillers the first is kept, and only a larger divergence leads
        on, so climbs end.
    """
    check_name("second prompt of a pair", second, SECONDS)
    check_least(1, restarts=restarts, large=large, tried=tried)
    check_least(restarts, budget=restarts if budget is None else budget)
    evaluated = _Evaluated(evaluate_prompts)
    climbs = []
    for restart in range(restarts):
        if budget is not None:
            evaluated.limit = evaluated.n + (budget - evaluated.n) // (restarts - restart)
        draws = stream(seed, f"ascent:{restart}")
        climb = _Climb(grammar, evaluated, draws, rank_fillers, large, tried, second)
        climbs.append(climb.run())
    return Climbs(
        ascents=tuple(climbs),
        pairs=tuple(evaluated.pairs.values()),
        values=np.array(list(evaluated.values.values())),
    )


def prompt_key(prompt: Prompt) -> tuple[str, tuple[int, ...] | None]:
    """What a model sees of a prompt."""
    return prompt.text, prompt.ids


def n_tokens(prompt: Prompt, grammar: Grammar) -> int:
    """Tokens of a prompt, a beginning-of-sequence token not counted."""
    return len(grammar.tokens.ids(prompt.text) if prompt.ids is None else prompt.ids)


@dataclass
class _Evaluated:
    """Values of pairs, each evaluated once, until a limit is reached."""

    evaluate: EvaluatePrompts
    limit: int | None = None
    pairs: dict[object, Pair] = field(default_factory=dict)
    values: dict[object, float] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def exhausted(self) -> bool:
        return self.limit is not None and self.n >= self.limit

    def of(self, pairs: Sequence[Pair]) -> Float64[np.ndarray, " pairs"]:
        """Divergences; -infinity for pairs beyond the limit."""
        keys = [tuple(map(prompt_key, pair)) for pair in pairs]
        new = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self.values}
        if self.limit is not None:
            new = dict(list(new.items())[: max(0, self.limit - self.n)])
        if new:
            clean, corrupted = zip(*new.values(), strict=True)
            values = np.asarray(self.evaluate(clean, corrupted), dtype=np.float64)
            if values.shape != (len(new),):
                raise ShapeError(f"the evaluation of {len(new)} pairs returned shape {values.shape}")
            for (key, pair), value in zip(new.items(), values.tolist(), strict=True):
                if not np.isfinite(value):
                    raise NonFiniteError(
                        f"the divergence of clean {pair[0]} and corrupted {pair[1]} is {value}"
                    )
                self.pairs[key], self.values[key] = pair, value
        return np.array([self.values.get(key, -np.inf) for key in keys])


@dataclass
class _Climb:
    """One restart on its way up."""

    grammar: Grammar
    known: _Evaluated
    draws: np.random.Generator
    rank_fillers: RankFillers | None
    large: int
    tried: int
    second: str

    @property
    def sides(self) -> tuple[str, ...]:
        """Sides whose slots are varied."""
        return SIDES[:1] if self.second == "same" else SIDES

    def run(self) -> Ascent:
        pair = self.random_pair()
        value = start = float(self.known.of([pair])[0])
        sweeps, moved = 0, True
        while moved and not self.known.exhausted:
            moved, sweeps = False, sweeps + 1
            for side, slot in self.shuffled_slots(pair):
                options = self.options(pair, side, slot)
                if not options:
                    continue
                found = self.known.of(options)
                best = int(found.argmax())
                if found[best] > value:
                    pair, value, moved = options[best], float(found[best]), True
        clean, corrupted = pair
        return Ascent(
            clean=clean, corrupted=corrupted, value=value, start=start, sweeps=sweeps, finished=not moved
        )

    def random_pair(self) -> Pair:
        """Two independent prompts of one length, or one that stands on both sides."""
        grammar, draws = self.grammar, self.draws
        lengths = set()
        for _ in range(DRAWS):
            clean, other = grammar.draw(2, draws)
            if self.second == "corrupted":
                other = grammar.corrupt([other], draws)[0]
            pair = (clean, clean if self.second == "same" else other)
            if not any(self.slots(pair, side) for side in self.sides):
                raise InputError(f"the grammar of {grammar.key} has no slots to vary")
            lengths_of_pair = [n_tokens(prompt, grammar) for prompt in pair]
            if lengths_of_pair[0] == lengths_of_pair[1]:
                return pair
            lengths.update(lengths_of_pair)
        raise InputError(
            f"{DRAWS} draws of {grammar.key} gave no clean and corrupted prompt of equal length (token "
            f"counts {', '.join(map(str, sorted(lengths)))}); choose one template"
        )

    def slots(self, pair: Pair, side: str) -> tuple[str, ...]:
        values = dict(pair[SIDES.index(side)].values)
        return self.grammar.slots(values, corrupted=self.corrupts(side))

    def corrupts(self, side: str) -> bool:
        """Whether prompts of a side obey the rules of corrupted ones."""
        return side == "corrupted" and self.second == "corrupted"

    def shuffled_slots(self, pair: Pair) -> list[tuple[str, str]]:
        named = [(side, slot) for side in self.sides for slot in self.slots(pair, side)]
        return [named[i] for i in self.draws.permutation(len(named))]

    def options(self, pair: Pair, side: str, slot: str) -> list[Pair]:
        """The pairs with another filler in one slot; of a large slot the most promising ones."""
        if slot not in self.slots(pair, side):  # two names that were apart now stand together
            return []
        at = SIDES.index(side)
        values = dict(pair[at].values)
        found = [
            self.grammar.render(each)
            for each in self.grammar.variants(values, slot, corrupted=self.corrupts(side))
        ]
        if len(found) > self.large:
            if self.rank_fillers is None:
                chosen = self.draws.choice(len(found), size=self.tried, replace=False)
            else:
                promise = self.rank_fillers(pair, side, found)
                chosen = np.argsort(-promise, kind="stable")[: self.tried]
            found = [found[int(i)] for i in np.sort(chosen)]
        if self.second == "same":
            return [(each, each) for each in found]
        return [(each, pair[1]) if side == "clean" else (pair[0], each) for each in found]

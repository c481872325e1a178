"""How often the gates err in worlds whose truth is known.

The first draws of what `make gate-rates` counts: 60 of two worlds of each gate, and 240 at each of its
limits, dealt to the distributions. ASSAY_THOROUGH=1 takes 400 of all worlds and of each distribution. At a
limit a gate with 5 % of wrong verdicts fails in fewer than one count of a thousand, one with 15 % in 98 of
a hundred. In a world `allowed_errors` is what a gate with the stated rate exceeds in one count of a hundred;
a share that an independent simulation of 200 draws found may differ by what chance explains in all but one
comparison of a thousand.
"""

import json
import os
from collections import Counter
from pathlib import Path

import at_limits
import numpy as np
import pytest
from limits import CELLS, Cell
from planted import allowed_errors
from scipy import stats
from worlds import WORLDS, World

from assay.analyses.calibration.gate import GATES
from assay.core.measurement import Verdict
from assay.core.random import stream


# The gates have tests of their own with the checks of types; here they run hundreds of times.
pytestmark = pytest.mark.usefixtures("unchecked")

COMMITTED = json.loads((Path(at_limits.__file__).parent / "results.json").read_text())
SEED = at_limits.SEED
THOROUGH = bool(os.environ.get("ASSAY_THOROUGH"))
REPETITIONS = 400 if THOROUGH else 60
AT_A_LIMIT = 240  # draws of all distributions together
REFERENCE = 200
LIMITS = ("limit", "none", "not-pass", "not-fail")
RECOUNTED = ("M98", "S1")  # gates of which one committed cell is counted again in every run


def judged(world: World) -> list[Verdict]:
    return [world.judge(stream(SEED, f"{world.key} {at}")) for at in range(REPETITIONS)]


def expected(share: float) -> tuple[int, int]:
    """Counts that agree with a share seen in the reference simulation."""
    seen = stats.betabinom(REPETITIONS, REFERENCE * share + 1, REFERENCE * (1 - share) + 1)
    return int(seen.ppf(0.0005)), int(seen.ppf(0.9995))


def usual_worlds() -> list[World]:
    """The first world of each gate in which it must pass, and the first in which it must not."""
    chosen: dict[tuple[str, bool], World] = {}
    for world in WORLDS:
        chosen.setdefault((world.gate, world.truth == "pass"), world)
    return list(chosen.values())


@pytest.mark.parametrize("world", WORLDS if THOROUGH else usual_worlds(), ids=lambda world: world.key)
def test_errors_are_rare_and_shares_are_those_of_the_reference(world: World) -> None:
    found = judged(world)
    status = Counter(each.status for each in found)
    published = Counter(each.published for each in found)
    for kind in world.errors:
        assert status[kind] <= allowed_errors(REPETITIONS, world.error_rate), (kind, status)
    for name, share in world.reference.items():
        if name in world.measures:
            mean = np.mean([world.measures[name](each) for each in found])
            low, high = expected(share)
            assert low - 0.5 <= REPETITIONS * mean <= high + 0.5, name
            continue
        count = published[name.removeprefix("published_")] if name.startswith("published_") else status[name]
        low, high = expected(share)
        if name == world.truth:  # more often right than the reference is not a fault
            assert count >= low, (name, status)
        elif name in world.errors:
            assert count <= max(high, allowed_errors(REPETITIONS)), (name, status)
        else:
            assert low <= count <= high, (name, published)


def at_limits_of_gates() -> list[list[Cell]]:
    """Promised cells at one limit of a gate or part, of each distribution the one that was wrong most often.

    Among those of at most 100 prompts, heads or claims, in the committed counts; a bound that is cautious
    there would hide that its level is wrong.
    """
    counted = {at_limits.key_of(each): at_limits.share_of(each) for each in COMMITTED["limits"]}
    limits: dict[tuple[str, str, str], dict[str, Cell]] = {}
    for cell in CELLS:
        if cell.promised and cell.truth in LIMITS:
            found = limits.setdefault((cell.gate, cell.part, cell.truth), {})
            before = found.setdefault(cell.shape, cell)
            if (cell.n <= 100 and counted[cell.key] > counted[before.key]) or before.n > 100 > cell.n:
                found[cell.shape] = cell
    return [list(each.values()) for each in limits.values()]


@pytest.mark.parametrize(
    "cells", at_limits_of_gates(), ids=lambda cells: f"{cells[0].gate} {cells[0].part} {cells[0].truth}"
)
def test_at_its_limit_a_gate_is_wrong_as_rarely_as_it_promises(cells: list[Cell]) -> None:
    draws = 400 if THOROUGH else AT_A_LIMIT // len(cells)
    status = Counter(
        cell.judge(stream(SEED, f"{cell.key} {at}")).status for cell in cells for at in range(draws)
    )
    for kind in cells[0].errors:
        assert status[kind] <= stats.binom.ppf(0.999, draws * len(cells), 0.05), (kind, status)


def test_every_gate_has_worlds_of_either_kind_and_cells_at_its_limits() -> None:
    for code in [each.code for each in GATES.values()] + ["D05"]:
        truths = {world.truth for world in WORLDS if world.gate == code}
        assert "pass" in truths
        assert truths & {"fail", "null"}, code
        cells = {cell.truth for cell in CELLS if cell.gate == code and cell.promised}
        assert cells & {"limit", "not-pass", "none"}, code
    assert len({each.key for each in (*WORLDS, *CELLS)}) == len(WORLDS) + len(CELLS)


def test_the_committed_counts_are_of_these_worlds_and_of_this_code() -> None:
    found = COMMITTED
    assert [f"{each['gate']} {each['world']}" for each in found["worlds"]] == [world.key for world in WORLDS]
    assert [at_limits.key_of(each) for each in found["limits"]] == [cell.key for cell in CELLS]
    assert at_limits.beyond(found["limits"]) == []
    counted = {at_limits.key_of(each): each for each in found["limits"]}
    recount = [cells[0] for cells in at_limits_of_gates() if cells[0].gate in RECOUNTED or THOROUGH]
    for cell in recount:
        assert at_limits.tally_cell(CELLS.index(cell)) == counted[cell.key], cell.key

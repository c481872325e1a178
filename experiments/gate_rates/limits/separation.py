"""C14: distances of the circuit's heads from the others, rates of predicted sets, forwarded ratios.

Verdicts on heads draw the heads anew, both sides of one shape; those on prompts draw the prompts.
"""

from collections.abc import Iterator
from math import log, sqrt

import numpy as np
from scipy import special

from assay.analyses.calibration.samples import ratio_estimate
from assay.analyses.calibration.sensitivity import derived_metrics
from assay.core.measurement import Verdict
from limits.cells import PROMISED, Cell, Judge, draw, seed_of


N_BOOT = 399
MARGIN, SPREAD = 3.0, 0.5  # of the model's margins
SIDES = ((5, 139), (15, 129), (15, 15), (50, 450), (250, 750))  # heads of the circuit, others
# Shift of t5 scores at which a member outranks another head with that probability, solved by quadrature.
T5_SHIFT = {0.7: 0.6568, 0.85: 1.3357}


def distance(shape: str, sides: tuple[int, int], d_prime: float, row: str = "d_prime") -> Judge:
    """Scores of unit variance, the circuit's heads `d_prime` higher."""

    def judge(rng: np.random.Generator) -> Verdict:
        members = np.arange(sum(sides)) < sides[0]
        scores = draw(shape, rng, sum(sides)) + d_prime * members
        given = {"llc": -scores} if row == "llc_d_prime" else {"scores": scores}
        return derived_metrics(members, **given, n_boot=N_BOOT, seed=seed_of(rng)).sub_results[row]

    return judge


def shift_of(shape: str, area: float) -> float:
    """Shift at which a member outranks another head with probability `area`."""
    if shape == "normal":
        return sqrt(2) * float(special.ndtri(area))
    return T5_SHIFT[area] if shape == "t5" else -log(2 * (1 - area))


def area(shape: str, sides: tuple[int, int], value: float) -> Judge:
    def judge(rng: np.random.Generator) -> Verdict:
        members = np.arange(sum(sides)) < sides[0]
        scores = draw(shape, rng, sum(sides)) + shift_of(shape, value) * members
        found = derived_metrics(members, attribution=scores, n_boot=N_BOOT, seed=seed_of(rng))
        return found.sub_results["attribution_auroc"]

    return judge


def rate(name: str, n: int, value: float) -> Judge:
    """Each head is predicted with that probability; both sides have n heads."""

    def judge(rng: np.random.Generator) -> Verdict:
        members = np.arange(2 * n) < n
        predicted = rng.random(2 * n) < value
        return derived_metrics(members, predicted=predicted, seed=seed_of(rng)).sub_results[name]

    return judge


def whole(sides: tuple[int, int]) -> Judge:
    """D', hits and false alarms, each at its threshold."""

    def judge(rng: np.random.Generator) -> Verdict:
        members = np.arange(sum(sides)) < sides[0]
        predicted = rng.random(sum(sides)) < np.where(members, 0.9, 0.2)
        scores = rng.normal(size=sum(sides)) + members
        return derived_metrics(members, scores, predicted=predicted, n_boot=N_BOOT, seed=seed_of(rng))

    return judge


def ratio(name: str, shape: str, n: int, value: float, spread: float = 0.3) -> Judge:
    """Runs whose faithfulness, or completeness, varies over prompts around a value."""

    def judge(rng: np.random.Generator) -> Verdict:
        full = rng.normal(MARGIN, SPREAD, n)
        kept = value if name != "completeness" else 1 - value
        circuit = kept * full + spread * MARGIN * draw(shape, rng, n)
        inner = "completeness" if name == "completeness" else "faithfulness"
        given = {name: ratio_estimate(circuit, full, inner, seed=seed_of(rng))}
        members = np.arange(4) < 2
        return derived_metrics(members, **given, n_prompts=n).sub_results[name]

    return judge


def composition(shape: str, n_edges: int) -> Judge:
    """Two layers of sixteen heads; the circuit's edges compose like the others."""

    def judge(rng: np.random.Generator) -> Verdict:
        table = np.full((32, 32), np.nan)
        table[:16, 16:] = 1 + 0.1 * draw(shape, rng, 16, 16)
        chosen = rng.choice(256, n_edges, replace=False)
        edges = [(0, int(at) // 16, 1, int(at) % 16) for at in chosen]
        members = np.arange(32) < 8
        found = derived_metrics(members, composition={"v": table}, head_edges=edges, n_heads=16)
        return found.sub_results["ov_composition_pval"]

    return judge


def _cells() -> Iterator[Cell]:
    for at, sides in enumerate(SIDES):
        for shape in PROMISED if sum(sides) < 200 else PROMISED[at % 2 :: 2]:
            yield Cell(
                gate="C14",
                part="d_prime",
                world=f"d' 1, the limit, {sides[0]} heads and {sides[1]} others",
                shape=shape,
                n=sum(sides),
                truth="limit",
                judge=distance(shape, sides, 1.0),
            )
    for shape, sides, row, value, truth in (
        ("t5", (15, 129), "llc_d_prime", 1.0, "limit"),
        ("mirrored exponential", (15, 129), "d_prime", 0.9, "fail"),
        ("normal", (15, 129), "d_prime", 1.1, "pass"),
    ):
        where = "the limit" if truth == "limit" else "a little off the limit"
        yield Cell(
            gate="C14",
            part=row,
            world=f"d' {value}, {where}, {sides[0]} heads and {sides[1]} others",
            shape=shape,
            n=sum(sides),
            truth=truth,
            judge=distance(shape, sides, value),
        )
    for value, truth in ((0.85, "not-pass"), (0.7, "not-fail")):
        for at, sides in enumerate(SIDES):
            for shape in PROMISED[:2] if at < 2 else (PROMISED[(at + 1) % 4],):
                yield Cell(
                    gate="C14",
                    part="attribution_auroc",
                    world=f"area {value}, a limit, {sides[0]} heads and {sides[1]} others",
                    shape=shape,
                    n=sum(sides),
                    truth=truth,
                    judge=area(shape, sides, value),
                )
    for name, value in (("hit_rate", 0.9), ("false_alarm_rate", 0.2)):
        for n in (5, 40, 200, 1000):
            yield Cell(
                gate="C14",
                part=name,
                world=f"{name.replace('_', ' ')} {value}, the limit",
                shape="two-valued",
                n=n,
                truth="limit",
                judge=rate(name, n, value),
            )
    for sides in ((15, 129), (250, 750)):
        yield Cell(
            gate="C14",
            world=f"all three parts at their limits, {sides[0]} heads and {sides[1]} others",
            shape="normal",
            n=sum(sides),
            truth="limit",
            judge=whole(sides),
        )
    for name, value in (("faithfulness", 0.8), ("completeness", 0.8), ("logit_diff_recovery", 0.5)):
        for shape, n in (
            ("normal", 20),
            ("exponential", 20),
            ("mirrored exponential", 20),
            ("t5", 100),
            ("exponential", 1000),
        ):
            yield Cell(
                gate="C14",
                part=name,
                world=f"{name.replace('_', ' ')} {value}, the limit",
                shape=shape,
                n=n,
                truth="limit",
                judge=ratio(name, shape, n, value),
            )
    for shape, n_edges in (("normal", 4), ("exponential", 8), ("mirrored exponential", 8), ("t5", 30)):
        yield Cell(
            gate="C14",
            part="ov_composition_pval",
            world="edges compose like other pairs",
            shape=shape,
            n=n_edges,
            truth="none",
            judge=composition(shape, n_edges),
        )
    for part, judge in (
        ("d_prime", distance("5 % outliers", (15, 129), 1.0)),
        ("faithfulness", ratio("faithfulness", "5 % outliers", 40, 0.8)),
    ):
        yield Cell(
            gate="C14",
            part=part,
            world="the limit",
            shape="5 % outliers",
            n=144 if part == "d_prime" else 40,
            truth="limit",
            judge=judge,
            promised=False,
        )


CELLS = tuple(_cells())

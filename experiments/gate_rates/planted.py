"""Synthetic tables with a known truth, to count how often a gate is wrong.

Each generator says what it plants: a spread, a correlation, an effect. `worlds` sets a gate
beside each and says what its verdict must be.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy import stats

from assay.analyses.calibration import PooledResult
from assay.circuits import HeadCircuit
from assay.circuits.heads import Role
from assay.core.errors import InputError


MARGIN = 3.0  # mean logit difference of the full model
SPREAD = 0.5
ROLE_LAYERS = (0.0, 2.0, 5.0, 7.5, 9.5, 10.0)  # mean layer of six roles, at pathway depths 0, 0, 1, 2, 3, 3
PATHWAYS = (("r0", "r2"), ("r1", "r2"), ("r2", "r3"), ("r3", "r4"), ("r3", "r5"))
N_LAYERS = 12


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Runs of a model and of a circuit on the same prompts.

    Attributes:
        y_full: `[n]` logit difference of the full model.
        y_circuit: `[n]` of the circuit alone.
        groups: `[n]` group of each prompt; zeros where there is one.
    """

    y_full: Float64[np.ndarray, " n"]
    y_circuit: Float64[np.ndarray, " n"]
    groups: Int64[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True)
class ScoredHeads:
    """Scores of heads, and which of them are the circuit.

    Attributes:
        scores: `[H]`, or `[P, H]` per prompt.
        members: `[H]`.
    """

    scores: Float64[np.ndarray, "*P H"]
    members: Bool[np.ndarray, " H"]


@dataclass(frozen=True, kw_only=True)
class TaskEffects:
    """Effects of all heads on several tasks, and a circuit for each.

    Attributes:
        effects: Task -> `[P, H]`.
        circuits: Task -> `[H]`.
    """

    effects: dict[str, Float64[np.ndarray, "P H"]]
    circuits: dict[str, Bool[np.ndarray, " H"]]


@dataclass(frozen=True, kw_only=True)
class PairedRuns:
    """The full model, a circuit and a baseline set on the same prompts, `[P]` each."""

    y_full: Float64[np.ndarray, " P"]
    y_keep: Float64[np.ndarray, " P"]
    y_baseline: Float64[np.ndarray, " P"]


def allowed_errors(repetitions: int, failure: float = 0.05) -> int:
    """Errors that a gate wrong with probability `failure` exceeds in one of a hundred counts.

    Example:
        >>> allowed_errors(200), allowed_errors(60)
        (18, 7)
    """
    return int(stats.binom.ppf(0.99, repetitions, failure))


def runs(
    rng: np.random.Generator,
    n: int,
    *,
    sd: float,
    faithfulness: float = 0.8,
    shifts: tuple[float, ...] = (0.0,),
) -> Runs:
    """A circuit whose per-prompt faithfulness is normal around one value per group.

    Args:
        rng: Source of the draws.
        n: Prompts, dealt to the groups in turn.
        sd: Of the per-prompt faithfulness; the standard error of the whole is sd / root n.
        faithfulness: Mean over the groups if the shifts sum to 0.
        shifts: Of each group.
    """
    y_full = rng.normal(MARGIN, SPREAD, n)
    groups = np.arange(n) % len(shifts)
    values = faithfulness + np.array(shifts)[groups] + rng.normal(0.0, sd, n)
    return Runs(y_full=y_full, y_circuit=values * MARGIN + faithfulness * (y_full - MARGIN), groups=groups)


def methods(
    rng: np.random.Generator,
    n: int,
    *,
    sd: float,
    shifts: tuple[float, ...],
    names: tuple[str, ...] = ("zero", "mean", "resample"),
    faithfulness: float = 0.8,
) -> tuple[Float64[np.ndarray, " n"], dict[str, Float64[np.ndarray, " n"]]]:
    """A circuit under several ablations, with independent errors.

    Args:
        rng: Source of the draws.
        n: Prompts.
        sd: Of the per-prompt faithfulness under each method.
        shifts: Of each method's faithfulness.
        names: Of the methods.
        faithfulness: Before shifts.

    Returns:
        Logit differences of the full model, and of the circuit by method.
    """
    if len(shifts) != len(names):
        raise InputError(f"{len(shifts)} shifts for {len(names)} methods; one each is needed")
    y_full = rng.normal(MARGIN, SPREAD, n)
    return y_full, {
        name: faithfulness * y_full + MARGIN * (shift + rng.normal(0.0, sd, n))
        for name, shift in zip(names, shifts, strict=True)
    }


def profile(
    rng: np.random.Generator, n: int, n_heads: int, *, reliability: float
) -> Float64[np.ndarray, "n n_heads"]:
    """Head effects whose profile over `n` prompts has a given reliability.

    Heads differ with variance 1; noise of variance n (1 - reliability) / reliability makes ICC(3,n) what was
    asked for.
    """
    noise = math.sqrt(n * (1 - reliability) / reliability)
    return rng.normal(0.0, 1.0, n_heads) + rng.normal(0.0, noise, (n, n_heads))


def items(
    rng: np.random.Generator, n: int, n_items: int, *, alpha: float
) -> Float64[np.ndarray, "n n_items"]:
    """Effects of heads that share one factor over prompts, with a given alpha in expectation."""
    r = alpha / (n_items - (n_items - 1) * alpha)
    factor = rng.normal(0.0, 1.0, (n, 1))
    return math.sqrt(r) * factor + math.sqrt(1 - r) * rng.normal(0.0, 1.0, (n, n_items))


def head_effects(
    rng: np.random.Generator, n: int, means: tuple[float, ...], *, sd: float = 1.0
) -> Float64[np.ndarray, "n n_heads"]:
    """Effects of heads with given means, independent over prompts."""
    return np.array(means) + rng.normal(0.0, sd, (n, len(means)))


def raters(
    rng: np.random.Generator,
    n_methods: int,
    n_heads: int,
    *,
    rho: float,
    n_prompts: int | None = None,
    noise: float = 1.0,
) -> dict[str, Float64[np.ndarray, "*P H"]]:
    """Methods that score heads by a common normal factor and one of their own.

    Args:
        rng: Source of the draws.
        n_methods: Methods.
        n_heads: Heads.
        rho: Rank correlation of each pair in the population, in [0, 1].
        n_prompts: Scores `[P, H]` per prompt; None: `[H]`.
        noise: Standard deviation over prompts, that of the heads being 1.
    """
    r = 2 * math.sin(math.pi * rho / 6)  # Pearson's of normal pairs with that rank correlation
    scores = math.sqrt(r) * rng.normal(size=n_heads) + math.sqrt(1 - r) * rng.normal(
        size=(n_methods, n_heads)
    )
    if n_prompts is None:
        return {f"method{i}": row for i, row in enumerate(scores)}
    return {f"method{i}": row + noise * rng.normal(size=(n_prompts, n_heads)) for i, row in enumerate(scores)}


def shifted_heads(
    rng: np.random.Generator, *, d_prime: float, k: int = 15, n_heads: int = 144
) -> ScoredHeads:
    """Normal scores of unit spread; the first k heads are the circuit and lie `d_prime` higher."""
    members = np.arange(n_heads) < k
    return ScoredHeads(scores=rng.normal(size=n_heads) + d_prime * members, members=members)


def task_effects(
    rng: np.random.Generator,
    *,
    own: float,
    other: float,
    n_tasks: int = 4,
    k: int = 4,
    n_prompts: int = 40,
    noise: float = 0.05,
) -> TaskEffects:
    """Disjoint circuits whose heads have one effect on their own task and another on all others.

    Args:
        rng: Source of the draws.
        own: Mean effect on the own task.
        other: Mean effect on the other tasks.
        n_tasks: Tasks.
        k: Heads per circuit; as many further heads belong to none.
        n_prompts: Per task.
        noise: Standard deviation per prompt and head.
    """
    names = [f"task{i}" for i in range(n_tasks)]
    home = np.arange((n_tasks + 1) * k) // k
    effects = {}
    for i, name in enumerate(names):
        mean = np.where(home == i, own, np.where(home < n_tasks, other, 0.0))
        effects[name] = mean + noise * rng.normal(size=(n_prompts, len(home)))
    return TaskEffects(effects=effects, circuits={name: home == i for i, name in enumerate(names)})


def role_circuit(rng: np.random.Generator, *, ordered: bool, heads_per_role: int = 2) -> HeadCircuit:
    """Six roles along pathways; their heads lie near rising layers, or anywhere.

    Args:
        rng: Source of the draws.
        ordered: Layers `ROLE_LAYERS` plus normal noise of 0.6, to the nearest layer; else each uniform.
        heads_per_role: Heads of each role.
    """
    roles = {}
    for i, centre in enumerate(ROLE_LAYERS):
        near = np.clip(np.rint(centre + 0.6 * rng.normal(size=heads_per_role)), 0, N_LAYERS - 1)
        layers = near if ordered else rng.integers(0, N_LAYERS, heads_per_role)
        first = i * heads_per_role
        heads = tuple(sorted((int(layer), first + j) for j, layer in enumerate(layers)))
        roles[f"r{i}"] = Role(heads=heads, band=("early", "mid", "late")[i // 2])
    return HeadCircuit(
        id="planted",
        n_layers=N_LAYERS,
        n_heads=len(ROLE_LAYERS) * heads_per_role,
        heads=tuple(head for role in roles.values() for head in role.heads),
        roles=roles,
        pathways=PATHWAYS,
    )


def paired_runs(rng: np.random.Generator, *, delta: float, n: int = 40, sd: float = 0.3) -> PairedRuns:
    """A circuit more faithful than the baseline by `delta`; faithfulness per prompt varies by `sd`."""
    y_full = 3 + 0.5 * rng.normal(size=n)
    base, difference = 0.5 + sd * rng.normal(size=n), delta + sd * rng.normal(size=n)
    return PairedRuns(y_full=y_full, y_keep=(base + difference) * y_full, y_baseline=base * y_full)


def attributions(
    rng: np.random.Generator,
    *,
    ratio: float,
    n_prompts: int = 40,
    k: int = 15,
    n_heads: int = 144,
    size: float = 0.1,
    sd: float = 0.3,
) -> ScoredHeads:
    """Direct effects per prompt of either sign; the first k heads are the circuit and `ratio` times as large.

    Args:
        rng: Source of the draws.
        ratio: Mean magnitude inside over outside.
        n_prompts: Prompts.
        k: Heads of the circuit.
        n_heads: Heads.
        size: Mean magnitude outside.
        sd: Standard deviation over prompts.
    """
    members = np.arange(n_heads) < k
    mean = rng.choice([-1.0, 1.0], n_heads) * np.where(members, ratio * size, size)
    return ScoredHeads(scores=mean + sd * rng.normal(size=(n_prompts, n_heads)), members=members)


def pooled_results(rng: np.random.Generator, *, n_real: int, n_null: int) -> list[PooledResult]:
    """Results that claim whatever has p < 0.05: real effects with p ~ Beta(0.05, 8), and nulls."""
    p = np.concatenate([rng.beta(0.05, 8, n_real), rng.uniform(size=n_null)])
    return [
        PooledResult(name=f"result{i}", p=float(value), p_kind="permutation", passed=bool(value < 0.05))
        for i, value in enumerate(p)
    ]


def output_logits(
    rng: np.random.Generator, n: int, *, noise: float, d_vocab: int = 500, spread: float = 3.0
) -> tuple[Float64[np.ndarray, "n d_vocab"], Float64[np.ndarray, "n d_vocab"]]:
    """Normal logits of a model, and those of a circuit that differ by normal noise.

    Args:
        rng: Source of the draws.
        n: Prompts.
        noise: Standard deviation of the difference.
        d_vocab: Outputs.
        spread: Standard deviation of the model's logits.
    """
    full = spread * rng.normal(size=(n, d_vocab))
    return full, full + noise * rng.normal(size=(n, d_vocab))

"""Documents of calibrations for the report: all sixteen gates, run on planted arrays."""

import copy
import functools
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from planted import (
    attributions,
    methods,
    paired_runs,
    pooled_results,
    raters,
    role_circuit,
    runs,
    task_effects,
)

from assay.analyses.calibration import (
    GATES,
    PooledResult,
    ablation_invariance,
    bootstrap_stability,
    certified_stability,
    convergent_validity,
    derived_metrics,
    discriminant_validity,
    distributional_characterization,
    distributional_stability,
    incremental_validity,
    inter_rater,
    measurement_invariance,
    method_invariance,
    multiple_comparisons,
    nomological_validity,
    reliability_suite,
    seed_variance,
)
from assay.core.record import plain
from assay.core.verdict import Verdict
from assay.stats import Estimate


Document = dict[str, Any]
N_LAYERS, N_HEADS, K = 4, 8, 6


@dataclass(frozen=True, kw_only=True)
class World:
    """What is planted.

    Attributes:
        n: Prompts.
        sd: Spread of the per-prompt faithfulness.
        shifts: Of the faithfulness by template.
        gap: Between the ablations with the highest and lowest faithfulness.
        d_prime: Distance of the circuit's scores from those of other heads.
        rho: Rank correlation of methods that score heads.
        ordered: Whether roles lie along the depth.
        delta: Faithfulness gained over a baseline set.
    """

    n: int = 120
    sd: float = 0.3
    shifts: tuple[float, ...] = (0.0, 0.0, 0.0)
    gap: float = 0.0
    d_prime: float = 3.0
    rho: float = 0.9
    ordered: bool = True
    delta: float = 0.3


SOUND = World()
UNSOUND = World(
    n=40, sd=1.2, shifts=(-1.5, 0.0, 1.5), gap=1.2, d_prime=0.0, rho=0.1, ordered=False, delta=-0.3
)
MIXED = World(n=40, sd=0.55, shifts=(-0.15, 0.0, 0.15), gap=0.15, d_prime=1.2, rho=0.5, delta=0.05)


def synthetic_calibration(*, world: World = SOUND, bare: bool = False) -> Document:
    """A document like that of `calibrate_all`, yours to change; `bare`: of three prompts and one task."""
    return copy.deepcopy(_made(world, bare))


@functools.cache
def _made(world: World, bare: bool) -> Document:
    verdicts = _bare_verdicts() if bare else _verdicts(world)
    return calibration_document(verdicts, n=3 if bare else world.n)


def calibration_document(verdicts: dict[str, Verdict], *, n: int = 120) -> Document:
    """Verdicts by code, written down."""
    gates = [
        {
            **{
                name: getattr(gate, name)
                for name in (
                    "key",
                    "code",
                    "name",
                    "criterion",
                    "question",
                    "on_pass",
                    "on_fail",
                    "generalises_over",
                    "weakness",
                    "source",
                )
            },
            "task": "ioi",
            "verdict": gate.worded(verdicts[gate.code]).to_dict(),
            "seconds": 0.01,
        }
        for gate in GATES.values()
        if gate.code in verdicts
    ]
    return plain(
        {
            "schema": "assay-calibration/1",
            "kind": "calibration",
            "model": {
                "id": "mini",
                "family": "gpt2",
                "n_layers": N_LAYERS,
                "n_heads": N_HEADS,
                "weight_hash": "9b1f22c4d0a1b2c3",
            },
            "task": {"name": "ioi", "n": n, "data_hash": "77aa33bb9911cc00"},
            "circuit": {
                "hash": "a1b2c3d4e5f60718",
                "name": "planted",
                "kind": "heads",
                "k": K,
                "n_heads": N_LAYERS * N_HEADS,
                "n_edges": None,
            },
            "table": {
                "hash": "0011223344556677",
                "n_prompts": n,
                "n_pool": 3 * n,
                "passes": {"whole": 1200, "single_head": 3200, "last_token": 800, "equivalents": 2900.0},
                "columns": ["y_full", "y_keep/mean", "y_drop1"],
            },
            "against": ["greater-than"],
            "seed": 42,
            "gates": gates,
            "summary": {
                "status": dict(Counter(each["verdict"]["status"] for each in gates)),
                "published": dict(Counter(each["verdict"]["published"] for each in gates)),
            },
            "seconds": 1.4,
            "provenance": {"seed": 42, "library": "0.3.0"},
        }
    )


def _members(n_heads: int = N_LAYERS * N_HEADS) -> Bool[np.ndarray, " H"]:
    return np.arange(n_heads) < K


def _effects(rng: np.random.Generator, world: World) -> Float64[np.ndarray, "n H"]:
    """Effects of heads that share a factor over prompts; members have an effect where the world has one."""
    n_heads = N_LAYERS * N_HEADS
    mean = np.where(_members(), world.d_prime / 3, 0.0) * np.where(np.arange(n_heads) == 2, -0.2, 1.0)
    shared = rng.normal(0, world.d_prime / 3, (world.n, 1)) * _members()
    return mean + shared + rng.normal(0, 0.4, (world.n, n_heads))


def _ablated(
    rng: np.random.Generator, world: World, names: tuple[str, ...]
) -> tuple[Float64[np.ndarray, " n"], dict[str, Float64[np.ndarray, " n"]]]:
    return methods(rng, world.n, sd=world.sd, shifts=(world.gap / 2, 0.0, -world.gap / 2), names=names)


def _verdicts(world: World) -> dict[str, Verdict]:
    rng = np.random.default_rng(3)
    members = _members()
    made = runs(rng, world.n, sd=world.sd, shifts=world.shifts)
    pool = runs(rng, 3 * world.n, sd=world.sd, shifts=world.shifts)
    effects = _effects(rng, world)
    scores = effects.mean(axis=0)
    invariance = measurement_invariance(
        made.y_full, made.y_circuit, np.array([f"template {each}" for each in made.groups]), task="ioi"
    )
    full, ablated = _ablated(rng, world, ("zero", "mean", "resample-donor"))
    full_noise, noisy = _ablated(rng, world, ("zero", "mean", "noise-additive"))
    tasks = task_effects(rng, own=0.6, other=0.02 if world.d_prime else 0.5, n_tasks=3)
    compared = paired_runs(rng, delta=world.delta, n=world.n)
    direct = attributions(
        rng, ratio=8.0 if world.d_prime else 1.0, n_prompts=world.n, k=K, n_heads=N_LAYERS * N_HEADS, sd=0.05
    )
    rated = raters(rng, 3, N_LAYERS * N_HEADS, rho=world.rho, n_prompts=world.n, noise=1.0)
    return {
        "C11": bootstrap_stability(made.y_full, made.y_circuit, circuit_size=K, n_heads=32, task="ioi"),
        "C12": convergent_validity(
            dict(zip(("C2", "C5", "C10"), rated.values(), strict=True)), members=members, task="ioi"
        ),
        "C13": invariance,
        "C14": derived_metrics(
            members,
            scores,
            llc=rng.normal(1, 0.2, len(scores)) - 0.5 * members,
            attribution=np.abs(scores),
            predicted=scores > 0.3,
            published_size=8,
            spectral_norm=rng.lognormal(0, 0.2, len(scores)) * (1 + members),
            sv_entropy=rng.uniform(2, 3, len(scores)),
            composition={name: rng.lognormal(0, 0.3, (32, 32)) for name in "vqk"},
            head_edges=[(0, 0, 1, 1), (0, 1, 1, 2), (0, 2, 2, 3)],
            n_heads=N_HEADS,
            minimality=rng.uniform(0, 0.2, K),
            partial_eta_sq=invariance,
            faithfulness=Estimate(value=0.86),
            n_prompts=world.n,
            task="ioi",
        ),
        "C16": reliability_suite(made.y_full, made.y_circuit, effects, members, task="ioi"),
        "C17": discriminant_validity(tasks.effects, tasks.circuits, own=next(iter(tasks.effects))),
        "C23": nomological_validity(role_circuit(rng, ordered=world.ordered), task="ioi"),
        "C30": seed_variance(pool.y_full, pool.y_circuit, n_prompts=world.n, task="ioi"),
        "C36": incremental_validity(
            compared.y_full,
            compared.y_keep,
            compared.y_baseline,
            members=members,
            baseline_members=np.roll(members, 2),
            others={"random": compared.y_baseline[:, None] * rng.uniform(0.5, 1, (1, 50))},
        ),
        "F59": inter_rater(
            dict(zip(("drop effect", "direct effect", "OV norm"), rated.values(), strict=True)),
            members=members,
            task="ioi",
        ),
        "S1": distributional_characterization(direct.scores, members, n_heads=N_HEADS, task="ioi"),
        "S3": distributional_stability(direct.scores[:, members], groups=made.groups, task="ioi"),
        "M93": multiple_comparisons(
            [
                *pooled_results(rng, n_real=6 if world.d_prime else 0, n_null=14 if world.d_prime else 60),
                PooledResult(name="faithfulness of the circuit", task="", value=0.86, passed=True),
            ]
        ),
        "M98": ablation_invariance(full, ablated),
        "E1b": method_invariance(full_noise, noisy),
        "M3b": certified_stability(effects[:, members], task="ioi", sequence="sign", deletion=0.9),
    }


def _bare_verdicts() -> dict[str, Verdict]:
    """What little three prompts, one task and one method allow."""
    rng = np.random.default_rng(5)
    members = _members()
    made = runs(rng, 3, sd=0.3)
    none = np.zeros(0)
    circuit = role_circuit(rng, ordered=True)
    scores = rng.normal(size=len(members))
    effects = rng.normal(size=(3, len(members)))
    zero = np.zeros(3)
    return {
        "C11": bootstrap_stability(none, none),
        "C12": convergent_validity({"C2": scores}),
        "C13": measurement_invariance(made.y_full, made.y_circuit, np.zeros(3, dtype=np.int64)),
        "C14": derived_metrics(members),
        "C16": reliability_suite(made.y_full, made.y_circuit, effects, members),
        "C17": discriminant_validity({"ioi": effects}, {"ioi": members}),
        "C23": nomological_validity(replace(circuit, roles={}, pathways=())),
        "C30": seed_variance(made.y_full, made.y_circuit),
        "C36": incremental_validity(zero, zero, zero),
        "F59": inter_rater({"drop effect": scores, "direct effect": np.ones(len(members))}),
        "S1": distributional_characterization(effects, np.zeros(len(members), dtype=np.bool_)),
        "S3": distributional_stability(effects),
        "M93": multiple_comparisons([PooledResult(name="faithfulness", passed=True)]),
        "M98": ablation_invariance(made.y_full, {"mean": made.y_circuit}),
        "E1b": method_invariance(zero, {"zero": zero, "mean": zero}),
        "M3b": certified_stability(effects[:, members]),
    }

"""The gates whose verdicts are evidence for a claim, from the columns of its measurement tables."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from assay.analyses.calibration import (
    ablation_invariance,
    bootstrap_stability,
    discriminant_validity,
    find_gate,
    method_invariance,
    retest,
    seed_variance,
    split_half,
)
from assay.analyses.calibration.judges import judge
from assay.analyses.calibration.readings import Battery
from assay.analyses.claims.claim import Claim
from assay.core.errors import InputError
from assay.core.verdict import Verdict
from assay.discovery.heads.table import MeasurementTable


DONOR = "resample-donor"
_AS_CALIBRATED = ("M3b", "C12", "F59", "S3")  # judged as `calibrate_all` judges any circuit
_INNER = {"dropping": "completeness", "keeping": "faithfulness"}


def scores_of(claim: Claim) -> tuple[str, ...]:
    """What a claim's predictions on its own task rest on: `completeness`, `faithfulness` or both."""
    said = {each.what for each in claim.predictions if each.on == claim.task} or {"dropping"}
    return tuple(score for what, score in _INNER.items() if what in said)


def averaged(runs: Float64[np.ndarray, "n *draws"]) -> Float64[np.ndarray, " n"]:
    """One number per prompt: the mean over draws, where there are any."""
    return np.asarray(runs.mean(axis=1) if runs.ndim > 1 else runs)


def claim_gates(
    claim: Claim,
    table: MeasurementTable,
    others: Mapping[str, MeasurementTable],
    *,
    progress: Callable[[str, int, int], None],
) -> dict[str, Verdict]:
    """Verdict of each gate that a claim's evidence asks for, by its key in `GATE_EVIDENCE`.

    Args:
        claim: The claim.
        table: Of its heads on its own task, with a pool of further prompts for C30.
        others: Of the same heads on the other tasks that it speaks of, by name.
        progress: Called with a stage, how much of it is done, and how much there is.
    """
    names = (*scores_of(claim), "effects", *_AS_CALIBRATED, "C17")
    verdicts: dict[str, Verdict] = {}

    def step(name: str) -> None:
        progress("gates", names.index(name), len(names))

    full = table.column("y_full")
    seeded: dict[str, Any] = {"task": claim.task, "seed": claim.seed}
    for score in scores_of(claim):
        step(score)
        verdicts |= _of_score(claim, table, score)
    step("effects")
    effects = full[:, None] - table.column("y_drop1")
    verdicts["C16.split_half"] = split_half(effects, **seeded)
    battery = Battery(table=table, signs=claim.sign_of)
    for code in _AS_CALIBRATED:
        step(code)
        verdicts[code] = judge(battery, find_gate(code).key, verdicts)
    if others:
        step("C17")
        verdicts["C17"] = _own_task(claim, table, others)
    progress("gates", len(names), len(names))
    return verdicts


def _of_score(claim: Claim, table: MeasurementTable, score: str) -> dict[str, Verdict]:
    """Gates on the faithfulness of the heads alone, or on the completeness of the model without them."""
    column = "y_keep" if score == "faithfulness" else "y_drop"
    facts: dict[str, Any] = {"inner": score, "circuit_size": table.k, "n_heads": table.H}
    full = table.column("y_full")
    run = averaged(table.column(f"{column}/{claim.ablation}"))
    pool = table.column("pool/y_full"), averaged(table.column(f"pool/{column}/{claim.ablation}"))
    methods = {name: table.column(f"{column}/{name}") for name in ("zero", "mean")}
    verdicts = {
        "C11": bootstrap_stability(full, run, **facts, task=claim.task, seed=claim.seed),
        "C30": seed_variance(*pool, n_prompts=table.P, **facts, task=claim.task),
        "C16.test_retest": retest(*pool, inner=score, task=claim.task, seed=claim.seed),
        "M98": ablation_invariance(full, methods | _donors(table, column), **facts),
    }
    if score == "faithfulness":
        noise = {"noise-additive": table.column(f"{column}/noise-additive")}
        verdicts["E1b"] = method_invariance(full, methods | noise, **facts)
    return {f"{code}.{score}": verdict for code, verdict in verdicts.items()}


def _donors(table: MeasurementTable, column: str) -> dict[str, np.ndarray]:
    """Runs with donors, none where no two prompts have the same length."""
    try:
        return {DONOR: table.column(f"{column}/{DONOR}")}
    except InputError:
        return {}


def _own_task(claim: Claim, table: MeasurementTable, others: Mapping[str, MeasurementTable]) -> Verdict:
    """C17 of the claim's heads: their effect on their own task over that on the others.

    Only one circuit is claimed, so it takes the place of the circuits of the other tasks; the published rule
    judges its own row.
    """
    tables = {claim.task: table, **others}
    verdict = discriminant_validity(
        {name: each.column("y_patch") - each.column("y_cor")[:, None] for name, each in tables.items()},
        dict.fromkeys(tables, table.members),
        own=claim.task,
        gaps={name: each.column("y_full") - each.column("y_cor") for name, each in tables.items()},
        seed=claim.seed,
    )
    own = verdict.sub_results.get(claim.task, verdict)
    return replace(own, warnings=tuple(dict.fromkeys((*own.warnings, *verdict.warnings))))

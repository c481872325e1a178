"""Top-K agreement: does the circuit keep the model's most confident predictions, and their order?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from assay.errors import InputError, unknown_name
from assay.measurement import ONE_SIDED_95, Measurement, Rule, Verdict
from assay.metrics.divergence import run_logits
from assay.metrics.metric import MetricSpec, Runs, check_choice, finite_examples, metric, record
from assay.metrics.outputs import answer_is_top
from assay.stats import fagin_tau_rows, kendall_tau_rows, mean_of


SUPPORTS = ("full", "intersection", "union")
DEFAULT_K = (1, 5, 10)
MANY_TIES = 0.01  # share of examples with ties at the edge of the list that earns a warning
# The last two are this library's choice; the published page says "low" and "sharply".
THRESHOLDS: Mapping[str, float] = {
    "acc@1": 0.95,
    "acc@5": 0.90,
    "tau@10": 0.9,
    "acc@10_low": 0.70,
    "fall": 0.25,
}


# ------------------------------------------------------------------------------------------- kernels


def top_k(logits: Float[np.ndarray, "n d_vocab"], k: int) -> Int[np.ndarray, "n k"]:
    """Indices of the k largest logits of each row, largest first, the smaller index first on ties.

    Args:
        logits: Finite, or -inf for outputs that may not be ranked.
        k: 1 <= k <= d_vocab.
    """
    if logits.shape[0] == 0:
        return np.empty((0, k), dtype=np.int64)
    limit = np.partition(logits, -k, axis=1)[:, -k, None]
    above, at = logits > limit, logits == limit
    room = k - above.sum(axis=1, keepdims=True)
    chosen = above | (at & (at.cumsum(axis=1) <= room))
    candidates = chosen.nonzero()[1].reshape(-1, k)
    order = np.argsort(-np.take_along_axis(logits, candidates, axis=1), axis=1, kind="stable")
    return np.take_along_axis(candidates, order, axis=1)


def overlap(
    top_full: Int[np.ndarray, "n k"], top_circuit: Int[np.ndarray, "n k"]
) -> Float64[np.ndarray, " n"]:
    """Share of the model's top k that the circuit's top k holds, any order; in [0, 1]."""
    shared = (top_full[:, :, None] == top_circuit[:, None, :]).any(axis=2)
    return np.asarray(shared.mean(axis=1, dtype=np.float64))


def rank_agreement(
    full: Float[np.ndarray, "n d_vocab"],
    circuit: Float[np.ndarray, "n d_vocab"],
    k: int,
    *,
    support: str = "full",
) -> Float64[np.ndarray, " n"]:
    """Agreement of order inside the top k, one value per example in [-1, 1].

    Args:
        full: Logits of the model.
        circuit: Logits of the circuit's run.
        k: At least 2.
        support: `full`: Kendall's tau-b of the two runs' logits over the model's top k. `intersection`: over
            the outputs that both top k share. `union`: 1 - 2 D / D_max of the two lists with Fagin's K^(1/2).

    Returns:
        NaN where all logits of one side tie, or fewer than two outputs are shared.

    References:
        Kendall (1945); Fagin, Kumar and Sivakumar (2003), doi:10.1137/S0895480102412856.
    """
    check_choice("support", support, SUPPORTS)
    top_full, top_circuit = top_k(full, k), top_k(circuit, k)
    if support == "union":
        return fagin_tau_rows(top_full, top_circuit)
    sides = [np.take_along_axis(run, top_full, axis=1).astype(np.float64) for run in (full, circuit)]
    shared = None if support == "full" else (top_full[:, :, None] == top_circuit[:, None, :]).any(axis=2)
    return kendall_tau_rows(sides[0], sides[1], used=shared)


def tied_at(logits: Float[np.ndarray, "n d_vocab"], k: int) -> Bool[np.ndarray, " n"]:
    """Whether the k-th and the (k+1)-th largest logit are equal, so that membership rests on the index."""
    if logits.shape[0] == 0:
        return np.empty(0, dtype=bool)
    around = np.partition(logits, (-k - 1, -k), axis=1)
    return np.asarray(around[:, -k] == around[:, -k - 1])


# ------------------------------------------------------------------------------------------- input


def check_k(ks: Sequence[Any] | None, n_outputs: int) -> tuple[int, ...]:
    """The list sizes in ascending order; None gives 1, 5, 10, or 1 and a quarter of a small vocabulary.

    Raises:
        InputError: For sizes that are no integers, below 1, repeated, or not below the number of outputs.
    """
    if ks is None:
        return DEFAULT_K if n_outputs > max(DEFAULT_K) else tuple(sorted({1, math.ceil(n_outputs / 4)}))
    for k in ks:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"K holds {k!r}; list sizes are integers from 1")
        if k >= n_outputs:
            raise InputError(f"K holds {k}, but there are {n_outputs} outputs to rank; choose K below that")
    if not len(ks) or len(set(ks)) < len(ks):
        raise InputError(f"K={list(ks)} must list at least one size and none twice")
    return tuple(sorted(int(k) for k in ks))


def _thresholds(given: Mapping[str, float] | None) -> dict[str, float]:
    for name in given or {}:
        if name not in THRESHOLDS:
            raise unknown_name("top-K threshold", name, THRESHOLDS)
    return {**THRESHOLDS, **(given or {})}


def _ranked_runs(runs: Runs, vocabulary: int | None) -> list[Float[np.ndarray, "n n_outputs"]]:
    """Logits of model and circuit over the outputs that a tokenizer can name."""
    logits = [run_logits(runs, which) for which in ("full", "keep")]
    if vocabulary is None:
        tokenizer = runs.model.tokenizer
        vocabulary = logits[0].shape[1] if tokenizer is None else min(len(tokenizer), logits[0].shape[1])
    if not 1 < vocabulary <= logits[0].shape[1]:
        raise InputError(
            f"vocabulary={vocabulary}; the model has {logits[0].shape[1]} outputs, at least 2 are ranked"
        )
    return [each[:, :vocabulary] for each in logits]


# ------------------------------------------------------------------------------------------- metrics


def _parts(
    runs: Runs,
    spec: MetricSpec,
    ks: tuple[int, ...],
    ranked: list[Float[np.ndarray, "n n_outputs"]],
    limits: Mapping[str, float],
    support: str,
) -> dict[str, Measurement]:
    """Acc@K and tau_K for each K, and both label accuracies, each with its interval."""
    used = finite_examples(runs, "full", "keep")
    full, keep = (np.where(used[:, None], run, 0.0) for run in ranked)
    top_full, top_keep = top_k(full, ks[-1]), top_k(keep, ks[-1])
    parts = {}
    for k in ks:
        key = f"acc@{k}"
        shares = {key: overlap(top_full[:, :k], top_keep[:, :k])}
        facts: dict[str, Any] = {
            "id": f"D05.acc_at_{k}",
            "rule": Rule(pass_at=limits[key]) if key in limits else None,
        }
        method = "clopper-pearson" if k == 1 else None
        parts[key] = record(spec, shares, mean_of(key), used=used, interval_method=method, **facts)
    for k in ks:
        if k < 2:
            continue
        key = f"tau@{k}"
        taus = {key: rank_agreement(full, keep, k, support=support)}
        facts = {"id": f"D05.tau_{k}", "rule": Rule(pass_at=limits[key]) if key in limits else None}
        parts[key] = record(spec, taus, mean_of(key), used=used, undefined="all_tied", **facts)
    answers = runs.task.answers.numpy()
    for key, run in (("label-top1-full", full), ("label-top1-circuit", keep)):
        right = {key: answer_is_top(run, answers).astype(np.float64)}
        facts = {"id": "D05." + key.replace("-", "_"), "rule": None, "interval_method": "clopper-pearson"}
        parts[key] = record(spec, right, mean_of(key), used=used, **facts)
    return parts


def reading_patterns(values: Mapping[str, float], limits: Mapping[str, float] = THRESHOLDS) -> list[str]:
    """Codes of the published reading patterns that hold.

    Args:
        values: `acc@1`, `acc@5`, `acc@10`, `tau@10` as far as measured; a pattern that needs a missing or
            undefined one does not hold.
        limits: Thresholds, see `THRESHOLDS`.
    """
    acc1, acc5, acc10, tau10 = (values.get(key, math.nan) for key in ("acc@1", "acc@5", "acc@10", "tau@10"))
    holds = {
        "best_guess_reproduced": acc1 > limits["acc@1"],
        "core_ranking_preserved": acc5 > limits["acc@5"],
        "fine_order_preserved": tau10 > limits["tau@10"],
        "dominant_mode_only": acc1 > limits["acc@1"] and acc10 < limits["acc@10_low"],
        "narrow_circuit": acc1 >= acc5 >= acc10 and acc1 - acc10 > limits["fall"],
    }
    return [code for code, true in holds.items() if true]


def _count_rule(statuses: Sequence[str]) -> str:
    """Pass when both shares pass, moderate when one does, else fail."""
    return ("fail", "moderate", "pass")[sum(each == "pass" for each in statuses)]


def judge_agreement(parts: Mapping[str, Measurement], limits: Mapping[str, float]) -> Verdict:
    """The verdict on Acc@1 and Acc@5 together.

    Published: pass when both exceed their thresholds, moderate when one does, else fail. With confidence:
    the same on lower one-sided 95 % bounds for pass and moderate; fail when an upper bound is below its
    threshold; else inconclusive.
    """
    judged_keys = ("acc@1", "acc@5")
    thresholds = {"pass": limits["acc@1"], **{key: limits[key] for key in judged_keys}}
    missing = [key for key in judged_keys if key not in parts]
    values = {key: parts[key].value for key in judged_keys if key in parts}
    if missing or any(math.isnan(value) for value in values.values()):
        reason = "needs_k_1_and_5" if missing else next(iter(parts.values())).reason
        return Verdict(
            status="inconclusive",
            published="inconclusive",
            values=values,
            thresholds=thresholds,
            reason=reason,
        )
    judged = [
        Rule(pass_at=thresholds[key]).judge(values[key], parts[key].interval(ONE_SIDED_95), parts[key].n)
        for key in judged_keys
    ]
    statuses = [each.status for each in judged]
    status = _count_rule(statuses)
    if status == "fail" and "fail" not in statuses:
        status = "inconclusive"
    needed = [each.n_needed for each in judged if each.n_needed is not None]
    return Verdict(
        status=status,
        published=_count_rule([each.published for each in judged]),
        values=values,
        thresholds=thresholds,
        interval=parts["acc@1"].interval(ONE_SIDED_95),
        n_needed=max(needed, default=None) if status == "inconclusive" else None,
    )


@metric(
    key="topk",
    id="D05.acc_at_K",
    name="top-K set agreement",
    criterion="I2 sufficiency",
    range=(0.0, 1.0),
    direction="higher",
    pass_threshold=0.95,
    reference="Wang et al. 2022, arXiv:2211.00593; Conmy et al. 2023, arXiv:2304.14997",
)
def _topk(
    runs: Runs,
    spec: MetricSpec,
    *,
    K: Sequence[int] | None = None,
    support: str = "full",
    thresholds: Mapping[str, float] | None = None,
    vocabulary: int | None = None,
) -> Measurement:
    """Share of the model's K most confident outputs that are among the circuit's: Acc@K; the value is Acc@1.

    Agreement is with the model, not with the label; the label accuracies of both stand beside it. The parts
    `acc@K` and `tau@K` have an interval each. What this does not establish: calibrated probabilities.

    Options:
        K: List sizes, below the number of outputs. Default 1, 5, 10; for at most 10 outputs, 1 and a quarter.
        support: What tau_K ranks: the model's top K (`full`, tau-b), the shared outputs (`intersection`,
            tau-b) or both lists (`union`, Fagin's K^(1/2)).
        thresholds: Replaces entries of `THRESHOLDS`.
        vocabulary: Outputs that can be ranked, from the first. Default: as many as the tokenizer has.

    The interval is Clopper-Pearson for K = 1, BCa otherwise. Passes when Acc@1 > 0.95 and Acc@5 > 0.90.
    The warning `many_ties` says that more than 1 % of the examples have equal K-th and (K+1)-th logits.
    """
    limits = _thresholds(thresholds)
    ranked = _ranked_runs(runs, vocabulary)
    ks = check_k(K, ranked[0].shape[1])
    parts = _parts(runs, spec, ks, ranked, limits, support)
    main = parts[f"acc@{ks[0]}"]
    details = _details(runs, ks, ranked, parts) | {"support": support}
    details["patterns"] = reading_patterns({key: part.value for key, part in parts.items()}, limits)
    tied = max(details["tie_fraction"].values(), default=0.0) > MANY_TIES
    return replace(
        main,
        id=spec.id,
        details=details,
        parts=parts,
        judged=judge_agreement(parts, limits),
        warnings=(*main.warnings, *(["many_ties"] if tied else [])),
    )


def _details(
    runs: Runs,
    ks: tuple[int, ...],
    ranked: list[Float[np.ndarray, "n n_outputs"]],
    parts: Mapping[str, Measurement],
) -> dict[str, Any]:
    used = finite_examples(runs, "full", "keep")
    full, keep = (run[used] for run in ranked)
    n_outputs = full.shape[1]
    sizes = [k for k in ks if k > 1]
    return {
        "K": list(ks),
        "acc": {k: parts[f"acc@{k}"].value for k in ks},
        "tau": {k: parts[f"tau@{k}"].value for k in sizes},
        "n_defined": {k: parts[f"tau@{k}"].n for k in sizes},
        "chance": {k: k / n_outputs for k in ks},
        "tie_fraction": {k: float((tied_at(full, k) | tied_at(keep, k)).mean()) for k in ks}
        if used.any()
        else {},
        "label_top1_full": parts["label-top1-full"].value,
        "label_top1_circuit": parts["label-top1-circuit"].value,
        "n_outputs": n_outputs,
    }


@metric(
    key="topk-tau",
    id="D05.tau_K",
    name="rank agreement inside the top K",
    criterion="I2 sufficiency",
    range=(-1.0, 1.0),
    direction="higher",
    pass_threshold=0.9,
    unit="correlation",
    reference="Kendall 1938",
)
def _topk_tau(
    runs: Runs,
    spec: MetricSpec,
    *,
    K: Sequence[int] | None = None,
    support: str = "full",
    vocabulary: int | None = None,
) -> Measurement:
    """Mean Kendall correlation of both runs' logits inside the model's top K, for the largest K.

    Options as for `topk`. Examples where one side ties throughout are left out and counted; all of them:
    undefined (`all_tied`).
    """
    ranked = _ranked_runs(runs, vocabulary)
    k = check_k(K, ranked[0].shape[1])[-1]
    if k < 2:
        raise InputError("rank agreement needs K of at least 2; give K=[10] or use the metric 'topk'")
    used = finite_examples(runs, "full", "keep")
    full, keep = (np.where(used[:, None], run, 0.0) for run in ranked)
    taus = {f"tau@{k}": rank_agreement(full, keep, k, support=support)}
    details = {"K": [k], "support": support}
    return record(spec, taus, mean_of(f"tau@{k}"), used=used, undefined="all_tied", details=details)

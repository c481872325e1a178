"""Top-K agreement: does the circuit keep the model's most confident predictions, and their order?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from assay.core.errors import InputError, check_name
from assay.core.measurement import ONE_SIDED_95, Measurement, Rule, Verdict
from assay.execution import CircuitRuns
from assay.metrics.divergence import answer_is_top, run_logits
from assay.metrics.metric import MetricSpec, finite_examples, record
from assay.stats import fagin_tau_rows, kendall_tau_rows, mean_of


SUPPORTS = ("full", "intersection", "union")
DEFAULT_K = (1, 5, 10)
_LABELS = ("label-top1-full", "label-top1-circuit")
MANY_TIES = 0.01  # share of examples with ties at the edge of the list that earns a warning
# The last two are this library's choice; the published page says "low" and "sharply".
THRESHOLDS = {"acc@1": 0.95, "acc@5": 0.90, "tau@10": 0.9, "acc@10_low": 0.70, "fall": 0.25}


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
    rows, columns = (logits >= limit).nonzero()  # k of each row, more where ties stand at the edge
    order = np.lexsort((columns, -logits[rows, columns], rows))
    starts = np.searchsorted(rows, np.arange(len(logits)))
    return np.asarray(columns[order[starts[:, None] + np.arange(k)]])


def overlap(
    top_full: Int[np.ndarray, "n k"], top_circuit: Int[np.ndarray, "n k"]
) -> Float64[np.ndarray, " n"]:
    """Share of the model's top k that the circuit's top k holds, any order; in [0, 1]."""
    shared = (top_full[:, :, None] == top_circuit[:, None, :]).any(axis=2)
    return np.asarray(shared.mean(axis=1, dtype=np.float64))


def order_agreement(
    full: Float[np.ndarray, "n d_vocab"],
    circuit: Float[np.ndarray, "n d_vocab"],
    top_full: Int[np.ndarray, "n k"],
    top_circuit: Int[np.ndarray, "n k"],
    support: str = "full",
) -> Float64[np.ndarray, " n"]:
    """Agreement of order inside the top k, one value per example in [-1, 1].

    Args:
        full: Logits of the model.
        circuit: Logits of the circuit's run.
        top_full: Indices of the model's k largest, k at least 2.
        top_circuit: The same of the circuit's run.
        support: `full`: Kendall's tau-b of the two runs' logits over the model's top k. `intersection`: over
            the outputs that both top k share. `union`: 1 - 2 D / D_max of the two lists with Fagin's K^(1/2).

    Returns:
        NaN where all logits of one side tie, or fewer than two outputs are shared.

    References:
        Kendall (1945); Fagin, Kumar and Sivakumar (2003), doi:10.1137/S0895480102412856.
    """
    check_name("support", support, SUPPORTS)
    if support == "union":
        return fagin_tau_rows(top_full, top_circuit)
    sides = [np.take_along_axis(run, top_full, axis=1).astype(np.float64) for run in (full, circuit)]
    shared = None if support == "full" else (top_full[:, :, None] == top_circuit[:, None, :]).any(axis=2)
    return kendall_tau_rows(sides[0], sides[1], used=shared)


def tied_at(
    logits: Float[np.ndarray, "n d_vocab"], top: Int[np.ndarray, "n k_plus_1"]
) -> Bool[np.ndarray, " n"]:
    """Whether the last two of a list have equal logits: who stands before the end then rests on the index."""
    edge = np.take_along_axis(logits, top[:, -2:], axis=1)
    return np.asarray(edge[:, 0] == edge[:, 1])


# ------------------------------------------------------------------------------------------- input


def check_k(ks: Sequence[Any] | None, n_outputs: int) -> tuple[int, ...]:
    """The list sizes in ascending order; None gives 1, 5, 10, or 1 and a quarter of a small vocabulary.

    Raises:
        InputError: For sizes that are not integers, below 1, repeated, or not below the number of outputs.
    """
    if ks is None:
        return DEFAULT_K if n_outputs > max(DEFAULT_K) else tuple(sorted({1, math.ceil(n_outputs / 4)}))
    whole = all(isinstance(k, int | np.integer) and not isinstance(k, bool) for k in ks)
    sizes = tuple(sorted({int(k) for k in ks})) if whole else ()
    if not sizes or len(sizes) < len(ks) or sizes[0] < 1 or sizes[-1] >= n_outputs:
        raise InputError(f"K is {list(ks)}; give integers from 1 to {n_outputs - 1}, each once")
    return sizes


# ------------------------------------------------------------------------------------------- metrics


def _part(
    spec: MetricSpec, key: str, values: Float64[np.ndarray, " n"], used: Bool[np.ndarray, " n"]
) -> Measurement:
    """Acc@K, tau_K or the accuracy of one side, with its interval."""
    facts: dict[str, Any] = {
        "id": "D05." + key.replace("acc@", "acc_at_").replace("tau@", "tau_").replace("-", "_"),
        "rule": Rule(pass_at=THRESHOLDS[key]) if key in THRESHOLDS else None,
        "interval_method": "clopper-pearson" if key in ("acc@1", *_LABELS) else None,
    }
    mean = mean_of(key, bounds=(-1.0, 1.0) if key.startswith("tau") else (0.0, 1.0))
    return record(spec, {key: values}, mean, used=used, undefined="all_tied", **facts)


def reading_patterns(values: Mapping[str, float]) -> list[str]:
    """Codes of the published reading patterns that hold.

    Args:
        values: `acc@1`, `acc@5`, `acc@10`, `tau@10` as far as measured; a pattern that needs a missing or
            undefined one does not hold.
    """
    acc1, acc5, acc10, tau10 = (values.get(key, math.nan) for key in ("acc@1", "acc@5", "acc@10", "tau@10"))
    holds = {
        "best_guess_reproduced": acc1 > THRESHOLDS["acc@1"],
        "core_ranking_preserved": acc5 > THRESHOLDS["acc@5"],
        "fine_order_preserved": tau10 > THRESHOLDS["tau@10"],
        "dominant_mode_only": acc1 > THRESHOLDS["acc@1"] and acc10 < THRESHOLDS["acc@10_low"],
        "narrow_circuit": acc1 >= acc5 >= acc10 and acc1 - acc10 > THRESHOLDS["fall"],
    }
    return [code for code, true in holds.items() if true]


def _count_rule(statuses: Sequence[str]) -> str:
    """Pass when both shares pass, moderate when one does, else fail."""
    return ("fail", "moderate", "pass")[sum(each == "pass" for each in statuses)]


def judge_agreement(parts: Mapping[str, Measurement]) -> Verdict:
    """The verdict on Acc@1 and Acc@5 together.

    Published: pass when both exceed their thresholds, moderate when one does, else fail. With confidence:
    the same on lower one-sided 95 % bounds for pass and moderate; fail when an upper bound is below its
    threshold; else inconclusive.
    """
    judged_keys = ("acc@1", "acc@5")
    thresholds = {"pass": THRESHOLDS["acc@1"], **{key: THRESHOLDS[key] for key in judged_keys}}
    chosen = {key: parts[key] for key in judged_keys if key in parts}
    values = {key: part.value for key, part in chosen.items()}
    facts: dict[str, Any] = {"values": values, "thresholds": thresholds}
    if len(chosen) < 2 or any(math.isnan(value) for value in values.values()):
        reason = "needs_k_1_and_5" if len(chosen) < 2 else chosen["acc@1"].reason
        return Verdict(status="inconclusive", published="inconclusive", reason=reason, **facts)
    judged = [
        Rule(pass_at=thresholds[key]).judge(part.value, part.interval(ONE_SIDED_95), part.n)
        for key, part in chosen.items()
    ]
    statuses = [each.status for each in judged]
    status = _count_rule(statuses)
    if status == "fail" and "fail" not in statuses:
        status = "inconclusive"
    needed = [each.n_needed for each in judged if each.n_needed is not None]
    return Verdict(
        status=status,
        published=_count_rule([each.published for each in judged]),
        interval=parts["acc@1"].interval(ONE_SIDED_95),
        n_needed=max(needed, default=None) if status == "inconclusive" else None,
        **facts,
    )


def _topk(
    runs: CircuitRuns, spec: MetricSpec, *, K: Sequence[int] | None = None, support: str = "full"
) -> Measurement:
    """Share of the model's K most confident outputs that are among the circuit's: Acc@K; the value is Acc@1.

    Agreement is with the model, not with the label; the label accuracies of both are reported too. The parts
    `acc@K` and `tau@K` have an interval each. What this does not establish: calibrated probabilities.

    Options:
        K: List sizes, below the number of outputs. Default 1, 5, 10; for at most 10 outputs, 1 and a quarter.
        support: What tau_K ranks: the model's top K (`full`, tau-b), the shared outputs (`intersection`,
            tau-b) or both lists (`union`, Fagin's K^(1/2)).

    The interval is Clopper-Pearson for K = 1, else that of a bounded mean, which holds at every n. Passes
    when Acc@1 > 0.95 and Acc@5 > 0.90.
    The warning `many_ties` says that more than 1 % of the examples have equal K-th and (K+1)-th logits.

    References:
        Wang et al. 2022, arXiv:2211.00593; Conmy et al. 2023, arXiv:2304.14997.
    """
    both = [run_logits(runs, which) for which in ("full", "keep")]
    tokenizer, n_outputs = runs.model.tokenizer, both[0].shape[1]
    if tokenizer is not None:  # the last rows of a padded unembedding are no tokens
        n_outputs = min(len(tokenizer), n_outputs)
    ks, used = check_k(K, n_outputs), finite_examples(runs, "full", "keep")
    # Excluded examples are ranked as all equal and counted nowhere.
    full, keep = (np.where(used[:, None], run[:, :n_outputs], 0.0) for run in both)
    first, second = (top_k(run, ks[-1] + 1) for run in (full, keep))
    tops = {k: (first[:, :k], second[:, :k]) for k in ks}
    values = {f"acc@{k}": overlap(*lists) for k, lists in tops.items()}
    values |= {f"tau@{k}": order_agreement(full, keep, *tops[k], support) for k in ks if k > 1}
    for key, run in zip(_LABELS, (full, keep), strict=True):
        values[key] = answer_is_top(run, runs.task.answers.numpy()).astype(np.float64)
    ties = {}
    for k in ks:
        tied = tied_at(full, first[:, : k + 1]) | tied_at(keep, second[:, : k + 1])
        ties[k] = float(tied[used].mean()) if used.any() else math.nan
    parts = {key: _part(spec, key, each, used) for key, each in values.items()}
    details = {
        "K": list(ks),
        "acc": {k: parts[f"acc@{k}"].value for k in ks},
        "tau": {k: parts[f"tau@{k}"].value for k in ks if k > 1},
        "n_defined": {k: parts[f"tau@{k}"].n for k in ks if k > 1},
        "chance": {k: k / n_outputs for k in ks},
        "tie_fraction": ties,
        "label_top1_full": parts["label-top1-full"].value,
        "label_top1_circuit": parts["label-top1-circuit"].value,
        "n_outputs": n_outputs,
        "support": support,
        "patterns": reading_patterns({key: part.value for key, part in parts.items()}),
    }
    main, judged = parts[f"acc@{ks[0]}"], judge_agreement(parts)
    warnings = (*main.warnings, *["many_ties"] * any(share > MANY_TIES for share in ties.values()))
    return replace(main, id=spec.id, details=details, parts=parts, judged=judged, warnings=warnings)


SPECS = (
    MetricSpec(
        key="topk",
        id="D05.acc_at_K",
        name="top-K set agreement",
        range=(0.0, 1.0),
        direction="higher",
        rule=Rule(pass_at=0.95),
        meaning="Share of prompts on which circuit and model predict the same token; the verdict also "
        "requires the top five. acc@K: overlap of the K most likely; tau@K: agreement of their order "
        "(Kendall).",
        compute=_topk,
    ),
)

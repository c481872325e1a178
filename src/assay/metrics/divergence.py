"""How far the circuit's output distribution is from the model's: all outputs or an answer set."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int

from assay.core.errors import InputError, check_name
from assay.core.measurement import Measurement
from assay.execution import CircuitRuns
from assay.execution.runs import Which
from assay.metrics.metric import MetricSpec, finite_examples, metric, record
from assay.metrics.outputs import DIVERGENCES, divergences, restrict
from assay.stats import mean_of, ratio_of


UNITS = {"kl": "nats", "reverse-kl": "nats", "js": "nats", "tv": "fraction"}
MODES_DROPPED = 0.1  # of KL: a JS below it says that the circuit loses modes rather than inventing them


def kl_reading(nats: float) -> str:
    """The published reading of a mean KL divergence."""
    if nats < 0.01:
        return "near_perfect"
    if nats < 0.1:
        return "good"
    return "components_missing" if nats <= 1 else "another_prediction"


def run_logits(runs: CircuitRuns, which: Which) -> Float[np.ndarray, "n d_vocab"]:
    """Logits of a run as an array, a row per prompt."""
    return np.asarray(runs.logits(which).numpy())


def run_divergences(
    runs: CircuitRuns, which: Which, *, kinds: tuple[str, ...] = ("kl",)
) -> dict[str, Float64[np.ndarray, " n"]]:
    """How far the outputs of a run are from the model's, per prompt; see `divergences`."""
    return divergences(run_logits(runs, "full"), run_logits(runs, which), kinds=kinds)


@metric(
    key="output-divergence",
    id="D01.output_divergence",
    name="mean divergence of output distributions",
    criterion="I2 sufficiency",
    range=(0.0, float("inf")),
    direction="lower",
    pass_threshold=0.05,
    fail_threshold=0.5,
    unit="nats",
    reference="Conmy et al. 2023, arXiv:2304.14997",
    meaning="Mean divergence between the output distributions of circuit and model.",
)
def _output_divergence(runs: CircuitRuns, spec: MetricSpec, *, divergence: str = "kl") -> Measurement:
    """Mean divergence of the circuit's output distribution from the model's.

    Options:
        divergence: `kl` = KL(full || circuit), `reverse-kl`, `js` or `tv`. The thresholds are those of
            the published page, which does not name the divergence.
    """
    check_name("divergence", divergence, DIVERGENCES)
    used = finite_examples(runs, "full", "keep")
    values = run_divergences(runs, "keep", kinds=(divergence,))
    details = {"divergence": divergence}
    return record(spec, values, mean_of(divergence), used=used, details=details, unit=UNITS[divergence])


@metric(
    key="kl",
    id="D03.kl",
    name="KL(full, circuit)",
    criterion="I2 sufficiency",
    range=(0.0, float("inf")),
    direction="lower",
    pass_threshold=0.1,
    fail_threshold=1.0,
    unit="nats",
    reference="Conmy et al. 2023, arXiv:2304.14997",
    meaning="Mean information lost when the circuit’s output replaces the model’s.",
)
def _kl(
    runs: CircuitRuns, spec: MetricSpec, *, restricted_to: "str | Sequence[int] | None" = None
) -> Measurement:
    """Mean KL(full || circuit), with reverse KL, Jensen-Shannon and total variation beside it.

    Options:
        restricted_to: Renormalise both distributions on a set of outputs first: `answers` (the right and
            wrong answers of each example) or a list of ids. The id then ends in `_restricted`.

    The details have the median and the 95th percentile over examples (linear interpolation).
    """
    used = finite_examples(runs, "full", "keep")
    full, keep = run_logits(runs, "full"), run_logits(runs, "keep")
    id_ = spec.id
    if restricted_to is not None:
        ids = _answer_set(runs, restricted_to, full.shape)
        full, keep, id_ = restrict(full, ids), restrict(keep, ids), f"{spec.id}_restricted"
    values = divergences(full, keep, kinds=DIVERGENCES)
    parts = {
        kind: record(spec, values, mean_of(kind), used=used, id=f"D03.{kind}", unit=UNITS[kind], rule=None)
        for kind in DIVERGENCES[1:]
    }
    return record(
        spec,
        values,
        mean_of("kl"),
        used=used,
        reading=kl_reading,
        details=_spread(values["kl"], values["js"], used),
        parts=parts,
        id=id_,
    )


def _spread(
    kl: Float64[np.ndarray, " n"], js: Float64[np.ndarray, " n"], used: Bool[np.ndarray, " n"]
) -> dict[str, Any]:
    if not used.any():
        return {}
    median, high = np.percentile(kl[used], [50, 95])
    drops = bool(kl[used].mean() >= 0.1 and js[used].mean() < MODES_DROPPED * kl[used].mean())
    return {"median": float(median), "p95": float(high), "drops_modes": drops}


def _answer_set(
    runs: CircuitRuns, restricted_to: "str | Sequence[int]", shape: tuple[int, ...]
) -> Int[np.ndarray, "n n_ids"]:
    """Ids of the answer set of each example, padded with -1."""
    n, d_vocab = shape
    if isinstance(restricted_to, str):
        check_name("restricted_to", restricted_to, ("answers",))
        sets = [runs.task.answers, *([] if runs.task.wrong is None else [runs.task.wrong])]
        ids = torch.cat(sets, dim=1).numpy()
    else:
        ids = np.broadcast_to(np.array(list(restricted_to), dtype=np.int64), (n, len(restricted_to)))
        if not len(restricted_to) or ids.min() < 0:
            raise InputError(f"restricted_to is {restricted_to!r}; give at least one output id >= 0")
    if ids.max(initial=-1) >= d_vocab:
        raise InputError(f"restricted_to holds id {ids.max()}, but the vocabulary ends at {d_vocab - 1}")
    return ids


@metric(
    key="kl-faithfulness",
    id="D03.kl_faithfulness",
    name="1 - KL over KL of the empty circuit",
    criterion="I2 sufficiency",
    range=(-float("inf"), 1.0),
    direction="higher",
    pass_threshold=0.8,
    strict=False,
    runs=("full", "keep", "empty"),
    reference="Conmy et al. 2023, arXiv:2304.14997",
    meaning="One minus the divergence relative to that of the empty circuit.",
)
def _kl_faithfulness(runs: CircuitRuns, spec: MetricSpec) -> Measurement:
    """1 - sum KL(full || circuit) / sum KL(full || empty circuit).

    1: the model's distribution; 0: no better than the empty circuit; negative: worse. Undefined
    (`zero_denominator`) where the empty circuit already gives the model's distribution.
    """
    used = finite_examples(runs, "full", "keep", "empty")
    which: tuple[Which, ...] = ("keep", "empty")
    components: dict[str, np.ndarray] = {each: run_divergences(runs, each)["kl"] for each in which}
    details = {f"mean_kl_{each}": float(kl[used].mean()) for each, kl in components.items() if used.any()}
    return record(
        spec, components, ratio_of("keep", "empty", offset=1.0, scale=-1.0), used=used, details=details
    )

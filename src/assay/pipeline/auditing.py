"""The audit: discover a circuit, choose its size, measure it beside random circuits, keep everything.

An audit is a pure function of its record (model weights, prompts, method, every option, seed). The hash
of that record is the result's id: asking again for what a store holds costs one look-up, and an
interrupted audit finds its scores and measurements where it left them.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from assay.analyses.calibration.battery import USUAL_PROMPTS
from assay.circuits.given import takes_text
from assay.core.errors import InputError
from assay.execution import get_ablation
from assay.metrics import find_metric
from assay.models import Model, load_model
from assay.objectives import Objective, get_objective
from assay.pipeline.audit_result import Audit
from assay.pipeline.audit_run import RANDOM_PER_SIZE, AuditRun
from assay.pipeline.checks import check_options, check_writable, registered
from assay.pipeline.discovery import plan_discovery
from assay.pipeline.gates import plan_calibration
from assay.pipeline.prompts import draw_prompts
from assay.pipeline.runs import RunSettings, plan_measurement
from assay.pipeline.sizing import plan_sizing
from assay.pipeline.stage import Progress, Workload, silent
from assay.pipeline.worst import USUAL_SIDE, PairCounts, plan_worst_case
from assay.store import Store
from assay.tasks import PairTask
from assay.tasks.load import DEFAULT_N


METRIC_KEYS = ("faithfulness-norm", "faithfulness", "completeness", "kl", "ce-delta", "topk")
HEADLINE = ("faithfulness-norm", "faithfulness", "topk")  # what the first sentence of a report needs
MINIMALITY_HEADS = 64  # models of at most so many heads get minimality too: it needs one run per head
CURVE_RUNS = 25 + 10 * RANDOM_PER_SIZE


@takes_text(untouched=("model", "task"))
def audit(
    model: Model | str | os.PathLike[str] = "mini",
    task: PairTask | str = "ioi",
    *,
    method: str = "eap-ig-inputs",
    objective: str | Objective | None = None,
    ablation: str | None = None,
    n: int | None = None,
    steps: int | str = 5,
    target: float = 0.9,
    seed: int = 0,
    metrics: Sequence[str] | None = None,
    n_random: int = 20,
    batch_size: int | None = None,
    discover_on: PairTask | str | Path | None = None,
    measure_on: PairTask | str | Path | None = None,
    device: str | None = None,
    store: Store | str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Find the smallest circuit that keeps a task's behaviour, and measure how far it can be trusted.

    Edges are scored on one draw of prompts and ranked by |score|. The size is the smallest of a
    geometric sweep, refined by bisection, whose connected circuit reaches a normalised faithfulness of
    `target` on those prompts, and on the other prompts of the same generator on which everything reported
    is measured.

    Args:
        model: `mini`, a hub id, a directory, or a loaded model.
        task: Key of a registered task, a JSONL file, or a task of your own. The last two are divided: by
            their field `split` (`discover` or `measure`), else their distinct clean prompts are dealt to two
            halves with the seed. Below 20 distinct prompts per half all serve for both, and every verdict is
            marked `same_prompts` and at most inconclusive.
        method: Discovery method.
        objective: Loss whose negative is the margin; default: the task's own.
        ablation: What a cut edge carries; default: the task's own.
        n: Prompts of each of the two draws, >= 2; default: 200, and all prompts of a file or own task.
        steps: Quadrature nodes of the method, or "auto": 3 nodes, refined to 9 where that changes the scores.
        target: Normalised faithfulness to reach, in (0, 1].
        seed: Root seed of prompts, random circuits and resampling.
        metrics: Keys of what to measure beside faithfulness, normalised and plain, and top-K; default:
            completeness, KL, cross-entropy, and minimality for models of at most 64 heads.
        n_random: Random circuits of the chosen size, >= 1 (4 at each size of the curve).
        batch_size: Prompts per pass; default: by free memory. Never changes a result.
        discover_on: File or task to discover on; `task` is then measured on.
        measure_on: File or task to measure on; with both, `task` is not read.
        device: Where to load the model, if it is loaded here.
        store: Results store to read from and write to, or its directory, made once model and task are loaded.
            Unused under your own objective: its name does not identify it.
        out: Directory for the report and the results; checked before the work begins.
        progress: Called with stage, steps done and steps in all (0: unknown).

    Returns:
        The audit; `.document` is what the report shows.

    Raises:
        UnknownNameError: An unknown method, task, metric, objective or ablation.
        InputError: An option out of range.
        OutputError: `out` or `store` cannot be written.

    Example:
        >>> found = audit("mini", "ioi", n=20, n_random=2)
        >>> found.circuit.n_edges < found.circuit.graph.n_edges
        True
    """
    check_options(
        method=method, task=task, ablation=ablation, objective=objective, metrics=metrics, device=device
    )
    _check_numbers(n=n, n_random=n_random, target=target)
    for place in (out, store):
        if place is not None and not isinstance(place, Store) and "://" not in os.fspath(place):
            check_writable(Path(place))
    report = progress or silent
    report("load", 0, 1)
    loaded = (
        model
        if isinstance(model, Model)
        else load_model(Path(model) if isinstance(model, os.PathLike) else model, device=device)
    )
    draws = draw_prompts(loaded, task, n=n, seed=seed, discover_on=discover_on, measure_on=measure_on)
    keep = store if isinstance(store, Store) or store is None else Store(store)
    report("load", 1, 1)
    loss = get_objective(objective or draws.measured.objective)
    replacement = get_ablation(ablation or draws.measured.ablation)
    run = AuditRun(
        draws=draws,
        settings=RunSettings(
            model=loaded, objective=loss, ablation=replacement.key, batch_size=batch_size, seed=seed
        ),
        objective=loss.key,
        ablation=replacement.key,
        method=method,
        steps=steps,
        target=target,
        metrics=metric_keys(loaded, metrics),
        n_random=n_random,
        store=keep if registered(loss, replacement) else None,
        progress=report,
    )
    found = run.stage.run(run.store).value
    if out is not None:
        found.save(out)
    return found


def metric_keys(model: Model, metrics: Sequence[str] | None) -> tuple[str, ...]:
    """What an audit measures: what a report needs first, then those asked for or the default ones."""
    if metrics is None:
        small = model.n_layers * model.n_heads <= MINIMALITY_HEADS
        return (*METRIC_KEYS, "minimality") if small else METRIC_KEYS
    return tuple(dict.fromkeys([*HEADLINE, *(find_metric(key).key for key in metrics)]))


def plan_audit(
    model: Model,
    *,
    method: str = "eap-ig-inputs",
    n: int = DEFAULT_N,
    steps: int | str = 5,
    metrics: Sequence[str] | None = None,
    n_random: int = 20,
) -> list[Workload]:
    """What an audit would run, at most, and what that costs.

    Returns:
        Stages in order.
    """
    return [
        plan_discovery(model, method=method, n=n, steps=steps),
        plan_sizing(model.graph.n_edges, n),
        Workload(name="faithfulness curve", runs=CURVE_RUNS, passes=CURVE_RUNS * n),
        plan_measurement(model, metric_keys(model, metrics), n=n, n_random=n_random),
        plan_worst_case("all", PairCounts(n_clean=min(n, USUAL_SIDE), n_corrupted=min(n, USUAL_SIDE))),
        Workload(
            name="calibrate",
            runs=1,
            passes=sum(stage.passes for stage in plan_calibration(model, min(n, USUAL_PROMPTS))),
        ),
    ]


def _check_numbers(*, n: int | None, n_random: int, target: float) -> None:
    if n is not None and n < 2:
        raise InputError(f"n is {n}; an audit needs at least 2 prompts (default 200)")
    if n_random < 1:
        raise InputError(
            f"n_random is {n_random}; give at least 1 random circuit to compare with (default 20)"
        )
    if not 0 < target <= 1:
        raise InputError(f"target is {target}; the normalised faithfulness to reach lies in (0, 1], e.g. 0.9")

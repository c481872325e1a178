"""The audit: discover a circuit, choose its size, measure it beside random circuits, keep everything.

An audit is a pure function of its record (model weights, prompts, method, every option, seed). The hash
of that record is the result's id: asking again for what a store holds costs one look-up, and an
interrupted audit finds its scores and measurements where it left them.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.circuits.given import IMAGES, takes_text
from assay.core.errors import InputError
from assay.execution import get_ablation
from assay.models import Model, load_model
from assay.objectives import Objective, get_objective
from assay.pipeline.audit_plan import (
    EDGES,
    LENGTHS,
    N_FULL,
    RANDOM,
    RANDOM_FULL,
    READS,
    AuditPlan,
    N,
    scope_of,
)
from assay.pipeline.audit_result import Audit
from assay.pipeline.audit_run import AuditRun
from assay.pipeline.checks import check_options, check_writable, registered, usual_replacement
from assay.pipeline.inputs import draw_inputs
from assay.pipeline.prompts import Division, draw_prompts
from assay.pipeline.runs import RunSettings
from assay.pipeline.stage import Progress, silent
from assay.store import Store
from assay.tasks import TASKS, ImageStream, ImageTask, PairTask, Task, digits_source


@takes_text(untouched=("model", "task"), lengths=True)
def audit(
    model: Model | str | os.PathLike[str] = "mini",
    task: Task | str = "ioi",
    *,
    method: str = "eap-ig-inputs",
    objective: str | Objective | None = None,
    ablation: str | None = None,
    n: int | None = None,
    steps: int | str = 5,
    target: float = 0.9,
    seed: int = 0,
    metrics: Sequence[str] | None = None,
    n_random: int | None = None,
    batch_size: int | None = None,
    discover_on: PairTask | str | Path | None = None,
    measure_on: PairTask | str | Path | None = None,
    images: str | None = None,
    skip_bad: bool = False,
    full: bool = False,
    skip: Collection[str] = (),
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

    The default audit reads everything from the runs of a few dozen circuits. A full audit adds a finer search
    and curve, all pairs of fresh prompts, minimality and the gates that need further runs. The document lists
    what was not run under `left_out`.

    Args:
        model: `mini`, a hub id, a directory, or a loaded model.
        task: Key of a registered task, a JSONL file, or a task of your own. The last two are divided: by
            their field `split` (`discover` or `measure`), else their distinct clean prompts are dealt to two
            halves with the seed. Below 20 distinct prompts per half all serve for both, and every verdict is
            marked `same_prompts` and at most inconclusive. Images are halved likewise.
        method: Discovery method.
        objective: Loss whose negative is the margin; default: the task's own.
        ablation: What a cut edge carries; default: the task's own.
        n: Prompts of each of the two draws, >= 2; default: 100, also of a longer file or own task. Of a full
            audit: 200, and all prompts of a file or own task.
        steps: Quadrature nodes of the method, or "auto": 3 nodes, refined to 9 where that changes the scores.
        target: Normalised faithfulness to reach, in (0, 1].
        seed: Root seed of prompts, random circuits and resampling.
        metrics: Keys of what to measure beside faithfulness, normalised and plain, and top-K; default:
            completeness, KL, cross-entropy, and in a full audit minimality for models of at most 64 heads.
        n_random: Random circuits of the chosen size, >= 1; default: 5, of a full audit 20 (and 4 at each size
            of the curve).
        batch_size: Prompts per pass; default: by free memory. Never changes a result.
        discover_on: File or task to discover on; `task` is then measured on.
        measure_on: File or task to measure on; with both, `task` is not read.
        images: What `assay.load_images` takes, instead of `task`, for an image classifier.
        skip_bad: Leave out image files that cannot be decoded, with a warning.
        full: Run every stage in its larger form.
        skip: Stages to leave out: `attack`, `random`, `curve`, `minimality`, `calibrate`.
        device: Where to load the model, if it is loaded here.
        store: Results store to read from and write to, or its directory, made once model and task are loaded.
            Unused under your own objective: its name does not identify it.
        out: Directory for the report and the results; checked before the work begins.
        progress: Called with stage, steps done and steps in all (0: unknown).

    Returns:
        The audit; `.document` is what the report shows.

    Raises:
        UnknownNameError: An unknown method, task, metric, objective, ablation or stage.
        InputError: An option out of range.
        OutputError: `out` or `store` cannot be written.

    Example:
        >>> found = audit("mini", "ioi", n=20, n_random=2)
        >>> found.circuit.n_edges < found.circuit.graph.n_edges
        True
    """
    check_options(method=method, ablation=ablation, objective=objective, metrics=metrics, device=device)
    options = AuditOptions(
        task=task if images is None else f"{IMAGES}{images}",
        method=method,
        objective=objective,
        ablation=ablation,
        n=n,
        steps=steps,
        seed=seed,
        metrics=metrics,
        n_random=n_random,
        batch_size=batch_size,
        discover_on=discover_on,
        measure_on=measure_on,
        skip_bad=skip_bad,
        full=full,
        skip=skip,
    )
    if not 0 < target <= 1:
        raise InputError(f"target is {target}; expected a normalised faithfulness in (0, 1], e.g. 0.9")
    for place in (out, store):
        if place is not None and not isinstance(place, Store) and "://" not in os.fspath(place):
            check_writable(Path(place))
    report = progress or silent
    report("load", 0, 1)
    loaded = _loaded(model, device)
    if full:
        loaded.check_together("a full audit")
    plan, draws = options.settled(loaded)
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
        target=target,
        plan=plan,
        store=keep if registered(loss, replacement) else None,
        progress=report,
    )
    found = run.stage.run(run.store).value
    if out is not None:
        found.save(out)
    return found


def _loaded(model: Model | str | os.PathLike[str], device: str | None) -> Model:
    if isinstance(model, Model):
        return model
    return load_model(Path(model) if isinstance(model, os.PathLike) else model, device=device)


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditOptions:
    """What decides the inputs and the stages of an audit; arguments of `audit`, checked.

    Raises:
        UnknownNameError: For an unknown task or stage.
        InputError: For a count out of range.
    """

    task: Task | str = "ioi"
    method: str = "eap-ig-inputs"
    objective: str | Objective | None = None
    ablation: str | None = None
    n: int | None = None
    steps: int | str = 5
    seed: int = 0
    metrics: Sequence[str] | None = None
    n_random: int | None = None
    batch_size: int | None = None
    discover_on: PairTask | str | Path | None = None
    measure_on: PairTask | str | Path | None = None
    skip_bad: bool = False
    full: bool = False
    skip: Collection[str] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.task, str) and self.task.startswith(IMAGES)):
            check_options(task=self.task)
        if self.n is not None and self.n < 2:
            raise InputError(f"n is {self.n}; an audit needs at least 2 prompts (default {self.usual_n})")
        if self.n_random is not None and self.n_random < 1:
            usual = RANDOM_FULL if self.full else RANDOM
            raise InputError(
                f"n_random is {self.n_random}; give at least 1 random circuit (default {usual}), or skip "
                "the stage with skip"
            )
        scope_of(full=self.full, skip=self.skip)

    @property
    def usual_n(self) -> int:
        """Prompts of either draw unless told otherwise."""
        return N_FULL if self.full else N

    def settled(self, model: Model) -> tuple[AuditPlan, Division]:
        """What is run on this model, and on which inputs."""
        whole = self._draws(model, self.n)
        there = max(whole.discovery.n, whole.measured.n)
        if isinstance(self.task, str) and self.task.replace("_", "-") in TASKS:
            there = min(there, N_FULL)  # a generator’s repeated prompts make one half somewhat larger
        measured = whole.measured
        images = isinstance(measured, ImageTask)
        ablation = get_ablation(self.ablation or measured.ablation).key
        scope = scope_of(full=self.full, skip=self.skip, images=images)
        if measured.positions.ndim > 1:
            scope = scope.without(("calibrate",), READS)
        if isinstance(measured, PairTask) and measured.alignment is not None:
            scope = scope.without(("attack", "calibrate"), LENGTHS)
        if not self.full and usual_replacement(ablation) != ablation:
            scope = scope.without(("calibrate",), EDGES)
        plan = AuditPlan(
            model=model,
            method=self.method,
            n=self.n or (there if self.full else min(there, N)),
            steps=self.steps,
            metrics=self.metrics,
            n_random=self.n_random,
            scope=scope,
            held_out=whole.held_out,
            ablation=ablation,
            labelled=not isinstance(measured, ImageTask) or measured.labels is not None,
        )
        return plan, whole if self.n or plan.n >= there else self._draws(model, plan.n)

    def _draws(self, model: Model, n: int | None) -> Division:
        """Inputs to discover on and to measure on."""
        task = self.task.loaded() if isinstance(self.task, ImageStream) else self.task
        named = isinstance(task, str) and (
            task.startswith(IMAGES) or digits_source(task) is not None or model.id.startswith("planted:")
        )
        if isinstance(task, ImageTask) or named or model.vision is not None:
            assert not isinstance(task, PairTask)
            return draw_inputs(model, task, n=n, seed=self.seed, skip_bad=self.skip_bad)
        return draw_prompts(
            model, task, n=n, seed=self.seed, discover_on=self.discover_on, measure_on=self.measure_on
        )

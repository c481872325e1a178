"""The audit: load, draw, discover, size, measure, attack, calibrate, page.

An audit is a pure function of its record (model weights, prompts, method, every option, seed). The hash
of that record is the result's id: asking again for what a store holds costs one look-up, and an
interrupted audit finds its scores and measurements where it left them.
"""

import os
import time
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from assay.circuits import EdgeScores, Level, NodeScores
from assay.circuits.naming import IMAGES
from assay.core.errors import AssayWarning, InputError, check_least, check_name
from assay.core.machine import COUNTING, entered
from assay.core.record import MACHINE, library_version, plain
from assay.discovery.edges import get_method
from assay.execution import Ablation, CircuitRuns, get_ablation
from assay.metrics import faithfulness_curve, find_metric
from assay.metrics.curve import FRACTIONS
from assay.metrics.metric import SIGNED_MARGINS
from assay.metrics.page import CurveData, curve_data
from assay.models import Model, load_model
from assay.objectives import Objective, get_objective
from assay.page.graph import graph_of
from assay.pipeline.audit_result import SCHEMA, Audit, drawn_edges
from assay.pipeline.circuits import stored_circuit
from assay.pipeline.gates import calibrate_measured, calibrate_runs
from assay.pipeline.prompts import Division, N, divide
from assay.pipeline.sizing import COARSE, FINE, GROWTH, Kept, SizedCircuit, Targets, discover_circuit
from assay.pipeline.stage import (
    Content,
    Progress,
    RunSettings,
    Stage,
    check_options,
    check_writable,
    measure_stored,
    noted,
    registered,
    silent,
    usual_replacement,
)
from assay.pipeline.worst import USUAL_SIDE, pairs_of, usual_sizes, worst_case_stage, worst_measured
from assay.store import About, Store, StoredResult
from assay.tasks import ImageTask, PairTask, Task, Tokens


# Raised when an audit looks at other pairs, other runs or prompts, or comes to another size than before.
RULES = {"worst_case": "usual-sizes/1", "calibration": "gates/3", "size_rule": "sweep/3"}
STAGES = ("attack", "random", "curve", "minimality", "calibrate")  # that an audit can do without
METRICS = ("faithfulness-norm", "faithfulness", "completeness", "kl", "ce-delta", "topk")
HEADLINE = ("faithfulness-norm", "faithfulness", "topk")  # what the first sentence of a report needs
BASELINED = ("faithfulness-norm", "topk")  # measured on random circuits of equal size too
SHAPE = ("d_model", "n_parameters")  # what a report says of a model beside what identifies it
OF_LABELS = ("ce-delta", "topk")  # need right answers
DISTRIBUTION = "share of the output distribution kept"  # the first metric with KL as its objective
OTHER_ABLATIONS = ("zero", "mean")  # that the first number of a report is shown under beside its own
MINIMALITY_HEADS = 64  # models of at most so many heads get minimality in a full audit: one run per head
RANDOM, RANDOM_FULL = 5, 20  # random circuits of the chosen size
RANDOM_PER_SIZE = 4  # random circuits at each published size of the curve of a full audit
EXAMPLES = 3

# Why a stage is not run, and what runs it.
CAUSES = {
    "skip": "left out by --skip",
    "images": "needs prompts; the inputs are images",
    "edges": "the ablation is defined for edges alone; with --full, gates take the mean",
    "draws": "the ablation draws other values in every run, so no divergence belongs to an input",
    "heads": f"more than {MINIMALITY_HEADS} heads: `assay measure --metric minimality`",
    "labels": "the images have no labels",
    "full": "--full adds a finer curve, the worst case over fresh prompts or all pairs, and more gates",
}


def audit(
    model: Model | str | os.PathLike[str] = "mini",
    task: Task | str = "ioi",
    *,
    method: str | None = None,
    level: Level = "edge",
    objective: str | Objective | None = None,
    ablation: str | None = None,
    n: int | None = None,
    steps: int = 5,
    target: float = 0.9,
    target_kl: float = 0.9,
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

    Edges are scored on one draw of prompts and ranked by |score|, and by signed score. The size is the
    smallest of a geometric sweep of each ranking, refined by bisection, whose connected circuit keeps both
    the margin (the interval of its normalised faithfulness lies in [`target`, 2 - `target`]) and the
    distribution (1 - KL / KL of the empty circuit is at least `target_kl`) on those prompts, and on the other
    prompts of the same generator on which everything reported is measured.

    The default audit reads everything from the runs of a few dozen circuits. A full audit adds a finer search
    and curve, all pairs of fresh prompts, minimality and the gates that need further runs. `left_out` lists
    what was not run.

    Args:
        model: `mini`, a hub id, a directory, or a loaded model.
        task: Key of a registered task, a JSONL file, or a task of your own. The last two are divided: their
            distinct clean prompts are dealt to two halves with the seed. Below 20 distinct prompts per half
            all serve for both, and every verdict is marked `same_prompts` and at most inconclusive. Images
            are halved likewise.
        method: Discovery method; default: the usual ones, of which the one that needs the fewest edges.
        level: What is scored, and what sizes count: `edge`, or `node` for `input`, heads and MLPs.
        objective: Loss whose negative is the margin; default: the task's own.
        ablation: What a cut edge carries; default: the task's own.
        n: Prompts of each of the two draws, >= 2; default: 100, also of a longer file or own task. Of a full
            audit: 200, and all prompts of a file or own task.
        steps: Quadrature nodes of the method.
        target: Normalised faithfulness to reach, in (0, 1]; the interval has to lie in [target, 2 - target].
        target_kl: Share of the output distribution to keep, in [0, 1]; 0: none is asked for.
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
        The audit.

    Raises:
        UnknownNameError: An unknown method, task, metric, objective, ablation or stage.
        InputError: An option out of range.
        OutputError: `out` or `store` cannot be written.

    Example:
        >>> found = audit("mini", "ioi", n=20, n_random=2)
        >>> found.circuit.n_edges < found.circuit.graph.n_edges
        True
    """
    named_task = task if images is None else f"{IMAGES}{images}"
    of_images = isinstance(named_task, str) and named_task.startswith(IMAGES)
    asked = None if of_images else named_task
    check_options(
        method=method, task=asked, ablation=ablation, objective=objective, metrics=metrics, device=device
    )
    if level == "neuron":
        raise InputError("an audit is of edges or nodes; for neurons use discover and measure")
    check_least(2, n=N if n is None else n)
    check_least(1, n_random=RANDOM if n_random is None else n_random)
    targets = Targets(faithfulness=target, distribution=target_kl)
    for name in skip:
        check_name("stage to skip", name, STAGES)
    for place in (out, store):
        if place is not None and not isinstance(place, Store) and "://" not in os.fspath(place):
            check_writable(Path(place))
    progress = progress or silent

    progress("load", 0, 1)
    with noted() as notes:
        if not isinstance(model, Model):
            model = load_model(Path(model) if isinstance(model, os.PathLike) else model, device=device)
        apart: dict[str, Any] = {"discover_on": discover_on, "measure_on": measure_on}
        halves = divide(model, named_task, n=n, full=full, seed=seed, skip_bad=skip_bad, **apart)
    store = store if isinstance(store, Store) or store is None else Store(store)
    progress("load", 1, 1)

    measured = halves.measured
    loss = get_objective(objective or measured.objective)
    replacement = get_ablation(ablation or measured.ablation)
    store = store if registered(loss, replacement) else None
    causes = _causes(measured, replacement, full=full, skip=skip)
    settings = RunSettings(
        model=model, objective=loss, ablation=replacement.key, batch_size=batch_size, seed=seed
    )
    how: dict[str, Any] = {"method": method, "steps": steps, "level": level, "targets": targets}
    how["resolution"] = FINE if full else COARSE
    record = _record_of(halves, settings, how, causes, metrics=metrics, n_random=n_random, full=full)
    kept: dict[str, Any] = {"store": store, "progress": progress}

    def compute() -> Audit:
        began = time.perf_counter()
        with noted() as more:
            sized = discover_circuit(halves, settings, **how, **kept)
            # Everything below reads the runs on the other half.
            stages = _measured(sized, settings, record, targets, full=full, **kept)
        seconds = round(time.perf_counter() - began, 1)
        made = _made(sized, record, stage.id, seconds=seconds)
        facts = {**made, **stages, "notes": dict.fromkeys([*notes, *more]).keys()}
        return replace(Audit.from_dict(plain(facts)), scores=sized.scores, circuit=sized.circuit)

    stage = Stage(kind="audit", record=record, compute=compute, write=_written, read=read_audit)
    result = stage.run(store).value
    if result.cached:
        repeat_notes(note for note in result.notes if note not in notes)
    if out is not None:
        result.save(out)
    return result


# ---- what is run --------------------------------------------------------------------------------


def _causes(task: Task, ablation: Ablation, *, full: bool, skip: Collection[str]) -> dict[str, str]:
    """Stages that are not run at all, each with its key of `CAUSES`, or `default`."""
    causes = {} if full else {"minimality": "default"}
    if isinstance(task, ImageTask):
        causes["calibrate"] = "images"
    causes |= dict.fromkeys(skip, "skip")
    if not full and usual_replacement(ablation.key) != ablation.key:
        causes.setdefault("calibrate", "edges")
    return causes


def _metric_keys(
    model: Model, task: Task, metrics: Sequence[str] | None, causes: Mapping[str, str]
) -> list[str]:
    """What is measured: what a report needs first, then what was asked for or is usual."""
    keys = [*METRICS] if metrics is None else [*HEADLINE, *(find_metric(key).key for key in metrics)]
    if metrics is None and "minimality" not in causes and _few_heads(model):
        keys.append("minimality")
    return [key for key in dict.fromkeys(keys) if _labelled(task) or key not in OF_LABELS]


def _record_of(
    halves: Division,
    settings: RunSettings,
    discovery: Mapping[str, Any],
    causes: Mapping[str, str],
    *,
    metrics: Sequence[str] | None,
    n_random: int | None,
    full: bool,
) -> dict[str, Any]:
    """All that the numbers of an audit are a function of; its hash is the audit's id.

    Args:
        halves: The examples.
        settings: How circuits are run, with objective and ablation.
        discovery: How the circuit is found: `method`, `steps`, `level`, `targets`, `resolution`.
        causes: Stages that are not run.
        metrics: Keys of what to measure, as in `audit`.
        n_random: Random circuits of the chosen size, as in `audit`.
        full: Whether every stage is run in its larger form.
    """
    loss, ablation = cast(Objective, settings.objective), cast(str, settings.ablation)
    level, targets = (discovery[name] for name in ("level", "targets"))
    return {
        "job": "audit",
        "schema": SCHEMA,
        "library": library_version(),
        "model": settings.model.describe(),
        "graph": settings.model.graph.fingerprint,
        "discovery": halves.discovery.describe(),
        "measured": halves.measured.describe(),
        "held_out": halves.held_out,
        "method": {"key": discovery["method"], "steps": discovery["steps"], "quadrature": "midpoint"}
        | ({} if level == "edge" else {"level": level}),
        "objective": loss.key,
        "ablation": ablation,
        "target": targets.faithfulness,
        "target_kl": targets.distribution,
        "metrics": _metric_keys(settings.model, halves.measured, metrics, causes),
        "other_ablations": [key for key in OTHER_ABLATIONS if not ablation.startswith(key)],
        "n_random": 0 if "random" in causes else n_random or (RANDOM_FULL if full else RANDOM),
        "random_per_size": RANDOM_PER_SIZE,
        "scope": {
            "larger": sorted(STAGES) if full else [],
            "left_out": dict(sorted(causes.items())),
            "search": [discovery["resolution"], GROWTH],
        },
        **RULES,
        "seed": settings.seed,
    }


def _few_heads(model: Model) -> bool:
    return model.n_layers * model.n_heads <= MINIMALITY_HEADS


def _labelled(task: Task) -> bool:
    return not isinstance(task, ImageTask) or task.labels is not None


def _left_out(runs: CircuitRuns, record: Mapping[str, Any], *, full: bool) -> dict[str, str]:
    """What is not run, and why."""
    causes = dict(record["scope"]["left_out"])
    if runs.ablation_object.draws > 1:
        causes["attack"] = "draws"
    if full and not _few_heads(runs.model) and "minimality" not in record["metrics"]:
        causes.setdefault("minimality", "heads")
    if not _labelled(runs.task):
        causes |= dict.fromkeys(OF_LABELS, "labels")
    if not full:
        causes["full"] = "full"
    return {stage: CAUSES[cause] for stage, cause in causes.items() if cause != "default"}


# ---- the stages, as parts of the document -------------------------------------------------------


def _measured(
    sized: SizedCircuit,
    settings: RunSettings,
    record: Mapping[str, Any],
    targets: Targets,
    *,
    full: bool,
    store: Store | None,
    progress: Progress,
) -> dict[str, Any]:
    """Every stage behind the discovery that the record does not leave out, and what was left out."""
    runs, causes, keys = cast(CircuitRuns, sized.runs), record["scope"]["left_out"], record["metrics"]
    measurements: list[dict[str, Any]] = []  # the first is the normalised faithfulness
    for place, key in enumerate(keys):
        progress("measure", place, len(keys))
        circuits = record["n_random"] if key in BASELINED else 0
        measurements.append(measure_stored(runs, key, random_circuits=circuits, store=store))
    progress("measure", len(keys), len(keys))
    distribution = {**measure_stored(runs.judged_by("kl"), HEADLINE[0], store=store), "name": DISTRIBUTION}
    curve = worst = gates = None
    if "curve" not in causes:
        with entered(COUNTING, lambda *done: progress("faithfulness curve", *done)):
            curve = _curve(sized, runs, measurements[0], target=record["target"], full=full)
    first = HEADLINE[0]
    others = [
        {**measure_stored(runs.under(key), first, store=store), "name": f"{first}, {key} ablation"}
        for key in record["other_ablations"]
        if runs.counted.any()  # else there is no number to stand beside
    ]
    if "attack" not in causes:
        worst = _worst_case(runs, full=full, store=store, progress=progress)
    if "calibrate" not in causes:  # which images have
        kept: dict[str, Any] = {"store": store, "progress": progress}
        of = (runs.circuit, cast(PairTask, runs.task), settings)
        gates = (calibrate_measured(*of, **kept) if full else calibrate_runs(runs, **kept)).document
    return {
        "task": _examined(runs),
        "circuit": _reported(sized, measurements[0], targets),
        **drawn_edges(sized, runs),
        "curve": curve,
        "measurements": measurements,
        "distribution": distribution,
        "other_ablations": others,
        "worst_case": worst,
        "calibration": gates,
        "left_out": _left_out(runs, record, full=full),
    }


def _made(sized: SizedCircuit, record: Mapping[str, Any], identity: str, *, seconds: float) -> dict[str, Any]:
    """What the audit is of, how its edges were scored and where it was made."""
    model, scores, how = cast(CircuitRuns, sized.runs).model, sized.scores, record["method"]
    graph, sums = scores.graph, scores.values.double().reshape(len(scores.values), -1).sum(1)
    key = scores.provenance["method"]  # of several that were tried
    steps = scores.details.get("steps", how["steps"]) if get_method(key).integrates else None
    examples = {key: record["discovery"][key] for key in ("n", "data_hash")}
    machine = {
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "seconds": seconds,
    }
    return {
        "kind": "audit",
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": model.describe() | {key: getattr(model, key) for key in SHAPE},
        "discovery": {**examples, "seed": record["seed"], "held_out": record["held_out"]},
        "graph": {**graph.describe(), "n_edges": graph.n_edges, "fingerprint": graph.fingerprint},
        "method": {**scores.details, **how, "key": key, "steps": steps},
        "per_head": [
            [float(sums[graph.head_source(layer, head)]) for head in range(graph.n_heads)]
            for layer in range(graph.n_layers)
        ],
        "provenance": {
            "id": identity,
            "library": f"assay {library_version()}",
            "record": record,
            "scores": dict(scores.provenance),
            MACHINE: machine,
        },
    }


def _worst_case(
    runs: CircuitRuns, *, full: bool, store: Store | None, progress: Progress
) -> dict[str, Any] | None:
    """The circuit on fresh prompts, on pairs of images, or on what was measured."""
    task = runs.task
    if runs.ablation_object.draws > 1:
        return None
    progress("attack", 0, 1)
    if full:
        if isinstance(task, ImageTask):
            task = task.subset(range(min(task.n, USUAL_SIDE)))
        sample = pairs_of(task, *usual_sizes(task, runs.ablation), ablation=runs.ablation, seed=runs.seed)
        worst = worst_case_stage(runs.circuit, runs.model, sample, progress=progress).run(store).value
    else:
        worst = worst_measured(runs, store=store)
        progress("attack", 1, 1)
    document = worst.to_dict()
    document["fields"]["heatmaps"] = []  # so few inputs leave nothing to see in their cells
    return document


def _reported(sized: SizedCircuit, faithfulness: Mapping[str, Any], targets: Targets) -> dict[str, Any]:
    """The circuit, what was asked of it, and which of that it keeps on the measured examples."""
    circuit, runs, kept = sized.circuit, cast(CircuitRuns, sized.runs), cast(Kept, sized.kept)
    margin, distribution = targets.met(Kept.by(runs, circuit))
    return {
        "id": circuit.hash,
        "size": sized.size,
        "n_edges": circuit.n_edges,
        "nodes": circuit.nodes(),
        "absolute": sized.ranking.absolute,
        "target": targets.faithfulness,
        "target_kl": targets.distribution,
        "reached": {"faithfulness": margin, "distribution": distribution},
        "faithfulness": {"value": faithfulness["value"], **faithfulness["interval"]},
        "discovery_faithfulness": kept.faithfulness,
        "discovery_distribution": kept.distribution,
        "confirmed": sized.confirmed,
        "sweep": list(sized.sweep),
        "rankings": list(sized.tried),
        "provenance": dict(circuit.provenance),
        **({} if circuit.level == "edge" else {"level": circuit.level}),
    }


def _examined(runs: CircuitRuns) -> dict[str, Any]:
    """The measured prompts or images: counts, the model's own success, a few examples."""
    task, margins = runs.task, runs.margins("full")
    signed, of_prompts = runs.objective in SIGNED_MARGINS, isinstance(task, PairTask)
    examined = {
        "name": task.name,
        "inputs": "prompts" if of_prompts else "images",
        "n": task.n,
        "seed": task.config.get("seed"),
        "objective": runs.objective,
        "ablation": runs.ablation,
        "data_hash": task.data_hash,
        "accuracy": float((margins > 0).mean()) if signed else None,
        "mean_margin": float(margins.mean()) if signed else None,
        "examples": [],
        "notes": list(runs.notes),
    }
    if isinstance(task, PairTask):
        examined["examples"] = [
            _example(task, row) | {"margin": float(margins[row]) if signed else None}
            for row in range(min(EXAMPLES, task.n))
        ]
        if (bos := _with_bos(task)) is not None:
            examined["bos"] = bos
    return examined


def _with_bos(task: PairTask) -> bool | None:
    """Whether prompts begin with a BOS token; None where the tokenizer adds none, and a chat template may."""
    if task.config.get("chat"):
        return None
    prefix = () if task.texts is None or task.tokenizer is None else Tokens(task.tokenizer).prefix
    if task.config.get("bos") or not prefix:
        return True if task.config.get("bos") else None
    return bool((task.clean[:, : len(prefix)] == torch.tensor(prefix)).all())


def _example(task: PairTask, row: int) -> dict[str, Any]:
    """One pair for reading, with its right and wrong words."""

    def decode(ids: torch.Tensor) -> str:
        numbers: list[int] = ids.tolist()
        return str(task.tokenizer.decode(numbers)) if task.tokenizer else " ".join(map(str, numbers))

    def words(ids: torch.Tensor | None) -> list[str]:
        return [] if ids is None else [decode(each[None]).strip() for each in ids[row].flatten() if each >= 0]

    clean, corrupted = (side[row, : int(task.lengths[row])] for side in (task.clean, task.corrupted))
    return {
        "clean": task.texts[row] if task.texts else decode(clean),
        "corrupted": task.corrupted_texts[row] if task.corrupted_texts else decode(corrupted),
        "answers": words(task.answers),
        "wrong": words(task.wrong),
    }


def _curve(
    sized: SizedCircuit, runs: CircuitRuns, faithfulness: Mapping[str, Any], *, target: float, full: bool
) -> CurveData:
    """Faithfulness by size to draw, with CPR and CMD of the published sizes, and random circuits.

    Args:
        sized: The circuit, whose own size is drawn too.
        runs: Its runs on the measured examples.
        faithfulness: The record of its normalised faithfulness, with random circuits of its size.
        target: Normalised faithfulness that the size was searched for.
        full: Draw a finer curve, and run random circuits at each published size.
    """
    n_edges, of = sized.scores.n_items, (sized.scores, runs.model, runs.task)  # or nodes
    how: dict[str, Any] = {"runs": runs, "absolute": sized.ranking.absolute}
    published = faithfulness_curve(*of, **how, random_circuits=RANDOM_PER_SIZE if full else 0)
    more = np.geomspace(0.005, 0.5, 14) if full else ()
    sizes = sorted({sized.size, *(int(share * n_edges) for share in (*FRACTIONS, *more))} - {0})
    # Half an edge more, so that taking the integer part gives the size back.
    shares = [min((size + 0.5) / n_edges, 1.0) for size in sizes]
    drawn = faithfulness_curve(*of, **how, fractions=shares)
    random, at = published.random, published.n_edges
    values = (faithfulness["baseline"].get("random") or {}).get("values")
    if random is None and values:
        random, at = np.array(values, dtype=float)[:, None], np.array([sized.size])
    if random is not None:
        random, at = (random[:, at > 0], at[at > 0]) if np.isfinite(random).all() else (None, at)
    return replace(
        curve_data(drawn, random, at / n_edges),
        fractions=tuple((drawn.n_edges / n_edges).tolist()),
        cpr=published.cpr,
        cmd=published.cmd,
        overshoot=published.overshoot,
        target=target,
        chosen=sized.size / n_edges,
        chosen_value=faithfulness["value"],
    )


# ---- the store ----------------------------------------------------------------------------------


def read_audit(stored: StoredResult) -> Audit:
    """The audit of a row, without running anything."""
    audit, graph = Audit.from_dict(stored.payload), graph_of(stored.payload["graph"])
    kind = NodeScores if "level" in audit.reported else EdgeScores
    how: dict[str, Any] = {"provenance": audit.provenance["scores"], "details": audit.method}
    scores = kind(graph, stored.arrays["scores"], **how)
    return replace(audit, scores=scores, circuit=stored_circuit(stored), cached=True)


def _written(audit: Audit) -> Content:
    """What is stored; an audit is found by the faithfulness of its circuit."""
    first = audit.measurements[0]
    about = About(
        model=audit.model["id"],
        task=audit.task["name"],
        method=audit.method["key"],
        metric=first["name"],
        **{key: first[key] for key in ("n", "value", "status")},
        **{key: first["interval"][key] for key in ("low", "high")},
        seed=audit.discovery["seed"],
        name=f"{audit.circuit.n_items:,} {audit.circuit.level}s",
        circuit=audit.circuit.hash,
        size=audit.circuit.n_items,
        ablation=audit.task["ablation"],
    )
    arrays = {"scores": audit.scores.values, **audit.circuit.arrays()}
    return Content(payload=audit.to_dict(), about=about, arrays=arrays)


def repeat_notes(notes: Iterable[str]) -> None:
    """Give warnings again that were given while a result was made."""
    for note in notes:
        warnings.warn(note, AssayWarning, stacklevel=3)

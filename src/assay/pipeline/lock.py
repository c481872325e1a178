"""The circuits that a model carries, in a file to keep beside its code: what `assay check` compares with."""

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float64
from torch import Tensor

from assay.circuits import Circuit, EdgeScores, load_circuit, write_atomically
from assay.core.errors import FileFormatError, InputError, check_least
from assay.core.random import stream
from assay.core.record import BRIEF, HIDDEN, Record, library_version
from assay.core.untrusted import read_object
from assay.discovery.edges import discover
from assay.execution import CircuitRuns, get_ablation
from assay.metrics import find_metric
from assay.metrics.metric import SIGNED_MARGINS, SOLVED, measure_runs
from assay.models import Model, load_model
from assay.models.model import prompted
from assay.pipeline.audit_result import STRONGEST, Audit, heads_by_strength
from assay.pipeline.prompts import prompts_to_measure
from assay.pipeline.stage import Progress, check_writable, silent
from assay.stats import RatioOfSums, skewed_mean_interval
from assay.tasks import TASKS, PairTask, is_task_file, load_task
from assay.tasks.examples import different_examples, prompt_codes, seen_prompts


N = 200  # prompts that a circuit is locked on
LEAST_MARGIN = 0.05  # of a value; that of a head is half of its share
FEWEST = 25  # prompts below which nothing is locked or checked
ENOUGH = 100  # unseen prompts, below which those of earlier draws serve too
TAIL = 0.0005  # of the bound that the error of a part comes from; about what one test of a file spends
METHOD = "eap-ig-inputs"  # attributes the behaviour to heads
PIECE_BYTES = 1 << 28  # scores of single prompts that are held at a time
RATIO = RatioOfSums(numerator={"top": 1.0}, denominator={"bottom": 1.0})


@dataclass(frozen=True, kw_only=True)
class CircuitPart(Record):
    """A number that a circuit is known by.

    Attributes:
        name: Key of the metric; or a head, whose number is the share of the model's gain over the empty
            circuit that is attributed to it.
        value: What was measured.
        low, high: Its 95 % interval; NaN where undefined.
        error: Its standard error, enlarged for few and for skewed prompts: the distance to its one-sided
            99.95 % bound towards 0 (`assay.stats.skewed_mean_interval`) over the normal quantile.
        margin: How much nearer to 0 it may come.
    """

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    error: float
    margin: float

    @property
    def threshold(self) -> float:
        """Where the margin ends."""
        return self.value - math.copysign(self.margin, self.value)


@dataclass(frozen=True, kw_only=True)
class LockedCircuit(Record):
    """A circuit, what it was locked on, and the numbers it is known by.

    Attributes:
        name: Of the line.
        file: Its circuit file, from the folder of the lock.
        hash: `Circuit.hash`.
        n_edges: Its size.
        task: Key of a registered task, or the file of prompts from the folder of the lock.
        draws: Seed and number of prompts of each draw of a generator that audit and lock have used.
        objective: Key of the objective.
        ablation: Key of the ablation.
        n: Different prompts that it was locked on.
        parts: First the value, then the strongest heads.
        options: Arguments of the task's grammar.
        rules: How its prompts become token ids; see `load_task`.
        accuracy: Share of prompts on which the model's margin is positive; NaN where that means nothing.
        prompts_hash: `hash_prompts` of its file of prompts; None for a generator.
    """

    name: str
    file: str
    hash: str
    n_edges: int
    task: str
    draws: tuple[tuple[int, int], ...]
    objective: str
    ablation: str
    n: int
    parts: tuple[CircuitPart, ...]
    options: Mapping[str, Any] = field(default_factory=dict, metadata=BRIEF)
    rules: Mapping[str, Any] = field(default_factory=dict, metadata=BRIEF)
    accuracy: float = math.nan
    prompts_hash: str | None = None

    @property
    def scores_file(self) -> str:
        """The file of the scores of all edges when it was locked."""
        return self.file.removesuffix(".safetensors") + ".scores.safetensors"

    @property
    def signed(self) -> bool:
        """Whether a positive margin means that the model is right."""
        return self.objective in SIGNED_MARGINS

    def check(self) -> None:
        """Refuse a margin that nothing could fall below.

        Raises:
            InputError: Naming circuit and part.
        """
        for part in self.parts:
            if not 0 < part.margin < abs(part.value):
                raise InputError(
                    f"margin of {part.name} of circuit {self.name!r} is {part.margin:g}, but its value is "
                    f"{part.value:.3g}; a margin is positive and smaller than that"
                )


@dataclass(frozen=True, kw_only=True)
class Lock(Record):
    """Circuits of one model.

    Attributes:
        library: What wrote it.
        model: `Model.describe` of the model.
        circuits: One or more.
        path: The file.
    """

    record_kind = "lock"
    record_schema = "assay-lock/1"

    library: str
    model: Mapping[str, Any]
    circuits: tuple[LockedCircuit, ...]
    path: Path = field(default=Path(), metadata=HIDDEN)

    def save(self) -> Path:
        """Write the file."""
        return write_atomically(self.path, f"{_toml(self.to_dict())}\n".encode())

    def load(self, locked: LockedCircuit) -> Circuit:
        """The circuit of a line.

        Raises:
            FileFormatError: If its file is missing, holds another circuit, or lies elsewhere; if its prompts
                have changed.
        """
        folder = self.path.parent.resolve()
        if not (folder / locked.file).resolve().is_relative_to(folder):  # a lock may come from other people
            raise FileFormatError(f"{self.path} names the circuit file {locked.file}, outside its own folder")
        circuit = load_circuit(self.path.parent / locked.file)
        if circuit.hash != locked.hash:
            raise FileFormatError(
                f"{self.path.parent / locked.file} holds circuit {circuit.hash}, but {self.path} has locked "
                f"{locked.hash}; restore it, or lock again"
            )
        prompts = self.path.parent / locked.task
        if locked.prompts_hash is not None and hash_prompts(prompts) != locked.prompts_hash:
            raise FileFormatError(f"{prompts} has changed since it was locked; restore it, or lock again")
        # That other weights are run is the point, which needs no warning.
        return replace(circuit, provenance={"task": circuit.provenance.get("task")})


def hash_prompts(path: Path) -> str:
    """Hash of a file of prompts, however its lines end (16 hex digits).

    Raises:
        FileFormatError: If it cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = error.strerror
        raise FileFormatError(f"cannot read the prompts {path}: {reason}; restore the file") from error
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()[:16]


def read_lock(path: str | os.PathLike[str]) -> Lock:
    """Read a lock and check it; no model is needed.

    Raises:
        FileFormatError: For a damaged file.
        InputError: For a margin that is not smaller than its value.
    """
    path = Path(path)
    try:
        lock = Lock.from_dict(read_object(path, "a lock by `assay lock`"))
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error
    if not lock.circuits or not all(each.parts for each in lock.circuits):
        raise FileFormatError(f"{path} has no circuit, or one without parts; lock again")
    for each in lock.circuits:
        each.check()
    return replace(lock, path=path)


def _toml(table: Mapping[str, Any], place: str = "") -> str:
    """A document of plain values as TOML; tables after values, and nothing for what is undefined."""
    values, tables = list[str](), list[str]()
    for key, value in table.items():
        key = key if re.fullmatch(r"[\w-]+", key, re.ASCII) else _quoted(key)
        name, rows = f"{place}.{key}".strip("."), value if isinstance(value, list) else [value]
        if value is None or value == {}:
            continue
        if isinstance(rows[0] if rows else None, Mapping):
            head = f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
            tables += [f"\n{head}\n{_toml(each, name)}" for each in rows]
        else:
            values.append(f"{key} = {_quoted(value)}")
    return "\n".join((*values, *tables))


def _quoted(value: Any) -> str:
    """A plain value or key as JSON that is TOML as well."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---- what is observed of a circuit ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """Per-prompt numbers of a circuit, rows with an undefined one left out.

    Attributes:
        top, bottom: Of each part, whose value is the ratio of their sums, `[n, n_parts]`.
        full: The model's margin.
        gain: The same less that of the empty circuit.
        scores: Summed scores of all edges, `[n_sources, n_targets]`.
        n_scored: Prompts behind the scores.
    """

    top: Float64[np.ndarray, "n n_parts"]
    bottom: Float64[np.ndarray, "n n_parts"]
    full: Float64[np.ndarray, " n"]
    gain: Float64[np.ndarray, " n"]
    scores: Tensor
    n_scored: int

    def __add__(self, other: "Observed") -> "Observed":
        names = ("top", "bottom", "full", "gain")
        rows = {name: np.concatenate([getattr(each, name) for each in (self, other)]) for name in names}
        return Observed(**rows, scores=self.scores + other.scores, n_scored=self.n_scored + other.n_scored)

    def part(self, place: int, name: str, margin: float | None = None) -> CircuitPart:
        """One part as it stands; by default with the usual margin."""
        table = np.stack([self.top[:, place], self.bottom[:, place]])
        value, interval = float(RATIO.of_sums(table.sum(1), table.shape[1])), RATIO.interval(table)
        half = (interval.high - interval.low) / 2
        usual = abs(value) / 2 if place else max(LEAST_MARGIN, half)
        error = lock_error(value, RATIO.linearised(table))
        numbers = {"value": value, "low": interval.low, "high": interval.high, "error": error}
        numbers["margin"] = usual if margin is None else margin
        return CircuitPart(name=name, **{key: float(f"{number:.6g}") for key, number in numbers.items()})


def lock_error(value: float, influence: Float64[np.ndarray, " n"]) -> float:
    """`CircuitPart.error` of a value from per-prompt values whose mean it is to first order."""
    far = skewed_mean_interval(value, influence, level=1 - 2 * TAIL)
    towards = far.low if value > 0 else far.high
    return abs(value - towards) / float(scipy.special.ndtri(1 - TAIL))


def observe(
    model: Model,
    task: PairTask,
    circuit: Circuit,
    names: Sequence[str],
    *,
    objective: str,
    ablation: str,
    batch_size: int | None = None,
) -> Observed:
    """Run a circuit on some prompts and attribute the model's behaviour to its heads.

    Args:
        model: The model.
        task: Different prompts.
        circuit: A circuit of its graph.
        names: Key of the metric, then heads.
        objective: Key of the objective.
        ablation: Key of the ablation.
        batch_size: Prompts per pass.

    Notes:
        The runs that the metric reads, and one attribution (7 forward and 5 backward passes).
    """
    how: dict[str, Any] = {"objective": objective, "ablation": ablation, "batch_size": batch_size}
    runs = CircuitRuns(model, task, circuit, **how)
    measured = measure_runs(runs, names[0])
    if not isinstance(measured.statistic, RatioOfSums) or measured.direction not in ("higher", "target"):
        raise InputError(
            f"{names[0]} is not a mean or a ratio of sums of which more is better; take another metric"
        )
    table = np.stack([measured.components[name] for name in measured.statistic.components])
    value, bottom = measured.statistic.pair(table)
    full = runs.margins("full")
    gain = full - runs.margins("empty")
    rows = [circuit.graph.source_index(name) for name in names[1:]]
    heads, total = list[Tensor](), torch.zeros(circuit.graph.valid.shape, dtype=torch.float64)
    piece = max(1, PIECE_BYTES // (4 * total.numel()))
    for part in torch.arange(task.n).split(piece):
        scores = discover(model, task.subset(part), METHOD, **how, per_example=True)
        assert scores.per_example is not None
        heads.append(scores.per_example[:, rows].double().sum(2))
        total += scores.values.double() * len(part)
    top = np.concatenate([value, torch.cat(heads).numpy()], axis=1)
    ones = np.ones(task.n) if bottom is None else bottom
    bottoms = np.stack([ones, *[gain] * len(rows)], axis=1)
    used = np.isfinite(np.column_stack([top, bottoms, full])).all(axis=1)
    return Observed(
        top=top[used],
        bottom=bottoms[used],
        full=full[used],
        gain=gain[used],
        scores=total,
        n_scored=task.n,
    )


def fresh_prompts(
    model: Model, circuit: Circuit, locked: LockedCircuit, folder: Path, *, n: int, seed: int
) -> PairTask:
    """At most `n` different prompts of a line that the circuit was not found on, in random order.

    Of a generator also none of its earlier draws, where 100 others remain. Of a file those of the half that
    was held out.

    Raises:
        InputError: If fewer than 25 are left.
    """
    model = prompted(model, **locked.rules) if locked.rules else model
    used = np.zeros(0, dtype=np.uint32)
    if is_task_file(locked.task):
        task = prompts_to_measure(model, str(folder / locked.task), n=None, seed=seed, circuit=circuit)
    else:
        options = {**locked.options}
        task = load_task(locked.task, model, n=2 * n, seed=seed, **options)
        draws = [load_task(locked.task, model, n=count, seed=each, **options) for each, count in locked.draws]
        used = np.unique([code for each in draws for code in prompt_codes(each)]).astype(np.uint32)
    task, _ = different_examples(task, paired=get_ablation(locked.ablation).paired)
    held_out = ~seen_prompts(circuit.provenance, task)
    unseen = held_out & ~np.isin(prompt_codes(task), used)
    rows = np.flatnonzero(unseen if unseen.sum() >= min(n, ENOUGH) else held_out)
    if len(rows) < FEWEST:
        raise InputError(
            f"{locked.task} has {len(rows)} different prompts that circuit {locked.name!r} was not found on; "
            f"{FEWEST} or more are needed"
        )
    return task.subset(stream(seed, "fresh").permutation(rows)[:n].tolist())


# ---- locking --------------------------------------------------------------------------------------


def lock_audits(
    model: Model | str,
    audits: Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    metric: str = "faithfulness-norm",
    margin: float | None = None,
    n: int = N,
    files: Sequence[str | os.PathLike[str]] = (),
    batch_size: int | None = None,
    progress: Progress = silent,
) -> Lock:
    """Write down which circuits a model carries, so that `check_lock` can tell whether another does.

    Each circuit is measured anew on fresh prompts, since those of an audit took part in choosing its size:
    the value of the metric, and the share of the model's gain over the empty circuit that `eap-ig-inputs`
    attributes to each of its five strongest heads.

    Args:
        model: The audited model, or its id or directory.
        audits: Directories that audits were saved in.
        path: The lock to write, `NAME.toml`. Circuits and scores are copied to the folder NAME beside it.
        metric: Key of a metric that is a mean or a ratio of sums, and of which more is better.
        margin: How far below its value a circuit counts as lost. Default: the larger of .05 and half the 95 %
            interval. Of heads half the share.
        n: Prompts, at least 25; of a file at most those that were held out.
        files: The files of prompts of audits on files. Default: as named there, in the working directory.
        batch_size: Prompts per pass.
        progress: Told of each circuit.

    Returns:
        The lock.

    Raises:
        InputError: For audits of images or of another model, circuits that were found on the prompts that
            they were measured on, a task that the model does not solve, a margin above the value.
        FileFormatError: For a directory that does not hold an audit.
        GraphMismatchError: For a model of another graph.
    """
    check_least(FEWEST, n=n)
    spec, path = find_metric(metric), Path(path)
    if not audits:
        raise InputError("a lock needs at least one audit; give the --out of one")
    if path.suffix != ".toml":
        raise InputError(f"the lock is {path}; give NAME.toml")
    folder = path.with_suffix("")
    found = [
        (Path(each), Audit.from_dict(read_object(Path(each) / "audit.json", "an audit"))) for each in audits
    ]
    sources = [_source(place, audit, folder.parent, files) for place, audit in found]
    model = model if isinstance(model, Model) else load_model(model)
    model = model.treating(found[0][1].model.get("post_norm"))
    described = model.describe()
    for place, audit in found:
        if any(audit.model.get(key) != described.get(key) for key in ("weight_hash", "post_norm")):
            raise InputError(
                f"{place} is an audit of a model with weights {audit.model['weight_hash']}, but {model.id} "
                f"has {described['weight_hash']}; give the audited model with --model and --dtype"
            )
    check_writable(folder, make=True)
    measured = list[tuple[LockedCircuit, Circuit, EdgeScores]]()
    for done, ((place, audit), source) in enumerate(zip(found, sources, strict=True)):
        progress("lock", done, len(found))
        base = re.sub(r"[^\w.-]+", "-", audit.task["name"]).lstrip(".-") or "circuit"  # also of files
        taken = {each.name for each, _, _ in measured}
        numbered = (base, *(f"{base}-{at}" for at in range(2, done + 3)))
        name = next(each for each in numbered if each not in taken)
        circuit = load_circuit(place / "circuit.safetensors", model.graph)
        locked = LockedCircuit(
            name=name,
            file=f"{folder.name}/{name}.safetensors",
            hash=circuit.hash,
            n_edges=circuit.n_edges,
            **source,
            objective=audit.task["objective"],
            ablation=audit.task["ablation"],
            n=0,
            parts=(),
        )
        seed = 1 + max((seed for seed, _ in locked.draws), default=0)
        task = fresh_prompts(model, circuit, locked, folder.parent, n=n, seed=seed)
        if locked.draws:
            locked = replace(locked, draws=(*locked.draws, (seed, 2 * n)))
        names = (spec.key, *list(heads_by_strength(audit))[:STRONGEST])
        how: dict[str, Any] = {"objective": locked.objective, "ablation": locked.ablation}
        seen = observe(model, task, circuit, names, **how, batch_size=batch_size)
        scores = EdgeScores(circuit.graph, (seen.scores / seen.n_scored).float(), provenance=how)
        measured.append((_known_by(locked, seen, names, margin), circuit, scores))
    progress("lock", len(found), len(found))
    for locked, circuit, scores in measured:
        circuit.save(folder.parent / locked.file)
        scores.save(folder.parent / locked.scores_file)
    circuits = tuple(locked for locked, _, _ in measured)
    lock = Lock(library=library_version(), model=described, circuits=circuits, path=path)
    lock.save()
    return lock


def _source(
    place: Path, audit: Audit, folder: Path, files: Sequence[str | os.PathLike[str]]
) -> dict[str, Any]:
    """Where the prompts of an audit come from, as fields of a line.

    Raises:
        InputError: If no others could be drawn.
    """
    if not audit.discovery["held_out"] or audit.task["inputs"] != "prompts":
        raise InputError(
            f"{place} is an audit of images, or found and measured its circuit on the same prompts; a lock "
            "needs prompts that the circuit was not found on"
        )
    config = audit.provenance["record"]["measured"]["config"]
    rules = {key: config[key] for key in ("bos", "chat", "answer_tokens", "where") if key in config}
    if config.get("task") in TASKS and "generator_version" in config:
        drawn = {"task": config["task"], "options": config["options"]}
        return {**drawn, "rules": rules, "draws": ((config["seed"], config["n"]),)}
    name = str(config.get("file"))
    file = next(
        (Path(each) for each in (*files, name) if Path(each).name == name and Path(each).is_file()), None
    )
    if file is None:
        raise InputError(
            f"{place} is an audit on {name}, which is not in the working directory; give its path with "
            "--prompts"
        )
    task = Path(os.path.relpath(file, folder)).as_posix()  # also read where paths have other separators
    drawn = {"task": task, "options": config.get("options", {}), "draws": ()}
    return {**drawn, "rules": rules, "prompts_hash": hash_prompts(file)}


def _known_by(
    locked: LockedCircuit, seen: Observed, names: Sequence[str], margin: float | None
) -> LockedCircuit:
    """A line with its numbers.

    Raises:
        InputError: If the model does not solve the task, or the margin is not smaller than the value.
    """
    right = float((seen.full > 0).mean()) if locked.signed else math.nan
    if right < SOLVED or seen.gain.mean() <= 0:
        raise InputError(
            f"the model does not solve {locked.name} ({right:.0%} right), so there is nothing to lock"
        )
    value, *heads = (seen.part(at, name, margin if at == 0 else None) for at, name in enumerate(names))
    heads = [each for each in heads if abs(each.value) > 4 * each.error]
    locked = replace(locked, n=len(seen.full), accuracy=right, parts=(value, *heads))
    locked.check()
    return locked

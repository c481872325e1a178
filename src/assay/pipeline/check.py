"""Whether a model still carries the circuits of a lock: a sequential test on fresh prompts, and its page."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np
import scipy
import torch
from jaxtyping import Float64

from assay.circuits import Circuit, load_scores
from assay.core.errors import GraphMismatchError, InputError, UnknownNameError, check_least
from assay.core.record import BRIEF, Record
from assay.graph import Graph
from assay.metrics.metric import SOLVED
from assay.models import Model, load_model
from assay.page import text as words
from assay.page.blocks import PAGES, Cell, Column, Note, Page, PageForm, Section, Table, columns
from assay.page.text import NARROW, Text, code, listed, number, percent, plural
from assay.pipeline.lock import (
    FEWEST,
    CircuitPart,
    Lock,
    LockedCircuit,
    Observed,
    fresh_prompts,
    observe,
    read_lock,
)
from assay.pipeline.stage import Progress, silent
from assay.stats import holm, mean_above


if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "assay-check/1"
ALPHA = 0.05  # over all looks and lines: of a false `lost` or `unsolved`, and again of a false `kept`
MOST = 400  # prompts of a line
MOVED_EDGES = 10  # that a page lists
FAILED = ("lost", "unsolved")
MARKS = {
    "kept": "\N{BLACK CIRCLE}",
    "lost": "\N{WHITE CIRCLE}",
    "unsolved": "\N{WHITE CIRCLE}",
    "open": "\N{DOTTED CIRCLE}",
}


# ---- the test -------------------------------------------------------------------------------------


def look_sizes(most: int) -> list[int]:
    """Prompts behind each look: 25, 50, 100, ... and `most`."""
    sizes = [FEWEST]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes


def part_p_values(parts: Sequence[CircuitPart], seen: Observed) -> Float64[np.ndarray, "2 n_parts"]:
    """p-values of "the part is not below its threshold" and of "it is not above", for each part.

    With N and D the terms of a ratio, s the sign of its locked value v and m its margin, the mean of
    d = s (N - v D) + m D is positive exactly where the ratio is on the good side of v - s m, as long as that
    of D is. The first test is of the drop since the lock, whose error counts; the second of the
    threshold as it is written.
    """
    value, error, margin = (
        np.array([getattr(part, name) for part in parts]) for name in ("value", "error", "margin")
    )
    above = np.sign(value) * (seen.top - value * seen.bottom) + margin * seen.bottom
    spread = error * np.abs(seen.bottom.mean(axis=0))
    return np.stack([mean_above(-above, error=spread), mean_above(above)])


def solved_p_values(seen: Observed) -> Float64[np.ndarray, " 2"]:
    """p-values of "the model's mean margin is at least 0" and "it is right on at least 60 %"."""
    right = scipy.stats.binom.cdf((seen.full > 0).sum(), len(seen.full), SOLVED)
    return np.array([mean_above(-seen.full[:, None])[0], right])


class SequentialCheck:
    """The verdicts of all lines, look by look.

    Each look spends an equal share of `ALPHA`, so the chance of an error at any of them is at most that,
    however they depend on each other. Within a look, Holm's rule covers every part of every line: `lost` and
    `unsolved` are wrong somewhere in the file with probability at most `ALPHA`. A line is `kept` where all
    its parts are above their thresholds and the model's gain over the empty circuit is above 0, unless the
    model seems not to solve the task: its mean margin is negative, or it is right on fewer than 60 %. Holm's
    rule covers the lines, and the promise is the same.

    Attributes:
        verdicts: Of each line: `open`, `kept`, `lost` or `unsolved`.
        p_values: Of each line: adjusted p-values of the last look that it took part in, for the loss of each
            part, for the model's mean margin and its share of right answers, and last for `kept`.
    """

    def __init__(self, lines: Sequence[tuple[Sequence[CircuitPart], bool]], n_looks: int) -> None:
        self.lines, self.n_looks = lines, n_looks
        self.verdicts = ["open"] * len(lines)
        self.p_values = [np.full(len(parts) + 3, np.nan) for parts, _ in lines]
        self._rejected = [np.zeros(len(parts) + 2, dtype=bool) for parts, _ in lines]

    def look(self, observed: Sequence[Observed | None]) -> None:
        """Judge the open lines on what has been observed of them so far."""
        # Decided lines stay in the family: what was rejected as p = 0, everything else as p = 1.
        bad = [np.where(rejected, 0.0, 1.0) for rejected in self._rejected]
        good = np.array([0.0 if verdict == "kept" else 1.0 for verdict in self.verdicts])
        still = [at for at, verdict in enumerate(self.verdicts) if verdict == "open"]
        for at in still:
            (parts, signed), seen = self.lines[at], observed[at]
            if seen is None or len(seen.full) < FEWEST:
                continue
            lost, kept = part_p_values(parts, seen)
            bad[at] = np.concatenate([lost, solved_p_values(seen) if signed else np.ones(2)])
            # Perhaps it solves the task all the same, but that is not to be called kept.
            wrong = signed and ((seen.full > 0).mean() < SOLVED or seen.full.mean() < 0)
            good[at] = 1.0 if wrong else max(kept.max(), mean_above(seen.gain[:, None])[0])
        sizes = np.cumsum([len(each) for each in bad])[:-1]
        failing = np.split(np.minimum(holm(np.concatenate(bad)) * self.n_looks, 1.0), sizes)
        passing = np.minimum(holm(good) * self.n_looks, 1.0)
        for at in still:
            self.p_values[at] = np.append(failing[at], passing[at])
            self._rejected[at] = failing[at] <= ALPHA
            if self._rejected[at].any():
                self.verdicts[at] = "unsolved" if self._rejected[at][-2:].any() else "lost"
            elif passing[at] <= ALPHA:
                self.verdicts[at] = "kept"


# ---- the result -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CheckedPart(Record):
    """A part of a circuit then and now.

    Attributes:
        then: As it was locked.
        now: As it is, with the interval of a sample of that size.
        p_value: Of "it is not below its threshold", adjusted for looks and lines.
    """

    then: CircuitPart
    now: CircuitPart
    p_value: float


@dataclass(frozen=True, kw_only=True)
class CheckedCircuit(Record):
    """What became of a circuit.

    Attributes:
        name: Of the line.
        verdict: `kept`, `lost`, `unsolved`, or `open`: neither is certain.
        reason: Why, a sentence.
        n_edges: Its size.
        n: Prompts that it took.
        n_looks: Looks that it took.
        accuracy: Share of them on which the model's margin is positive; NaN where that means nothing.
        locked_accuracy: The same then.
        parts: The value and the strongest heads.
        p_solved: p-values of "the mean margin is at least 0" and "right on at least 60 %", adjusted.
        p_kept: p-value of "some part is not above its threshold", adjusted.
        edges: Edges of the circuit whose scores moved most: `edge`, `then`, `now`.
    """

    name: str
    verdict: str
    reason: str
    n_edges: int
    n: int
    n_looks: int
    accuracy: float
    locked_accuracy: float
    parts: tuple[CheckedPart, ...]
    p_solved: tuple[float, ...]
    p_kept: float
    edges: tuple[Mapping[str, Any], ...] = field(default=(), metadata=BRIEF)


@dataclass(frozen=True, kw_only=True)
class Check(Record):
    """Whether a model carries the circuits of a lock.

    Attributes:
        lock: Name of the lock.
        model: `Model.describe` of the model that was checked.
        locked_model: The same of the one that was locked.
        alpha: Chance that some line is falsely `lost` or `unsolved`, at most; the same of `kept`.
        looks: Prompts behind each look.
        seed: Root seed of the prompts.
        circuits: One per line of the lock.
    """

    record_kind = "check"
    record_schema = SCHEMA

    lock: str
    model: Mapping[str, Any]
    locked_model: Mapping[str, Any]
    alpha: float
    looks: tuple[int, ...]
    seed: int
    circuits: tuple[CheckedCircuit, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the lines that are lost or unsolved."""
        return tuple(each.name for each in self.circuits if each.verdict in FAILED)

    def to_frame(self) -> "pd.DataFrame":
        """One row per part: circuit, verdict, n, part, then, threshold, now, low, high, p_value."""
        import pandas as pd

        rows = [
            {"circuit": each.name, "verdict": each.verdict, "n": each.n, "part": part.then.name}
            | {"then": part.then.value, "threshold": part.then.threshold, "now": part.now.value}
            | {"low": part.now.low, "high": part.now.high, "p_value": part.p_value}
            for each in self.circuits
            for part in each.parts
        ]
        return pd.DataFrame(rows)

    def junit(self) -> bytes:
        """The lines as test cases in JUnit's XML: lost and unsolved as failures, open ones as skipped."""
        suite = ET.Element("testsuite", name=self.lock, tests=str(len(self.circuits)))
        suite.set("failures", str(len(self.failed)))
        suite.set("skipped", str(sum(each.verdict == "open" for each in self.circuits)))
        for each in self.circuits:
            case = ET.SubElement(suite, "testcase", classname=self.lock, name=each.name)
            if each.verdict != "kept":
                kind = "skipped" if each.verdict == "open" else "failure"
                ET.SubElement(case, kind, message=f"{each.verdict}: {each.reason}")
        content: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
        return content

    def page(self) -> Page:
        """Its page."""
        return check_page(self)


def check_lock(
    model: Model | str,
    lock: Lock | str | os.PathLike[str],
    *,
    seed: int | None = None,
    most: int = MOST,
    batch_size: int | None = None,
    progress: Progress = silent,
) -> Check:
    """Tell whether a model still carries the circuits that another was locked with.

    The model may have other weights, another number type, or heads whose outputs are zeroed; its graph must
    be that of the lock. Prompts are fresh ones of the same generator, or the held-out half of a file. They
    are run through in looks at 25, 50, 100, ... of them, and a line takes no more once it is decided.

    Args:
        model: The model, or its id or directory.
        lock: A lock or its path.
        seed: Root seed of the prompts. Default: the next that neither audit nor lock has used.
        most: Prompts of a line, at least 25.
        batch_size: Prompts per pass.
        progress: Told of each look.

    Raises:
        GraphMismatchError: For a model of another graph; names the circuits all of whose edges exist there.
        FileFormatError: For a damaged lock or circuit file.
        InputError: For a margin that is not smaller than its value, or for too few prompts.

    Notes:
        Under ablations that are means over the prompts that are run, each look has means of its own.
    """
    check_least(FEWEST, most=most)
    lock = lock if isinstance(lock, Lock) else read_lock(lock)
    circuits = [lock.load(each) for each in lock.circuits]
    model = model if isinstance(model, Model) else load_model(model)
    _check_graph(lock, circuits, model.graph)
    model = model.treating(lock.model.get("post_norm"))
    used = [each for locked in lock.circuits for each, _ in locked.draws]
    seed = 1 + max(used, default=0) if seed is None else seed
    if seed in used:
        raise InputError(f"seed {seed} drew the prompts of the audit or the lock; give another with --seed")
    tasks = [
        fresh_prompts(model, circuit, locked, lock.path.parent, n=most, seed=seed)
        for circuit, locked in zip(circuits, lock.circuits, strict=True)
    ]
    looks = look_sizes(most)
    test = SequentialCheck([(each.parts, each.signed) for each in lock.circuits], len(looks))
    observed: list[Observed | None] = [None] * len(circuits)
    taken = [0] * len(circuits)
    for place, size in enumerate(looks):
        progress("check", place, len(looks))
        for at, locked in enumerate(lock.circuits):
            start = 0 if (before := observed[at]) is None else before.n_scored
            if test.verdicts[at] != "open" or start >= min(size, tasks[at].n):
                continue
            rows = tasks[at].subset(torch.arange(start, min(size, tasks[at].n)))
            names = [part.name for part in locked.parts]
            how: dict[str, Any] = {"objective": locked.objective, "ablation": locked.ablation}
            new = observe(model, rows, circuits[at], names, **how, batch_size=batch_size)
            observed[at], taken[at] = new if before is None else before + new, place + 1
        test.look(observed)
        if "open" not in test.verdicts:
            break
    progress("check", len(looks), len(looks))
    return Check(
        lock=lock.path.name,
        model=model.describe(),
        locked_model=lock.model,
        alpha=ALPHA,
        looks=tuple(looks),
        seed=seed,
        circuits=tuple(
            _checked(lock, locked, circuit, seen, verdict, p_values, n_looks)
            for locked, circuit, seen, verdict, p_values, n_looks in zip(
                lock.circuits, circuits, observed, test.verdicts, test.p_values, taken, strict=True
            )
        ),
    )


def _check_graph(lock: Lock, circuits: Sequence[Circuit], graph: Graph) -> None:
    """Refuse a model of another graph, with the circuits that could be mapped to it."""
    if all(circuit.graph.fingerprint == graph.fingerprint for circuit in circuits):
        return
    mapped: dict[bool, list[str]] = {True: [], False: []}
    for locked, circuit in zip(lock.circuits, circuits, strict=True):
        missing = next((edge for edge in circuit.edges() if not _has_edge(graph, edge)), None)
        mapped[missing is None].append(locked.name if missing is None else f"{locked.name} (no {missing})")
    can, cannot = (listed(names) or "none" for names in mapped.values())
    raise GraphMismatchError(
        f"{lock.path} is a lock of graph {circuits[0].graph.describe()}, but the model has "
        f"{graph.describe()}. Circuits all of whose edges exist there: {can}; others: {cannot}. Audit the "
        "model to lock it"
    )


def _has_edge(graph: Graph, edge: str) -> bool:
    try:
        graph.edge_index(edge)
    except UnknownNameError:
        return False
    return True


def _checked(
    lock: Lock,
    locked: LockedCircuit,
    circuit: Circuit,
    seen: Observed | None,
    verdict: str,
    p_values: Float64[np.ndarray, " n_tests"],
    n_looks: int,
) -> CheckedCircuit:
    """The record of a line."""
    assert seen is not None  # every line is observed at the first look
    parts = tuple(
        CheckedPart(then=part, now=seen.part(at, part.name, part.margin), p_value=float(p_values[at]))
        for at, part in enumerate(locked.parts)
    )
    accuracy = float((seen.full > 0).mean()) if locked.signed else math.nan
    return CheckedCircuit(
        name=locked.name,
        verdict=verdict,
        reason=_reason(verdict, parts, accuracy, len(seen.full)),
        n_edges=locked.n_edges,
        n=len(seen.full),
        n_looks=n_looks,
        accuracy=accuracy,
        locked_accuracy=locked.accuracy,
        parts=parts,
        p_solved=tuple(map(float, p_values[-3:-1])),
        p_kept=float(p_values[-1]),
        edges=tuple(_moved(lock, locked, circuit, seen)),
    )


def _moved(lock: Lock, locked: LockedCircuit, circuit: Circuit, seen: Observed) -> list[dict[str, Any]]:
    """The edges of the circuit whose scores moved most; none where those of the lock are not there."""
    path = lock.path.parent / locked.scores_file
    if not path.is_file():
        return []
    then, now = load_scores(path, circuit.graph).values.double(), seen.scores / seen.n_scored
    moved = (now - then).abs().masked_fill(~circuit.anywhere().mask, -1.0).flatten()
    rows = moved.sort(descending=True, stable=True).indices[: min(MOVED_EDGES, circuit.n_edges)].tolist()
    places = [divmod(row, circuit.graph.n_targets) for row in rows]
    return [
        {"edge": circuit.graph.edge_name(*place), "then": float(then[place]), "now": float(now[place])}
        for place in places
    ]


def _reason(verdict: str, parts: Sequence[CheckedPart], accuracy: float, n: int) -> str:
    """Why a line has its verdict."""
    if verdict == "unsolved":
        return f"the model is right on {percent(accuracy)} of {plural(n, 'prompt')}"
    if verdict == "kept":
        return "every part is above its threshold"
    chosen = [part for part in parts if part.p_value <= ALPHA]
    if verdict == "open":
        chosen = [part for part in parts if part.now.low <= part.then.threshold][:1] or [*parts[:1]]
    told = [
        f"{part.then.name} is {number(part.now.value)} {words.interval(part.now.low, part.now.high)}, was "
        f"{number(part.then.value)}, threshold {number(part.then.threshold)}"
        for part in chosen
    ]
    return "; ".join(told)


# ---- the page -------------------------------------------------------------------------------------


def check_page(check: Check) -> Page:
    """Everything that is shown of a check."""
    groups = {word: [each.name for each in check.circuits if each.verdict == word] for word in MARKS}
    told = [
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} {word}"
        for word, names in groups.items()
        if names
    ]
    same = check.model["weight_hash"] == check.locked_model["weight_hash"]
    sections = [Section(title="The circuits", blocks=[_lines(check)])]
    sections += [Section(title=each.name, blocks=_of_circuit(each)) for each in check.circuits]
    return Page(
        kind="circuit check",
        title=f"Circuits of {check.locked_model['id']} in {check.model['id']}",
        verdict=f"{'; '.join(told)}.",
        caveats=["The weights are those of the locked model."] * same,
        lede=(
            f"The chance that any circuit is falsely called lost or unsolved is at most "
            f"{percent(check.alpha)}, and so is the chance that any is falsely called kept. A circuit is "
            f"looked at after {listed([number(each) for each in check.looks])} fresh prompts until it is "
            f"decided. Brackets hold 95{NARROW}% intervals, which do not allow for the looks."
        ),
        sections=sections,
        facts=[
            ("model", words.model_text(check.model)),
            ("locked model", words.model_text(check.locked_model)),
            ("lock", code(check.lock)),
            ("seed of the prompts", str(check.seed)),
        ],
    )


def _style(circuit: CheckedCircuit) -> str:
    """Class of a verdict in the style sheet."""
    return f"status is-{({'kept': 'pass', 'open': 'inconclusive'}).get(circuit.verdict, 'fail')}"


def _lines(check: Check) -> Table:
    """Each circuit with its value then and now."""
    heads = [*columns("circuit"), *columns("value then", "value now", "threshold", numeric=True)]
    heads += [*columns("verdict", "why"), Column(name="prompts", numeric=True)]
    rows: list[list[Cell | Text]] = []
    for each in check.circuits:
        value = each.parts[0]
        rows.append(
            [
                Cell(text=each.name, below=plural(each.n_edges, "edge")),
                _estimate(value.then),
                _estimate(value.now),
                number(value.then.threshold),
                Cell(text=f"{MARKS[each.verdict]} {each.verdict}", style=_style(each)),
                Cell(text=each.reason, style="quiet"),
                Cell(text=number(each.n), below=plural(each.n_looks, "look")),
            ]
        )
    return Table(columns=heads, rows=rows)


def _estimate(part: CircuitPart) -> Cell:
    shown, between = words.estimate(part.value, part.low, part.high)
    return Cell(text=shown, below=between, value=part.value)


def _of_circuit(circuit: CheckedCircuit) -> list[Note | Table]:
    """The parts of a circuit, and its edges whose scores moved most."""
    heads = [*columns("part"), *columns("then", "now", "threshold", "p of a loss", numeric=True)]
    rows: list[list[Cell | Text]] = [
        [
            part.then.name,
            _estimate(part.then),
            _estimate(part.now),
            number(part.then.threshold),
            words.p_value(part.p_value),
        ]
        for part in circuit.parts
    ]
    caption = (
        "A head has the share of the model’s gain over the empty circuit that is attributed to it. p-values "
        "are adjusted for looks, parts and circuits."
    )
    if math.isfinite(circuit.accuracy):
        then, now = percent(circuit.locked_accuracy), percent(circuit.accuracy)
        caption += f" The model is right on {now} of the prompts; when locked, on {then}."
    blocks: list[Note | Table] = [Table(columns=heads, rows=rows, caption=caption)]
    if circuit.edges:
        moved = [[each["edge"], number(each["then"]), number(each["now"])] for each in circuit.edges]
        caption = "Edges of the circuit whose attribution moved most, in units of the objective."
        heads = [*columns("edge"), *columns("then", "now", numeric=True)]
        blocks.append(Table(columns=heads, rows=moved, caption=caption))
    return blocks


PAGES.add(
    "check",
    PageForm(
        noun="check",
        schema=SCHEMA,
        again="`assay check`",
        make=lambda document: check_page(Check.from_dict(dict(document))),
    ),
)

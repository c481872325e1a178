"""Discovery methods on trained models, a method at a time, so that a run that was stopped loses one at most.

What a method scored and what it cost are files in WORK/TARGET, as is what each circuit gave on each example
to judge on. Judging reads these, and runs only circuits that are new.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from assay.analyses.benchmark import BenchmarkRow, Bounded, DiscoveryBenchmark
from assay.analyses.benchmark.contenders import Contender, choose_entries
from assay.analyses.benchmark.discovery import Turn, judge_turns, seen_and_unseen, take_timed_turn
from assay.analyses.benchmark.targets import Target, find_target
from assay.circuits import Circuit, load_scores
from assay.core.errors import InputError
from assay.core.record import plain
from assay.execution import CircuitRuns
from assay.graph import Graph
from assay.page.blocks import Table, columns
from assay.page.text import number


REAL = {"smollm2": "smollm2-135m", "gemma3": "gemma3-270m"}  # folders that `make real` makes
TASKS = ("ioi", "greater-than", "docstring")
TARGETS = (*(f"{model}-{task}" for model in ("mini", *REAL) for task in TASKS), "colour-digits")
# Learned masks: 107 masked passes each way of each of 60 prompts, which fit in 1,000 forward-equivalents.
LEARNED: Mapping[str, Mapping[str, Any]] = {
    "ugs": {"warm_start": "eap-ig-inputs", "updates": 400, "examples": 8, "samples": 2, "rate": 0.1},
}
# Prompts three times as long: fewer of them, fewer updates of `nested`, half as many of `ugs`.
LONG = {"smollm2-docstring": (24, 160), "gemma3-docstring": (24, 300)}
N = 60
BY_EDGE = ("acdc", "exact")  # a run or so per edge: not on published models
DIGITS = 6  # of numbers in the files of results


def find(name: str, real: Path, *, n: int, seed: int) -> Target:
    """Model and examples of one of `TARGETS`, with others to judge on."""
    short, _, task = name.partition("-")
    if name == "colour-digits":
        return find_target(name, n=n, seed=seed)
    folder = real / REAL[short] if short in REAL else None
    target = find_target(str(folder or short), task, n=n, seed=seed, bos=True if short == "gemma3" else None)
    seen, unseen = seen_and_unseen(target.model.bind(target.task), seed)
    return Target(model=target.model, task=seen, held_out=unseen)


class StoredRuns(CircuitRuns):
    """Runs whose margins are kept in a folder, by objective and circuit."""

    folder: Path

    def margins_of(self, circuit: Circuit) -> np.ndarray:
        path = self.folder / f"{self.objective}-{circuit.hash}.npy"
        if not path.exists():
            margins = super().margins_of(circuit)
            write(path, lambda scratch: np.save(scratch, margins))
        return np.asarray(np.load(path))


def write(path: Path, save: Callable[[Path], object]) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{os.getpid()}-{path.name}")
    save(scratch)
    scratch.replace(path)


def turn(entry: Contender, target: Target, folder: Path, *, real: bool, seed: int) -> None:
    """Let a method score the edges, unless a file has its scores under these options."""
    path, graph = folder / f"{entry.name}.json", target.model.graph
    if path.exists() and json.loads(path.read_text())["options"] == plain(entry.options):
        return
    if real and entry.key in BY_EDGE:
        reason = f"not run: up to one pass of each prompt per edge, of which there are {graph.n_edges:,}"
        passes = {"forward": float(graph.n_edges)}
        row, scores = BenchmarkRow(name=entry.name, method=entry.key, reason=reason, passes=passes), None
    else:
        how: dict[str, Any] = {"objective": None, "ablation": None, "batch_size": None, "seed": seed}
        row, scores = take_timed_turn(
            entry, target.model, target.model.bind(target.task), warm_up=True, **how
        )
    if scores is not None:
        write(path.with_suffix(".safetensors"), scores.save)
    write(path, lambda scratch: scratch.write_text(json.dumps(row.to_dict())))


def stored_turns(folder: Path, names: Sequence[str], graph: Graph) -> Iterator[Turn]:
    """Rows and scores of the methods that have been run."""
    for path in (folder / f"{name}.json" for name in names):
        if path.exists():
            row = BenchmarkRow.from_dict(json.loads(path.read_text()))
            yield row, None if row.reason else load_scores(path.with_suffix(".safetensors"), graph)


def judged(target: Target, folder: Path, names: Sequence[str], *, seed: int) -> DiscoveryBenchmark:
    """The benchmark of the methods that have been run."""
    assert target.held_out is not None
    graph = target.model.graph
    runs = StoredRuns(target.model, target.held_out, Circuit.full(graph), seed=seed)
    runs.folder = folder / "margins"
    return judge_turns(stored_turns(folder, names, graph), runs, target.task)


def rounded(benchmark: DiscoveryBenchmark) -> dict[str, Any]:
    """What a file holds of it."""
    text = json.dumps(benchmark.to_dict(), ensure_ascii=False)
    document: dict[str, Any] = json.loads(
        text, parse_float=lambda number: float(f"{float(number):.{DIGITS}g}")
    )
    return document


def with_earlier(document: dict[str, Any], path: Path, names: Sequence[str]) -> dict[str, Any]:
    """The document with what its file has of other methods: rows, and differences to unchanged rows."""
    earlier = json.loads(path.read_text()) if path.exists() else document
    for key in ("model", "discovered_on", "evaluated_on", "settings"):
        if earlier[key] != document[key]:
            raise InputError(f"{path} differs in {key}; remove it to judge all methods anew")
    before, judged = ({row["name"]: row for row in each["rows"]} for each in (earlier, document))
    quality = itemgetter("signed", "absolute")
    same = {name for name, row in before.items() if quality(judged.get(name, row)) == quality(row)}
    document["rows"] = sorted((before | judged).values(), key=lambda row: names.index(row["name"]))
    for each in earlier["differences"]:
        pair = {each["first"], each["second"]}
        if pair <= same and not pair <= judged.keys():
            document["differences"].append(each)
    return document


def run(
    name: str,
    methods: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
    known: Sequence[str],
    *,
    places: Mapping[str, Path],
    seed: int,
    progress: Callable[[str, int, int], None],
) -> None:
    """Run methods on one of `TARGETS`, judge these and all in the work folder, and save the benchmark.

    Methods that the file of results has, and the work folder has not, keep their rows.

    Args:
        name: The target.
        methods: To run now.
        options: Of methods, beside `LEARNED`.
        known: Every method, in the order of the rows.
        places: `real`: folder of the published models; `work`: of unfinished runs; `results`: of the file.
        seed: Root seed.
        progress: Told of each method.
    """
    n, updates = LONG.get(name, (N, None))
    target, folder = find(name, places["real"], n=n, seed=seed), places["work"] / name
    fewer = {} if updates is None else {"nested": {"updates": updates}, "ugs": {"updates": updates // 2}}
    asked = {key: {**LEARNED.get(key, {}), **fewer.get(key, {}), **options.get(key, {})} for key in methods}
    for done, entry in enumerate(choose_entries(methods, asked) if methods else ()):
        progress(f"{name}: {entry.name}", done, len(methods))
        turn(entry, target, folder, real=name.partition("-")[0] in REAL, seed=seed)
    progress(f"{name}: judge", len(methods), len(methods))
    path = places["results"] / f"{name}.json"
    document = with_earlier(rounded(judged(target, folder, known, seed=seed)), path, known)
    write(path, lambda scratch: scratch.write_text(json.dumps(document, ensure_ascii=False) + "\n"))


# ---- tables ----


# Integrals: heading, of which ranking, whether more is better.
SHOWN = {
    "cmd": ("CMD, edges by size of score; lower is better", "absolute", False),
    "clipped_cpr": ("Clipped CPR, edges by signed score; higher is better", "signed", True),
    "kl": ("Mean KL over the sizes in nats, edges by size of score; lower is better", "absolute", False),
}
SHORT = {"mini": "mini", "smollm2": "SmolLM2", "gemma3": "Gemma 3", "colour": "colour digits"}
CHALLENGER = "nested"
STEPS = ("random", "ifr", "eap", "eap-ig-inputs", "ugs")  # by CPR, Peng et al. 2026, arXiv:2604.08192


def results(folder: Path) -> dict[str, DiscoveryBenchmark]:
    """The targets that have been judged, in the order of `TARGETS`."""
    paths = {name: folder / f"{name}.json" for name in TARGETS}
    return {name: DiscoveryBenchmark.load(path) for name, path in paths.items() if path.exists()}


def values(benchmark: DiscoveryBenchmark, of: str) -> dict[str, float]:
    """An integral of every method that has it, by name."""
    found = {row.name: getattr(getattr(row, SHOWN[of][1]), of, None) for row in benchmark.rows}
    return {name: each.value for name, each in found.items() if each is not None}


def leader(benchmark: DiscoveryBenchmark, of: str, without: Sequence[str] = ()) -> str:
    """The method that is best by an integral."""
    found = {name: value for name, value in values(benchmark, of).items() if name not in without}
    return (max if SHOWN[of][2] else min)(found, key=lambda name: found[name])


def advantage(benchmark: DiscoveryBenchmark, of: str, first: str, second: str) -> Bounded | None:
    """By how much the first method is better than the second; above 0 where it is."""
    return benchmark.difference(*((first, second) if SHOWN[of][2] else (second, first)), of)


def targets_tables(found: Mapping[str, DiscoveryBenchmark], known: Sequence[str]) -> list[tuple[str, Table]]:
    """A table for each integral and one of costs, under its heading: methods downwards, targets across."""
    heads = [*columns("method"), *columns(*map(_column, found), numeric=True)]
    judged = {row.name for each in found.values() for row in each.rows if row.cpr is not None}
    methods = [name for name in known if name in judged]
    tables = []
    for of, (heading, *_) in SHOWN.items():
        rows = [[method, *(_cell(each, of, method) for each in found.values())] for method in methods]
        if CHALLENGER in judged:
            rows.append(
                [f"{CHALLENGER} ahead of the best other by", *(_ahead(each, of) for each in found.values())]
            )
        tables.append((heading, Table(columns=heads, rows=rows)))
    rows = [[method, *(_cost(each, method) for each in found.values())] for method in methods]
    heading = "Cost in plain forward passes over the examples; in brackets: at most, counted, not run"
    return [*tables, (heading, Table(columns=heads, rows=rows))]


def _cell(benchmark: DiscoveryBenchmark, of: str, method: str) -> str:
    value = values(benchmark, of).get(method)
    shown = "" if value is None else number(value, 3)
    return f"**{shown}**" if leader(benchmark, of) == method else shown


def _ahead(benchmark: DiscoveryBenchmark, of: str) -> str:
    other = leader(benchmark, of, (CHALLENGER,))
    gap = advantage(benchmark, of, CHALLENGER, other)
    return "" if gap is None else f"{gap:+.3f} ({other})"


def _cost(benchmark: DiscoveryBenchmark, method: str) -> str:
    for row in (each for each in benchmark.rows if each.name == method):
        counted = f"({row.passes['forward']:,.0f})" if row.passes else ""
        return counted if row.reason else number(row.forward_equivalents, 1)
    return ""


def steps_table(found: Mapping[str, DiscoveryBenchmark]) -> Table:
    """The published order of methods by CPR: the second of a step less the first, with its interval."""
    judged = {name: each for name, each in found.items() if name.startswith("mini-")}
    rows = []
    for first, second in pairwise(STEPS):
        gaps = [each.difference(second, first) for each in judged.values()]
        rows.append([f"{first} ≤ {second}", *("" if gap is None else f"{gap:+.3f}" for gap in gaps)])
    return Table(columns=[*columns("step"), *columns(*map(_column, judged), numeric=True)], rows=rows)


def _column(name: str) -> str:
    model, _, task = name.partition("-")
    return SHORT[model] if model == "colour" else f"{SHORT[model]} {task}"

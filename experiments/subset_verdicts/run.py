"""How often does a verdict on a subset err? Data sets of known truth, selected on and judged again and again.

Draws data sets of three structures of dependent models (structures.py), with all slopes >= 0 or with 10 % of
the examples on an inverse line, and judges the subset of 250 by the evidence that one split gives: the
interval of Fisher and the cluster bootstrap of the test R, and its permutation tests. The product's verdict,
which rests on a cross-fit, is judged by rules.py. One line of JSON per data set is written as soon as it is
done; a later start goes on from there.

    python experiments/subset_verdicts/run.py [--sets 100] [--processes 2] [--cells null power]
    [--tables-only]
"""

import argparse
import json
import math
import os
import time
from collections.abc import Iterable
from multiprocessing import Pool
from pathlib import Path
from typing import Any


# One thread per process: the processes share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from structures import N_EXAMPLES, N_MODELS, PLANTED, SIZE, STRUCTURES, Drawn, draw

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.problem import Problem, Settings
from assay.analyses.subsets.splits import split_models
from assay.analyses.subsets.verdict import permute_accuracy
from assay.core.random import stream
from assay.stats import clopper_pearson


HERE = Path(__file__).resolve().parent
LINES = HERE / "results" / "datasets.jsonl"
SUMMARY = HERE / "results" / "summary.json"
FIGURE = HERE / "results" / "rates.png"
VERDICTS, VERDICT = HERE / "results" / "rules.json", "crossfit"  # of rules.py, drawn beside
N_PERMUTATIONS = 19  # p <= 0.05 iff none of them reaches the observed correlation
CELLS = {"null": 0.0, "power": PLANTED}
SPLITS = ("random", "group")
PERMUTED_POWER = (
    30  # data sets with such examples on which single splits are permuted, too: 76 selections each
)
BEGIN, END = "<!-- begin: written by run.py -->", "<!-- end -->"
Record = dict[str, Any]


# ------------------------------------------------------------------------------------------- one data set


def judge_one(job: tuple[str, str, int]) -> Record:
    """Every test on one data set."""
    cell, name, seed = job
    started = time.process_time()
    drawn = draw(STRUCTURES[name], seed, planted=CELLS[cell])
    data = CorrectnessData.of(drawn.correct, drawn.id_accuracy, groups=drawn.units)
    record: Record = {"cell": cell, "structure": name, "seed": seed}
    for split in SPLITS:
        permuted = cell == "null" or seed < PERMUTED_POWER
        record[split] = judge_split(data, split, seed, drawn, permuted=permuted)
    record["seconds"] = round(time.process_time() - started, 2)
    return record


def judge_split(data: CorrectnessData, kind: str, seed: int, drawn: Drawn, *, permuted: bool) -> Record:
    """The tests that one split of the models allows; the product's verdict where its units are disjoint."""
    problem = Problem(data, split_models(data, kind, seed=seed), Settings(seed=seed))
    indices = problem.select_all([SIZE], [data.id_accuracy])[0][0]
    test = problem.correlate(indices)
    record: Record = {
        "train": problem.correlate(indices, "train").r,
        "test": test.r,
        "fisher_high": test.fisher_high,
        "bootstrap_high": test.high,
        "test_units": test.n_units,
        "precision": float(np.isin(indices, drawn.planted).mean()),
    }
    for permutation in ("free", "group") if permuted else ():
        units = data.units("group") if permutation == "group" else None
        record[permutation] = significant(problem, units, test.r, seed)
    return rounded(record)


def significant(problem: Problem, units: np.ndarray | None, observed: float, seed: int) -> bool:
    """Whether p <= 0.05: none of 19 reruns under permuted accuracies comes out as low. Stops at the first."""
    for place in range(N_PERMUTATIONS):
        permuted = permute_accuracy(problem.data.id_accuracy, stream(seed, f"permutation {place}"), units)
        selections = problem.select_all([SIZE], [permuted])[0]
        if not problem.tested(selections, permuted)[0] > observed:
            return False
    return True


def rounded(value: Any) -> Any:
    """Floats to five places, undefined ones as null."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return round(value, 5) if math.isfinite(value) else None
    return value


# ------------------------------------------------------------------------------------- many, one at a time


def done(lines: Path = LINES) -> list[Record]:
    """What earlier starts have written; a line cut off by a kill is left out."""
    records = []
    for line in lines.read_text().splitlines() if lines.exists() else ():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def measure(n_sets: int, processes: int, cells: list[str]) -> None:
    """Every data set not yet done: nulls first, all structures side by side."""
    known = {(each["cell"], each["structure"], each["seed"]) for each in done()}
    jobs = [
        (cell, name, seed)
        for cell in cells
        for seed in range(n_sets)
        for name in STRUCTURES
        if (cell, name, seed) not in known
    ]
    with Pool(processes) as pool:
        append(LINES, pool.imap_unordered(judge_one, jobs), len(jobs))


def append(lines: Path, records: Iterable[Record], total: int) -> None:
    """Each record as a line of its own, on the disk before the next one."""
    lines.parent.mkdir(exist_ok=True)
    with lines.open("a") as file:
        if file.tell() and not lines.read_text().endswith("\n"):
            file.write("\n")
        for count, record in enumerate(records, 1):
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
            if count % 20 == 0 or count == total:
                print(f"{count}/{total}: {record['cell']} {record['structure']}", flush=True)


# ----------------------------------------------------------------------------------------------- summary


TESTS = {
    "fisher": "Fisher's interval below 0",
    "bootstrap": "cluster bootstrap below 0",
    "free": "permutation of models, p <= .05",
    "group": "permutation of units, p <= .05",
}


def found_negative(record: Record, split: str, test: str) -> bool | None:
    """Whether a test declares the subset to be on an inverse line; None where it was not made."""
    given = record[split]
    if test in ("fisher", "bootstrap"):
        high = given[f"{test}_high"]
        return high is not None and high < 0
    return given.get(test)


def summarize(records: list[Record]) -> Record:
    """Shares of the data sets declared negative, by structure, split and test."""
    rows = []
    for cell in CELLS:
        for name in STRUCTURES:
            mine = [each for each in records if each["cell"] == cell and each["structure"] == name]
            if not mine:
                continue
            for split in SPLITS:
                found = {test: [found_negative(each, split, test) for each in mine] for test in TESTS}
                made = {test: [each for each in given if each is not None] for test, given in found.items()}
                counts = {test: (sum(given), len(given)) for test, given in made.items() if given}
                rows.append(
                    {
                        "cell": cell,
                        "structure": name,
                        "split": split,
                        "n": len(mine),
                        "mean_train_r": mean([each[split]["train"] for each in mine]),
                        "mean_test_r": mean([each[split]["test"] for each in mine]),
                        "precision": mean([each[split]["precision"] for each in mine]),
                        "tested": {test: n for test, (_, n) in counts.items()},
                        "count": {test: count for test, (count, _) in counts.items()},
                        "share": {test: round(count / n, 4) for test, (count, n) in counts.items()},
                        "interval": {test: interval(count, n) for test, (count, n) in counts.items()},
                    }
                )
    return {
        "models": N_MODELS,
        "examples": N_EXAMPLES,
        "size": SIZE,
        "permutations": N_PERMUTATIONS,
        "planted": PLANTED,
        "rows": rows,
    }


def mean(values: list[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return round(sum(defined) / len(defined), 3) if defined else None


def interval(count: int, n: int) -> list[float]:
    """Clopper-Pearson, 95 %."""
    found = clopper_pearson(count, n)
    return [round(found.low, 3), round(found.high, 3)]


def table(summary: Record, cell: str) -> str:
    """Shares declared negative as Markdown."""
    head = ["structure", "split", "n", "mean test R", *(TESTS[test] for test in TESTS)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in summary["rows"]:
        if row["cell"] != cell:
            continue
        shares = []
        for test in TESTS:
            if test not in row["share"]:
                shares.append("")
            else:
                shares.append(f"{row['share'][test]:.2f}")
        split = "random" if row["split"] == "random" else "units apart"
        lines.append(
            "| "
            + " | ".join([row["structure"], split, str(row["n"]), f"{row['mean_test_r']:+.2f}", *shares])
            + " |"
        )
    return "\n".join(lines)


def write_results() -> None:
    """Summary, tables of the README and picture, from the lines so far."""
    summary = summarize(done())
    write(SUMMARY, json.dumps(summary, indent=1) + "\n")
    text = "\n\n".join(
        (
            BEGIN,
            "Share of data sets declared negative where no example has a negative slope:",
            table(summary, "null"),
            "Share declared negative where a tenth of the examples has:",
            table(summary, "power"),
            END,
        )
    )
    page = HERE / "README.md"
    if page.exists():
        given = page.read_text()
        before, rest = given.split(BEGIN, 1)
        write(page, before + text + rest.split(END, 1)[1])
    draw_rates(summary)


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    aside = path.with_suffix(path.suffix + ".part")
    aside.write_text(text)
    aside.replace(path)


def draw_rates(summary: Record) -> None:
    """False positives beside power, one dot per structure and test, with 95 % intervals."""
    from matplotlib.figure import Figure

    from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS

    figure = Figure(figsize=(9.5, 4.2), facecolor=PAPER, layout="constrained")
    shown = [(split, test) for split in SPLITS for test in TESTS] + [("group", VERDICT)]
    judged = [
        {**row, "split": "group", "cell": {"planted": "power"}.get(row["cell"], row["cell"])}
        for row in (json.loads(VERDICTS.read_text())["rows"] if VERDICTS.exists() else ())
        if row["structure"] in STRUCTURES
    ]
    marks = dict(zip(STRUCTURES, ("o", "s", "^"), strict=True))
    for axes, cell, colour, title in zip(
        figure.subplots(1, 2, sharey=True),
        CELLS,
        (OPPOSES, SUPPORTS),
        ("no such examples: share declared", "a tenth planted: share found"),
        strict=True,
    ):
        axes.set_facecolor(PAPER)
        for row in (*summary["rows"], *judged):
            if row["cell"] != cell:
                continue
            shift = (list(STRUCTURES).index(row["structure"]) - 1) * 0.22
            for place, (split, test) in enumerate(shown):
                if split != row["split"] or test not in row["count"]:
                    continue
                low, high = row["interval"][test]
                axes.plot([low, high], [place + shift] * 2, color=RULE, linewidth=1.5, zorder=1)
                axes.plot(
                    row["count"][test] / row.get("tested", {}).get(test, row["n"]),
                    place + shift,
                    marks[row["structure"]],
                    color=colour,
                    markersize=5,
                    zorder=2,
                    label=row["structure"] if (split, test) == shown[-1] else None,
                )
        if cell == "null":
            axes.axvline(0.05, color=MUTED, linewidth=0.8, linestyle=":")
        axes.set_xlim(-0.02, 1.02)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.set_yticks(
            range(len(shown)),
            [
                f"{'random' if split == 'random' else 'units apart'}: {TESTS.get(test, 'verdict')}"
                for split, test in shown
            ],
            fontsize=8,
            color=INK,
        )
        axes.invert_yaxis() if cell == "null" else None
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    FIGURE.parent.mkdir(exist_ok=True)
    aside = FIGURE.with_suffix(".part.png")
    figure.savefig(aside, dpi=110, metadata={"Software": ""})
    aside.replace(FIGURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=100, help="data sets per structure")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--tables-only", action="store_true", help="draw from what has been measured")
    options = parser.parse_args()
    if not options.tables_only:
        measure(options.sets, options.processes, options.cells)
    write_results()


if __name__ == "__main__":
    main()

"""Which rule on a cross-fit finds most and errs in at most 5 % of the data sets without such a subset?

Judges data sets of known truth (structures.py) by the product's own verdict, and writes beside it what other
rules would have said about the same fit. One line of JSON per data set is written as soon as it is done; a
later start goes on from there.

    python experiments/subset_verdicts/rules.py [--null 300] [--planted 100] [--processes 2] [--cells ...]
    [--tables-only]
"""

import argparse
import json
import time
from dataclasses import replace
from multiprocessing import Pool
from pathlib import Path

import run
from run import HERE, Record, interval, mean, rounded, write
from structures import PLANTED, SLOPE, STRUCTURES, UNEQUAL, Structure, draw

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.selection import oodselect


LINES = HERE / "results" / "rules.jsonl"
SUMMARY = HERE / "results" / "rules.json"
N_PERMUTATIONS = 99
LEVEL = 0.05
ALL = {**STRUCTURES, UNEQUAL.name: UNEQUAL}
# Cell: share and size of negative slopes, models, examples, examples selected.
CELLS = {
    "null": (0.0, SLOPE, 400, 3000, 250),
    "limit": (0.0, SLOPE, 400, 1000, 80),
    "weak": (PLANTED, 0.2, 400, 1000, 80),
    "planted": (PLANTED, SLOPE, 400, 3000, 250),
}
TITLES = {
    "null": "all slopes above 0",
    "limit": "all slopes exactly 0, 1,000 examples",
    "weak": "a tenth of the slopes around -0.2, 1,000 examples",
    "planted": "a tenth of the slopes around -0.3",
}
RULES = {
    "jackknife": "interval of R_cf below 0",
    "own": "interval of the test R below 0",
    "crossfit": "**permutations of the cross-fit, p <= 0.05 (the rule)**",
    "crossfit and jackknife": "and interval of R_cf below 0",
    "crossfit and own": "and interval of the test R below 0, with 8 test units or more (the rule before)",
}
BEGIN, END = "<!-- begin: written by rules.py -->", "<!-- end: written by rules.py -->"


def structure_of(cell: str, name: str) -> Structure:
    """The structure, without any slope at the limit."""
    return replace(ALL[name], slope=0.0, slope_sd=0.0) if cell == "limit" else ALL[name]


def judge_one(job: tuple[str, str, int]) -> Record:
    """What the verdict on one data set rests on."""
    cell, name, seed = job
    started = time.process_time()
    planted, slope, n_models, n_examples, size = CELLS[cell]
    drawn = draw(
        structure_of(cell, name), seed, planted=planted, slope=slope, n_models=n_models, n_examples=n_examples
    )
    data = CorrectnessData.of(drawn.correct, drawn.id_accuracy, groups=drawn.units)
    selection = oodselect(data, size=size, seed=seed)
    verdict = selection.judge(n_permutations=N_PERMUTATIONS, workers=1)
    test = selection.correlation["test"]
    return rounded(
        {
            "cell": cell,
            "structure": name,
            "seed": seed,
            "status": verdict.status,
            "r": verdict.r,
            "high": verdict.high,
            "p": verdict.p_value,
            "n_permutations": verdict.n_permutations,
            "test_high": test.high,
            "test_units": test.n_units,
            "seconds": round(time.process_time() - started, 2),
        }
    )


def declared(record: Record) -> dict[str, bool]:
    """What each rule says of one data set."""
    low = record["r"] is not None and record["r"] < 0
    jackknife = record["high"] is not None and record["high"] < 0
    own = record["test_high"] is not None and record["test_high"] < 0
    crossfit = low and record["p"] <= LEVEL
    return {
        "jackknife": jackknife,
        "own": own,
        "crossfit": crossfit,
        "crossfit and jackknife": crossfit and jackknife,
        "crossfit and own": crossfit and (own or record["test_units"] < 8),
    }


def summarize(records: list[Record]) -> Record:
    """Shares of the data sets declared negative, by cell, structure and rule."""
    rows = []
    for cell in CELLS:
        for name in ALL:
            mine = [each for each in records if (each["cell"], each["structure"]) == (cell, name)]
            if not mine:
                continue
            each = [declared(record) for record in mine]
            counts = {rule: sum(found[rule] for found in each) for rule in RULES}
            rows.append(
                {
                    "cell": cell,
                    "structure": name,
                    "n": len(mine),
                    "mean_r": mean([record["r"] for record in mine]),
                    "mean_reruns": mean([record["n_permutations"] for record in mine]),
                    "count": counts,
                    "interval": {rule: interval(count, len(mine)) for rule, count in counts.items()},
                }
            )
    return {"permutations": N_PERMUTATIONS, "cells": CELLS, "rows": rows}


def table(summary: Record) -> str:
    """Shares declared negative as Markdown, with intervals for the rule in force."""
    lines = [
        "| data sets | structure | n | mean R_cf | " + " | ".join(RULES.values()) + " |",
        "|" + "---|" * (4 + len(RULES)),
    ]
    for row in summary["rows"]:
        shares = [f"{count / row['n']:.3f}" for count in row["count"].values()]
        place = list(RULES).index("crossfit")
        low, high = row["interval"]["crossfit"]
        shares[place] = f"**{shares[place]}** ({low:.3f} to {high:.3f})"
        first = [TITLES[row["cell"]], row["structure"], str(row["n"]), f"{row['mean_r']:+.2f}"]
        lines.append("| " + " | ".join(first + shares) + " |")
    return "\n".join(lines)


def measure(wanted: dict[str, int], processes: int) -> None:
    """Every data set not yet done."""
    known = {(each["cell"], each["structure"], each["seed"]) for each in run.done(LINES)}
    jobs = [
        (cell, name, seed)
        for cell, n_sets in wanted.items()
        for seed in range(n_sets)
        for name in (STRUCTURES if CELLS[cell][0] else ALL)
        if (cell, name, seed) not in known
    ]
    with Pool(processes) as pool:
        run.append(LINES, pool.imap_unordered(judge_one, jobs), len(jobs))


def write_results() -> None:
    """Summary and table of the README, from the lines so far."""
    summary = summarize(run.done(LINES))
    write(SUMMARY, json.dumps(summary, indent=1) + "\n")
    page: Path = HERE / "README.md"
    before, rest = page.read_text().split(BEGIN, 1)
    write(page, "\n\n".join((before + BEGIN, table(summary), END + rest.split(END, 1)[1])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--null", type=int, default=300, help="data sets per structure without such examples")
    parser.add_argument("--planted", type=int, default=100, help="data sets per structure with some")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--tables-only", action="store_true", help="draw from what has been measured")
    options = parser.parse_args()
    if not options.tables_only:
        wanted = {cell: options.planted if CELLS[cell][0] else options.null for cell in options.cells}
        measure(wanted, options.processes)
    write_results()


if __name__ == "__main__":
    main()

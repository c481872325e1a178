"""Predictors of accuracy over two zoos of small ViTs on PACS: the table and the figure of docs/howto/rank.md.

    python experiments/pacs64/run.py

Reads `results/models.json` (every model with every predictor on each target), `results/monitoring.json` and
the values of the paper in `published.csv`; writes `results/correlations.json`, `results/averages.png` and
`results/domains.png` (docs/howto/evaluate.md), and prints the rows of that page and of
docs/theory/circuit-shift.md. No model runs: README.md says how the files were made.
"""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from assay.analyses.generalization import correlate, summarize_correlations
from assay.core.random import stream


HERE = Path(__file__).parent
RESULTS = HERE / "results"
SEED, DRAWS = 0, 1000
PREDICTORS = (
    "ID accuracy", "Sharpness", "AC", "ANE", "MDE", "RankMe", "alpha-ReQ", "ATC", "DoC", "COT", "ALine-D",
    "DDB output", "DDB deep", "DDB global",
)  # fmt: skip
# Rows of Table 1 of Peng et al. (2026) under other names.
PUBLISHED = {
    "ID Accuracy": "ID accuracy",
    "DDB_global": "DDB global",
    "DDB_deep": "DDB deep",
    "DDB_out": "DDB output",
}
WATCHED = ("COT", "ATC", "AC", "DDB output", "CSS spearman", "CSS jaccard", "CSS cosine")
KEYS = ("r2", "srcc", "krcc")


def load(name: str) -> Any:
    """A results file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def triple(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """R2, SRCC and KRCC of one bootstrap draw; NaN where a draw holds one model only."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan, math.nan, math.nan
    value = correlate(x, y)
    return value.r2, value.srcc, value.krcc


def interval(values: np.ndarray) -> list[float]:
    """2.5 % and 97.5 % quantiles."""
    low, high = np.nanquantile(values, [0.025, 0.975])
    return [float(low), float(high)]


def correlations(zoos: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Every predictor over the six tasks, with intervals over models; tasks of a zoo share their draws."""
    draws = {
        domain: stream(SEED, f"pacs64/bootstrap/{domain}").integers(len(rows), size=(DRAWS, len(rows)))
        for domain, rows in zoos.items()
    }
    found: dict[str, Any] = {}
    for name in PREDICTORS:
        tasks, resampled, every = {}, [], []
        for domain, rows in zoos.items():
            for target in rows[0]["targets"]:
                x = np.array([row["targets"][target][name] for row in rows])
                y = np.array([row["targets"][target]["accuracy"] for row in rows])
                value = correlate(x, y)
                every.append(value)
                cells = np.array([triple(x[row], y[row]) for row in draws[domain]])
                resampled.append(cells)
                tasks[f"{domain}-{target}"] = {
                    key: {"value": getattr(value, key), "interval": interval(cells[:, column])}
                    for column, key in enumerate(KEYS)
                }
        cells = np.stack(resampled)  # [tasks, draws, 3]
        summary = summarize_correlations({"pacs64": every})
        found[name] = {
            "tasks": tasks,
            "mean": {key: summary[f"pacs64 {key}"] for key in KEYS},
            "average": {
                "value": summary["average"],
                "sem": summary["sem"],
                "interval": interval(np.abs(cells).mean(axis=(0, 2))),
            },
            "srcc_signed": {
                "value": float(np.mean([each.srcc for each in every])),
                "interval": interval(cells[:, :, 1].mean(0)),
            },
        }
    return {"draws": DRAWS, "models": {name: len(rows) for name, rows in zoos.items()}, "predictors": found}


def published() -> dict[str, float]:
    """Mean of the three PACS cells of the paper's Table 1."""
    with (HERE / "published.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == "1"]
    return {
        PUBLISHED.get(row["method"], row["method"]): float(np.mean([float(row[key]) for key in KEYS]))
        for row in rows
    }


def number(value: float) -> str:
    """Two decimals, a minus sign that is one."""
    return f"{value:.2f}".replace("-", "−")


def ranged(ends: list[float]) -> str:
    """An interval in brackets."""
    return f"[{number(ends[0])}, {number(ends[1])}]"


def predictors(found: Mapping[str, Any]) -> Iterator[str]:
    """Rows of docs/howto/rank.md."""
    paper = published()
    for name, row in found["predictors"].items():
        there = number(paper[name]) if name in paper else ""
        average, signed = row["average"], row["srcc_signed"]
        yield (
            f"| {name} | {number(average['value'])} {ranged(average['interval'])} "
            f"| {number(signed['value'])} {ranged(signed['interval'])} | {there} |"
        )


def monitoring() -> Iterator[str]:
    """Rows of docs/theory/circuit-shift.md."""
    found = load("monitoring")
    for name in WATCHED:
        row = found["scores"][name]
        f1 = number(row["alarm_f1"]["contested"])
        yield f"| {name} | {number(row['known']['srcc'])} | {number(row['new']['srcc'])} | {f1} |"
    yield f"| an alarm always | | | {number(found['always'])} |"


def picture(found: Mapping[str, Any]) -> Figure:
    """Average of R2, |SRCC| and |KRCC| for each predictor, its interval over models, the paper's value."""
    rows = sorted(found["predictors"].items(), key=lambda each: each[1]["average"]["value"])
    paper = published()
    figure = Figure(figsize=(7.2, 5), layout="constrained")
    ax = figure.subplots()
    for place, (name, row) in enumerate(rows):
        colour = "#d55e00" if name.startswith("DDB") else "#0072b2"
        ax.plot(row["average"]["interval"], [place, place], color=colour, lw=2)
        ax.plot(row["average"]["value"], place, "o", color=colour, ms=6)
        if name in paper:
            ax.plot(paper[name], place, "x", color="#22262b", ms=7, mew=1.6)
    ax.plot([], [], "o-", color="#d55e00", lw=2, label="circuits, 95 % interval over models")
    ax.plot([], [], "o-", color="#0072b2", lw=2, label="no circuits")
    ax.plot([], [], "x", color="#22262b", ms=7, mew=1.6, ls="", label="paper, PACS, 72 to 144 ViT-B/16")
    ax.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=9)
    ax.set_xlim(0, 1)
    ax.set_xlabel("mean of R2, |SRCC| and |KRCC| over six tasks", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
    return figure


def domains() -> Figure:
    """Shift against accuracy of the monitored model on its known and its new domains."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    ax = figure.subplots()
    found = load("monitoring")["domains"]
    for kind, marker, colour in (("known", "o", "#0072b2"), ("new", "D", "#d55e00")):
        rows = [row for name, row in found.items() if name.startswith(f"{kind}/")]
        x, y = ([row[key] for row in rows] for key in ("accuracy", "CSS spearman"))
        ax.plot(x, y, marker, color=colour, ms=5, label=f"{len(rows)} {kind} domains")
    ax.set_xlabel("accuracy", fontsize=9)
    ax.set_ylabel("circuit shift (spearman)", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper left", ncols=2, fontsize=8.5, frameon=False)
    return figure


def rounded(value: Any) -> Any:
    """Eight digits."""
    return json.loads(json.dumps(value), parse_float=lambda digits: float(f"{float(digits):.8g}"))


def main() -> None:
    found = rounded(correlations(load("models")))
    (RESULTS / "correlations.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    picture(found).savefig(RESULTS / "averages.png", dpi=110, facecolor="white")
    domains().savefig(RESULTS / "domains.png", dpi=110, facecolor="white")
    print(*predictors(found), "", *monitoring(), sep="\n")


if __name__ == "__main__":
    main()

"""The tables of `docs/pacs64.md`, made of the committed results; a test compares the page with them.

python experiments/pacs64/tables.py
"""

import csv
from collections.abc import Iterator
from typing import Any

from figures import PUBLISHED, RESULTS, load


SHIFTS = {
    "CSS_v_SRCC": "CSS spearman",
    "CSS_v_cosine": "CSS cosine",
    "CSS_v_L2": "CSS l2",
    "CSS_g_Laplacian": "CSS laplacian",
    "CSS_g_NetLSD": "CSS netlsd",
    "CSS_g_Jaccard": "CSS jaccard",
}


def published(table: str) -> dict[str, dict[str, str]]:
    """Rows of a table of the paper under the names used here."""
    names = {**PUBLISHED, **SHIFTS}
    with (RESULTS.parent / "published.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == table]
    return {names.get(row["method"], row["method"]): row for row in rows}


def line(*cells: str) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def number(value: float | None) -> str:
    """Two decimals, a minus sign that is one, a dash where undefined."""
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def ranged(interval: list[float]) -> str:
    """An interval in brackets."""
    return f"[{number(interval[0])}, {number(interval[1])}]"


def zoo() -> Iterator[str]:
    """Accuracies by start and mode."""
    models = load("models")
    yield line("ID domain", "start", "trained", "models", "ID accuracy", "accuracy on the three targets")
    yield line(*["---"] * 6)
    for domain, rows in models.items():
        groups: dict[tuple[str, str], list[Any]] = {}
        for row in rows:
            groups.setdefault((row["recipe"]["init"], row["recipe"]["mode"]), []).append(row)
        for (start, mode), members in sorted(groups.items()):
            known = [row["id_accuracy"] for row in members]
            new = [each["accuracy"] for row in members for each in row["targets"].values()]
            yield line(domain, start, mode, str(len(members)), spread(known), spread(new))


def spread(values: list[float]) -> str:
    """Smallest to largest."""
    return f"{min(values):.2f} to {max(values):.2f}"


def predictors() -> Iterator[str]:
    """Means over six tasks, with the PACS columns of the paper's Table 1."""
    found, paper = load("correlations")["predictors"], published("1")
    yield line(
        "predictor",
        "R2",
        "SRCC",
        "KRCC",
        "average ± SEM",
        "95 %",
        "SRCC, signed",
        "95 %",
        "paper: R2, SRCC, KRCC",
    )
    yield line(*["---"] * 9)
    for name, row in found.items():
        there = paper.get(name)
        yield line(
            name,
            *(number(row["mean"][key]) for key in ("r2", "srcc", "krcc")),
            f"{number(row['average']['value'])} ± {number(row['average']['sem'])}",
            ranged(row["average"]["interval"]),
            number(row["srcc_signed"]["value"]),
            ranged(row["srcc_signed"]["interval"]),
            ", ".join(number(float(there[key])) for key in ("r2", "srcc", "krcc")) if there else "",
        )


def tasks() -> Iterator[str]:
    """Signed rank correlation of every predictor on every task."""
    found = load("correlations")["predictors"]
    names = list(next(iter(found.values()))["tasks"])
    yield line("SRCC, signed", *(name.replace("-", " to ") for name in names))
    yield line(*["---"] * (len(names) + 1))
    for name, row in found.items():
        yield line(name, *(number(row["tasks"][task]["srcc"]["value"]) for task in names))


def tau() -> Iterator[str]:
    """Mean |SRCC| for each ratio, ours and the paper's."""
    found, paper = load("correlations")["tau"], published("tau")
    ratios = list(found["output"])
    yield line("SRCC, mean of magnitudes", *(f"tau {ratio}" for ratio in ratios))
    yield line(*["---"] * (len(ratios) + 1))
    for name, row in found.items():
        yield line(f"DDB {name}, here", *(number(row[ratio]["srcc"]) for ratio in ratios))
        yield line(f"DDB {name}, here, signed", *(number(row[ratio]["srcc_signed"]) for ratio in ratios))
        yield line(f"DDB {name}, paper", *(number(float(paper[name][f"tau_{ratio}"])) for ratio in ratios))


def monitoring() -> Iterator[str]:
    """Scores over the nine new domains, the paper's Table 3 and the alarm."""
    found, paper = load("monitoring"), published("3")
    yield line("score", "R2", "SRCC", "KRCC", "paper: R2, SRCC, KRCC", "SRCC on the 39", "alarm F1", "95 %")
    yield line(*["---"] * 8)
    for name, row in found["scores"].items():
        there, f1 = paper.get(name), row["alarm_f1"]
        yield line(
            name,
            *(number(row["new"][key]) for key in ("r2", "srcc", "krcc")),
            ", ".join(number(float(there[key])) for key in ("r2", "srcc", "krcc")) if there else "",
            number(row["known"]["srcc"]),
            number(f1["contested"]),
            ranged(f1["contested_interval"]) if f1["contested_interval"] else "–",
        )
    yield line("an alarm always", "", "", "", "", "", number(found["always"]), "")


TABLES = {
    "zoo": zoo,
    "predictors": predictors,
    "tasks": tasks,
    "tau": tau,
    "monitoring": monitoring,
}


def main() -> None:
    for name, table in TABLES.items():
        print(f"\n<!-- {name} -->", *table(), sep="\n")


if __name__ == "__main__":
    main()

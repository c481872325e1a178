"""The tables of `docs/pacs64-subsets.md`, made of the committed results; a test compares the page with them.

python experiments/pacs64_subsets/tables.py
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


RESULTS = Path(__file__).parent / "results"
# R of the authors' subsets on their test models, Table A.3 of the paper (PACS).
PRINTED = {10: -0.48, 20: -0.33, 50: -0.47, 100: -0.33, 250: -0.30, 500: -0.22, 750: 0.01, 1000: 0.10}
PRINTED |= {1500: 0.21, 2000: 0.29, 2500: 0.56, 3000: 0.67, 3500: 0.75}
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def load(name: str) -> Any:
    """A results file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def line(*cells: str) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def number(value: float | None, digits: int = 2) -> str:
    """A minus sign that is one, a dash where undefined."""
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def with_interval(record: Mapping[str, Any]) -> str:
    """R [low, high]."""
    return f"{number(record['r'])} [{number(record['low'])}, {number(record['high'])}]"


def spread(values: Sequence[float]) -> str:
    """Lowest, median and highest."""
    return f"{number(values[0])} – {number(values[1])} – {number(values[2])}"


def most(counts: Sequence[int]) -> str:
    """The largest class and its share."""
    largest = max(range(len(counts)), key=lambda code: counts[code])
    return f"{CLASSES[largest]} {100 * counts[largest] / sum(counts):.0f} %"


def said(verdict: Mapping[str, Any]) -> str:
    """The status, and whether R_cf is at or below -0.3."""
    return f"{verdict['status']}{', AoTIL' if verdict['aotil'] else ''}"


def zoo() -> Iterator[str]:
    """Accuracies by kind of feature."""
    found = load("whole")
    yield line("features", "models", "ID accuracy, low – median – high", "accuracy on sketches", "R")
    yield line(*["---"] * 5)
    for name, row in found["kinds"].items():
        yield line(name, str(row["n"]), spread(row["id_accuracy"]), spread(row["accuracy"]), number(row["r"]))


def classes() -> Iterator[str]:
    """Each class of sketches by itself."""
    found = load("whole")
    yield line("class", "sketches", "mean accuracy", "R on all of them", "sketches with r < 0")
    yield line(*["---"] * 5)
    for name, row in found["classes"].items():
        negative = found["examples"]["share_negative_by_class"][name]
        yield line(
            name,
            str(row["n"]),
            number(row["accuracy"]["mean"]),
            with_interval(row["correlation"]),
            f"{100 * negative:.0f} %",
        )


def sweep(name: str) -> Iterator[str]:
    """One row per size of a sweep."""
    found = load(name)
    yield line(
        "size",
        "train",
        "validation",
        "test",
        "random",
        "hard",
        "cross-fitted",
        "p",
        "verdict",
        "largest class",
    )
    yield line(*["---"] * 10)
    for row, random, hard in zip(
        found["sizes"], found["baselines"]["random"], found["baselines"]["hard"], strict=True
    ):
        verdict = row["verdict"]
        yield line(
            f"{row['size']:,}",
            number(row["r"]["train"]),
            number(row["r"]["validation"]),
            with_interval(row["test"]),
            number(random["r"]),
            number(hard["r"]),
            with_interval(verdict),
            number(verdict["p_value"], 3),
            said(verdict),
            most(row["classes"]),
        )


def families() -> Iterator[str]:
    """Cross-fitted R with other families, and on models with full training only."""
    fine, full = load("path")["sizes"], load("full_training")
    coarse = {name: load(f"families_{name}") for name in ("kind", "estimator")}
    yield line("size", "estimator and feature", "p", "feature", "p", "estimator", "p", "full training only")
    yield line(*["---"] * 8)
    for place, row in enumerate(fine):
        cells = [with_interval(row["verdict"]), number(row["verdict"]["p_value"], 3)]
        for name in ("kind", "estimator"):
            verdict = coarse[name]["sizes"][place]["verdict"]
            cells += [with_interval(verdict), number(verdict["p_value"], 3)]
        last = {name: full[name][place] for name in ("r", "low", "high")}
        yield line(f"{row['size']:,}", *cells, with_interval(last))


def published() -> Iterator[str]:
    """The authors' subsets on our models."""
    yield line(
        "size",
        "largest class",
        "printed",
        "on our models",
        "by feature",
        "random",
        "same classes",
        "share as low",
    )
    yield line(*["---"] * 8)
    for row in load("published")["sizes"]:
        if row["size"] not in PRINTED:
            continue
        kinds, same = row["by_kind"], row["same_classes"]
        yield line(
            f"{row['size']:,}",
            most(row["classes"]),
            number(PRINTED[row["size"]]),
            with_interval(row["correlation"]),
            f"[{number(kinds['low'])}, {number(kinds['high'])}]",
            number(row["random"]["mean"]),
            f"{number(same['mean'])} [{number(same['low'])}, {number(same['high'])}]",
            number(same["share_as_low"], 3),
        )


def chance(p: float) -> str:
    """A probability; very small ones as a bound."""
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def overlaps() -> Iterator[str]:
    """Common examples of their subsets and ours."""
    yield line("size", "common", "by chance", "p", "by chance given both class mixes", "p")
    yield line(*["---"] * 6)
    for row in load("published")["sizes"]:
        found = row["overlap"]
        if found is None:
            continue
        yield line(
            f"{row['size']:,}",
            str(found["common"]),
            number(found["expected_common"], 1),
            chance(found["p"]),
            number(found["expected_common_given_classes"], 1),
            chance(found["p_given_classes"]),
        )


MIXES = ("any", "fixed")


def baselines() -> Iterator[str]:
    """Selections and baselines chosen on the same folds of families, with and without fixed class shares."""
    found = load("splits")
    yield line("classes", "size", "selection", "one-pass", "hardest", "random", "selection − one-pass, in z")
    yield line(*["---"] * 7)
    for mix in MIXES:
        cell = found[f"family, {mix}"]
        for place, size in enumerate(found["sizes"]):
            fitted = {kind: rows[place] for kind, rows in cell["cross_fitted"].items()}
            between = fitted["marginal"]["difference"]
            yield line(
                mix,
                f"{size:,}",
                *(with_interval(fitted[kind]) for kind in ("selection", "marginal", "hard")),
                number(cell["baselines"]["random"][place]["r"]),
                f"{number(between['z'])} [{number(between['low'])}, {number(between['high'])}]",
            )


def splits() -> Iterator[str]:
    """Models split by family and at random."""
    found = load("splits")
    yield line(
        "classes", "size", "families: test", "families: cross-fitted", "random: test", "random: cross-fitted"
    )
    yield line(*["---"] * 6)
    for mix in MIXES:
        by_family, at_random = (found[f"{split}, {mix}"] for split in ("family", "random"))
        for place, size in enumerate(found["sizes"]):
            cells = []
            for cell in (by_family, at_random):
                cells += [cell["test"][place], cell["cross_fitted"]["selection"][place]]
            yield line(mix, f"{size:,}", *map(with_interval, cells))


def holdout() -> Iterator[str]:
    """Sketches predicted from features, and those furthest from the other images."""
    found = load("holdout")
    names = ("embedding", "class", "both")
    yield line(
        "classes", "size", "selection", "furthest", "random", *(f"by {name}" for name in names), "AUROC"
    )
    yield line(*["---"] * 9)
    for mix in MIXES:
        cell = found[mix]
        for place, size in enumerate(found["sizes"]):
            rules = [cell[name][place] for name in names]
            random = {"r": rules[0]["random_mean"]} | {
                end: rules[0][f"random_{end}"] for end in ("low", "high")
            }
            yield line(
                mix,
                f"{size:,}",
                number(cell["selection"][place]["r"]),
                with_interval(cell["distance"][place]),
                with_interval(random),
                *(with_interval(each["correlation"]) for each in rules),
                ", ".join(number(each["auroc"]) for each in rules),
            )


TABLES = {
    "zoo": zoo,
    "classes": classes,
    "path": lambda: sweep("path"),
    "strata": lambda: sweep("strata"),
    "families": families,
    "published": published,
    "overlaps": overlaps,
    "baselines": baselines,
    "splits": splits,
    "holdout": holdout,
}


def main() -> None:
    for name, table in TABLES.items():
        print(f"\n{name}\n")
        print("\n".join(table()))


if __name__ == "__main__":
    main()

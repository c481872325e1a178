"""What the pictures of a chosen subset show: read off the document of a selection or of a path over sizes.

Every builder reads a document (a plain dict) and nothing else; `save_data` writes what a picture shows as a
table or as JSON. `assay.report.subset_figures` draws it.
"""

import csv
import dataclasses
import io
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.circuits import write_atomically
from assay.core.errors import OutputError
from assay.core.record import plain
from assay.page import text as words


Document = Mapping[str, Any]
Column = Sequence[Any]

DRAWN_MODELS = 600  # points of a scatter; of more, evenly spaced ones by accuracy are drawn
SHOWN_VALUES = 14  # bars of prevalence
NAMES = {
    "selection": "chosen subset",
    "random": "random subset",
    "hard": "hardest examples",
    "marginal": "one-pass screening",
    "distance": "furthest from the known data",
}
BASELINES = ("random", "hard", "marginal", "distance")


class FigureData(ABC):
    """What a picture shows; `table` is the same in columns of one length."""

    @abstractmethod
    def table(self) -> dict[str, Column]:
        """Columns by name, one row per mark of the picture."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a curve: a value and an interval (or range) per size, NaN where undefined."""

    kind: str
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class SizeData(FigureData):
    """Correlation over held-out models against subset size.

    Attributes:
        sizes: Subset sizes, ascending.
        series: The chosen subsets first, then the baselines there are.
        verdicts: Status per size, None where none was judged.
        full: The correlation on all examples.
        statistic: `pearson` or `spearman`.
        n_examples, n_models: Candidates, and models that the correlations are over.
        headline: The size that the page is about.
    """

    sizes: tuple[int, ...]
    series: tuple[Series, ...]
    verdicts: tuple[str | None, ...]
    full: float
    statistic: str
    n_examples: int
    n_models: int
    headline: int

    def table(self) -> dict[str, Column]:
        """One row per line and size."""
        return {
            "kind": [each.kind for each in self.series for _ in self.sizes],
            "size": [*self.sizes] * len(self.series),
            self.statistic: [value for each in self.series for value in each.values],
            "low": [value for each in self.series for value in each.low],
            "high": [value for each in self.series for value in each.high],
            "verdict": [
                status if each.kind == "selection" else None
                for each in self.series
                for status in self.verdicts
            ],
        }


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Accuracies of the models on one set of examples, with their least-squares line in probit space."""

    name: str
    accuracy: tuple[float, ...]
    size: int
    r: float
    slope: float
    intercept: float


@dataclass(frozen=True, kw_only=True)
class ScatterData(FigureData):
    """Accuracy in and out of distribution, a point per held-out model.

    Attributes:
        models: Their names.
        id_accuracy: In distribution.
        clouds: All examples, the chosen ones, the others.
        n_models: Held-out models; `models` has fewer of them where there are very many.
    """

    models: tuple[str, ...]
    id_accuracy: tuple[float, ...]
    clouds: tuple[Cloud, ...]
    n_models: int

    def table(self) -> dict[str, Column]:
        """One row per model."""
        return {
            "model": self.models,
            "id_accuracy": self.id_accuracy,
            **{f"accuracy_{each.name}": each.accuracy for each in self.clouds},
        }


@dataclass(frozen=True, kw_only=True)
class AccuracyData(FigureData):
    """How many models have which accuracy: `edges` has one entry more than the counts."""

    edges: tuple[float, ...]
    known: tuple[int, ...]
    everything: tuple[int, ...]
    selected: tuple[int, ...]

    def table(self) -> dict[str, Column]:
        """One row per bin."""
        return {
            "from": self.edges[:-1],
            "to": self.edges[1:],
            "in_distribution": self.known,
            "all_examples": self.everything,
            "chosen_examples": self.selected,
        }


@dataclass(frozen=True, kw_only=True)
class BarsData(FigureData):
    """Difference of shares (chosen minus pool) per value of an attribute, largest first."""

    names: tuple[str, ...]
    difference: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    significant: tuple[bool, ...]
    n_values: int

    def table(self) -> dict[str, Column]:
        """One row per value."""
        return {
            "value": self.names,
            "difference": self.difference,
            "low": self.low,
            "high": self.high,
            "significant": self.significant,
        }


@dataclass(frozen=True, kw_only=True)
class ConsistencyData(FigureData):
    """Overlap of the subsets of two sizes: 1 nested, 0 as random; NaN where undefined."""

    sizes: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    mean: float

    def table(self) -> dict[str, Column]:
        """One row per pair of sizes."""
        return {
            "size": [size for size in self.sizes for _ in self.sizes],
            "other_size": [*self.sizes] * len(self.sizes),
            "overlap": [value for row in self.values for value in row],
        }


@dataclass(frozen=True, kw_only=True)
class ModelsData(FigureData):
    """The correlation on all examples against the number of models, over random orders of them.

    Attributes:
        k: Numbers of models, ascending.
        mean: Mean over the orders.
        curves: One per order.
        used: Models behind each number of a curve: more than `k` where whole training runs are added.
        stable: Models from which on a step changes less than 1 %, median of the orders; NaN if never.
        stable_low, stable_high: Range over the orders; NaN for an order in which it never comes.
        n_models: Models in all.
    """

    k: tuple[int, ...]
    used: tuple[tuple[float, ...], ...]
    mean: tuple[float, ...]
    curves: tuple[tuple[float, ...], ...]
    stable: float
    stable_low: float
    stable_high: float
    n_models: int

    def table(self) -> dict[str, Column]:
        """One row per number of models."""
        columns: dict[str, Column] = {"models": self.k, "mean": self.mean}
        return columns | {f"order_{place}": curve for place, curve in enumerate(self.curves, start=1)}


@dataclass(frozen=True, kw_only=True)
class CompositionData(FigureData):
    """Share of each class among the chosen examples by size, and in the pool.

    Attributes:
        names: Classes.
        pool: Their shares among all examples.
        sizes: Subset sizes.
        shares: `[size][class]`.
        headline: The size that the page is about.
    """

    names: tuple[str, ...]
    pool: tuple[float, ...]
    sizes: tuple[int, ...]
    shares: tuple[tuple[float, ...], ...]
    headline: int

    @property
    def chosen(self) -> tuple[float, ...]:
        """Shares at the size that the page is about."""
        return self.shares[self.sizes.index(self.headline)]

    def table(self) -> dict[str, Column]:
        """One row per size and class."""
        return {
            "size": [size for size in self.sizes for _ in self.names],
            "class": [*self.names] * len(self.sizes),
            "share": [value for row in self.shares for value in row],
            "pool": [*self.pool] * len(self.sizes),
        }


@dataclass(frozen=True, kw_only=True)
class NullData(FigureData):
    """Lowest cross-fitted correlation over the sizes under permuted accuracies, and the observed one."""

    values: tuple[float, ...]
    observed: float
    p_value: float
    n_sizes: int
    kind: str

    def table(self) -> dict[str, Column]:
        """One row per permutation, the observed value first."""
        return {
            "kind": ["observed", *["permuted"] * len(self.values)],
            "lowest_r": [self.observed, *self.values],
        }


@dataclass(frozen=True, kw_only=True)
class ReplicationData(FigureData):
    """Shares of examples by their own correlation over held-out models; `edges` has one entry more."""

    edges: tuple[float, ...]
    selected: tuple[float, ...]
    pool: tuple[float, ...]
    n_selected: int
    n_pool: int

    def table(self) -> dict[str, Column]:
        """One row per bin."""
        return {
            "from": self.edges[:-1],
            "to": self.edges[1:],
            "chosen": self.selected,
            "others": self.pool,
        }


@dataclass(frozen=True, kw_only=True)
class ComparisonData(FigureData):
    """One size: the correlation of the chosen subset, of all examples and of the baselines."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    statistic: str
    n_models: int

    def table(self) -> dict[str, Column]:
        """One row per set."""
        return {"set": self.names, self.statistic: self.values, "low": self.low, "high": self.high}


@dataclass(frozen=True, kw_only=True)
class GalleryData(FigureData):
    """Examples as pictures (data URIs) with a line of text below each."""

    images: tuple[str, ...]
    titles: tuple[str, ...]

    def table(self) -> dict[str, Column]:
        """One row per example."""
        return {"title": self.titles, "image": self.images}


def numbers(values: Any) -> tuple[float, ...]:
    """Numbers of a document, undefined ones as NaN."""
    return tuple(number(value) for value in values)


def number(value: Any) -> float:
    """A number of a document, NaN where it is undefined."""
    return math.nan if value is None else float(value)


def signed(value: float | int, digits: int = 2) -> str:
    """So many decimals, a real minus sign, none before zero; `n/a` where undefined."""
    if not math.isfinite(value):
        return "n/a"
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", words.MINUS)


def series_kinds(document: Document) -> list[str]:
    """The chosen subset and the baselines that a document has at any size, in the order of the pictures."""
    return [
        "selection",
        *(kind for kind in list(NAMES)[1:] if any(row.get(kind) for row in document["rows"])),
    ]


def size_data(document: Document, statistic: str = "pearson") -> SizeData:
    """The correlation over held-out models by size.

    Args:
        document: Of a selection or a path.
        statistic: `pearson` (in probit space) or `spearman`.
    """
    rows = sorted(document["rows"], key=lambda row: row["size"])
    kinds = series_kinds(document)
    return SizeData(
        sizes=tuple(row["size"] for row in rows),
        series=tuple(_series(rows, kind, statistic) for kind in kinds),
        verdicts=tuple((row.get("verdict") or {}).get("status") for row in rows),
        full=_interval(document["full"]["test"], statistic)[0],
        statistic=statistic,
        n_examples=document["data"]["n_examples"],
        n_models=document["full"]["test"]["n"],
        headline=document["size"],
    )


def _series(rows: Sequence[Document], kind: str, statistic: str) -> Series:
    found = [_interval(row["test"] if kind == "selection" else row.get(kind), statistic) for row in rows]
    values, low, high = (tuple(part) for part in zip(*found, strict=True))
    return Series(kind=kind, values=values, low=low, high=high)


def _interval(record: Document | None, statistic: str) -> tuple[float, float, float]:
    """A correlation with its ends."""
    if record is None:
        return math.nan, math.nan, math.nan
    keys = ("r", "low", "high") if statistic == "pearson" else ("spearman", "spearman_low", "spearman_high")
    value, low, high = (number(record.get(key)) for key in keys)
    return value, low, high


def comparison_data(document: Document, statistic: str = "pearson") -> ComparisonData:
    """The correlation at the size of the page: all examples, the chosen ones, the baselines."""
    row = headline_row(document)
    kinds = ["selection", *(kind for kind in BASELINES if row.get(kind))]
    found = [("all", "all examples", _interval(document["full"]["test"], statistic))]
    found += [
        (kind, NAMES[kind], _interval(row["test"] if kind == "selection" else row[kind], statistic))
        for kind in kinds
    ]
    return ComparisonData(
        names=tuple(name for _, name, _ in found),
        kinds=tuple(kind for kind, _, _ in found),
        values=tuple(ends[0] for *_, ends in found),
        low=tuple(ends[1] for *_, ends in found),
        high=tuple(ends[2] for *_, ends in found),
        statistic=statistic,
        n_models=document["full"]["test"]["n"],
    )


def headline_row(document: Document) -> Document:
    """The row of the size that the page is about."""
    row: Document = next(row for row in document["rows"] if row["size"] == document["size"])
    return row


def scatter_data(document: Document) -> ScatterData:
    """Held-out models on all, the chosen and the other examples."""
    models = document["models"]
    held_out = [place for place, part in enumerate(models["part"]) if part == "test"]
    drawn = held_out
    if len(held_out) > DRAWN_MODELS:
        ordered = sorted(held_out, key=lambda place: models["id_accuracy"][place])
        drawn = [
            ordered[place]
            for place in np.linspace(0, len(ordered) - 1, DRAWN_MODELS).round().astype(int).tolist()
        ]
    sizes = {
        "all": document["data"]["n_examples"],
        "selected": document["size"],
        "rest": document["data"]["n_examples"] - document["size"],
    }
    clouds = []
    for name, size in sizes.items():
        line = document["lines"].get(name)
        if line is None or models[name] is None:
            continue
        clouds.append(
            Cloud(
                name=name,
                accuracy=numbers(models[name][place] for place in drawn),
                size=size,
                r=number(line["r"]),
                slope=number(line["slope"]),
                intercept=number(line["intercept"]),
            )
        )
    return ScatterData(
        models=tuple(str(models["id"][place]) for place in drawn),
        id_accuracy=numbers(models["id_accuracy"][place] for place in drawn),
        clouds=tuple(clouds),
        n_models=len(held_out),
    )


def accuracy_data(document: Document, bins: int = 25) -> AccuracyData:
    """Accuracies of all models, in equal bins over [0, 1]."""
    models = document["models"]
    edges = np.linspace(0, 1, bins + 1)

    def counted(name: str) -> tuple[int, ...]:
        return tuple(np.histogram(numbers(models[name]), edges)[0].tolist())

    return AccuracyData(
        edges=tuple(edges.round(6).tolist()),
        known=counted("id_accuracy"),
        everything=counted("all"),
        selected=counted("selected"),
    )


def prevalence_data(document: Document, most: int = SHOWN_VALUES) -> BarsData | None:
    """Shares that differ most between the chosen examples and the pool; None without labels or metadata."""
    shift = document["prevalence"]
    if not shift:
        return None
    rows = sorted(
        (row for row in shift["rows"] if row.get("difference") is not None and not row.get("numeric")),
        key=lambda row: -abs(row["difference"]),
    )
    several = len({row["attribute"] for row in rows}) > 1
    shown = rows[:most]
    if not shown:
        return None
    return BarsData(
        names=tuple(f"{row['attribute']}: {row['value']}" if several else str(row["value"]) for row in shown),
        difference=numbers(row["difference"] for row in shown),
        low=numbers(row["low"] for row in shown),
        high=numbers(row["high"] for row in shown),
        significant=tuple(bool(row["significant"]) for row in shown),
        n_values=len(rows),
    )


def consistency_data(document: Document) -> ConsistencyData | None:
    """Overlap of the subsets over sizes; None for fewer than two."""
    found = document["consistency"]
    if not found or len(found["sizes"]) < 2:
        return None
    return ConsistencyData(
        sizes=tuple(found["sizes"]),
        values=tuple(numbers(row) for row in found["normalised"]),
        mean=number(found["mean"]),
    )


def models_data(document: Document) -> ModelsData | None:
    """The correlation on all examples against the number of models; None where it was not computed."""
    found = document["models_needed"]
    if not found:
        return None
    low, high = (number(end) for end in found["range"])
    return ModelsData(
        k=tuple(found["k"]),
        used=tuple(numbers(row) for row in found["n_used"]),
        mean=numbers(found["mean"]),
        curves=tuple(numbers(curve) for curve in found["curves"]),
        stable=number(found["median"]),
        stable_low=low,
        stable_high=high,
        n_models=found["n_models"],
    )


def composition_data(document: Document) -> CompositionData | None:
    """Class shares by size; None without labels."""
    found = document["composition"]
    if not found:
        return None
    return CompositionData(
        names=tuple(found["names"]),
        pool=numbers(found["pool"]),
        sizes=tuple(row["size"] for row in found["rows"]),
        shares=tuple(numbers(row["shares"]) for row in found["rows"]),
        headline=document["size"],
    )


def null_data(document: Document) -> NullData | None:
    """The permutation null; None where the verdict rests on none."""
    found = document["null"]
    if not found or found["observed"] is None:
        return None
    return NullData(
        values=tuple(value for value in numbers(found["values"]) if math.isfinite(value)),
        observed=number(found["observed"]),
        p_value=number(found["p_value"]),
        n_sizes=found["n_sizes"],
        kind=found["kind"],
    )


def replication_data(document: Document) -> ReplicationData | None:
    """Own correlations of the chosen and of the other examples over held-out models."""
    found = document["replication"]
    if not found:
        return None
    return ReplicationData(
        edges=numbers(found["edges"]),
        selected=numbers(found["selected"]["shares"]),
        pool=numbers(found["pool"]["shares"]),
        n_selected=found["selected"]["n"],
        n_pool=found["pool"]["n"],
    )


def gallery_data(document: Document, side: str = "selected", most: int = 24) -> GalleryData | None:
    """Pictures of the highest-ranked chosen examples, or of random others; None without images."""
    found = [each for each in document["examples"][side] if each.get("image")][:most]
    if not found:
        return None
    return GalleryData(
        images=tuple(each["image"] for each in found),
        titles=tuple(str(each["label"] if each["label"] is not None else each["id"]) for each in found),
    )


def save_data(data: FigureData, path: str | os.PathLike[str]) -> Path:
    """Write what a picture shows: columns as CSV, or everything as JSON, by the suffix of `path`.

    Args:
        data: What a `*_data` function returned.
        path: A name ending in `.csv` or `.json`; replaced only when complete.

    Returns:
        The path written. Undefined numbers are empty cells in CSV and null in JSON.

    Raises:
        OutputError: For another suffix, or where the file cannot be written.
    """
    path = Path(path)
    if path.suffix == ".json":
        # The protocol of figure data cannot say that every one of them is a dataclass.
        record = plain({"figure": type(data).__name__, **dataclasses.asdict(data)})  # type: ignore[call-overload]
        text = json.dumps(record, indent=2, allow_nan=False) + "\n"
    elif path.suffix == ".csv":
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        columns = data.table()
        writer.writerow(columns)
        writer.writerows(
            ["" if value is None else value for value in plain(list(row))]
            for row in zip(*columns.values(), strict=True)
        )
        text = buffer.getvalue()
    else:
        raise OutputError(
            f"the data of a figure cannot be written to {path.name!r}: name a file that ends in .csv or .json"
        )
    return write_atomically(path, text.encode())

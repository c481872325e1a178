"""Divergences grouped by what the prompts were filled with, and which fillings are significantly worse."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Int64

from assay.analyses.worst_case.inputs import PairSample
from assay.analyses.worst_case.rows import pair_ids
from assay.core.errors import check_name
from assay.core.random import stream
from assay.core.record import Record, plain
from assay.stats import benjamini_hochberg, cell_table, cell_tests, spearman_test
from assay.stats.cells import SPARSE
from assay.stats.summary import PERCENTILES


CORRUPTED = "corrupted."  # prefix of the corrupted input's fields
SHARES = (1.0, 0.999, 0.9999)  # of the default heatmaps: max, p99.9, p99.99
FEWEST, MOST = 2, 200  # distinct values of a field that is tested
FEWEST_NUMBERS = 10  # distinct values of a field whose trend is tested
POOLED = 0.99  # pairs above this percentile of all of them count as exceeding
LEVEL = 0.05  # false discovery rate of what is called significant


@dataclass(frozen=True, kw_only=True)
class FieldTable(Record):
    """Divergences grouped by the values of one or two fields.

    Attributes:
        rows_field: First field.
        columns_field: Second one, or None.
        rows: Values of the first field, ascending.
        columns: Values of the second one; a single None where there is none.
        percentiles: Shares of `quantiles`; 1 is the maximum.
        n: `[R, C]` pairs per cell.
        mean: `[R, C]`; NaN for an empty cell.
        quantiles: `[P, R, C]`, type 7; NaN for an empty cell.
    """

    rows_field: str
    columns_field: str | None
    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    percentiles: tuple[float, ...]
    n: Int64[np.ndarray, "R C"]
    mean: Float64[np.ndarray, "R C"]
    quantiles: Float64[np.ndarray, "P R C"]

    @property
    def values(self) -> Float64[np.ndarray, "R C"]:
        """The largest percentile asked for, as a matrix."""
        return np.asarray(self.quantiles[int(np.argmax(self.percentiles))])

    @property
    def max(self) -> Float64[np.ndarray, "R C"]:
        """Largest divergence per cell; NaN where empty or not asked for."""
        if 1.0 not in self.percentiles:
            return np.asarray(np.full_like(self.mean, np.nan))
        return np.asarray(self.quantiles[self.percentiles.index(1.0)])


@dataclass(frozen=True, kw_only=True)
class _Labels:
    """A field as numbers: the values that occur, ascending, and the number of each input's value."""

    field: str
    values: tuple[Any, ...]
    codes: Int64[np.ndarray, " inputs"]
    axis: int

    def spread(self, sample: PairSample) -> Int64[np.ndarray, "..."]:
        """The codes in a shape that broadcasts to that of the divergences."""
        if sample.pairs is not None:
            return np.asarray(self.codes[sample.pairs[:, self.axis]])
        return self.codes[:, None] if self.axis == 0 else self.codes[None, :]


def known_fields(sample: PairSample) -> tuple[str, ...]:
    """Names of all fields, the corrupted input's with their prefix."""
    if sample.protocol == "inputs":
        return tuple(sample.clean.fields)
    return (*sample.clean.fields, *(CORRUPTED + name for name in sample.corrupted.fields))


def table_by_field(
    values: Float64[np.ndarray, "..."],
    sample: PairSample,
    field: str,
    other: str | None = None,
    *,
    percentile: float | None = None,
) -> FieldTable:
    """Count, mean and percentiles per value of a field, or per cell of two.

    Args:
        values: Divergences of the sample.
        sample: The inputs.
        field: A field of the clean input, or `corrupted.` and a field of the corrupted one.
        other: A second field.
        percentile: Share in [0, 1], 1 the maximum. None: all percentiles of a summary and the maximum for one
            field, the maximum for two.
    """
    labels = _labels(sample, field)
    others = None if other is None else _labels(sample, other)
    if percentile is not None:
        shares: tuple[float, ...] = (float(percentile),)
    else:
        shares = (*PERCENTILES.values(), 1.0) if other is None else (1.0,)
    return _table(values, sample, labels, others, shares)


def _table(
    values: Float64[np.ndarray, "..."],
    sample: PairSample,
    labels: _Labels,
    others: _Labels | None,
    shares: Sequence[float],
) -> FieldTable:
    cells = cell_table(
        values,
        labels.spread(sample),
        None if others is None else others.spread(sample),
        quantiles=shares,
    )
    return FieldTable(
        rows_field=labels.field,
        columns_field=None if others is None else others.field,
        rows=tuple(labels.values[code] for code in cells.rows),
        columns=(None,) if others is None else tuple(others.values[code] for code in cells.columns),
        percentiles=cells.quantiles_at,
        n=cells.n,
        mean=cells.mean,
        quantiles=cells.quantiles,
    )


def field_tests(
    values: Float64[np.ndarray, "..."], sample: PairSample, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Which values of which field exceed the pooled 99th percentile more often than chance.

    Every field with 2 to 200 values is tested, labels dealt anew to inputs; fields that group the inputs
    alike are tested once, the others named as `aliases`. Benjamini-Hochberg runs over the values of each
    field, so that a field of a hundred rare values does not hide one of eight frequent ones.

    Returns:
        Records by ascending p-value, then descending share of exceeding pairs.
    """
    exceeds = np.asarray(values > np.quantile(values, POOLED))
    records: list[dict[str, Any]] = []
    for labels, aliases in _tested(sample):
        tests = _tests(exceeds, sample, labels, None, seed)
        mean, _ = _group_means(values, sample, labels.axis, labels.codes, len(labels.values))
        n_inputs = _n_inputs(sample, labels)
        for at, code in enumerate(tests.rows):
            records.append(
                {
                    "field": labels.field,
                    "value": labels.values[code],
                    "aliases": aliases,
                    "n_inputs": int(n_inputs[code]),
                    "n_pairs": int(tests.n[at, 0]),
                    "mean": float(mean[code]),
                    "exceed": float(tests.exceed[at, 0]),
                    "pooled": tests.pooled,
                    "p_value": float(tests.p_value[at, 0]),
                    "q_value": float(tests.q_value[at, 0]),
                    "significant": bool(tests.q_value[at, 0] <= LEVEL),
                    "sparse": bool(n_inputs[code] < SPARSE),
                }
            )
    return sorted(records, key=lambda record: (record["p_value"], -record["exceed"]))


def _n_inputs(sample: PairSample, labels: _Labels) -> Int64[np.ndarray, " values"]:
    """Distinct inputs of the field's side that bear each value and are part of a pair."""
    ids = (sample.clean, sample.corrupted)[labels.axis].distinct.inverse
    used = np.arange(len(ids)) if sample.pairs is None else sample.pairs[:, labels.axis]
    seen = np.unique(np.stack([labels.codes[used], ids[used]]), axis=1)
    return np.asarray(np.bincount(seen[0], minlength=len(labels.values)))


def field_trends(
    values: Float64[np.ndarray, "..."], sample: PairSample, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Whether the divergence rises or falls with a field of numbers.

    For every numeric field with at least 10 different values: Spearman's rho between the value and the mean
    divergence over each distinct input's pairs, a two-sided permutation test over inputs, Benjamini-Hochberg
    over the fields. A field of many values, each on a few inputs, shows here what `field_tests` cannot.

    Returns:
        Records by ascending p-value.
    """
    records: dict[tuple[int, bytes], dict[str, Any]] = {}
    for name in known_fields(sample):
        labels = _labels(sample, name)
        numbers = np.array([_number(value) for value in labels.values])
        if len(numbers) < FEWEST_NUMBERS or np.isnan(numbers).any():
            continue
        x, y = _per_input(values, sample, labels, numbers)
        # A field in the same order as another, or in the opposite one, is another name of it.
        order = (labels.axis, min(scipy.stats.rankdata(x).tobytes(), scipy.stats.rankdata(-x).tobytes()))
        if order in records:
            records[order]["aliases"].append(name)
            continue
        trend = spearman_test(x, y, rng=stream(seed, f"trend/{name}"))
        if not math.isnan(trend.rho):
            records[order] = {
                "field": name,
                "aliases": [],
                "n_inputs": len(x),
                "n_values": len(numbers),
                "rho": trend.rho,
                "p_value": trend.p_value,
            }
    tested = list(records.values())
    if tested:
        adjusted = benjamini_hochberg(np.array([record["p_value"] for record in tested]))
        for record, q_value in zip(tested, adjusted.tolist(), strict=True):
            record |= {"q_value": q_value, "significant": q_value <= LEVEL}
    return sorted(tested, key=lambda record: (record["p_value"], -abs(record["rho"])))


def _per_input(
    values: Float64[np.ndarray, "..."],
    sample: PairSample,
    labels: _Labels,
    numbers: Float64[np.ndarray, " values"],
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """The number and the mean divergence of each distinct input of the field's side."""
    first, ids = (sample.clean, sample.corrupted)[labels.axis].distinct
    mean, used = _group_means(values, sample, labels.axis, ids, len(first))
    return numbers[labels.codes[first]][used], mean[used]


def _group_means(
    values: Float64[np.ndarray, "..."],
    sample: PairSample,
    axis: int,
    groups: Int64[np.ndarray, " inputs"],
    n: int,
) -> tuple[Float64[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Mean divergence over the pairs of each group of inputs of one side, and which groups have pairs."""
    if sample.pairs is None:
        group, of_pairs = groups, values.mean(axis=1 - axis)
    else:
        group, of_pairs = groups[sample.pairs[:, axis]], values
    total = np.bincount(group, minlength=n)
    sums = np.bincount(group, weights=of_pairs, minlength=n)
    return np.divide(sums, total, out=np.full(n, np.nan), where=total > 0), total > 0


def _number(value: Any) -> float:
    """A number, or text that is one ("07"); NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    if isinstance(value, str) and not value.isdigit():
        return math.nan
    return float(value)


def heatmaps(
    values: Float64[np.ndarray, "..."],
    sample: PairSample,
    fields: Sequence[tuple[str, str]],
    *,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Tables of two fields: max, p99.9 and p99.99 per cell, with the tests of the cells.

    Pairs of fields that the sample lacks, or that take one value or more than 200, are left out.
    """
    known = known_fields(sample)
    exceeds = np.asarray(values > np.quantile(values, POOLED))
    records = []
    for names in fields:
        if not set(names) <= set(known):
            continue
        labels, others = (_labels(sample, name) for name in names)
        if not all(FEWEST <= len(each.values) <= MOST for each in (labels, others)):
            continue
        table = _table(values, sample, labels, others, SHARES)
        tests = _tests(exceeds, sample, labels, others, seed)
        records.append(
            {
                "rows_field": labels.field,
                "columns_field": others.field,
                "rows": table.rows,
                "columns": table.columns,
                "n": table.n,
                "n_inputs": tests.n_inputs,
                "sparse": tests.sparse,
                "max": table.quantiles[0],
                "p99.9": table.quantiles[1],
                "p99.99": table.quantiles[2],
                "q_value": tests.q_value,
                "significant": tests.significant(LEVEL),
            }
        )
    return records


def _tests(
    exceeds: Bool[np.ndarray, "..."],
    sample: PairSample,
    labels: _Labels,
    others: _Labels | None,
    seed: int,
) -> Any:
    """Cell tests in which equal inputs are one, where they bear equal labels."""
    used = [labels] if others is None else [labels, others]
    if sample.pairs is not None:
        axes = [pair_ids(sample)]
        codes = [[each.spread(sample) for each in used]]
    else:
        axes = [sample.clean.distinct.inverse, sample.corrupted.distinct.inverse]
        codes = [[each.codes for each in used if each.axis == axis] for axis in (0, 1)]
    inputs = [
        ids if all(_belongs(ids, code) for code in known) else np.arange(len(ids))
        for ids, known in zip(axes, codes, strict=True)
    ]
    return cell_tests(
        exceeds,
        labels.spread(sample),
        None if others is None else others.spread(sample),
        inputs=inputs,
        seed=seed,
    )


def _belongs(ids: Int64[np.ndarray, " n"], codes: Int64[np.ndarray, " n"]) -> bool:
    """Whether equal inputs bear equal labels. A user's fields, or choices that the text hides, may differ."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return bool((codes[first][inverse.ravel()] == codes).all())


def _tested(sample: PairSample) -> Iterator[tuple[_Labels, list[str]]]:
    """Fields with enough and not too many values, each grouping of the inputs once."""
    groups: dict[tuple[int, bytes], tuple[_Labels, list[str]]] = {}
    for name in known_fields(sample):
        labels = _labels(sample, name)
        if not FEWEST <= len(labels.values) <= MOST:
            continue
        _, first, inverse = np.unique(labels.codes, return_index=True, return_inverse=True)
        grouping = first[inverse.ravel()].tobytes()
        _, aliases = groups.setdefault((labels.axis, grouping), (labels, []))
        if groups[labels.axis, grouping][0] is not labels:
            aliases.append(name)
    yield from groups.values()


def _labels(sample: PairSample, name: str) -> _Labels:
    known = known_fields(sample)
    check_name("field", name, known)
    side, axis = (sample.corrupted, 1) if name.startswith(CORRUPTED) else (sample.clean, 0)
    column = side.fields[name.removeprefix(CORRUPTED)]
    keys = [_key(value) for value in column]
    by_key = dict(zip(keys, column, strict=True))
    try:
        order = sorted(by_key, key=lambda key: by_key[key])
    except TypeError:  # values of several kinds, None among them
        order = sorted(by_key)
    places = {key: place for place, key in enumerate(order)}
    return _Labels(
        field=name,
        values=tuple(by_key[key] for key in order),
        codes=np.array([places[key] for key in keys], dtype=np.int64),
        axis=axis,
    )


def _key(value: Any) -> str:
    """A value as text that tells 1 from "1"; lists out of a file are values too."""
    return json.dumps(plain(value), sort_keys=True)

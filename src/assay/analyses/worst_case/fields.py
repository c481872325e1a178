"""Divergences grouped by what the prompts were filled with, and which fillings are significantly worse."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.worst_case.rows import pair_ids
from assay.analyses.worst_case.sampling import CORRUPTED, PairSample, PromptSet
from assay.core.errors import check_name
from assay.core.record import plain
from assay.stats import CellTable, cell_table, cell_tests
from assay.stats.significance import SPARSE
from assay.stats.summary import shares_of


SHARES = {"max": 1.0, "p99.9": 0.999, "p99.99": 0.9999}  # percentiles of heatmaps
FEWEST, MOST = 2, 200  # distinct values of a field that is tested
POOLED = 0.99  # pairs above this percentile of all of them count as exceeding
LEVEL = 0.05  # false discovery rate of what is called significant

Values = Float64[np.ndarray, "..."]


@dataclass(frozen=True, kw_only=True)
class FieldLabels:
    """A field as numbers: the values that occur, ascending, and the number of each input's value."""

    field: str
    values: tuple[Any, ...]
    codes: Int64[np.ndarray, " inputs"]
    axis: int
    sample: PairSample

    @staticmethod
    def of(sample: PairSample, name: str) -> "FieldLabels":
        """A field by its name, with the prefix `corrupted.` that of the corrupted inputs.

        Raises:
            UnknownNameError: For another name than those of `known_fields`.
        """
        check_name("field", name, known_fields(sample))
        side, axis = (sample.corrupted, 1) if name.startswith(CORRUPTED) else (sample.clean, 0)
        column = side.fields[name.removeprefix(CORRUPTED)]
        # As text that tells 1 from "1"; lists out of a file are values too.
        keys = [json.dumps(plain(value), sort_keys=True) for value in column]
        by_key = dict(zip(keys, column, strict=True))
        try:
            order = sorted(by_key, key=lambda key: by_key[key])
        except TypeError:  # values of several kinds, None among them
            order = sorted(by_key)
        places = {key: place for place, key in enumerate(order)}
        codes = np.array([places[key] for key in keys], dtype=np.int64)
        values = tuple(by_key[key] for key in order)
        return FieldLabels(field=name, values=values, codes=codes, axis=axis, sample=sample)

    @property
    def side(self) -> PromptSet:
        """The inputs that bear the field."""
        return (self.sample.clean, self.sample.corrupted)[self.axis]

    @property
    def used(self) -> Int64[np.ndarray, " n"]:
        """Rows of that side, as often as they are drawn or part of a listed pair."""
        pairs = self.sample.pairs
        return np.arange(self.side.n) if pairs is None else pairs[:, self.axis]

    @property
    def spread(self) -> Int64[np.ndarray, "..."]:
        """The codes in a shape that broadcasts to that of the divergences."""
        codes = self.codes[self.used]
        wide = codes[:, None] if self.axis == 0 else codes[None, :]
        return np.asarray(codes if self.sample.pairs is not None else wide)

    @property
    def testable(self) -> bool:
        """Whether there are enough and not too many values."""
        return FEWEST <= len(self.values) <= MOST

    def means(self, values: Values) -> Float64[np.ndarray, " n_values"]:
        """Mean divergence over the pairs of each value; NaN without pairs."""
        of_pairs = values if self.sample.pairs is not None else values.mean(axis=1 - self.axis)
        groups, n = self.codes[self.used], len(self.values)
        return shares_of(np.bincount(groups, of_pairs, n), np.bincount(groups, minlength=n))


def known_fields(sample: PairSample) -> tuple[str, ...]:
    """Names of all fields, the corrupted input's with their prefix."""
    second = () if sample.protocol == "inputs" else sample.corrupted.fields
    return (*sample.clean.fields, *(CORRUPTED + name for name in second))


def field_table(values: Values, fields: Sequence[FieldLabels], shares: Sequence[float]) -> CellTable:
    """Count, mean and percentiles of the divergences per value of a field, or per cell of two.

    Args:
        values: Divergences, one per pair.
        fields: One or two.
        shares: Of the percentiles, each in [0, 1].
    """
    cells = cell_table(values, *(each.spread for each in fields), quantiles=shares)
    rows, *columns = (
        tuple(each.values[code] for code in codes)
        for each, codes in zip(fields, (cells.rows, cells.columns), strict=False)
    )
    return replace(cells, rows=rows, columns=columns[0] if columns else cells.columns)


def field_tests(values: Values, sample: PairSample, *, seed: int = 0) -> list[dict[str, Any]]:
    """Which values of which field exceed the pooled 99th percentile more often than chance.

    Every field with 2 to 200 values is tested, labels dealt anew to inputs; fields that group the inputs
    alike are tested once, the others named as `aliases`. Benjamini-Hochberg runs over the values of each
    field, so that a field of a hundred rare values does not hide one of eight frequent ones.

    Returns:
        Records by ascending p-value, then descending share of exceeding pairs.
    """
    records: list[dict[str, Any]] = []
    for labels, aliases in _tested(sample):
        tests = _tests(values, [labels], seed)
        mean = labels.means(values)
        # Distinct inputs that bear each value and are part of a pair.
        seen = np.unique(np.stack([labels.codes, labels.side.distinct.inverse])[:, labels.used], axis=1)
        n_inputs = np.bincount(seen[0], minlength=len(labels.values))
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


def heatmaps(values: Values, sample: PairSample, *, seed: int = 0) -> list[dict[str, Any]]:
    """Tables of the pairs of fields that the task names: max, p99.9 and p99.99 per cell, tests of the cells.

    Pairs of fields that the sample lacks, or that take one value or more than 200, are left out.
    """
    records = []
    for names in sample.heatmap_fields:
        if not set(names) <= set(known_fields(sample)):
            continue
        both = [FieldLabels.of(sample, name) for name in names]
        if not all(each.testable for each in both):
            continue
        table = field_table(values, both, tuple(SHARES.values()))
        tests = _tests(values, both, seed)
        records.append(
            {
                "rows_field": names[0],
                "columns_field": names[1],
                "rows": table.rows,
                "columns": table.columns,
                "n": table.n,
                "n_inputs": tests.n_inputs,
                "sparse": tests.n_inputs < SPARSE,
                **dict(zip(SHARES, table.quantiles, strict=True)),
                "q_value": tests.q_value,
                "significant": tests.q_value <= LEVEL,
            }
        )
    return records


def _tests(values: Values, fields: Sequence[FieldLabels], seed: int) -> Any:
    """Tests of the cells of one field or two, in which equal inputs are one, where they bear equal labels."""
    sample, spread = fields[0].sample, [each.spread for each in fields]
    if sample.pairs is not None:
        axes = [(pair_ids(sample), spread)]
    else:
        sides = (sample.clean, sample.corrupted)
        axes = [
            (side.distinct.inverse, [each.codes for each in fields if each.axis == axis])
            for axis, side in enumerate(sides)
        ]
    inputs = []
    for ids, codes in axes:
        # A user's fields, or choices that the text hides, may differ between equal inputs.
        _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        alike = all((code == code[first][inverse.ravel()]).all() for code in codes)
        inputs.append(ids if alike else np.arange(len(ids)))
    exceeds = np.asarray(values > np.quantile(values, POOLED))
    return cell_tests(exceeds, spread[0], spread[1] if spread[1:] else None, inputs=inputs, seed=seed)


def _tested(sample: PairSample) -> Iterator[tuple[FieldLabels, list[str]]]:
    """Fields with enough and not too many values, each grouping of the inputs once, and its other names."""
    groups: dict[tuple[int, bytes], tuple[FieldLabels, list[str]]] = {}
    for name in known_fields(sample):
        labels = FieldLabels.of(sample, name)
        if labels.testable:
            _, first, inverse = np.unique(labels.codes, return_index=True, return_inverse=True)
            grouping = labels.axis, first[inverse.ravel()].tobytes()
            if grouping in groups:
                groups[grouping][1].append(name)
            else:
                groups[grouping] = labels, []
    yield from groups.values()

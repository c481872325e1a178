"""How answers were understood and what a correctness matrix is made of, to look at before selecting."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import scipy

from assay.analyses.subsets._arrays import Accuracies, Units
from assay.analyses.subsets.header import LIES
from assay.analyses.subsets.line import probit
from assay.core.record import Record


@dataclass(frozen=True, kw_only=True)
class Quality(Record):
    """What a correctness matrix is made of.

    Attributes:
        n_models: M.
        n_examples: N.
        n_groups: Training runs; None where they are not known.
        n_families: Architecture families; None where they are not known.
        id_accuracy: Lowest and highest in-distribution accuracy.
        accuracy: Lowest and highest out-of-distribution accuracy of a model on all examples.
        n_all_right: Examples that every model gets right.
        n_all_wrong: Examples that every model gets wrong.
        n_constant_models: Models that get every example right, or every one wrong.
        n_duplicates: Models whose row equals that of an earlier one.
        reliability: As of `reliability`.
    """

    n_models: int
    n_examples: int
    n_groups: int | None
    n_families: int | None
    id_accuracy: tuple[float, float]
    accuracy: tuple[float, float]
    n_all_right: int
    n_all_wrong: int
    n_constant_models: int
    n_duplicates: int
    reliability: float


def reliability(id_accuracy: Accuracies, n_id: Units | None) -> float:
    """Share of the variance of probit in-distribution accuracies that is not sampling noise.

    1 - mean(v_i) / var(probit(y)), v_i = y_i (1 - y_i) / (n_id phi(probit(y_i))^2) with the `n_id` examples
    behind each accuracy; NaN where they are not known, or all accuracies are equal.
    """
    z = probit(id_accuracy)
    spread = float(z.var())
    if n_id is None or spread == 0:
        return math.nan
    noise = id_accuracy * (1 - id_accuracy) / (n_id * scipy.stats.norm.pdf(z) ** 2)
    return float(1 - noise.mean() / spread)


@dataclass(frozen=True, kw_only=True)
class Understood(Record):
    """How answers were read, before anything is selected.

    Attributes:
        kind: What was read: `frame`, `archive`, `lm-eval`, `zoo`, ...
        orientation: How a table lies: `long`, `wide` or `transposed`; None where nothing can lie otherwise.
        columns: Column of each role that has one.
        answers: What cells were taken for.
        id_accuracy: Where the accuracies in distribution are from.
        models, examples: The first three names.
        classes: Names or codes of the classes, in order; None where they are not known.
        facts: Names of what else is known of the examples.
        missing: Missing cells in what was read.
        left_out: Models and examples that were left out for them.
        notes: What else a reader decided.
        quality: What the matrix is made of.
    """

    kind: str
    orientation: str | None
    columns: Mapping[str, str]
    answers: str
    id_accuracy: str
    models: tuple[str, ...]
    examples: tuple[str, ...]
    classes: tuple[str, ...] | None
    facts: tuple[str, ...]
    missing: int
    left_out: Mapping[str, int]
    notes: tuple[str, ...]
    quality: Quality

    def rows(self) -> list[tuple[str, str]]:
        """What to look at, each with a name."""
        seen, columns = self.quality, ", ".join(f"{role} = {name}" for role, name in self.columns.items())
        kept = "".join(f", {n:,} {what} left out" for what, n in self.left_out.items() if n)
        low, high = seen.id_accuracy
        unrated = math.isnan(low)
        units = {"training runs": seen.n_groups, "families": seen.n_families}
        rows = {
            "read as": "table" if self.kind == "frame" else self.kind,
            "orientation": f"{self.orientation}, {LIES[self.orientation]}" if self.orientation else "",
            "columns": columns,
            "cells": f"{self.answers}; {self.missing:,} missing{kept}",
            "models": _some(self.models, seen.n_models),
            **{name: "not known" if n is None else f"{n:,}" for name, n in units.items()},
            "examples": _some(self.examples, seen.n_examples),
            "classes": "not known" if self.classes is None else _some(self.classes, len(self.classes)),
            "facts": ", ".join(self.facts),
            "in-distribution accuracy": "not given"
            if unrated
            else f"{low:.1%} to {high:.1%}, {self.id_accuracy}",
            "accuracy on the examples": "{:.1%} to {:.1%}".format(*seen.accuracy),
            "notes": "; ".join(self.notes),
        }
        return [(name, text) for name, text in rows.items() if text]


def _some(names: tuple[str, ...], n: int) -> str:
    return f"{n:,}: {', '.join(names[:3])}{', ...' if n > 3 else ''}"

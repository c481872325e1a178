"""Numbers that know how they came to be: what every later stage passes on.

A `Measurement` keeps the per-example components that its statistic sums, so intervals, subsamples,
split halves and worst cases are array work and cost no further forward pass. Its identity is the
hash of its provenance less machine facts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Float64, Int

from assay.core.errors import InputError, check_fraction
from assay.core.record import Plotted, plain, record_id
from assay.core.verdict import ONE_SIDED_95, Interval, Rule, Verdict, undefined_interval


if TYPE_CHECKING:
    import pandas as pd


# What `Measurement.to_dict` writes, in this order.
_WRITTEN = (
    *("id", "name", "hash", "value", "standard_error", "interval", "n", "n_excluded", "unit", "direction"),
    *("passed", "status", "verdict", "reason", "warnings", "notes", "details", "baseline", "parts"),
    *("statistic", "seed", "provenance"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement(Plotted):
    """One number about one circuit, with everything needed to doubt it.

    Attributes:
        id: Published code with the quantity, e.g. `D02.faithfulness`.
        name: Registered key, e.g. `faithfulness`.
        value: The number; NaN where undefined, then `reason` says why.
        n: Different examples it rests on; copies of an example count once, at the mean of their margins.
        n_excluded: Different examples left out (non-finite logits, or undefined for this quantity).
        unit: `fraction`, `nats`, `logits`, ...
        direction: `higher`, `lower`, `target` or `report` (no verdict).
        per_example: `[batch]`, one per row of the task, NaN at rows that are excluded, copies, or equal to
            their counterparts where that is what ablated edges carry. Averages to `value`: the example's own
            value for a mean, value plus influence for a ratio of sums.
        components: Per-example vectors that `statistic` sums, NaN at the same rows.
        statistic: What turns sums of components into `value`: one of `assay.stats`.
        rule: Thresholds; None for a reported number.
        judged: A verdict that is not a rule on `value`, e.g. of top-K agreement.
        interval_method: Default of `interval`; None leaves it to the statistic.
        reason: Code of an undefined value.
        warnings: Codes of what makes the number less trustworthy than it looks.
        details: Further numbers, JSON values.
        baseline: The same measurement on reference circuits (`random`, `empty`).
        parts: Quantities reported beside the value, each with its own interval.
        provenance: How it came to be; hashed without `machine`.
        seed: Root of the resampling stream.
        meaning: What the value says, a sentence for pages; empty where the page knows it by the code.
    """

    drawn_by = "assay.metrics.page:plot_measurement"

    id: str
    name: str
    value: float
    n: int
    n_excluded: int = 0
    unit: str = ""
    direction: str = "report"
    per_example: Float64[np.ndarray, " batch"] | None = None
    components: Mapping[str, Float64[np.ndarray, " batch"]] = field(default_factory=dict)
    statistic: Any = None
    rule: Rule | None = None
    judged: Verdict | None = None
    interval_method: str | None = None
    reason: str | None = None
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    baseline: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, "Measurement"] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    meaning: str = ""

    def __repr__(self) -> str:
        value = f"{self.value:.4g} {self.unit}"
        if {"a", "b"} <= self.parts.keys():  # a comparison, which has no verdict
            ends = self.interval()
            return (
                f"Measurement({self.name!r}, b - a = {value} [{ends.low:.4g}, {ends.high:.4g}], n={self.n})"
            )
        return f"Measurement({self.name!r}, {value}, n={self.n}, {self.status})"

    @cached_property
    def _intervals(self) -> dict[tuple[float, str | None], Interval]:
        return {}

    @property
    def standard_error(self) -> float:
        """Delta-method standard error: spread of `per_example` over root n; NaN below two examples."""
        if self.per_example is None or self.n < 2:
            return math.nan
        return float(np.nanstd(self.per_example, ddof=1) / math.sqrt(self.n))

    def interval(self, level: float = 0.95, method: str | None = None) -> Interval:
        """Confidence interval of the value over examples, computed once per level and method.

        Args:
            level: Two-sided coverage in (0, 1); 0.90 gives two one-sided 95 % bounds.
            method: `bca` (2,000 bootstrap resamples of the examples, the default for most), `percentile`,
                `delta`, `fieller` (ratios; the default when the denominator is unstable), `clopper-pearson`
                (shares) or `betting` (means of bounded values, their default).

        Returns:
            NaN ends with a reason where the value is undefined or rests on fewer than two examples.
        """
        check_fraction(level=level)
        method = method or self.interval_method
        key = (level, method)
        if key not in self._intervals:
            if self.statistic is None or math.isnan(self.value):
                reason = "no_per_example_values" if self.statistic is None else "undefined"
                return undefined_interval(level, method or "none", self.reason or reason)
            table = np.stack([self.components[name] for name in self.statistic.components])
            used = table[:, np.isfinite(table).all(axis=0)]
            self._intervals[key] = self.statistic.interval(used, level=level, method=method, seed=self.seed)
        return self._intervals[key]

    def value_on(self, indices: Int[np.ndarray, "*draws n_drawn"]) -> Float[np.ndarray, "*draws"]:
        """The value on other multisets of the examples, without a forward pass.

        Args:
            indices: Rows of the task, any leading axes: subsamples, split halves, bootstrap draws.

        Returns:
            One value per draw; NaN where a draw holds an excluded example or is undefined.
        """
        if self.statistic is None:
            raise InputError(f"{self.name} keeps no per-example components, so it has no value on a subset")
        sums = [self.components[name][indices].sum(axis=-1) for name in self.statistic.components]
        value: np.ndarray = self.statistic.of_sums(np.stack(sums, axis=-1), indices.shape[-1])
        return value

    @cached_property
    def verdict(self) -> Verdict:
        """The published rule on the value and the same rule with confidence.

        Inconclusive, with that reason, below ten different examples (`few_prompts`) and where the circuit was
        found on these (the warning `same_prompts`).
        """
        if self.judged is not None:
            return self.judged.on_examples(self.n, self.warnings, n_excluded=self.n_excluded)
        if self.rule is None:
            return Verdict(status="none", published="none", values={"value": self.value}, reason=self.reason)
        verdict = self.rule.judge(self.value, self.interval(ONE_SIDED_95), self.n, self.reason)
        return verdict.on_examples(self.n, self.warnings, n_excluded=self.n_excluded)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which examples were left out, a sentence each."""
        task = self.provenance.get("task")
        return tuple(task.get("notes", ())) if isinstance(task, Mapping) else ()

    @property
    def status(self) -> str:
        """The verdict with confidence: pass, moderate, fail, inconclusive or none."""
        return self.verdict.status

    @property
    def passed(self) -> bool | None:
        """Whether the value itself meets its published threshold; None without one or where undefined."""
        published = self.verdict.published
        return None if published in ("none", "inconclusive") else published == "pass"

    def to_frame(self) -> "pd.DataFrame":
        """One row per example: example, value (NaN where excluded), and each component under its name.

        Raises:
            InputError: If no values per example were kept.
        """
        import pandas as pd

        if self.per_example is None:
            raise InputError(f"{self.name} keeps no values per example, so there is no table of them")
        n = len(self.per_example)
        own = {"example": np.arange(n), "value": self.per_example}
        return pd.DataFrame(own | {name: each for name, each in self.components.items() if len(each) == n})

    @property
    def id_hash(self) -> str:
        """Identity: hash of what was measured and how, less machine facts."""
        return record_id("measurement", self.provenance)

    def arrays(self) -> dict[str, Float64[np.ndarray, " batch"]]:
        """Per-example arrays by name, those of parts under `parts/KEY/`: what is stored beside `to_dict`."""
        own = {f"components/{name}": values for name, values in self.components.items()}
        for key, part in self.parts.items():
            own |= {f"parts/{key}/{name}": values for name, values in part.arrays().items()}
        return own

    def to_dict(self, *, level: float = 0.95, per_example: bool = False) -> dict[str, Any]:
        """Finite JSON: undefined numbers are null and `reason` says why.

        Args:
            level: Coverage of the reported interval.
            per_example: Also list the per-example values.
        """
        parts = {key: part.to_dict(level=level) for key, part in self.parts.items()}
        for part in parts.values():  # a part shares these with the whole
            for name in ("provenance", "hash", "seed", "notes"):
                del part[name]
        interval, verdict = self.interval(level), self.verdict
        written = {"hash": self.id_hash, "interval": interval, "verdict": verdict, "parts": parts}
        names = [*_WRITTEN, *["meaning"] * bool(self.meaning), *["per_example"] * per_example]
        document: dict[str, Any] = plain(
            {name: written[name] if name in written else getattr(self, name) for name in names}
        )
        return document

"""What the gates read: columns of measurement tables, measured as they are asked for."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from assay.analyses.calibration.gate import find_gate
from assay.analyses.calibration.invariance import group_labels
from assay.core.errors import InputError
from assay.core.record import library_version, record_id
from assay.core.verdict import Verdict
from assay.discovery.heads import MeasurementTable
from assay.discovery.heads.effects import SMALLEST
from assay.tasks import PairTask


@dataclass(kw_only=True, eq=False)
class Battery:
    """Hands each gate its columns of the tables.

    Attributes:
        table: Of the circuit under judgement.
        gates: Keys of those to be judged.
        against: Of other circuits on other tasks.
        published: `[H]` heads of a published list.
        groups: Field, or label per prompt of the task, to group prompts by; None: the usual fields.
        unit_id: `[P]` which prompts belong together.
        signs: -1 for heads that oppose the task.
        profile: Heads whose effects C16 correlates between halves: `all`, or those of the `circuit`.
        random_sets: Random sets of heads for C36.
        same_prompts: Keys of gates judged on prompts that a circuit was found on.
        missing: Filled as columns turn out not to exist: column -> why.
        filling: Seconds spent on runs.
    """

    table: MeasurementTable
    gates: tuple[str, ...] = ()
    against: tuple[MeasurementTable, ...] = ()
    published: Bool[np.ndarray, " H"] | None = None
    groups: str | Shaped[np.ndarray, " P"] | None = None
    unit_id: Shaped[np.ndarray, " P"] | None = None
    signs: Mapping[tuple[int, int], int] = field(default_factory=dict)
    profile: str = "all"
    random_sets: int = 0
    same_prompts: frozenset[str] = frozenset()
    missing: dict[str, str] = field(default_factory=dict)
    filling: float = 0.0

    # ---- gates ----------------------------------------------------------------------------------

    @property
    def setting(self) -> dict[str, Any]:
        """What gates are told, those that have an option for it; both sizes flag odd circuits."""
        return {
            "unit_id": self.unit_id,
            "circuit_size": self.table.k,
            "n_heads": self.table.H,
            "task": self.name,
            "seed": self.table.seed,
        }

    def ask(self, code: str, *arrays: Any, **options: Any) -> Verdict:
        """The verdict of a gate on arrays, under the setting of this battery; `options` go before it."""
        return find_gate(code).judge(*arrays, setting=self.setting, **options)

    # ---- columns --------------------------------------------------------------------------------

    def get(self, name: str, table: MeasurementTable | None = None) -> Float64[np.ndarray, "..."]:
        """A column, measured now if need be."""
        with self._filling():
            return np.array((table or self.table).column(name))

    @contextmanager
    def _filling(self) -> Iterator[None]:
        """Count the time of runs."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.filling += time.perf_counter() - began

    def find(self, name: str) -> Float64[np.ndarray, "..."] | None:
        """A column, or None with the reason noted where these prompts or this circuit do not have it."""
        try:
            return self.get(name)
        except InputError as error:
            self.missing[name] = str(error)
            return None

    def run(self, name: str) -> Float64[np.ndarray, " n"]:
        """A column of margins, its draws averaged where the method is random."""
        return _averaged(self.get(name))

    def keep(self, heads: Collection[tuple[int, int]]) -> Float64[np.ndarray, " P"]:
        """Margins of another head set alone."""
        with self._filling():
            return _averaged(self.table.keep(heads))

    @property
    def name(self) -> str:
        """Task, which names random streams."""
        return self.table.task.name

    @property
    def kept(self) -> str:
        """Column of the circuit's runs."""
        return f"y_keep/{self.table.ablation}"

    def restored(self, table: MeasurementTable | None = None) -> Float64[np.ndarray, "P H"]:
        """Margin that each head's clean output restores in the corrupted run, not yet over the gap."""
        margin = self.get("y_patch", table) - self.get("y_cor", table)[:, None]
        margin[np.isnan(self.gap(table))] = np.nan
        return np.asarray(margin)

    def gap(self, table: MeasurementTable | None = None) -> Float64[np.ndarray, " P"]:
        """Margin lost by corrupting each prompt; NaN where it is not a scale for what a head restores."""
        gap = self.get("y_full", table) - self.get("y_cor", table)
        return np.where(np.abs(gap) >= SMALLEST, gap, np.nan)

    @cached_property
    def effects(self) -> Float64[np.ndarray, "P H"]:
        """What dropping each head costs on each prompt."""
        effects: Float64[np.ndarray, "P H"] = self.get("y_full")[:, None] - self.get("y_drop1")
        return effects

    @cached_property
    def member_effects(self) -> Float64[np.ndarray, "P k"]:
        """The same of the circuit's heads, which alone cost less."""
        effects: Float64[np.ndarray, "P k"] = self.get("y_full")[:, None] - self.get("y_drop1/circuit")
        return effects

    @cached_property
    def pool_units(self) -> Shaped[np.ndarray, " n_pool"] | None:
        """Units of the pool: further prompts are units of their own."""
        if self.unit_id is None:
            return None
        codes = np.unique(self.unit_id, return_inverse=True)[1].reshape(-1)
        further = np.arange(self.table.n_pool - self.table.P) + len(codes)
        return np.concatenate([codes, further])

    def labels(self, tasks: Sequence[PairTask]) -> dict[str, Shaped[np.ndarray, " n"]]:
        """What prompts of some tasks can be grouped by."""
        if self.groups is not None and not isinstance(self.groups, str):
            return {"template": np.asarray(self.groups)}
        if self.groups is None:
            return group_labels(*tasks)
        return {"template": np.array([str(value) for each in tasks for value in each.fields[self.groups]])}

    @property
    def grouped_by(self) -> str | None:
        """The field asked for, `given` for labels, None for the usual ones."""
        return self.groups if self.groups is None or isinstance(self.groups, str) else "given"

    @cached_property
    def record(self) -> dict[str, Any]:
        """What the verdicts are a function of."""
        labels = {"groups": self.groups, "unit_id": self.unit_id}
        table, described = self.table, self.table.head_circuit
        prompts = [table.task, *([] if table.more is None else [table.more])]
        return {
            "library": library_version(),
            "table": table.record,
            # Roles, pathways and fields of prompts are not part of what a table measures.
            "head_circuit": None if described is None else described.to_dict(),
            "fields": [
                record_id("fields", {key: each.tolist() for key, each in self.labels([one]).items()})
                for one in prompts
            ],
            "gates": list(self.gates),
            "against": [other.record for other in self.against],
            "published": None if self.published is None else np.flatnonzero(self.published).tolist(),
            "profile": self.profile,
            "random_sets": self.random_sets,
            "signs": [[*head, sign] for head, sign in sorted(self.signs.items())],
            **({"same_prompts": sorted(self.same_prompts)} if self.same_prompts else {}),
            **{
                name: value if value is None or isinstance(value, str) else [str(label) for label in value]
                for name, value in labels.items()
            },
        }


def _averaged(runs: Float64[np.ndarray, "n *draws"]) -> Float64[np.ndarray, " n"]:
    """One number per prompt: the mean over draws, where there are any."""
    return np.array(runs.mean(axis=1) if runs.ndim > 1 else runs)

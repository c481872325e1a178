"""The measurement table: every run of one circuit on one task that calibrations need, each made once.

A calibration asks for columns of per-prompt numbers; the first that asks pays for the runs, and a folder
keeps them for the next time. With the ablation's reference fixed, a bootstrap, a subsample or a split half
only chooses rows, so no gate needs another forward pass.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from assay.circuits import Circuit, HeadCircuit
from assay.circuits.naming import named_circuit
from assay.circuits.spans import check_everywhere
from assay.core.errors import InputError, unknown_name
from assay.core.record import library_version, record_id
from assay.discovery.heads.columns import QUANTITIES, WHOLE, Columns
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.replacing import outside
from assay.discovery.heads.scores import member_flags
from assay.discovery.heads.shelf import Shelf
from assay.execution.forward import check_circuit
from assay.models import Model
from assay.objectives import Loss, Objective, get_objective, is_registered
from assay.tasks import PairTask


ROWS_AT_ONCE = 64  # prompts of one block of a table over all heads: what an interruption can cost
POOL = "pool/"

AnyCircuit = Circuit | HeadCircuit | Sequence[Sequence[int]] | str | Path

_WHICH = ("full", "keep", "drop", "empty")
_OVER_HEADS = ("y_drop1", "y_patch", "y_cross")
_OF_CIRCUIT = "y_drop1/circuit"


class MeasurementTable:
    """Per-prompt numbers of one circuit on one task, filled when asked for and kept.

    Columns; P prompts, H heads in all (index layer * heads per layer + head), k heads in the circuit:

    - `y_full`, `ce_full` `[P]`: margin and cross-entropy of the model.
    - `y_keep/METHOD`, `y_drop/METHOD`, `y_empty/METHOD` `[P]`, or `[P, draws]`: margins of the circuit alone,
      without the circuit, of nothing. `ce_...` and `kl_...` (from the model, nats) of the same runs.
    - `pool/...` `[P + more]`: the same over the task and `more`.
    - `y_drop1` `[P, H]`: margin with one head replaced by the method `ablation`, averaged over its draws.
    - `y_drop1/circuit` `[P, k]`: its columns of the circuit's heads, which alone cost less.
    - `y_minus1` `[P, k]`: margin of the circuit without one of its heads, averaged likewise.
    - `y_cor` `[P]`: corrupted run. `y_patch` `[P, H]`: with one head's clean output patched in.
    - `y_cross` `[P, H]`: clean run with one head's corrupted output at the read position.
    - `attribution` `[P, H]`: attribution patching. `magnitude`: mean absolute output.
    - `dla`, `dla_correct` `[P, H]`: direct attribution to the margin (frozen norm), to the answer (no norm).
    - `z_last` `[P, H, d_head]`: outputs at the read position.
    - `ocse`, `llc`, `ov_norm`, `spectral_norm`, `sv_entropy` `[H]`: scores of heads.
    - `composition/q`, `/k`, `/v` `[H, H]`: composition of pairs of heads.

    METHOD is a key of `INTERVENTIONS`; those that draw at random have five draws. A circuit of heads has its
    heads replaced inside plain passes. For an edge circuit `keep`, `drop` and `empty` are runs of its edges,
    under the ablation of the same meaning, and tables over heads are of its `kept_heads()`.

    Args:
        model: The model.
        task: P prompts.
        circuit: A circuit, a head circuit, (layer, head) pairs, the name of a shipped head circuit or a file.
        more: Further prompts of the same source, for statements about other samples.
        reference: Prompts that means are taken over; default: the task's own.
        objective: Its negative is the margin y; default: the task's own.
        ablation: Method of tables over single heads; default: `mean` for a circuit of heads, the task's own
            for one of edges, which is what `measure` judges it under.
        folder: Where columns are kept and found again.
        batch_size: Prompts per pass; default: by free memory. Never changes a number.
        seed: Root of donors and noise.
        donors: Row of the prompt that gives each prompt its activations under `resample-donor`, instead of
            five random draws.
        measured: Columns that were measured elsewhere, by name.

    Raises:
        InputError: For a folder that holds another table, a folder under an objective that is not
            registered.
        GraphMismatchError: For a circuit of another model.
    """

    def __init__(
        self,
        model: Model,
        task: PairTask,
        circuit: AnyCircuit,
        *,
        more: PairTask | None = None,
        reference: PairTask | None = None,
        objective: str | Objective | Loss | None = None,
        ablation: str | None = None,
        folder: str | Path | None = None,
        batch_size: int | None = None,
        seed: int = 42,
        donors: Int64[np.ndarray, " P"] | None = None,
        measured: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.model, self.task, self.more = model, task, more
        self.circuit, self.head_circuit = _as_circuit(model, circuit)
        self.reference = task if reference is None else reference
        self.objective = get_objective(objective or task.objective)
        if ablation is None:
            ablation = task.ablation if self.circuit.heads is None else "mean"
        self.ablation, self.seed, self.batch_size = INTERVENTIONS[ablation].key, seed, batch_size
        if folder is not None and not is_registered(self.objective):
            raise InputError(
                f"a folder identifies objectives by name, but {self.objective.key!r} is not registered; "
                "register it under its own name, or keep the table in memory (folder=None)"
            )
        for prompts in (task, *([] if more is None else [more])):
            prompts.validate(model.n_vocab, model.n_positions)
        self.donors = donors
        self.heads = self.circuit.kept_heads()
        self._columns: dict[str, np.ndarray] = dict(measured or {})
        self._make = Columns(
            model=model,
            task=task,
            circuit=self.circuit,
            heads=self.heads,
            reference=self.reference,
            objective=self.objective,
            ablation=self.ablation,
            seed=seed,
            donors=donors,
            batch_size=batch_size,
        )
        self._shelf = None if folder is None else Shelf(Path(folder), self.hash, self.record)

    def __repr__(self) -> str:
        return f"MeasurementTable({self.task.name!r}, P={self.P}, H={self.H}, k={self.k}, hash {self.hash})"

    # ---- shape and identity ---------------------------------------------------------------------

    @property
    def P(self) -> int:  # noqa: N802 - the symbol of the definitions
        """Prompts."""
        return self.task.n

    @property
    def H(self) -> int:  # noqa: N802 - the symbol of the definitions
        """Heads of the model."""
        return self.model.n_layers * self.model.n_heads

    @property
    def k(self) -> int:
        """Heads of the circuit."""
        return len(self.heads)

    @property
    def n_pool(self) -> int:
        """Prompts of the pool: those of the task and `more`."""
        return self.P + (0 if self.more is None else self.more.n)

    @property
    def members(self) -> Bool[np.ndarray, " H"]:
        """True at the circuit's heads."""
        return member_flags(self.heads, self.model.n_layers, self.model.n_heads)

    @property
    def places(self) -> list[int]:
        """Index of each of the circuit's heads in a table over heads, in the order of `heads`."""
        return [layer * self.model.n_heads + head for layer, head in self.heads]

    @property
    def folder(self) -> Path | None:
        """Where columns are kept."""
        return None if self._shelf is None else self._shelf.folder

    @property
    def by_heads(self) -> bool:
        """Whether the circuit is a set of heads with all MLPs, run by replacing the others."""
        return self._make.by_heads

    @cached_property
    def record(self) -> dict[str, Any]:
        """What every number of the table is a function of."""
        return {
            "library": library_version(),
            "model": self.model.describe(),
            "task": self.task.describe(),
            "more": None if self.more is None else self.more.describe(),
            "reference": None if self.reference is self.task else self.reference.describe(),
            "circuit": self.circuit.hash,
            "objective": self.objective.key,
            "ablation": self.ablation,
            "seed": self.seed,
            "donors": None if self.donors is None else self.donors.tolist(),
        }

    @cached_property
    def hash(self) -> str:
        """Content hash of `record`, 16 hex digits."""
        return record_id("measurement-table", self.record)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in memory."""
        return tuple(self._columns)

    @property
    def passes(self) -> dict[str, float]:
        """Passes over one prompt made by this object, `forward` and `backward`.

        A run that begins at some block counts as the share of the model's MLPs that it goes through.
        """
        return {"forward": self._make.n_forward, "backward": self._make.n_backward}

    # ---- columns --------------------------------------------------------------------------------

    def column(self, name: str) -> Float64[np.ndarray, "*shape"]:
        """A column, measured if it is nowhere yet; see the class for names and shapes.

        Raises:
            UnknownNameError: For a name or method that there is not.
            InputError: For prompts without what the column needs: wrong answers, donors, one length.
            FileFormatError: If a kept block is truncated or was changed.
        """
        if name not in self._columns:
            self._columns |= self._filled(name)
        return self._locked(name)

    def _locked(self, name: str) -> np.ndarray:
        """A read-only column in memory."""
        column = self._columns[name]
        column.flags.writeable = False
        return column

    def keep(
        self, heads: Collection[tuple[int, int]], method: str | None = None
    ) -> Float64[np.ndarray, "P *draws"]:
        """Margins with another set of heads kept and all others replaced.

        Args:
            heads: (layer, head) pairs.
            method: Key of an intervention; default: that of the table.
        """
        return self._of_set("keep_set", heads, method)

    def drop(
        self, heads: Collection[tuple[int, int]], method: str | None = None
    ) -> Float64[np.ndarray, "P *draws"]:
        """Margins with a set of heads replaced; arguments as in `keep`."""
        return self._of_set("drop_set", heads, method)

    def _of_set(self, kind: str, heads: Collection[tuple[int, int]], method: str | None) -> np.ndarray:
        chosen = sorted(set(heads))
        Circuit.from_heads(self.model.graph, chosen)  # refuses heads that do not exist
        key = INTERVENTIONS[method or self.ablation].key
        name = f"{kind}/{key}/{record_id('heads', {'heads': [list(head) for head in chosen]})}"
        replaced = outside(chosen, self.model) if kind == "keep_set" else chosen
        if name not in self._columns:
            self._columns |= self._whole(name, lambda: {name: self._make.without_set(replaced, key)})
        return self._locked(name)

    def _filled(self, name: str) -> dict[str, np.ndarray]:
        if name in _OVER_HEADS:
            return self._in_blocks(name, tuple(outside((), self.model)))
        if name == _OF_CIRCUIT:
            # What the table over all heads holds already is not measured again.
            if "y_drop1" in self._columns or (self._shelf is not None and self._shelf.has("y_drop1")):
                return {name: self.column("y_drop1")[:, self.places]}
            return self._in_blocks(name, self.heads)
        if name == "ocse":
            margins = np.array(self.column("y_full"))  # beforehand, or its passes would be counted twice
            return self._whole(name, lambda: {name: self._make.causation(margins)})
        if name in WHOLE:
            return self._whole(name, lambda: {name: WHOLE[name](self._make)})
        pool = name.startswith(POOL)
        which, _, method = name.removeprefix(POOL).partition("/")
        quantity, _, run = which.partition("_")
        if (
            quantity not in QUANTITIES
            or run not in _WHICH
            or (run == "full") != (not method)
            or which == "kl_full"
        ):
            raise unknown_name("column", name, self._known())
        if run != "full" and method not in INTERVENTIONS:
            raise unknown_name("intervention", method, INTERVENTIONS)
        if not pool:
            return self._whole(name, lambda: self._make.runs(run, method, self.task))
        more = self.more
        if more is None:
            return {name: self.column(name.removeprefix(POOL))}
        further = f"more/{name.removeprefix(POOL)}"
        found = self._whole(
            further,
            lambda: {f"more/{key}": value for key, value in self._make.runs(run, method, more).items()},
        )
        own = self.column(name.removeprefix(POOL))
        return {**found, name: np.concatenate([own, found[further]])}

    def _known(self) -> list[str]:
        runs = [f"{q}_{w}/METHOD" for q in QUANTITIES for w in _WHICH[1:]]
        return ["y_full", "ce_full", *runs, *_OVER_HEADS, *WHOLE, "ocse"]

    def _whole(self, name: str, make: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Columns that come in one piece, read from the folder or made and kept there."""
        if self._shelf is not None and self._shelf.has(name):
            return {name: self._shelf.read(name)}
        with self._make.counting():
            made = {key: np.asarray(value, dtype=np.float64) for key, value in make().items()}
        if self._shelf is not None:
            for key, value in made.items():
                self._shelf.write(key, 0, value)
        return made

    def _in_blocks(self, name: str, heads: tuple[tuple[int, int], ...]) -> dict[str, np.ndarray]:
        """A table over heads, block of rows by block of rows; finished blocks outlive an interruption."""
        blocks = []
        for start in range(0, self.P, ROWS_AT_ONCE):
            rows = slice(start, min(start + ROWS_AT_ONCE, self.P))
            if self._shelf is not None and self._shelf.has(name, start):
                blocks.append(self._shelf.read(name, start))
                continue
            with self._make.counting():
                some = self.task.subset(range(rows.start, rows.stop))
                table = self._make.over_heads(name.partition("/")[0], some, rows, heads)
            if self._shelf is not None:
                self._shelf.write(name, start, table)
            blocks.append(table)
        return {name: np.concatenate(blocks)}


def _as_circuit(model: Model, circuit: AnyCircuit) -> tuple[Circuit, HeadCircuit | None]:
    """The circuit in the model's graph, with its head circuit where it was given as one."""
    described = None
    if isinstance(circuit, str | Path):
        circuit = named_circuit(circuit, model.graph)
    if isinstance(circuit, HeadCircuit):
        described = circuit
    if not isinstance(circuit, Circuit):
        circuit = Circuit.from_heads(model.graph, circuit)
    check_circuit(model, circuit)
    check_everywhere(circuit.spans, "a table of measurements", "circuit.anywhere()")
    return circuit, described

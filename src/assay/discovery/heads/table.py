"""The measurement table: every run of one circuit on one task that calibrations need, each made once.

A calibration asks for columns of per-prompt numbers; the first that asks pays for the runs, and a folder
keeps them for the next time. With the ablation's reference fixed, a bootstrap, a subsample or a split half
only chooses rows, so no gate needs another forward pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from assay.circuits import Circuit, HeadCircuit
from assay.circuits.heads import check_heads
from assay.circuits.naming import named_circuit
from assay.circuits.spans import check_everywhere
from assay.core.errors import InputError, unknown_name
from assay.core.record import library_version, record_id
from assay.discovery.heads import direct
from assay.discovery.heads.effects import crossed, dropped, patched
from assay.discovery.heads.gradients import attribution_patching, fisher_count
from assay.discovery.heads.information import causation_entropy
from assay.discovery.heads.interventions import INTERVENTIONS, run_with_edges_replaced
from assay.discovery.heads.runs import Heads, head_margins, outside, run_with_heads_replaced
from assay.discovery.heads.scores import HeadScores, member_flags
from assay.discovery.heads.shelf import Shelf
from assay.discovery.heads.weights import Composition, answer_norm, composition, weight_scores
from assay.execution import BaselineShelf, run_model
from assay.execution.ablation import Replacement, Setting
from assay.execution.batches import choose_batch_size
from assay.execution.forward import check_circuit
from assay.models import Model
from assay.objectives import Loss, Objective, get_objective, is_registered
from assay.tasks import PairTask


ROWS_AT_ONCE = 64  # prompts of one block of a table over all heads: what an interruption can cost
LLC_PROMPTS = 20
POOL = "pool/"
QUANTITIES = ("y", "ce", "kl")  # margin, cross-entropy, divergence from the model: off the same logits
OVER_HEADS = ("y_drop1", "y_patch", "y_cross")

AnyCircuit = Circuit | HeadCircuit | Sequence[Sequence[int]] | str | Path


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
        nested: Keep them in a folder within it, named by the hash of the table.
        batch_size: Prompts per pass; default: by free memory. Never changes a number.
        seed: Root of donors and noise.
        measured: Columns that were measured elsewhere, by name.
        described: What `model.describe()` gave, where it is known already: it looks at all weights.

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
        nested: bool = False,
        batch_size: int | None = None,
        seed: int = 42,
        measured: Mapping[str, np.ndarray] | None = None,
        described: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.task, self.more, self._described = model, task, more, described
        self.circuit, self.head_circuit = _as_circuit(model, circuit, (described or {}).get("weight_hash"))
        self.reference = task if reference is None else reference
        self.objective = get_objective(objective or task.objective)
        self.ablation = INTERVENTIONS[ablation or usual_ablation(self.circuit, task)].key
        self.seed, self.batch_size = seed, batch_size
        for prompts in (task, *([] if more is None else [more])):
            prompts.validate(model.n_vocab, model.n_positions)
        self.heads = self.circuit.kept_heads()
        # Passes over one prompt made by this object. A run that begins at some block counts as the share of
        # the model's MLPs that it goes through.
        self.passes = {"forward": 0.0, "backward": 0.0}
        self._columns: dict[str, np.ndarray] = dict(measured or {})
        # Plain passes and baselines that several columns need.
        self._outputs: dict[tuple[int, bool], list[Tensor]] = {}
        self._logits: dict[tuple[int, bool], Tensor] = {}
        self._further: Tensor | None = None  # logits of `more`: few need the outputs of its heads
        self._baselines: dict[tuple[int, int], BaselineShelf] = {}
        self._shelf: Shelf | None = None
        if folder is not None:
            if not is_registered(self.objective):
                raise InputError(
                    f"a folder identifies objectives by name, but {self.objective.key!r} is not registered; "
                    "register it under its own name, or keep the table in memory (folder=None)"
                )
            self._shelf = Shelf(Path(folder) / (self.hash if nested else ""), self.hash, self.record)

    def __repr__(self) -> str:
        return f"MeasurementTable({self.task.name!r}, P={self.P}, H={self.H}, k={self.k}, hash {self.hash})"

    # ---- shape and identity ----

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

    @cached_property
    def by_heads(self) -> bool:
        """Whether the circuit is a set of heads with all MLPs, run by replacing the others."""
        heads = self.circuit.heads
        return heads is not None and self.circuit == Circuit.from_heads(self.model.graph, heads)

    @cached_property
    def record(self) -> dict[str, Any]:
        """What every number of the table is a function of."""
        return {
            "library": library_version(),
            "model": self._described or self.model.describe(),
            "task": self.task.describe(),
            "more": None if self.more is None else self.more.describe(),
            "reference": None if self.reference is self.task else self.reference.describe(),
            "circuit": self.circuit.hash,
            "objective": self.objective.key,
            "ablation": self.ablation,
            "seed": self.seed,
        }

    @cached_property
    def hash(self) -> str:
        """Content hash of `record`, 16 hex digits."""
        return record_id("measurement-table", self.record)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in memory."""
        return tuple(self._columns)

    # ---- columns ----

    def column(self, name: str) -> Float64[np.ndarray, "*shape"]:
        """A column, measured if it is nowhere yet; see the class for names and shapes.

        Raises:
            UnknownNameError: For a name or method that there is not.
            InputError: For prompts without what the column needs: wrong answers, donors, one length.
        """
        if name not in self._columns:
            self._columns |= self._filled(name)
        column = self._columns[name]
        column.flags.writeable = False
        return column

    def keep(self, heads: Heads) -> Float64[np.ndarray, "P *draws"]:
        """Margins with another set of (layer, head) pairs kept and all others replaced."""
        chosen = check_heads(set(heads), self.model.n_layers, self.model.n_heads)
        name = f"keep_set/{self.ablation}/{record_id('heads', {'heads': [list(head) for head in chosen]})}"
        if name not in self._columns:
            self._columns |= self._kept(name, lambda: {name: self._margins(outside(chosen, self.model))})
        return self.column(name)

    def _filled(self, name: str) -> dict[str, np.ndarray]:
        if name in OVER_HEADS:
            return self._in_blocks(name, outside((), self.model))
        if name == "y_drop1/circuit":
            # What the table over all heads holds already is not measured again.
            if "y_drop1" in self._columns or (self._shelf is not None and self._shelf.read("y_drop1")):
                return {name: self.column("y_drop1")[:, self.places]}
            return self._in_blocks(name, self.heads)
        if name == "ocse":
            self.column("y_full")  # beforehand, or its passes would be counted twice
        if name in WHOLE:
            return self._kept(name, lambda: {name: WHOLE[name](self)})
        own = name.removeprefix(POOL)
        runs = [f"{run}/{method}" for run in ("keep", "drop", "empty") for method in INTERVENTIONS]
        columns = ["y_full", "ce_full", *(f"{quantity}_{run}" for quantity in QUANTITIES for run in runs)]
        if own not in columns:
            raise unknown_name("column", name, [*columns, *OVER_HEADS, *WHOLE])
        run = own.partition("_")[2]
        if own == name:
            return self._kept(name, lambda: self._runs(run, self.task))
        if self.more is None:
            return {name: self.column(own)}
        found = self._kept(f"more/{own}", partial(self._runs, run, self.more, prefix="more/"))
        return {**found, name: np.concatenate([self.column(own), found[f"more/{own}"]])}

    def _in_blocks(self, name: str, heads: Sequence[tuple[int, int]]) -> dict[str, np.ndarray]:
        """A table over heads, block of rows by block of rows; finished blocks outlive an interruption."""
        blocks = []
        for start in range(0, self.P, ROWS_AT_ONCE):
            rows = range(start, min(start + ROWS_AT_ONCE, self.P))
            block = self._kept(name, partial(self._over_heads, name, heads, rows), start)
            blocks.append(block[name])
        return {name: np.concatenate(blocks)}

    def _kept(
        self, name: str, make: Callable[[], Mapping[str, np.ndarray]], start: int = 0
    ) -> dict[str, np.ndarray]:
        """Columns, or blocks of them from a row on, read from the folder or made and kept there."""
        block = None if self._shelf is None else self._shelf.read(name, start)
        if block is not None:
            return {name: np.asarray(block["values"], dtype=np.float64)}
        with self._counting():
            made = {key: np.asarray(value, dtype=np.float64) for key, value in make().items()}
        if self._shelf is not None:
            for key, value in made.items():
                self._shelf.write(key, start, values=value)
        return made

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Count passes by the tokens that go through MLPs: every run goes through one per block it runs."""
        tokens = 0

        def count(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            nonlocal tokens
            tokens += output.numel() // output.shape[-1]

        handles = [block.mlp.register_forward_hook(count) for block in self.model.blocks]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.passes["forward"] += tokens / (self.model.n_layers * self.task.length)

    # ---- whole runs ----

    def _setting(self, prompts: PairTask, draw: int = 0) -> Setting:
        """Plain passes of the task or of `more`, shared by all; every draw has its own random streams."""
        own = prompts is self.task
        return Setting(
            model=self.model,
            task=prompts,
            reference=self.reference,
            batch_size=choose_batch_size(self.model, prompts, asked=self.batch_size),
            seed=self.seed if own else self.seed + 1,  # further prompts get donors and noise of their own
            draw=draw,
            _outputs=self._outputs,
            _logits=self._logits,
        )

    def _draws(self, method: str, prompts: PairTask) -> list[Setting]:
        """One setting for each draw of a method."""
        return [self._setting(prompts, draw) for draw in range(INTERVENTIONS[method].draws)]

    def _runs(self, run: str, prompts: PairTask, prefix: str = "") -> dict[str, np.ndarray]:
        """All that is read off one kind of run, `full` or `KIND/METHOD`, under the names of its columns."""
        if run == "full":
            logits = self._full_logits(prompts)
            return {f"{prefix}{key}_full": self._read(key, logits, prompts) for key in ("y", "ce")}
        kind, _, method = run.partition("/")
        draws = []
        for setting in self._draws(method, prompts):
            logits = self._without(kind, method, setting)
            draws.append([self._read(key, logits, prompts) for key in QUANTITIES])
        columns = map(_joined, zip(*draws, strict=True))
        return {f"{prefix}{key}_{run}": column for key, column in zip(QUANTITIES, columns, strict=True)}

    def _without(self, kind: str, method: str, setting: Setting) -> Float[Tensor, "n d_vocab"]:
        """Logits of the circuit alone (`keep`), of the model without it (`drop`), of neither (`empty`)."""
        if self.by_heads:
            every, rest = outside((), self.model), outside(self.heads, self.model)
            return self._run({"keep": rest, "drop": self.heads, "empty": every}[kind], method, setting)
        whole = self.circuit
        make = {"keep": lambda: whole, "drop": whole.dropped, "empty": whole.emptied}[kind]
        return self._run(make(), method, setting)

    def _run(self, what: Circuit | Heads, method: str, setting: Setting) -> Float[Tensor, "n d_vocab"]:
        """Logits of a circuit of edges, or with heads replaced; NaN where a prompt has no replacement."""
        intervention = INTERVENTIONS[method]
        if isinstance(what, Circuit):
            shelf = None
            if method == self.ablation:  # the only one that several circuits are run under
                shelf = self._baselines.setdefault((id(setting.task), setting.draw), BaselineShelf())
            logits = run_with_edges_replaced(what, intervention, setting, shelf=shelf)
        else:
            replacement, size = intervention.prepare_heads(setting), setting.batch_size
            logits = run_with_heads_replaced(self.model, setting.task, what, replacement, batch_size=size)
        logits[torch.from_numpy(~intervention.served(setting))] = torch.nan
        return logits

    def _full_logits(self, prompts: PairTask) -> Float[Tensor, "n d_vocab"]:
        """The model's logits; of the task from the plain pass that means and donors come from."""
        if prompts is self.task or (id(prompts), False) in self._logits:
            return self._setting(prompts).logits(prompts)
        if self._further is None:
            size = self._setting(prompts).batch_size
            self._further = run_model(self.model, prompts, batch_size=size, check=False)
        return self._further

    def _read(self, quantity: str, logits: Tensor, prompts: PairTask) -> Float64[np.ndarray, " n"]:
        """One number per prompt off its logits: `y`, `ce`, or `kl` from the model."""
        loss = self.objective if quantity == "y" else get_objective(quantity)
        full = self._full_logits(prompts)
        parts = []
        for batch in prompts.batches(256):
            rows = batch.indices
            parts.append(loss(logits[rows].double(), full[rows].double(), batch))
        values = torch.cat(parts).numpy()
        return -values if quantity == "y" else values

    def _corrupted(self) -> Float64[np.ndarray, " P"]:
        """Margins of the corrupted prompts, scored with the clean prompts' answers."""
        return self._read("y", self._setting(self.task).logits(self.task, corrupted=True), self.task)

    def _margins(self, what: Circuit | Heads) -> Float64[np.ndarray, "P *draws"]:
        """Margins of each draw of the table's method, of a circuit or with heads replaced."""
        runs = [self._run(what, self.ablation, each) for each in self._draws(self.ablation, self.task)]
        return _joined([self._read("y", logits, self.task) for logits in runs])

    # ---- single heads ----

    @cached_property
    def _dropping(self) -> list[Replacement]:
        """What single heads are replaced by, in each draw."""
        intervention = INTERVENTIONS[self.ablation]
        return [intervention.prepare_heads(setting) for setting in self._draws(self.ablation, self.task)]

    def _over_heads(
        self, name: str, heads: Sequence[tuple[int, int]], rows: range
    ) -> dict[str, Float64[np.ndarray, "n heads"]]:
        """Rows of `y_drop1`, `y_minus1`, `y_patch` or `y_cross`, of some heads; draws are averaged."""
        run = {"y_patch": patched, "y_cross": crossed}.get(name)
        paired = run is not None
        margins = head_margins(
            self.model,
            self.task.subset(rows),
            run or dropped(self._dropping, outside(self.heads, self.model) if name == "y_minus1" else ()),
            heads=heads,
            objective=self.objective,
            batch_size=self.batch_size,
            paired=paired,
            first=rows.start,
        ).y_one
        if not paired:
            served = INTERVENTIONS[self.ablation].served(self._setting(self.task))
            margins[~served[rows.start : rows.stop]] = np.nan
        return {name: margins}

    def _without_each(self) -> Float64[np.ndarray, "P k"]:
        """Margins of the circuit without one of its heads, for each; of an edge circuit a run for each."""
        if self.by_heads:
            return self._over_heads("y_minus1", self.heads, range(self.P))["y_minus1"]
        margins = [self._margins(self.circuit.without_head(*head)) for head in self.heads]
        columns = [each.reshape(self.P, -1).mean(axis=1) for each in margins]
        return np.stack(columns, axis=1) if columns else np.empty((self.P, 0))

    # ---- scores without runs of their own ----

    @cached_property
    def _written(self) -> direct.HeadOutputs:
        """What every part wrote at the read position: one plain pass per prompt."""
        return direct.head_outputs(self.model, self.task, batch_size=self.batch_size)

    def _direct(self, toward: str = "difference", norm: str = "frozen") -> HeadScores:
        directions = direct.margin_directions(self.model, self.task, toward)
        return direct.direct_attribution(self.model, self._written, directions, norm=norm)

    def _attribution(self) -> np.ndarray:
        self.passes["backward"] += self.task.n
        how: dict[str, Any] = {"objective": self.objective, "batch_size": self.batch_size}
        return _examples(attribution_patching(self.model, self.task, **how))

    def _active_directions(self) -> np.ndarray:
        self.passes["backward"] += min(LLC_PROMPTS, self.task.n)
        how: dict[str, Any] = {"batch_size": self.batch_size, "seed": self.seed}
        return fisher_count(self.model, self.task, n=LLC_PROMPTS, **how).flat

    @cached_property
    def _weights(self) -> Mapping[str, HeadScores]:
        return weight_scores(self.model)

    @cached_property
    def _composition(self) -> Composition:
        return composition(self.model)


def _joined(draws: Sequence[np.ndarray]) -> Float64[np.ndarray, "P *draws"]:
    """A column per draw; of a single one the numbers alone."""
    return np.stack(draws, axis=1) if len(draws) > 1 else draws[0]


def _examples(scores: HeadScores) -> Float64[np.ndarray, "P H"]:
    assert scores.flat_examples is not None
    return scores.flat_examples


# Columns that come in one piece, of the task alone.
WHOLE: Mapping[str, Callable[[MeasurementTable], np.ndarray]] = {
    "dla": lambda table: _examples(table._direct()),
    "dla_correct": lambda table: _examples(table._direct("correct", "none")),
    "magnitude": lambda table: _examples(direct.activation_magnitude(table.model, table._written)),
    "attribution": MeasurementTable._attribution,
    "z_last": lambda table: table._written.z.double().numpy(),
    "ocse": lambda table: causation_entropy(table._direct(), table.column("y_full"), seed=table.seed).flat,
    "ov_norm": lambda table: answer_norm(table.model, table.task).flat,
    "spectral_norm": lambda table: table._weights["ov-spectral-norm"].flat,
    "sv_entropy": lambda table: table._weights["ov-sv-entropy"].flat,
    "composition/q": lambda table: table._composition.q,
    "composition/k": lambda table: table._composition.k,
    "composition/v": lambda table: table._composition.v,
    "y_cor": MeasurementTable._corrupted,
    "y_minus1": MeasurementTable._without_each,
    "llc": MeasurementTable._active_directions,
}


def usual_ablation(circuit: AnyCircuit, task: PairTask) -> str:
    """How single heads are dropped by default: as the task says for a circuit of edges, else `mean`."""
    return task.ablation if isinstance(circuit, Circuit) and circuit.heads is None else "mean"


def _as_circuit(model: Model, circuit: AnyCircuit, weights: str | None) -> tuple[Circuit, HeadCircuit | None]:
    """The circuit in the model's graph, with its head circuit where it was given as one."""
    if isinstance(circuit, str | Path):
        circuit = named_circuit(circuit, model.graph)
    described = circuit if isinstance(circuit, HeadCircuit) else None
    if not isinstance(circuit, Circuit):
        circuit = Circuit.from_heads(model.graph, circuit)
    check_circuit(model, circuit, weights=weights)
    check_everywhere(circuit.spans, "a table of measurements", "circuit.anywhere()")
    return circuit, described

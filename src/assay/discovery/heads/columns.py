"""How each column of a measurement table is made: runs of sets of heads, of edges, of single heads."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.discovery.heads.attribution import attribution_patching
from assay.discovery.heads.direct import (
    HeadOutputs,
    activation_magnitude,
    direct_attribution,
    head_outputs,
    margin_directions,
)
from assay.discovery.heads.edges import run_with_edges_replaced
from assay.discovery.heads.fisher import fisher_count
from assay.discovery.heads.head_pairs import Composition, composition
from assay.discovery.heads.information import causation_entropy
from assay.discovery.heads.interventions import INTERVENTIONS, Donor
from assay.discovery.heads.replacing import heads_replaced, outside, run_with_heads_replaced
from assay.discovery.heads.runs import OneByOne, base_run, bytes_of_base
from assay.discovery.heads.scores import HeadScores
from assay.discovery.heads.single_heads import margin_reading
from assay.discovery.heads.weights import answer_norm, weight_scores
from assay.execution import BaselineShelf, run_model
from assay.execution.batches import TOKENS_PER_PASS, choose_batch_size
from assay.execution.replacements import Replacement, Setting
from assay.models import Model
from assay.objectives import Objective, get_objective
from assay.tasks import PairBatch, PairTask


LLC_PROMPTS = 20
QUANTITIES = ("y", "ce", "kl")  # margin, cross-entropy, divergence from the model: off the same logits

Heads = Collection[tuple[int, int]]


def count_draws(method: str, donors: Int64[np.ndarray, " P"] | None) -> int:
    """Draws of a method; one where donors are given."""
    intervention = INTERVENTIONS[method]
    return 1 if isinstance(intervention, Donor) and donors is not None else intervention.draws


@dataclass(kw_only=True, eq=False)
class Columns:
    """Makes columns; keeps the plain passes and baselines that several of them need, and counts passes.

    Attributes:
        model: The model.
        task: The prompts.
        circuit: The circuit whose runs are columns.
        heads: Its heads.
        reference: Prompts that means are taken over.
        objective: Its negative is the margin.
        ablation: Method of tables over single heads.
        seed: Root of donors and noise.
        donors: Row of each prompt's donor, instead of random draws.
        batch_size: Prompts per pass; None: by free memory.
        n_forward: Whole-pass equivalents over one prompt made so far.
        n_backward: Backward passes over one prompt.
    """

    model: Model
    task: PairTask
    circuit: Circuit
    heads: tuple[tuple[int, int], ...]
    reference: PairTask
    objective: Objective
    ablation: str
    seed: int
    donors: Int64[np.ndarray, " P"] | None
    batch_size: int | None
    n_forward: float = 0.0
    n_backward: float = 0.0
    _settings: dict[int, Setting] = field(default_factory=dict)
    _outputs: dict[tuple[int, bool], list[Tensor]] = field(default_factory=dict)
    _logits_of: dict[tuple[int, bool], Tensor] = field(default_factory=dict)
    _baselines: dict[tuple[int, int], BaselineShelf] = field(default_factory=dict)

    @cached_property
    def by_heads(self) -> bool:
        """Whether the circuit is a set of heads with all MLPs, run by replacing the others."""
        if self.circuit.heads is None:
            return False
        return self.circuit == Circuit.from_heads(self.model.graph, self.circuit.heads)

    @contextmanager
    def counting(self) -> Iterator[None]:
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
            self.n_forward += tokens / (self.model.n_layers * self.task.length)

    # ---- whole runs -----------------------------------------------------------------------------

    def _setting(self, prompts: PairTask, draw: int = 0) -> Setting:
        """Shared plain passes of the task or of `more`; every draw has its own random streams."""
        if id(prompts) not in self._settings:
            self._settings[id(prompts)] = Setting(
                model=self.model,
                task=prompts,
                reference=self.reference,
                batch_size=choose_batch_size(self.model, prompts, asked=self.batch_size),
                # Prompts beyond the task's get donors and noise of their own.
                seed=self.seed if prompts is self.task else self.seed + 1,
                _outputs=self._outputs,
                _logits=self._logits_of,
            )
        donors = self.donors if prompts is self.task else None
        return replace(self._settings[id(prompts)], draw=draw, donors=donors)

    def runs(self, which: str, method: str, prompts: PairTask) -> dict[str, np.ndarray]:
        """All that is read off one kind of run, under the names of its columns."""
        if which == "full":
            logits = self._full_logits(prompts)
            return {f"{key}_full": self._read(key, logits, prompts) for key in ("y", "ce")}

        draws = []
        for setting in self._draws(method, prompts):
            logits = self._without(which, method, setting)
            draws.append([self._read(key, logits, prompts) for key in QUANTITIES])
        columns = [np.stack(column, axis=1) for column in zip(*draws, strict=True)]
        return {
            f"{key}_{which}/{method}": column if len(draws) > 1 else column[:, 0]
            for key, column in zip(QUANTITIES, columns, strict=True)
        }

    def _without(self, which: str, method: str, setting: Setting) -> Float[Tensor, "n d_vocab"]:
        """Logits of the circuit alone (`keep`), of the model without it (`drop`), of neither (`empty`)."""
        if self.by_heads:
            heads = (
                self.heads if which == "drop" else outside(self.heads if which == "keep" else (), self.model)
            )
            return self._replaced(method, heads, setting)
        circuit = self.circuit
        if which != "keep":
            circuit = circuit.dropped() if which == "drop" else circuit.emptied()
        return self._edges(circuit, method, setting)

    def _draws(self, method: str, prompts: PairTask) -> list[Setting]:
        count = count_draws(method, self.donors if prompts is self.task else None)
        return [self._setting(prompts, draw) for draw in range(count)]

    def _replaced(
        self, method: str, heads: Collection[tuple[int, int]], setting: Setting
    ) -> Float[Tensor, "n d_vocab"]:
        logits = run_with_heads_replaced(
            self.model,
            setting.task,
            heads,
            INTERVENTIONS[method].prepare_heads(setting),
            batch_size=setting.batch_size,
            check=False,
        )
        logits[torch.from_numpy(~INTERVENTIONS[method].served(setting))] = torch.nan
        return logits

    def _edges(self, circuit: Circuit, method: str, setting: Setting) -> Float[Tensor, "n d_vocab"]:
        shelf = None
        if method == self.ablation:  # the only one that several circuits are run under
            shelf = self._baselines.setdefault((id(setting.task), setting.draw), BaselineShelf())
        logits = run_with_edges_replaced(circuit, INTERVENTIONS[method], setting, shelf=shelf)
        logits[torch.from_numpy(~INTERVENTIONS[method].served(setting))] = torch.nan
        return logits

    def _full_logits(self, prompts: PairTask) -> Float[Tensor, "n d_vocab"]:
        """The model's logits; of the task from the plain pass that means and donors come from."""
        key = (id(prompts), False)
        if prompts is not self.task and key not in self._logits_of:
            # Outputs of the heads on further prompts are large, and few methods need them.
            size = self._setting(prompts).batch_size
            self._logits_of[key] = run_model(self.model, prompts, batch_size=size, check=False)
        return self._logits_of[key] if key in self._logits_of else self._setting(prompts).logits(prompts)

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

    # ---- single heads ---------------------------------------------------------------------------

    @cached_property
    def _dropping(self) -> list[Replacement]:
        """What single heads are replaced by, in each draw."""
        intervention = INTERVENTIONS[self.ablation]
        return [intervention.prepare_heads(setting) for setting in self._draws(self.ablation, self.task)]

    def over_heads(
        self, name: str, some: PairTask, rows: slice, heads: tuple[tuple[int, int], ...]
    ) -> Float64[np.ndarray, "n n_heads"]:
        """`y_drop1`, `y_patch` or `y_cross` of some prompts and some heads."""
        setting = self._setting(self.task)
        parts = []
        for batch in some.batches(self._at_once(some)):
            batch = batch.to(self.model.device)
            batch = replace(batch, indices=batch.indices + rows.start)
            index = batch.indices.cpu()
            base = base_run(self.model, batch.corrupted if name == "y_patch" else batch.clean)
            one = self._one_by_one(batch, heads)
            if name == "y_drop1":
                table = torch.stack([one.dropped(base, each) for each in self._dropping]).mean(0)
            else:
                other = setting.outputs(self.task, corrupted=name == "y_cross")
                values = [z[index].flatten(2) for z in other]
                table = (one.everywhere if name == "y_patch" else one.at_read)(base, values)
            parts.append(table.numpy())
        margins = np.concatenate(parts)
        if name == "y_drop1":
            margins[~INTERVENTIONS[self.ablation].served(setting)[rows]] = np.nan
        return margins

    def _one_by_one(self, batch: PairBatch, heads: Sequence[tuple[int, int]]) -> OneByOne:
        """Runs of a batch's prompts with one of these heads replaced, read off as margins."""
        full = self._full_logits(self.task)[batch.indices.cpu()].to(self.model.device)
        reading = margin_reading(self.objective, batch, full)
        return OneByOne(model=self.model, batch=batch, reading=reading, heads=heads)

    def corrupted(self) -> Float64[np.ndarray, " P"]:
        """Margins of the corrupted prompts, scored with the clean prompts' answers."""
        logits = self._setting(self.task).logits(self.task, corrupted=True)
        return self._read("y", logits, self.task)

    def without_set(self, dropped: Heads, method: str) -> Float64[np.ndarray, "P *draws"]:
        """Margins of each draw of a method, with these heads replaced."""
        draws = [
            self._read("y", self._replaced(method, dropped, each), self.task)
            for each in self._draws(method, self.task)
        ]
        return np.stack(draws, axis=1) if len(draws) > 1 else draws[0]

    def without_each(self) -> Float64[np.ndarray, "P k"]:
        """Margins of the circuit without one of its heads, for each; draws are averaged."""
        if not self.heads:
            return np.empty((self.task.n, 0))
        run = self._without_each if self.by_heads else self._without_edges_of_each
        draws = [run(setting) for setting in self._draws(self.ablation, self.task)]
        return np.asarray(np.mean(draws, axis=0))

    def _without_edges_of_each(self, setting: Setting) -> Float64[np.ndarray, "P k"]:
        """The same in one draw, of an edge circuit: a run for each head."""
        columns = []
        for layer, head in self.heads:
            logits = self._edges(self.circuit.without_head(layer, head), self.ablation, setting)
            columns.append(self._read("y", logits, self.task))
        return np.stack(columns, axis=1)

    def _without_each(self, setting: Setting) -> Float64[np.ndarray, "P k"]:
        """The same in one draw: each run begins where its head writes into the run of the whole circuit."""
        replacement = INTERVENTIONS[self.ablation].prepare_heads(setting)
        others = outside(self.heads, self.model)
        parts = []
        for batch in self.task.batches(self._at_once(self.task)):
            batch = batch.to(self.model.device)
            with heads_replaced(self.model, others, replacement, batch):
                base = base_run(self.model, batch.clean)
                table = self._one_by_one(batch, self.heads).dropped(base, replacement)
            parts.append(table.numpy())
        margins = np.concatenate(parts)
        margins[~INTERVENTIONS[self.ablation].served(setting)] = np.nan
        return margins

    def _at_once(self, some: PairTask) -> int:
        """Prompts whose runs of single heads go together; copies of them fill a pass."""
        extra = bytes_of_base(self.model, some.length)
        size = choose_batch_size(self.model, some, asked=self.batch_size, bytes_per_example=extra)
        if self.model.device.type != "cpu":
            return size
        return min(size, max(1, TOKENS_PER_PASS // (4 * some.length)))

    # ---- scores without runs of their own -------------------------------------------------------

    @cached_property
    def outputs(self) -> HeadOutputs:
        """What every part wrote at the read position: one plain pass per prompt."""
        return head_outputs(self.model, self.task, batch_size=self.batch_size)

    def _direct(
        self, toward: Literal["difference", "correct"], norm: Literal["frozen", "none"]
    ) -> Float64[np.ndarray, "P H"]:
        directions = margin_directions(self.model, self.task, toward)
        return _table_of(direct_attribution(self.model, self.outputs, directions, norm=norm))

    def _attribution(self) -> Float64[np.ndarray, "P H"]:
        found = attribution_patching(
            self.model, self.task, objective=self.objective, batch_size=self.batch_size
        )
        self.n_backward += self.task.n
        return _table_of(found)

    def _learning_coefficients(self) -> Float64[np.ndarray, " H"]:
        """Counts of active directions, on the scale of a local learning coefficient."""
        self.n_backward += min(LLC_PROMPTS, self.task.n)
        return fisher_count(
            self.model, self.task, n=LLC_PROMPTS, batch_size=self.batch_size, seed=self.seed
        ).flat

    def causation(self, target: Float64[np.ndarray, " P"]) -> Float64[np.ndarray, " H"]:
        """Information of each head's direct attribution about the margins."""
        features = direct_attribution(self.model, self.outputs, margin_directions(self.model, self.task))
        return causation_entropy(features, target, seed=self.seed).flat

    @cached_property
    def _weights(self) -> Mapping[str, HeadScores]:
        return weight_scores(self.model)

    @cached_property
    def _composition(self) -> Composition:
        return composition(self.model)


def _table_of(scores: HeadScores) -> Float64[np.ndarray, "P H"]:
    assert scores.flat_examples is not None
    return scores.flat_examples


# Columns that come in one piece, of the task alone.
WHOLE: Mapping[str, Callable[[Columns], np.ndarray]] = {
    "dla": lambda make: make._direct("difference", "frozen"),
    "dla_correct": lambda make: make._direct("correct", "none"),
    "magnitude": lambda make: _table_of(activation_magnitude(make.model, make.outputs)),
    "attribution": Columns._attribution,
    "z_last": lambda make: make.outputs.z.double().numpy(),
    "ov_norm": lambda make: answer_norm(make.model, make.task).flat,
    "spectral_norm": lambda make: make._weights["ov-spectral-norm"].flat,
    "sv_entropy": lambda make: make._weights["ov-sv-entropy"].flat,
    "composition/q": lambda make: make._composition.q,
    "composition/k": lambda make: make._composition.k,
    "composition/v": lambda make: make._composition.v,
    "y_cor": Columns.corrupted,
    "y_minus1": Columns.without_each,
    "llc": Columns._learning_coefficients,
}

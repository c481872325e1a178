"""All runs that the measurements of one circuit share: each is made once, when first asked for."""

import copy
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from assay.circuits import Circuit
from assay.core.errors import check_name
from assay.core.record import library_version
from assay.execution.ablation import Ablation, BaselineShelf, get_ablation
from assay.execution.forward import check_circuit, run_circuit, run_model
from assay.models import Model
from assay.objectives import Loss, Objective, get_objective
from assay.tasks import Task
from assay.tasks.examples import example_codes, example_notes, first_rows


Which = Literal["full", "keep", "drop", "empty"]

# Logits of other runs than the full model's are dropped, least used first, beyond this many bytes.
LOGIT_BYTES = 2**30
WIDE_LOGITS = 2**22  # converted to float64 at a time


@dataclass(kw_only=True, eq=False)
class _Kept:
    """What runs of one model, task and ablation share, whatever the circuit."""

    shelf: BaselineShelf = field(default_factory=BaselineShelf)
    logits: OrderedDict[str, Tensor] = field(default_factory=OrderedDict)
    margins: dict[str, np.ndarray] = field(default_factory=dict)


class CircuitRuns:
    """Logits of one circuit on one task under one ablation, computed lazily and kept.

    Examples with NaN or infinite logits are kept as they are; measurements leave them out and count them.

    Args:
        model: The model.
        task: The examples.
        circuit: The circuit under judgement.
        ablation: Key or object; default: the task's own.
        objective: Key, object or callable whose negative is the margin; default: the task's own.
        batch_size: Examples per pass; default: by free memory.
        seed: Root seed (noise ablation, random circuits).
    """

    def __init__(
        self,
        model: Model,
        task: Task,
        circuit: Circuit,
        *,
        ablation: str | Ablation | None = None,
        objective: str | Objective | Loss | None = None,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        check_circuit(model, circuit)
        self.model = model
        self.task = model.bind(task)
        self.circuit = circuit
        self.ablation_object = get_ablation(ablation or task.ablation)
        self.objective_object = get_objective(objective or task.objective)
        self.batch_size = batch_size
        self.seed = seed
        self._full: list[Tensor] = []
        self._kept = _Kept()

    def __repr__(self) -> str:
        return f"CircuitRuns({self.model.id!r}, {self.task.name!r}, n={self.task.n}, {self.circuit!r})"

    def of(self, circuit: Circuit) -> "CircuitRuns":
        """The runs of another circuit on the same task; what is run for either serves both."""
        check_circuit(self.model, circuit)
        return self._changed(circuit=circuit)

    def under(self, ablation: str | Ablation) -> "CircuitRuns":
        """The runs of the same circuit under another ablation; the full model's serve both."""
        # Zero ablation counts pairs that equal their counterpart.
        stale = "codes", "counted", "notes"
        return self._changed(*stale, ablation_object=get_ablation(ablation), _kept=_Kept())

    def judged_by(self, objective: str | Objective | Loss) -> "CircuitRuns":
        """The same runs with margins of another objective."""
        kept = _Kept(shelf=self._kept.shelf, logits=self._kept.logits)
        return self._changed(objective_object=get_objective(objective), _kept=kept)

    @cached_property
    def exact(self) -> "CircuitRuns":
        """These runs with norms behind branches treated as `exact`; see `Model.treating`."""
        if self.model.post_norm == "exact":
            return self
        return self._changed(model=self.model.treating("exact"), _full=[], _kept=_Kept())

    def _changed(self, *stale: str, **changed: Any) -> "CircuitRuns":
        """A copy that shares all that is kept, but for what is named or given anew."""
        other = copy.copy(self)
        for known in ("provenance", "exact", *stale):
            vars(other).pop(known, None)
        vars(other).update(changed)
        return other

    @property
    def ablation(self) -> str:
        """Key of the ablation."""
        return self.ablation_object.key

    @property
    def objective(self) -> str:
        """Key of the objective."""
        return self.objective_object.key

    @cached_property
    def codes(self) -> Int64[np.ndarray, " n"]:
        """Which different example each row is; -1 where nothing is ablated. See `example_codes`."""
        return example_codes(self.task, paired=self.ablation_object.paired)

    @cached_property
    def counted(self) -> Bool[np.ndarray, " n"]:
        """Rows that enter a number and its verdict: the first of each different example that is ablated."""
        return first_rows(self.codes)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was left out of these runs: of the task, and of its rows."""
        return (*self.task.notes, *example_notes(self.task, self.codes))

    def logits(self, which: Which) -> Float[Tensor, "n d_vocab"]:
        """Logits at the read position, of one of four runs.

        Args:
            which: `full` model, circuit kept (`keep`), circuit dropped (`drop`), or `empty`: nothing kept.
        """
        if which != "full":
            return self.logits_of(self._circuit(which))
        if not self._full:
            self._full.append(run_model(self.model, self.task, batch_size=self.batch_size, check=False))
        return self._full[0]

    def _circuit(self, which: Which) -> Circuit:
        check_name("run", which, get_args(Which))
        if which == "keep":
            return self.circuit
        return self.circuit.dropped() if which == "drop" else self.circuit.emptied()

    def logits_of(self, circuit: Circuit) -> Float[Tensor, "n d_vocab"]:
        """Logits of any circuit of the same graph under the same ablation."""
        kept = self._kept.logits
        logits = kept.pop(circuit.hash, None)
        if logits is None:
            logits = run_circuit(
                circuit,
                self.model,
                self.task,
                ablation=self.ablation_object,
                batch_size=self.batch_size,
                seed=self.seed,
                check=False,
                shelf=self._kept.shelf,
            )
        kept[circuit.hash] = logits
        while len(kept) > 1 and sum(each.nbytes for each in kept.values()) > LOGIT_BYTES:
            kept.popitem(last=False)
        return logits

    def margins(self, which: Which) -> np.ndarray:
        """-objective of each example, float64 `[n]`; higher = the behaviour is more intact."""
        if which == "full":
            return self.margins_from(self.logits("full"))
        return self.margins_of(self._circuit(which))

    def margins_of(self, circuit: Circuit) -> np.ndarray:
        """-objective of each example with `circuit` kept, float64 `[n]`."""
        if circuit.hash not in self._kept.margins:
            self._kept.margins[circuit.hash] = self.margins_from(self.logits_of(circuit))
        return self._kept.margins[circuit.hash].copy()

    def margins_from(self, logits: Float[Tensor, "n d_vocab"]) -> np.ndarray:
        """-objective of each example in a run made elsewhere, float64 `[n]`; of copies their mean."""
        full = self.logits("full")
        losses = []
        for batch in self.task.batches(max(1, WIDE_LOGITS // logits[0].numel())):
            rows = batch.indices
            losses.append(self.objective_object(logits[rows].double(), full[rows].double(), batch))
        margins, places = -torch.cat(losses).numpy(), self.codes + 1
        if self.counted.all():
            return margins
        means = np.bincount(places, margins) / np.maximum(np.bincount(places), 1)
        return np.where(places > 0, means[places], margins)

    @cached_property
    def provenance(self) -> Mapping[str, Any]:
        """How these numbers come to be, JSON-able; equal records mean equal numbers."""
        return {
            "library": library_version(),
            "model": self.model.describe(),
            "task": self.task.describe() | ({"notes": list(self.notes)} if self.notes else {}),
            "circuit": self.circuit.hash,
            "graph": self.model.graph.fingerprint,
            **self.ablation_object.describe(self.model),
            "objective": self.objective,
            "seed": self.seed,
            **({} if self.circuit.spans is None else {"spans": list(self.circuit.spans.names)}),
            **self.model.machine(),
        }

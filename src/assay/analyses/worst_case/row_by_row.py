"""Divergences pair by pair, for what has no parts that pairs could share.

Two inputs share nothing where cut edges carry zeros or means, where a circuit keeps its edges at spans of
positions, or where what a target reads is normalised target by target. Images are run in this way too. Such
pairs are runs of one circuit.
"""

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from assay.analyses.worst_case.evaluation import PairEvaluator, PairValues, check_finite_pairs
from assay.analyses.worst_case.inputs import PairSample, PromptSet, task_of
from assay.analyses.worst_case.pair_divergence import Divergence, Kernel, get_divergence, table_divergences
from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.execution import Ablation, PairRunner, get_ablation, run_circuit, run_model
from assay.execution.ablation import MeasuredOn
from assay.models import Model
from assay.tasks import Task


DONOR = "resample-donor"
HELD = 2**25  # numbers of logits, or of images, that are held at a time, per run


def edge_ablation(key: str) -> Ablation:
    """The ablation of edges behind a key; a donor's values are those of a corrupted input.

    Raises:
        InputError: For an ablation that draws its values anew in every run.
    """
    found = get_ablation("resample" if key == DONOR else key)
    if found.draws > 1:
        raise InputError(
            f"{found.key!r} ablation draws other values in every run, so a divergence would belong to the "
            "draw as much as to the input; use resample, resample-donor, zero, mean or mean-positional"
        )
    return found


_MEASURED: WeakKeyDictionary[PairSample, Ablation] = WeakKeyDictionary()


def ablation_of(sample: PairSample) -> Ablation:
    """What cut edges carry in the runs of a sample; measured once for all of them."""
    found = edge_ablation(sample.ablation)
    if sample.reference is None:
        return found
    if sample not in _MEASURED:
        _MEASURED[sample] = MeasuredOn(found, task_of(sample.reference, sample.reference))
    return _MEASURED[sample]


def shares_inputs(model: Model, circuit: Circuit, ablation: str) -> bool:
    """Whether pairs are sums of a part of the clean and a part of the corrupted input; see `PairRunner`."""
    summed = model.vision is None and all(block.target_norm is None for block in model.blocks)
    return edge_ablation(ablation).key == "resample" and circuit.spans is None and summed


def pair_divergences(
    divergence: Divergence,
    model: Float[Tensor, "pairs d_vocab"],
    circuit: Float[Tensor, "pairs d_vocab"],
    clean: PromptSet,
) -> Float64[np.ndarray, " pairs"]:
    """Divergences of some pairs, row by row.

    Args:
        divergence: Which one.
        model: Logits of the model on each clean input.
        circuit: Logits of a circuit on each pair.
        clean: The clean inputs, a row per pair.

    Raises:
        InputError: If the divergence needs tokens that are not there.
        ShapeError: If a divergence of the caller's returns another shape than one number per pair.
        InconsistentRunError: If a KL is negative beyond rounding.
    """
    known = {"answers": clean.answers, "wrong": clean.wrong} if divergence.needs_answers else {}
    return table_divergences(divergence, model, circuit[:, None], **known)[:, 0]


class RowEvaluator:
    """Runs one circuit on any pairs of given inputs, each pair by itself.

    Args:
        model: The model.
        circuit: The edges to keep, everywhere or at spans of positions.
        clean: Clean inputs; a pair names them by row.
        corrupted: Corrupted inputs; not read by an ablation without a second input.
        ablation: What cut edges carry.
        divergence: What is measured.
        memory: Bytes that a pass may take; default: 60 % of what is free.
    """

    def __init__(
        self,
        model: Model,
        circuit: Circuit,
        clean: PromptSet,
        corrupted: PromptSet,
        *,
        ablation: Ablation,
        divergence: Divergence,
        memory: int | None = None,
    ) -> None:
        self.model, self.circuit, self.empty = model, circuit, Circuit.empty(circuit.graph)
        self.clean, self.corrupted = clean, corrupted
        self.ablation, self.divergence, self.memory = ablation, divergence, memory

    def pairs(
        self, clean_index: Int64[np.ndarray, " pairs"], corrupted_index: Int64[np.ndarray, " pairs"]
    ) -> PairValues:
        """Divergences of some pairs, given by row numbers of both sides.

        Raises:
            NonFiniteError: If logits or a divergence are NaN or infinite; the pair is named.
        """
        parts = [self._portion(*part) for part in self._portions(clean_index, corrupted_index)]
        return PairValues(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    def table(self, rows: slice, columns: slice) -> PairValues:
        """Divergences of every combination of some clean (`rows`) and some corrupted inputs (`columns`)."""
        sides = np.arange(self.clean.n)[rows], np.arange(self.corrupted.n)[columns]
        clean, corrupted = np.meshgrid(*sides, indexing="ij")
        values = self.pairs(clean.ravel(), corrupted.ravel())
        return PairValues(*(each.reshape(clean.shape) for each in values))

    def _portions(self, *index: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        images = self.clean.images
        size = max(1, HELD // max(self.model.n_vocab, 0 if images is None else images[0].numel()))
        for start in range(0, len(index[0]), size):
            yield tuple(each[start : start + size] for each in index)

    def _portion(self, clean_index: np.ndarray, corrupted_index: np.ndarray) -> PairValues:
        clean = self.clean.subset(clean_index)
        task = task_of(clean, self.corrupted.subset(corrupted_index))
        model = self._distinct_logits(self.clean, clean_index)
        kept = self._circuit_logits(self.circuit, task)
        if self.ablation.paired:
            empty = self._distinct_logits(self.corrupted, corrupted_index)
        else:
            empty = self._circuit_logits(self.empty, task)
        found, anchor = (pair_divergences(self.divergence, model, each, clean) for each in (kept, empty))
        values = PairValues(found, anchor, (kept.argmax(-1) != model.argmax(-1)).numpy())
        check_finite_pairs(values, clean_index, corrupted_index)
        return values

    def _circuit_logits(self, circuit: Circuit, task: Task) -> Tensor:
        return run_circuit(self.model, task, circuit, ablation=self.ablation, memory=self.memory, check=False)

    def _distinct_logits(self, side: PromptSet, index: np.ndarray) -> Tensor:
        """Logits of the model on some inputs, each run once."""
        rows, back = np.unique(index, return_inverse=True)
        own = side.subset(rows)
        logits = run_model(self.model, task_of(own, own), memory=self.memory, check=False)
        return logits[torch.from_numpy(back.ravel())]


def evaluator_of(
    model: Model,
    circuit: Circuit,
    clean: PromptSet,
    corrupted: PromptSet,
    *,
    ablation: str,
    carried: Ablation,
    divergence: str | Divergence | Kernel,
    memory: int | None = None,
    runner: PairRunner | None = None,
) -> PairEvaluator | RowEvaluator:
    """What runs pairs of these inputs: by the parts that they share, or each by itself.

    Args:
        model: The model.
        circuit: The edges to keep.
        clean: Clean inputs.
        corrupted: Corrupted inputs.
        ablation: Key of what cut edges carry.
        carried: The same, measured where it has to be.
        divergence: What is measured.
        memory: Bytes to spend; default: a share of what is free.
        runner: A runner of the same model and circuit, to share its weights.
    """
    sides = model, circuit, clean, corrupted
    if shares_inputs(model, circuit, ablation):
        return PairEvaluator(*sides, divergence=divergence, memory=memory, runner=runner)
    return RowEvaluator(*sides, ablation=carried, divergence=get_divergence(divergence), memory=memory)

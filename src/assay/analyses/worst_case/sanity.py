"""A check before every evaluation: runs whose result is known, by an engine that shares nothing with it."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from assay.analyses.worst_case.inputs import PairSample, PromptSet, shown, task_of
from assay.analyses.worst_case.row_by_row import ablation_of, shares_inputs
from assay.circuits import Circuit
from assay.core.errors import InconsistentRunError
from assay.execution import PairRunner, run_circuit, run_model
from assay.execution.soft import SoftPairs, SoftRunner
from assay.models import Model
from assay.tasks import Batch


N_PAIRS = 4
TOLERANCE = 1e-3  # of logits, relative to the largest one where that exceeds 1
# Below float32, in units of what the model's own clean run is off: two engines that both add up in float32,
# and one of them against the model, which rounds the stream after every block.
ROUNDINGS, ROUNDINGS_OF_MODEL = 4, 8


def check_known_runs(model: Model, circuit: Circuit, sample: PairSample) -> None:
    """Run some pairs of the sample by the engine of pairs and by the dense one, which compiles no plan.

    The dense run multiplies every edge by its entry of the circuit's mask. It is itself checked by two runs
    whose logits are known: with every edge kept M(x), with none M(x~).

    Raises:
        InconsistentRunError: If logits differ by more than 1e-3 of the largest one (below float32: by more
            than 4 times what the model's own run on x is off the same run in float32, 8 times against the
            model). The pair and the run are named.
    """
    pairs = _some_pairs(sample)
    read_at = (sample.clean.positions[pairs[:, 0]], sample.corrupted.positions[pairs[:, 1]])
    alike = (read_at[0] == read_at[1]).reshape(len(pairs), -1).all(1)
    pairs = pairs[alike.numpy()]  # the run proper refuses the others by name
    if not len(pairs):
        return
    clean, corrupted = sample.clean.subset(pairs[:, 0]), sample.corrupted.subset(pairs[:, 1])
    if not shares_inputs(model, circuit, sample.ablation):
        _check_rows(model, circuit, sample, clean, corrupted)
        return
    engine, dense = PairRunner(model, circuit), SoftRunner(model)
    full, empty = Circuit.full(circuit.graph).mask, Circuit.empty(circuit.graph).mask
    one = torch.zeros(1, dtype=torch.long)
    first = _read_tokens(clean, 0)
    rounding = _rounding(model, first, torch.tensor([first.shape[1] - 1]))
    engines, known = (max(TOLERANCE, times * rounding) for times in (ROUNDINGS, ROUNDINGS_OF_MODEL))
    for row in range(len(pairs)):
        x, other = (_read_tokens(side, row) for side in (clean, corrupted))
        prepared = dense.prepare(x, other)
        kept, all_, none = (
            _dense_logits(dense, prepared, mask.to(model.device)) for mask in (circuit.mask, full, empty)
        )
        found = engine.pairs(engine.prepare(x, clean=True), engine.prepare(other, clean=False), one, one)
        runs = {
            "full circuit": (all_, _model_logits(model, x), known, "the model's"),
            "empty circuit": (none, _model_logits(model, other), known, "the model's on the corrupted input"),
            "circuit": (found, kept, engines, "those of a run without a plan"),
        }
        prompt = shown(clean, row, sample.tokenizer)
        for name, (got, expected, tolerance, of) in runs.items():
            _compare(name, got, expected, tolerance, f"{of}, clean input {prompt}")


def _check_rows(
    model: Model, circuit: Circuit, sample: PairSample, clean: PromptSet, corrupted: PromptSet
) -> None:
    """The same of runs row by row. A circuit at spans, run by the dense engine itself, is not compared.

    The empty circuit is compared with M(x~), or, where no second input is read, with the run of its plan.
    """
    ablation, dense, task = ablation_of(sample), SoftRunner(model), model.bind(task_of(clean, corrupted))
    batches: Iterator[Batch] = task.batches(task.n)
    batch = next(batches).to(model.device)
    prepared = dense.prepare_batch(batch, ablation.prepare(model, task, batch_size=task.n, seed=0))
    empty = Circuit.empty(circuit.graph)
    full = Circuit.full(circuit.graph).mask.to(model.device)
    rounding = _rounding(model, batch.clean[:1], batch.positions[:1])
    engines, known = (max(TOLERANCE, times * rounding) for times in (ROUNDINGS, ROUNDINGS_OF_MODEL))

    def planned(kept: Circuit) -> Tensor:
        return run_circuit(model, task, kept, ablation=ablation, check=False)

    runs = {
        "full circuit": (_dense_logits(dense, prepared, full), run_model(model, task, check=False), known),
        "empty circuit": (
            _dense_logits(dense, prepared, empty.mask.to(model.device)),
            run_model(model, task, corrupted=True, check=False) if ablation.paired else planned(empty),
            known if ablation.paired else engines,
        ),
    }
    if circuit.spans is None:
        kept = _dense_logits(dense, prepared, circuit.mask.to(model.device))
        runs["circuit"] = (planned(circuit), kept, engines)
    read = clean.positions >= 0  # what stands at a filled position means nothing
    for name, (got, expected, tolerance) in runs.items():
        _compare(name, got.cpu()[read], expected[read], tolerance, "another run whose result is known")


def _compare(name: str, got: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    got, expected = got.double().cpu(), expected.double().cpu()
    allowed = tolerance * max(1.0, float(expected.abs().max()))
    difference = float((got - expected).abs().max())
    # Where the model itself gives NaN, the run proper names the pair.
    if bool(torch.isfinite(expected).all()) and not difference <= allowed:
        raise InconsistentRunError(
            f"sanity run: the {name} gives logits that differ by {difference:.3g} from {what} (allowed "
            f"{allowed:.3g}), so circuits cannot be run on this model. Please report it"
        )


@torch.no_grad()
def _dense_logits(dense: SoftRunner, pairs: SoftPairs, mask: Tensor) -> Tensor:
    return dense.logits(pairs, mask.to(dense.dtype))


@torch.no_grad()
def _rounding(model: Model, inputs: Tensor, positions: Tensor) -> float:
    """What the model's logits are off the same run in float32, relative to the largest; 0 from float32 on."""
    if torch.finfo(model.dtype).eps <= torch.finfo(torch.float32).eps:
        return 0.0
    with model.tracing() as trace:
        hidden = model.forward(inputs.to(model.device))
    positions = positions.to(model.device)
    wide = trace.input.float()
    for block, (args, kwargs) in zip(model.blocks, trace.calls, strict=True):
        output = _in_float32(block.module, wide, *args, **kwargs)
        wide = output[0] if isinstance(output, tuple) else output
    exact = _in_float32(_Readout(model), wide.to(model.device), positions)
    largest = max(1.0, float(exact.abs().max()))
    error = float((model.read(hidden, positions).float() - exact).abs().max()) / largest
    return error if math.isfinite(error) else 0.0


class _Readout(nn.Module):
    """From the stream behind the last block to logits; its weights are those outside the blocks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.module = model, model.module

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        blocks = f"module.{self.model.family.blocks}."
        for name, parameter in super().named_parameters(*args, **kwargs):
            if not name.startswith(blocks):
                yield name, parameter

    def forward(self, stream: Tensor, positions: Tensor) -> Tensor:
        return self.model.read(self.model.final_norm(stream), positions)


def _in_float32(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """One module on float32 copies of its weights and arguments; the module keeps its own."""

    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value

    weights = {name: wide(each) for name, each in (*module.named_parameters(), *module.named_buffers())}
    args, kwargs = tree_map(wide, (args, kwargs))
    return functional_call(module, weights, args, kwargs)


def _some_pairs(sample: PairSample) -> Int64[np.ndarray, "n 2"]:
    """A few pairs spread over the sample."""
    places = np.unique(np.linspace(0, sample.n_pairs - 1, N_PAIRS).astype(np.int64))
    if sample.pairs is not None:
        return sample.pairs[places]
    return np.stack(np.unravel_index(places, sample.shape), axis=1).astype(np.int64)


def _read_tokens(side: PromptSet, row: int) -> Tensor:
    """One input up to the position that is read, `[1, pos]`."""
    return side.tokens[row : row + 1, : int(side.positions[row]) + 1]


@torch.no_grad()
def _model_logits(model: Model, tokens: Tensor) -> Float[Tensor, "1 d_vocab"]:
    """By the native modules alone."""
    tokens = tokens.to(model.device)
    last = torch.tensor([tokens.shape[1] - 1], device=model.device)
    return model.read(model.forward(tokens), last)

"""A check before every evaluation: runs whose result is known, by an engine that shares nothing with it."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from assay.analyses.worst_case.evaluation import shares_inputs
from assay.analyses.worst_case.sampling import PairSample, PromptSet, task_of
from assay.circuits import Circuit
from assay.core.errors import InconsistentRunError
from assay.execution import PairRunner, run_circuit, run_model
from assay.execution.soft import SoftRunner
from assay.models import Model
from assay.tasks import Batch


N_PAIRS = 4
TOLERANCE = 1e-3  # of logits, relative to the largest one where that exceeds 1
# Below float32, in units of the last place times the root of the number of blocks, which each round the
# stream: two engines that both add up in float32, and one of them against the model.
ROUNDINGS, ROUNDINGS_OF_MODEL = 4, 8


def check_known_runs(model: Model, circuit: Circuit, sample: PairSample) -> None:
    """Run some pairs of the sample by the engine of the run and by the dense one, which compiles no plan.

    The dense run multiplies every edge by its entry of the circuit's mask. It is itself checked by two runs
    whose logits are known: with every edge kept M(x), with none M(x~), or, where no second input is read, the
    run of its plan. A circuit at spans, which the dense engine itself runs, is not compared.

    Raises:
        InconsistentRunError: If logits differ by more than 1e-3 of the largest one (below float32: 4 units in
            the last place, 8 against the model, times the root of the number of blocks). The run is named.
    """
    places = np.unique(np.linspace(0, sample.n_pairs - 1, N_PAIRS).astype(np.int64))
    if sample.pairs is None:
        rows, columns = np.unravel_index(places, sample.shape)
    else:
        rows, columns = sample.pairs[places].T
    clean, corrupted = sample.clean.subset(rows), sample.corrupted.subset(columns)
    task, ablation, dense = model.bind(task_of(clean, corrupted)), sample.carried, SoftRunner(model)
    batches: Iterator[Batch] = task.batches(task.n)
    baseline = ablation.prepare(model, task, batch_size=task.n, seed=0)
    prepared = dense.prepare_batch(next(batches).to(model.device), baseline)
    full, empty = Circuit.full(circuit.graph), Circuit.empty(circuit.graph)

    def planned(kept: Circuit) -> Tensor:
        return run_circuit(kept, model, task, ablation=ablation, check=False)

    eps = torch.finfo(model.dtype).eps
    rounding = eps * math.sqrt(model.n_layers) if eps > torch.finfo(torch.float32).eps else 0.0
    engines, known = (max(TOLERANCE, times * rounding) for times in (ROUNDINGS, ROUNDINGS_OF_MODEL))
    runs = {"full circuit": (full, run_model(model, task, check=False), known)}
    if ablation.paired:
        runs["empty circuit"] = (empty, run_model(model, task, corrupted=True, check=False), known)
    else:
        runs["empty circuit"] = (empty, planned(empty), engines)
    if shares_inputs(model, circuit, ablation):
        runs["circuit"] = (circuit, _by_pairs(PairRunner(model, circuit), clean, corrupted), engines)
    elif circuit.spans is None and not circuit.partial:
        runs["circuit"] = (circuit, planned(circuit), engines)
    for name, (kept, expected, tolerance) in runs.items():
        with torch.no_grad():
            got = dense.logits(prepared, kept.mask.to(model.device, dense.dtype)).double().cpu()
        expected = expected.double().cpu()
        allowed = tolerance * max(1.0, float(expected.abs().max()))
        difference = float((got - expected).abs().max())
        # Where the model itself gives NaN, the run proper names the pair.
        if bool(torch.isfinite(expected).all()) and not difference <= allowed:
            raise InconsistentRunError(
                f"sanity run: the logits of the {name} differ by {difference:.3g} from those of a run "
                f"without a plan (allowed {allowed:.3g}), on {clean.text(0, sample.tokenizer)!r} and "
                "others, so circuits cannot be run on this model. Please report it"
            )


def _by_pairs(engine: PairRunner, clean: PromptSet, corrupted: PromptSet) -> Tensor:
    """Logits of the circuit by the engine of pairs, a pair at a time, since lengths may differ."""
    one, logits = torch.zeros(1, dtype=torch.long), []
    for row, end in enumerate((clean.positions + 1).tolist()):
        left = engine.prepare(clean.tokens[row : row + 1, :end], clean=True)
        right = engine.prepare(corrupted.tokens[row : row + 1, :end], clean=False)
        logits.append(engine.pairs(left, right, one, one))
    return torch.cat(logits)

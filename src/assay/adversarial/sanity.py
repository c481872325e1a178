"""Checks that never go without saying: runs whose result is known, and pairs run by another engine."""

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from assay.adversarial.divergence import Divergence, Kernel, get_divergence, table_divergences
from assay.adversarial.evaluation import rerun
from assay.adversarial.inputs import PairSample, PromptSet, shown
from assay.adversarial.result import RERUN_ABSOLUTE, RERUN_RELATIVE, Logits, Rerun
from assay.circuits import Circuit
from assay.errors import InconsistentRunError
from assay.execution import PairRunner
from assay.models import Model


N_PAIRS = 4
TOLERANCE = 1e-3  # of logits, relative to the largest one where that exceeds 1
_HALF = 8  # units in the last place that number types below float32 are allowed


def check_known_runs(model: Model, circuit: Circuit, sample: PairSample) -> None:
    """Run pairs whose logits are known: full circuit M(x), empty circuit M(x~), any circuit C(x, x) = M(x).

    Raises:
        InconsistentRunError: If one of them differs by more than 1e-3; the pair and the run are named.
    """
    pairs = _some_pairs(sample)
    clean, corrupted = sample.clean.subset(pairs[:, 0]), sample.corrupted.subset(pairs[:, 1])
    runs = {
        name: PairRunner(model, each)
        for name, each in (
            ("full circuit", Circuit.full(circuit.graph)),
            ("empty circuit", Circuit.empty(circuit.graph)),
            ("circuit on two equal inputs", circuit),
        )
    }
    for row in range(len(pairs)):
        x, other = (_read_tokens(side, row) for side in (clean, corrupted))
        expected = {
            "full circuit": (x, other, x),
            "empty circuit": (x, other, other),
            "circuit on two equal inputs": (x, x, x),
        }
        for name, (left, right, known) in expected.items():
            runner = runs[name]
            one = torch.zeros(1, dtype=torch.long)
            got = runner.pairs(runner.prepare_clean(left), runner.prepare_corrupted(right), one, one)
            _compare(name, got, _model_logits(model, known), model, shown(clean, row, sample.tokenizer))


def _compare(name: str, got: Tensor, expected: Tensor, model: Model, prompt: str) -> None:
    got, expected = got.double().cpu(), expected.double().cpu()
    tolerance = max(TOLERANCE, _HALF * torch.finfo(model.dtype).eps)
    allowed = tolerance * max(1.0, float(expected.abs().max()))
    difference = float((got - expected).abs().max())
    # Where the model itself gives NaN, the run proper names the pair.
    if bool(torch.isfinite(expected).all()) and not difference <= allowed:
        raise InconsistentRunError(
            f"sanity run: the {name} gives logits that are {difference:.3g} off the model's on {prompt} "
            f"(allowed {allowed:.3g}); circuits cannot be run on this model, please report it"
        )


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


def make_rerun(
    model: Model, circuit: Circuit, sample: PairSample, divergence: str | Divergence | Kernel
) -> Rerun:
    """Runs pairs of a sample again by the one-pair engine, which shares nothing with the factored one."""
    found = get_divergence(divergence)

    def logits(
        clean_index: Int64[np.ndarray, " k"], corrupted_index: Int64[np.ndarray, " k"], exact: bool
    ) -> Logits:
        clean, corrupted = sample.clean.subset(clean_index), sample.corrupted.subset(corrupted_index)
        # Of the edges alone: where a circuit was found is no matter of a float64 copy of the model.
        edges = Circuit(graph=circuit.graph, mask=circuit.mask)
        runs = rerun(model, edges, clean, corrupted, exact=exact)
        return Logits(*(each.detach().cpu() for each in runs))

    def divergences(logits: Logits, clean_index: Int64[np.ndarray, " k"]) -> Float64[np.ndarray, " k"]:
        side = sample.clean.subset(clean_index)
        answers = {"answers": side.answers, "wrong": side.wrong} if found.needs_answers else {}
        table = table_divergences(found, logits.model, logits.circuit[:, None], **answers)
        return np.asarray(table[:, 0])

    eps = torch.finfo(model.dtype).eps
    tolerance = (max(RERUN_ABSOLUTE, _HALF * eps), max(RERUN_RELATIVE, 2 * eps))
    return Rerun(logits=logits, divergence=divergences, tolerance=tolerance)

"""Edge scores without a backward pass: simultaneous perturbation of every edge (experimental).

Draw a random sign r_e per example and edge, shift the input of every target v by +- epsilon sum_u r_(u->v)
Delta_u at a point of the integration path, and take the slope of the loss between the two runs:

    d = [L(+) - L(-)] / (2 epsilon)  =  sum over edges e of s_e r_e + O(epsilon^2)

with s_e what the gradient would give. Signs of different edges are independent, so E[d r_e] = s_e: the mean
over draws is unbiased for the EAP-IG score. Its variance is about sum over edges of s_e^2 / (N K): all edges
are noise to each other. (Malladi et al. 2023, arXiv:2305.17333, for the idea; Spall 1992 for the estimator.)
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int8
from torch import Tensor

from assay.core.errors import InputError, NonFiniteError
from assay.core.random import stream
from assay.discovery.edges.gradients import ActivationDifferences
from assay.discovery.edges.method import Choices
from assay.discovery.edges.quadrature import Node, quadrature_nodes
from assay.discovery.edges.sums import Sweep
from assay.execution import Baseline, Prepared
from assay.execution.forward import check_finite
from assay.execution.shifted import shifted_logits
from assay.execution.soft import SoftPairs, SoftRunner
from assay.models import Model
from assay.tasks import Batch, Task, map_tensors


CHUNK_BYTES = 256 * 2**20  # of one pass over several draws


def spsa_sweep(
    model: Model, task: Task, settings: Choices, size: int, draws: int, epsilon: float | int
) -> Sweep:
    """Estimates of the scores of `eap-ig-inputs`, from forward passes alone.

    Args:
        model: The model.
        task: The examples, bound to the model.
        settings: Objective, ablation, steps, quadrature, seed.
        size: Examples per pass at most.
        draws: Pairs of runs per example (K); draw k looks at node k mod steps of the path.
        epsilon: Size of the shift, in units of the activation differences.

    Returns:
        Sums over the examples. `details` has `noise`: the standard deviation that an edge's mean score has
        from the other edges, measured; scores of that size say nothing.

    Raises:
        InputError: If there are fewer draws than nodes, epsilon is not positive, or steps is "auto".
        NonFiniteError: If a logit or slope is NaN or infinite.

    Notes:
        2 K forward passes per example beside the three that measure the differences. A pass holds one block's
        split inputs, `[n_heads + 2 n_kv_heads, pos, d_model]` per row, and no graph of gradients.

        An example's signs come from a stream of its own row number: results do not depend on batch size.
    """
    nodes = check_spsa(settings, draws, epsilon)
    runner = SoftRunner(model)
    rows = max(2, CHUNK_BYTES // runner.bytes_per_pair(task.length))
    size = max(1, min(size, task.n, rows // 2))
    prepared = settings.ablation.prepare(model, task, batch_size=size, seed=settings.seed)
    shape = (model.graph.n_sources, model.graph.n_targets)
    total, spread, kept = torch.zeros(shape, dtype=torch.float64), 0.0, []
    for batch in task.batches(size):
        estimator = _Estimator(runner, batch.to(model.device), prepared, settings, epsilon)
        scores, variances = estimator.run(nodes, draws, at_once=max(1, rows // (2 * len(batch.indices))))
        total += scores.sum(0)
        spread += float(variances.sum())
        if settings.per_example:
            kept.append(scores.to(model.result_dtype))
    measured = not settings.ablation.paired and settings.ablation.key != "zero"
    forward = 2.0 + settings.ablation.paired + measured + 2.0 * draws
    return Sweep(
        total=total,
        per_example=torch.cat(kept) if kept else None,
        passes={"forward": forward, "backward": 0.0},
        details={
            "estimator": "spsa",
            "draws": draws,
            "epsilon": float(epsilon),
            "noise": math.sqrt(spread) / task.n,
        },
    )


def check_spsa(settings: Choices, draws: int, epsilon: float | int) -> tuple[Node, ...]:
    """The nodes of the path, once draws and epsilon are known to fit.

    Raises:
        InputError: If there are fewer draws than nodes, epsilon is not positive, or steps is "auto".
    """
    if not isinstance(settings.steps, int):
        raise InputError(
            "steps='auto' needs a completeness gap, which random signs hide; give estimator='spsa' a number "
            "of steps"
        )
    nodes = quadrature_nodes(settings.steps, settings.quadrature)
    if isinstance(draws, bool) or draws < len(nodes):
        raise InputError(
            f"draws is {draws!r}, but each of the {len(nodes)} nodes of the path needs at least one; give "
            f"draws >= {len(nodes)} (hundreds, unless there are thousands of examples), or fewer steps"
        )
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InputError(f"epsilon is {epsilon!r}; give a positive number, e.g. 1e-3")
    return nodes


def spsa_coefficients(nodes: Sequence[Node], draws: int) -> Float[Tensor, " draws"]:
    """Weight of each draw: that of its node over the number of draws that look there; float64, sums to 1."""
    place = torch.arange(draws) % len(nodes)
    weights = torch.tensor([node.weight for node in nodes], dtype=torch.float64)
    return weights[place] / torch.bincount(place)[place]


class _Estimator:
    """The draws of one batch."""

    def __init__(
        self, runner: SoftRunner, batch: Batch, prepared: Prepared, settings: Choices, epsilon: float | int
    ) -> None:
        self.runner, self.batch, self.settings, self.epsilon = runner, batch, settings, float(epsilon)
        model = runner.model
        self.valid = model.graph.valid
        with torch.no_grad():
            with model.tracing() as clean:
                model.forward(batch.clean)
            self.pairs: SoftPairs = runner.prepare_batch(batch, prepared)
            baseline: Baseline = self.pairs.baseline
            apart = ActivationDifferences.between(model, clean, baseline, batch.lengths)
            self.differences = apart.expand(slice(None)).to(runner.dtype)
        check_finite(self.pairs.model_logits, f"{model.id} on the clean input", batch.indices)
        self._streams = [stream(settings.seed, f"spsa/{row}") for row in batch.indices.tolist()]

    def run(
        self, nodes: Sequence[Node], draws: int, *, at_once: int
    ) -> tuple[Float[Tensor, "batch n_sources n_targets"], Float[Tensor, " batch"]]:
        """Scores of each example and the variance that one of its edges has, float64."""
        weight = spsa_coefficients(nodes, draws)
        alphas = torch.tensor([node.alpha for node in nodes], dtype=torch.float64)[
            torch.arange(draws) % len(nodes)
        ]
        n = len(self.batch.indices)
        scores = torch.zeros(n, *self.valid.shape, dtype=torch.float64)
        variances = torch.zeros(n, dtype=torch.float64)
        for part in torch.arange(draws).split(at_once):
            signs = self.signs(len(part))
            slopes = self.slopes(signs, alphas[part])
            weighted = slopes * weight[part, None]
            scores += torch.einsum("kb,kbsr->bsr", weighted, signs.double())
            variances += weighted.square().sum(0)
        return scores, variances

    def signs(self, draws: int) -> Int8[Tensor, "draws batch n_sources n_targets"]:
        """Random signs of some draws; 0 where there is no edge."""
        n_edges, n = int(self.valid.sum()), len(self._streams)
        drawn = np.empty((draws, n, n_edges), dtype=np.int8)
        for draw in range(
            draws
        ):  # one call per draw, so that the numbers do not depend on how many are made at once
            for row, source in enumerate(self._streams):
                drawn[draw, row] = source.integers(0, 2, n_edges, dtype=np.int8) * 2 - 1
        signs = torch.zeros(draws, n, *self.valid.shape, dtype=torch.int8)
        signs[:, :, self.valid] = torch.from_numpy(drawn)
        return signs

    def slopes(
        self, signs: Int8[Tensor, "draws batch n_sources n_targets"], alphas: Float[Tensor, " draws"]
    ) -> Float[Tensor, "draws batch"]:
        """[L(+) - L(-)] / (2 epsilon) of every draw and example, float64.

        Raises:
            NonFiniteError: If one is NaN or infinite.
        """
        draws = len(signs)
        device = self.runner.model.device
        logits = shifted_logits(
            self.runner, self.pairs, self.differences, signs.to(device), alphas, self.epsilon
        )
        times = 2 * draws
        batch = map_tensors(self.batch, lambda tensor: tensor.repeat(times, *[1] * (tensor.ndim - 1)))
        model_logits = self.pairs.model_logits
        losses = self.settings.objective(
            logits.flatten(0, 2).double(),
            model_logits.repeat(times, *[1] * (model_logits.ndim - 1)).double(),
            batch,
        )
        plus, minus = losses.view(2, draws, -1)
        slopes: Tensor = ((plus - minus) / (2 * self.epsilon)).cpu()
        bad = ~torch.isfinite(slopes).all(0)
        if bool(bad.any()):
            row = int(self.batch.indices[bad.nonzero()[0, 0]])
            raise NonFiniteError(
                f"the slope of example {row} is NaN or infinite. Check the model's weights and dtype, or "
                "use a smaller epsilon"
            )
        return slopes

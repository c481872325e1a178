"""Information-flow routes: how close each source comes to making up what a target reads.

No gradient and no ablation, so one clean forward pass serves every objective and every ablation.
(Ferrando and Voita 2024, arXiv:2403.00824.)
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.circuits import Circuit, EdgeScores
from assay.discovery.edges.gradients import ActivationDifferences
from assay.discovery.edges.method import METHODS, BatchMethod, BatchScores, Choices, Sweep
from assay.execution import ABLATIONS, Prepared
from assay.execution.forward import check_finite
from assay.models import Model, Trace
from assay.tasks import Batch, Task


# Bytes of source outputs held at once: enough for full matrix products, and for one token of any model.
CHUNK_BYTES = 64 * 2**20

# Bytes of differences taken at once: what stays in the cache of a core; a GPU wants few large kernels.
SLICE_BYTES = {"cpu": 2**20, "cuda": 256 * 2**20}


@dataclass(frozen=True, kw_only=True)
class Ifr(BatchMethod):
    """Information-flow routes: the share of each source in what its target reads.

    With x the stream that the norm of a target reads at one position (biases included) and o_u what
    source u wrote to it,

        prox(u) = max(0, ||x||_1 - ||x - o_u||_1),    importance(u) = prox(u) / sum over sources of prox,

    averaged over the real positions and then over the examples. Where no source brings x closer to zero
    (all proximities 0), the importances of that position are 0. The targets of one norm (q, k and v of
    a block; in a parallel block its MLP too) read the same stream and get equal values.

    Scores are shares in [0, 1]; those into one target sum to at most 1. They say how much of what is
    read comes from where, not what ablation would do: `objective` and `ablation` are accepted and
    ignored, and so is the corrupted input. `scores.details["ignores"]` records that.

    Notes:
        Cost: one forward pass, and reading every source once for every later norm; 0 backward passes.
        The published circuits are chosen with `scores.greedy(k)`, from the logits upwards.
        Departure from the paper: it follows single positions, with the attention weights and the
        residual connections as edges; this is the edge form of Peng et al. (2026), which keeps the graph
        that the other methods score.

    References:
        Ferrando and Voita (2024), arXiv:2403.00824; Peng et al. (2026), arXiv:2604.08192, Appendix G.
    """

    key = "ifr"
    needs_gradients = False
    cuts = False
    source = "Ferrando and Voita 2024, arXiv:2403.00824"

    def select(self, scores: EdgeScores, k: int) -> Circuit:
        """Grown from `logits`, as published: importances are shares within each target."""
        return scores.greedy(min(k, scores.graph.n_edges))

    def sweep(self, model: Model, task: Task, settings: Choices, size: int) -> Sweep:
        # No edge is cut, so nothing has to be measured for it: zeros cost no pass.
        sweep = super().sweep(model.uncut, task, replace(settings, ablation=ABLATIONS["zero"]), size)
        sweep.details["ignores"] = ["objective", "ablation"]
        return sweep

    @torch.no_grad()
    def score(self, model: Model, batch: Batch, prepared: Prepared, settings: Choices) -> BatchScores:
        with model.tracing(streams=True) as trace:
            hidden = model.forward(batch.clean)
        logits = model.read(hidden, batch.positions).to(model.result_dtype)
        check_finite(logits, f"{model.id} on the clean input", batch.indices)
        scores = _shares(model, trace, batch.lengths, per_example=settings.apart)
        return BatchScores(scores=scores, forward=1)


METHODS.add(Ifr.key, Ifr())


def _readers(model: Model, trace: Trace) -> Iterator[tuple[Float[Tensor, "batch pos d_model"], int, slice]]:
    """Streams that are read, in forward order: how many sources wrote to each, and which targets read it."""
    graph = model.graph
    for layer in range(model.n_layers):
        mlp = graph.mlp_targets(layer)
        attention = slice(graph.channel_target(layer, "q"), mlp.stop if graph.parallel else mlp.start)
        yield trace.attention_in[layer], graph.sources_before_block(layer), attention
        if graph.mlps and not graph.parallel:
            yield trace.mlp_in[layer], graph.sources_before_mlp(layer), mlp
    assert trace.final_in is not None
    yield trace.final_in, graph.n_sources, slice(-1, None)


def _shares(
    model: Model, trace: Trace, lengths: Int[Tensor, " batch"], *, per_example: bool
) -> Float[Tensor, "rows n_sources n_targets"]:
    """Importance of every source for every target: mean over positions, summed over examples or apart."""
    real = torch.arange(trace.input.shape[1], device=lengths.device) < lengths[:, None]
    tokens = real.nonzero()
    readers, n_sources = list(_readers(model, trace)), model.graph.n_sources
    size = max(1, CHUNK_BYTES // (n_sources * model.d_model * model.result_dtype.itemsize))
    # Readers before sources: the sum over the tokens of a chunk is then one addition into rows.
    shape = (len(lengths) if per_example else 1, len(readers), n_sources)
    table = torch.zeros(shape, dtype=model.result_dtype, device=lengths.device)
    for chunk in tokens.split(size):
        places = chunk[:, 0], chunk[:, 1]
        outputs = _outputs(model, trace, places)
        row = places[0] if per_example else torch.zeros_like(places[0])
        weight = 1 / lengths[places[0], None].to(outputs.dtype)
        for number, (stream, before, _) in enumerate(readers):
            share = _importance(stream[places].to(outputs.dtype), outputs[:, :before]) * weight
            table[:, number, :before].index_add_(0, row, share)
    scores = table.new_zeros(len(table), n_sources, model.graph.n_targets)
    for number, (_, _, columns) in enumerate(readers):
        scores[:, :, columns] = table[:, number, :, None]
    return scores


def _outputs(
    model: Model, trace: Trace, places: tuple[Tensor, Tensor]
) -> Float[Tensor, "tokens n_sources d_model"]:
    """What every source writes at some tokens, in the order of the graph."""
    streams = [value[places] for value in (trace.input, *trace.mlp)]
    written = torch.stack(streams).to(model.result_dtype)[:, :, None]
    z = torch.stack([value[places] for value in trace.z]).to(model.result_dtype)[:, :, None]
    z = z.unflatten(-1, (model.n_heads, model.d_head))
    by_source = ActivationDifferences(model=model, input=written[0], z=z, mlp=written[1:]).expand(slice(None))
    return by_source[:, :, 0].transpose(0, 1).contiguous()


def _importance(
    x: Float[Tensor, "tokens d_model"], outputs: Float[Tensor, "tokens sources d_model"]
) -> Float[Tensor, "tokens sources"]:
    """Share of each source in the proximity to x, per token."""
    proximity = (x.abs().sum(-1, keepdim=True) - _distances(x, outputs)).clamp_(min=0)
    total = proximity.sum(-1, keepdim=True)
    return proximity / total.masked_fill(total == 0, 1)  # 0 / 1 where no source comes closer than none


def _distances(
    x: Float[Tensor, "tokens d_model"], outputs: Float[Tensor, "tokens sources d_model"]
) -> Float[Tensor, "tokens sources"]:
    """||x - o_u||_1 per token and source, through one small buffer."""
    n, sources, width = outputs.shape
    budget = SLICE_BYTES.get(x.device.type, SLICE_BYTES["cuda"])
    step = max(1, min(n, budget // (sources * width * outputs.element_size())))
    buffer = outputs.new_empty(step, sources, width)
    distances = outputs.new_empty(n, sources)
    for start in range(0, n, step):
        here = slice(start, min(start + step, n))
        difference = buffer[: here.stop - start]
        torch.sub(outputs[here], x[here, None], out=difference)
        torch.sum(difference.abs_(), -1, out=distances[here])
    return distances

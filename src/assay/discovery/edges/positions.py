"""Edge scores position by position: the terms of an ordinary score, kept apart by span.

    score(u, v; p) = E_x [ sum over the positions t of span p of (a~_u,t - a_u,t) . g_v,t ]

The same passes and the same sums of gradients as the ordinary methods; only the product with the differences
of the activations is taken span by span, which multiplies the same numbers. Their sum over spans is the
ordinary score. (Haklay et al. 2025, arXiv:2502.04577.)
"""

import hashlib
import time
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from assay.circuits.scores import EdgeScores
from assay.circuits.spans import Place, Spans
from assay.core.errors import InputError, NonFiniteError
from assay.discovery.edges.eap_ig import Passes, _PathGradient
from assay.discovery.edges.feeding import completeness_gap
from assay.discovery.edges.gradients import CHUNK_BYTES, ActivationDifferences, GradientSums
from assay.discovery.edges.method import METHODS, Choices, EdgeMethod, get_method, provenance_of
from assay.execution import Ablation, Prepared
from assay.execution.batches import choose_batch_size
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.tasks import Batch, Task


def discover_positions(
    model: Model,
    task: Task,
    method: str | EdgeMethod = "eap-ig-inputs",
    *,
    spans: str | Mapping[str, Place] | Int64[Tensor, "n pos"] = "each",
    objective: str | Objective | Loss | None = None,
    ablation: str | Ablation | None = None,
    steps: int = 5,
    quadrature: str = "midpoint",
    batch_size: int | None = None,
    memory: int | None = None,
    seed: int = 0,
) -> EdgeScores:
    """Score every edge at every span by the damage that ablating it there would do.

    Args:
        model: The model.
        task: Prompts or images.
        method: `eap`, `eap-ig-inputs` or `clean-corrupted`.
        spans: `"each"`: every position by itself, for prompts of one length. `"slots"`: the slots of the
            task's template, what lies between them and the read position. A mapping of names to places in
            each prompt: an int, a list of ints or a slice, negative ones counted from its end. Labels `[N,
            T]`: the number of each position's span, -1 at padding.
        objective: Loss to attribute; default: the task's own.
        ablation: What a cut edge carries; default: the task's own.
        steps: Quadrature nodes of `eap-ig-inputs`.
        quadrature: `midpoint` (default), `left` (the published rule), `right` or `gauss-legendre`.
        batch_size: Examples per pass; default: by free memory. Results do not depend on it.
        memory: Bytes that a pass may take; default: 60 % of what is free.
        seed: Root seed (noise ablations).

    Returns:
        Signed scores `[P, S, R]`, mean over examples, in the unit of the objective; positive: ablation hurts.
        A span longer than another sums more terms.

    Raises:
        UnknownNameError: For an unknown method, objective, ablation or kind of spans.
        InputError: For a method without this form, spans that do not fit the task (prompts of several lengths
            with "each"), settings that the method cannot serve.
        NonFiniteError: If a logit, gradient or score is NaN or infinite.

    Notes:
        The passes of `discover` with the same arguments. An edge into k or v belongs to the position whose
        key or value it changes, whoever attends to it; the published form splits attention further, into
        pairs of a key and a query position.

    References:
        Haklay et al. (2025), arXiv:2502.04577.
    """
    chosen = _path_gradient(get_method(method), steps)
    settings = chosen.choices(
        task, objective=objective, ablation=ablation, steps=steps, quadrature=quadrature, seed=seed
    )
    chosen.check(settings)
    task = model.bind(task)
    laid_out = Spans.of(task, spans, causal=model.causal, pools=model.pools)
    labels = laid_out.label(task, spans if isinstance(spans, Tensor) else None)
    extra = 2 * chosen.bytes_per_example(model, task.length, settings)
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra, memory=memory)
    started = time.perf_counter()
    sweep = _Sweep(model, task, chosen, settings, labels, len(laid_out))
    sweep.run(size)
    values = (sweep.total / task.n).to(model.result_dtype)
    details: dict[str, Any] = {
        "passes": {"forward": round(sweep.forward, 3), "backward": round(sweep.backward, 3)},
        "seconds": time.perf_counter() - started,
        "batch_size": size,
    }
    if chosen.measures_completeness:
        details["completeness_gap"] = completeness_gap(values.sum(0), sweep.input_effect / task.n)
    digest = hashlib.sha256(labels.contiguous().numpy().tobytes()).hexdigest()[:16]
    where = {"names": list(laid_out.names), "rule": dict(laid_out.rule), "labels": digest}
    return EdgeScores(
        model.graph,
        values,
        spans=laid_out,
        provenance={**provenance_of(model, task, chosen, settings), "spans": where},
        details=details,
    )


def _path_gradient(method: EdgeMethod, steps: int | str) -> _PathGradient:
    """The method, once it is known to be a product of differences and gradients along one path."""
    able = [key for key, known in METHODS.items() if isinstance(known, _PathGradient)]
    if not isinstance(method, _PathGradient):
        raise InputError(
            f"{method.key} has no scores by position; only methods that multiply the change of each "
            f"activation by one gradient have them. Use {', '.join(able)}"
        )
    if steps == "auto":
        raise InputError("steps='auto' works only with discover; give discover_positions a number of steps")
    return method


class _Sweep:
    """Sums over the examples of one task."""

    def __init__(
        self,
        model: Model,
        task: Task,
        method: _PathGradient,
        settings: Choices,
        labels: Int64[Tensor, "n pos"],
        n_spans: int,
    ) -> None:
        self.model, self.task, self.method, self.settings = model, task, method, settings
        self.labels, self.n_spans = labels, n_spans
        shape = (n_spans, model.graph.n_sources, model.graph.n_targets)
        # float64 sums: the mean must not depend on how examples fall into batches.
        self.total = torch.zeros(shape, dtype=torch.float64)
        self.forward, self.backward, self.input_effect = 0.0, 0.0, 0.0

    def run(self, size: int) -> None:
        settings = self.settings
        prepared = settings.ablation.prepare(self.model, self.task, batch_size=size, seed=settings.seed)
        for batch in self.task.batches(size):
            self._batch(batch.to(self.model.device), prepared)
        if not settings.ablation.paired and settings.ablation.key != "zero":
            self.forward += 1  # the pass that measured means or deviations

    def _batch(self, batch: Batch, prepared: Prepared) -> None:
        nodes = self.method.nodes(self.settings)
        sums = SpanSums(self.model)
        with self.model.frozen():
            alphas = {node.alpha for node in nodes}
            passes = Passes(self.model, batch, prepared, self.settings, alphas)
            for node in nodes:
                trace = passes.between(node.alpha)
                sums.add(trace, batch.positions, node.weight)
                trace.release()
            if self.method.measures_completeness:
                self.input_effect += passes.input_effect()
        labels = self.labels[batch.indices.cpu()].to(self.model.device)
        scores = sums.by_span(passes.differences(), batch.positions, labels, self.n_spans).double().cpu()
        if not bool(torch.isfinite(scores).all()):
            rows = batch.indices.tolist()
            raise NonFiniteError(
                f"method {self.method.key!r} gave NaN or infinite scores for an example from {rows[0]} to "
                f"{rows[-1]}; check the model's weights and dtype (float16 gradients overflow)"
            )
        self.total += scores
        share = len(batch.indices) / self.task.n
        self.forward += passes.forward * share
        self.backward += passes.backward * share


class SpanSums(GradientSums):
    """Gradient sums that are multiplied with the differences span by span."""

    def by_span(
        self,
        differences: ActivationDifferences,
        positions: Int[Tensor, "batch *reads"],
        labels: Int64[Tensor, "batch pos"],
        n_spans: int,
    ) -> Float[Tensor, "n_spans n_sources n_targets"]:
        """Scores of the batch: difference of each source times gradient at each later target, by span.

        Args:
            differences: Ablated minus clean activations.
            positions: Read position of each example, or several.
            labels: Span of each position, -1 at padding.
            n_spans: How many spans there are.

        Notes:
            The positions of a span are gathered, so every position is multiplied once, as without spans.
        """
        graph, model = self.model.graph, self.model
        n, length = differences.input.shape[:2]
        scores = differences.input.new_zeros(n_spans, graph.n_sources, graph.n_targets)
        # Twice the ordinary chunk's rows: the gathered copies are held beside the expanded ones.
        rows = 2 * (graph.n_sources + 3 * model.n_heads)
        size = max(1, CHUNK_BYTES // (rows * length * model.d_model * 4))
        for start in range(0, n, size):
            chunk = slice(start, min(start + size, n))
            expanded = differences.expand(chunk)
            tokens = _tokens(labels[chunk].flatten(), n_spans)
            left = _gathered(expanded.flatten(1, 2), tokens)
            for layer in range(model.n_layers):
                first, last = graph.channel_target(layer, "q"), graph.mlp_target(layer)
                gradient = self._attention_gradient(layer, chunk)
                if gradient is not None:
                    until = graph.sources_before_block(layer)
                    _multiply(scores, left, gradient.flatten(1, 2), tokens, until, slice(first, last))
                mlp = self.mlp[layer]
                if mlp is not None:
                    until = graph.sources_before_mlp(layer)
                    _multiply(
                        scores, left, mlp[chunk].flatten(0, 1)[None], tokens, until, slice(last, last + 1)
                    )
            if self.logits is not None:
                column = slice(graph.n_targets - 1, graph.n_targets)
                gradient = self.logits[chunk].flatten(0, 1)[None]
                if not model.reads_all(positions):
                    index = torch.arange(chunk.stop - chunk.start, device=positions.device)
                    tokens = _tokens(labels[chunk][index, positions[chunk]], n_spans)
                    left = _gathered(expanded[:, index, positions[chunk]], tokens)
                _multiply(scores, left, gradient, tokens, graph.n_sources, column)
        return scores


def _tokens(labels: Int64[Tensor, " tokens"], n_spans: int) -> list[Tensor]:
    """Indices of the tokens of each span, in order."""
    order = torch.sort(labels, stable=True).indices
    counts = torch.bincount(labels + 1, minlength=n_spans + 1).tolist()
    return list(order.split(counts)[1:])  # the first part is padding


def _gathered(values: Tensor, tokens: list[Tensor]) -> list[Tensor]:
    """`[rows, tokens of the span * d_model]` for every span."""
    return [values[:, here].flatten(1) for here in tokens]


def _multiply(
    into: Tensor, left: list[Tensor], gradient: Tensor, tokens: list[Tensor], until: int, targets: slice
) -> None:
    """Add difference . gradient over the tokens of each span, for the sources before `until`."""
    for span, (rows, here) in enumerate(zip(left, tokens, strict=True)):
        if len(here):
            into[span, :until, targets] += rows[:until] @ gradient[:, here].flatten(1).T

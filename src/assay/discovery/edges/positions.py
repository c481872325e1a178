"""Edge scores position by position: the terms of an ordinary score, kept apart by span.

    score(u, v; p) = E_x [ sum over the positions t of span p of (a~_u,t - a_u,t) . g_v,t ]

The same passes and the same sums of gradients as the ordinary methods; only the product with the differences
of the activations is taken span by span, which multiplies the same numbers. Their sum over spans is the
ordinary score. An edge into k or v belongs to the position whose key or value it changes, whoever attends to
it; the published form splits attention further, into pairs of a key and a query position.
(Haklay et al. 2025, arXiv:2502.04577.)
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from assay.circuits.spans import Place, Spans
from assay.core.errors import InputError
from assay.discovery.edges.eap_ig import PathGradient
from assay.discovery.edges.gradients import ActivationDifferences, GradientSums, at_read
from assay.discovery.edges.method import METHODS, Choices, EdgeMethod, Sweep, check_scores, measures
from assay.models import Model
from assay.tasks import Task


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskSpans:
    """A method that scores the edges of a task at spans of its positions.

    Attributes:
        method: The method.
        spans: The spans.
        labels: Span of each position, -1 at padding.
    """

    method: PathGradient
    spans: Spans
    labels: Int64[Tensor, "n pos"]

    @classmethod
    def of(
        cls, method: EdgeMethod, model: Model, task: Task, spans: str | Mapping[str, Place], settings: Choices
    ) -> "TaskSpans":
        """That of the spans chosen.

        Raises:
            InputError: For a method without this form, scores of single examples, or spans that do not fit.
            UnknownNameError: For an unknown kind of spans.
        """
        if not isinstance(method, PathGradient) or settings.apart:
            able = [key for key, known in METHODS.items() if isinstance(known, PathGradient)]
            raise InputError(
                f"{method.key} has no scores by position; only methods that multiply the change of each "
                f"activation by one gradient have them, and not of single examples. Use {', '.join(able)}"
            )
        at = Spans.of(task, spans, causal=model.causal, pools=model.pools)
        return cls(method=method, spans=at, labels=at.label(task))

    def describe(self) -> dict[str, Any]:
        """What it adds to the provenance of scores."""
        digest = hashlib.sha256(self.labels.contiguous().numpy().tobytes()).hexdigest()[:16]
        where = {"names": list(self.spans.names), "rule": dict(self.spans.rule), "labels": digest}
        return {"spans": where}

    def sweep(self, model: Model, task: Task, settings: Choices, size: int) -> Sweep:
        """Scores `[P, S, R]`, added up over the examples."""
        prepared = settings.ablation.prepare(model, task, batch_size=size, seed=settings.seed)
        sweep = Sweep(total=torch.zeros(len(self.spans), *model.graph.valid.shape, dtype=torch.float64))
        for batch in (batch.to(model.device) for batch in task.batches(size)):
            sums, passes = self.method.gradients(model, batch, prepared, settings)
            here = self.labels[batch.indices.cpu()].to(model.device)
            scores = by_span(sums, passes.differences(), batch.positions, here, len(self.spans))
            check_scores(scores, self.method, batch)
            sweep.add(passes.result(scores[None]), len(here))
        sweep.forward += task.n * measures(settings.ablation)
        return sweep


def by_span(
    sums: GradientSums,
    differences: ActivationDifferences,
    positions: Int[Tensor, " batch"],
    labels: Int64[Tensor, "batch pos"],
    n_spans: int,
) -> Float[Tensor, "n_spans n_sources n_targets"]:
    """Scores of a batch: difference of each source times gradient at each later target, by span.

    Args:
        sums: Gradients of the batch.
        differences: Ablated minus clean activations.
        positions: Read position of each example.
        labels: Span of each position, -1 at padding.
        n_spans: How many spans there are.

    Notes:
        The positions of a span are gathered, so every position is multiplied once, as without spans.
    """
    graph, model = sums.model.graph, sums.model
    scores = differences.input.new_zeros(n_spans, graph.n_sources, graph.n_targets)
    for chunk in sums.chunks(differences, extra=2):  # the gathered copies are held beside the expanded ones
        expanded, read, own = differences.expand(chunk), positions[chunk], labels[chunk]
        index = torch.arange(len(own), device=own.device)
        inner = expanded.flatten(1, 2), _tokens(own.flatten(), n_spans)
        last = (
            at_read(model, expanded, read).flatten(1, 2),
            _tokens(own[index, read], n_spans) if not model.pools else inner[1],
        )
        for until, targets, gradient in sums.parts(chunk):
            left, tokens = last if targets.stop == graph.n_targets else inner
            right = gradient.flatten(1, 2)
            for span, here in enumerate(tokens):
                if len(here):
                    product = left[:until, here].flatten(1) @ right[:, here].flatten(1).T
                    scores[span, :until, targets] += product
    return scores.masked_fill_(~graph.valid.to(scores.device), 0)


def _tokens(labels: Int64[Tensor, " tokens"], n_spans: int) -> list[Tensor]:
    """Indices of the tokens of each span, in order."""
    order = torch.sort(labels, stable=True).indices
    counts = torch.bincount(labels + 1, minlength=n_spans + 1).tolist()
    return list(order.split(counts)[1:])  # the first part is padding

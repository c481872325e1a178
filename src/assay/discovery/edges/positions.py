"""Edge scores position by position: the terms of an ordinary score, kept apart by span.

    score(u, v; p) = E_x [ sum over the positions t of span p of (a~_u,t - a_u,t) . g_v,t ]

The same passes and the same sums of gradients as the ordinary methods; only the product with the differences
of the activations is taken span by span, which multiplies the same numbers. Their sum over spans is the
ordinary score. (Haklay et al. 2025, arXiv:2502.04577.)
"""

import hashlib
import time
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from assay.circuits.scores import EdgeScores
from assay.circuits.spans import Place, Spans
from assay.core.errors import InputError, NonFiniteError
from assay.discovery.edges.eap_ig import PathGradient
from assay.discovery.edges.gradients import ActivationDifferences, GradientSums, at_read
from assay.discovery.edges.method import METHODS, EdgeMethod, get_method, measures, provenance_of
from assay.discovery.edges.running import scores_of
from assay.discovery.edges.sums import BatchScores, Sweep
from assay.execution import Ablation
from assay.execution.batches import choose_batch_size
from assay.models import Model
from assay.objectives import Loss, Objective
from assay.tasks import Task


def discover_positions(
    model: Model,
    task: Task,
    method: str | EdgeMethod = "eap-ig-inputs",
    *,
    spans: str | Mapping[str, Place] = "each",
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
            each prompt: an int, a list of ints or a slice, negative ones counted from its end.
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
    chosen = get_method(method)
    if not isinstance(chosen, PathGradient):
        able = [key for key, known in METHODS.items() if isinstance(known, PathGradient)]
        raise InputError(
            f"{chosen.key} has no scores by position; only methods that multiply the change of each "
            f"activation by one gradient have them. Use {', '.join(able)}"
        )
    settings = chosen.choices(
        task, objective=objective, ablation=ablation, steps=steps, quadrature=quadrature, seed=seed
    )
    chosen.check(settings)
    task = model.bind(task)
    at = Spans.of(task, spans, causal=model.causal, pools=model.pools)
    labels = at.label(task)
    extra = 2 * chosen.bytes_per_example(model, task.length, settings)
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra, memory=memory)
    started = time.perf_counter()
    prepared = settings.ablation.prepare(model, task, batch_size=size, seed=seed)
    sweep = Sweep(total=torch.zeros(len(at), *model.graph.valid.shape, dtype=torch.float64))
    for batch in (batch.to(model.device) for batch in task.batches(size)):
        sums = GradientSums(model)
        passes = chosen.gradients(model, batch, prepared, settings, sums)
        here = labels[batch.indices.cpu()].to(model.device)
        scores = by_span(sums, passes.differences(), batch.positions, here, len(at))
        if not bool(torch.isfinite(scores).all()):
            raise NonFiniteError(
                f"method {chosen.key!r} gave NaN or infinite scores for an example from "
                f"{int(batch.indices[0])} to {int(batch.indices[-1])}; check the model's weights and dtype"
            )
        result = BatchScores(
            scores=scores[None],
            forward=passes.forward,
            backward=passes.backward,
            input_effect=passes.input_effect,
        )
        sweep.add(result, len(here))
    digest = hashlib.sha256(labels.contiguous().numpy().tobytes()).hexdigest()[:16]
    where = {"names": list(at.names), "rule": dict(at.rule), "labels": digest}
    return scores_of(
        model,
        sweep,
        task.n,
        {**provenance_of(model, task, chosen, settings), "spans": where},
        {"seconds": time.perf_counter() - started, "batch_size": size},
        measured=measures(settings.ablation),
        spans=at,
    )


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
        whole = model.pools
        index = torch.arange(len(own), device=own.device)
        inner = expanded.flatten(1, 2), _tokens(own.flatten(), n_spans)
        last = (
            at_read(model, expanded, read).flatten(1, 2),
            _tokens(own[index, read], n_spans) if not whole else inner[1],
        )
        for until, targets, gradient in sums.parts(chunk):
            left, tokens = last if targets.stop == graph.n_targets else inner
            right = gradient.flatten(1, 2)
            for span, here in enumerate(tokens):
                if len(here):
                    product = left[:until, here].flatten(1) @ right[:, here].flatten(1).T
                    scores[span, :until, targets] += product
    return scores


def _tokens(labels: Int64[Tensor, " tokens"], n_spans: int) -> list[Tensor]:
    """Indices of the tokens of each span, in order."""
    order = torch.sort(labels, stable=True).indices
    counts = torch.bincount(labels + 1, minlength=n_spans + 1).tolist()
    return list(order.split(counts)[1:])  # the first part is padding

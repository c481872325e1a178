"""Gradient methods: EAP, EAP-IG on inputs and on activations, clean-corrupted."""

import abc
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import InputError, check_name
from assay.discovery.edges.gradients import ActivationDifferences, GradientSums
from assay.discovery.edges.method import (
    LEVELS,
    METHODS,
    BatchMethod,
    BatchScores,
    Choices,
    check_differentiable,
)
from assay.execution import Baseline, Prepared
from assay.execution.forward import check_finite
from assay.models import Model, Trace
from assay.objectives import Objective
from assay.tasks import Batch


Rule = Literal["midpoint", "left", "right", "gauss-legendre"]


class Node(NamedTuple):
    """One evaluation of a quadrature: at `ablated + alpha (clean - ablated)`, with its weight in the mean."""

    alpha: float
    weight: float


def quadrature_nodes(steps: int, rule: str = "midpoint") -> tuple[Node, ...]:
    """Nodes and weights of a rule on [0, 1]; weights sum to 1.

    Args:
        steps: Number of nodes, >= 1.
        rule: `midpoint` (default), `left` (alpha = k/n, k = 0..n-1: the published EAP-IG), `right`
            (k = 1..n), or `gauss-legendre`.

    Raises:
        InputError: If `steps` is below 1 or the rule is unknown.

    Example:
        >>> [node.alpha for node in quadrature_nodes(2, "left")]
        [0.0, 0.5]
    """
    if type(steps) is not int or steps < 1:
        raise InputError(f"steps is {steps!r}; integrated gradients need a whole number of at least 1")
    if rule == "gauss-legendre":
        points, weights = np.polynomial.legendre.leggauss(steps)
        return tuple(Node(float(at + 1) / 2, float(w) / 2) for at, w in zip(points, weights, strict=True))
    check_name("quadrature", rule, get_args(Rule))
    shift = {"midpoint": 0.5, "left": 0.0, "right": 1.0}[rule]
    return tuple(Node((k + shift) / steps, 1 / steps) for k in range(steps))


class Passes:
    """Native passes over one batch: clean, ablated, and whatever lies between them.

    Args:
        alphas: Where gradients will be wanted. The clean (1) and the resampled (0) run are made anyway,
            so a gradient there costs a backward pass only.
    """

    def __init__(
        self,
        model: Model,
        batch: Batch,
        prepared: Prepared,
        settings: Choices,
        alphas: set[float],
    ) -> None:
        self.model, self.batch, self.settings = model, batch, settings
        self.forward, self.backward = 0.0, 0
        self.traces: dict[float, Trace] = {}
        self.losses: dict[float, Tensor] = {}
        self.clean_logits: Tensor | None = None
        self.input_effect: float | None = None
        kept = None if prepared.kept is None or 1.0 in alphas else prepared.kept.take("run", batch)
        if kept is None:
            self.clean = self._native(batch.clean, 1.0, gradients=1.0 in alphas)
        else:  # the pass that measured the means
            self.clean, logits = kept
            self.traces[1.0], self.losses[1.0] = self.clean, self.loss(logits)
        trace = None
        if settings.ablation.paired:
            trace = self._native(batch.corrupted, 0.0, gradients=0.0 in alphas)
        self.baseline: Baseline = prepared.baseline(batch, trace)
        self.clean_input = self.clean.input
        self.ablated_input = self.baseline.input.to(self.clean_input.dtype).expand_as(self.clean_input)

    def _native(self, tokens: Tensor, alpha: float, *, gradients: bool) -> Trace:
        with torch.set_grad_enabled(gradients), self.model.tracing(gradients=gradients) as trace:
            self.losses[alpha] = self._finish(trace, self.model.forward(tokens))
        self.traces[alpha] = trace
        return trace

    def between(self, alpha: float, *, gradients: bool = True) -> Trace:
        """The run whose input source is a~ + alpha (a - a~), with its gradients."""
        if alpha not in self.traces:
            self.traces[alpha], self.losses[alpha] = self.run(alpha, gradients=gradients)
        return self.traces[alpha]

    def run(
        self, alpha: float, objective: Objective | None = None, *, gradients: bool = True
    ) -> tuple[Trace, Tensor]:
        """Such a run anew, and its loss; by default under the objective of the settings."""
        start = self.clean_input
        if alpha != 1:
            start = self.ablated_input + alpha * (self.clean_input - self.ablated_input)
        traced = self.model.tracing(sources=False, gradients=gradients)
        reading = self.model.reading(self.batch.positions, start.shape[1])
        with torch.set_grad_enabled(gradients), traced as trace, reading:
            return trace, self._finish(trace, self.model.resume(start, self.clean), objective)

    def _finish(
        self,
        trace: Trace,
        hidden: Tensor,
        objective: Objective | None = None,
        leaves: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, " batch"]:
        """Read the logits, take the loss, and run backward to the leaves (those of the trace), if any."""
        loss = self.loss(self.model.read(hidden, self.batch.positions), objective)
        self.forward += 1
        ends = trace.leaves if leaves is None else leaves
        if ends:
            self.backward += 1
            check_differentiable(loss, self.settings)
            torch.autograd.grad(loss.sum(), ends)  # the hooks of the trace keep what passes by
        return loss.detach()

    def loss(
        self, logits: Float[Tensor, "batch d_vocab"], objective: Objective | None = None
    ) -> Float[Tensor, " batch"]:
        """Objective, that of the settings unless given, per example, in float32 or better."""
        logits = logits.to(self.model.result_dtype)
        if self.clean_logits is None:
            check_finite(logits.detach(), f"{self.model.id} on the clean input", self.batch.indices)
            self.clean_logits = logits.detach()
        return (objective or self.settings.objective)(logits, self.clean_logits, self.batch)

    def differences(self) -> ActivationDifferences:
        """Ablated minus clean activations of all sources."""
        return ActivationDifferences.between(self.model, self.clean, self.baseline, self.batch.lengths)

    def result(self, scores: Tensor) -> BatchScores:
        """Scores of the batch, with what they took."""
        return BatchScores(
            scores=scores, forward=self.forward, backward=self.backward, input_effect=self.input_effect
        )

    def measure_input_effect(self) -> None:
        """Sum over the batch of J(run with the input source ablated) - J(clean)."""
        if 0.0 not in self.losses and self.baseline.rows == 1 and not self.model.causal:
            # All images share the ablated input, and one run of it serves them all.
            start, read = self.ablated_input[:1], self.batch.positions[:1]
            with torch.no_grad(), self.model.reading(read, start.shape[1]):
                logits = self.model.read(self.model.resume(start, self.clean), read)
                self.losses[0.0] = self.loss(logits.expand(len(self.batch.indices), -1))
            self.forward += 1 / len(self.batch.indices)
        elif 0.0 not in self.losses:
            self.between(0.0, gradients=False)
        self.input_effect = float((self.losses[0.0].double() - self.losses[1.0].double()).sum())


class PathGradient(BatchMethod):
    """Abstract: gradients at points between the ablated and the clean input."""

    needs_gradients = True
    levels = LEVELS

    @abc.abstractmethod
    def nodes(self, settings: Choices) -> Sequence[Node]:
        """Where gradients are taken, and their weights."""

    def check(self, settings: Choices) -> None:
        if all(node.alpha == 1 for node in self.nodes(settings)) and settings.objective.stationary:
            raise InputError(
                f"{self.key} takes the gradient at the clean run only, but objective "
                f"{settings.objective.key!r} has zero gradient there, so all scores would be 0. Use "
                "objective='logit_diff' or 'ce', or method='eap-ig-inputs' with more steps"
            )

    def rules(self, model: Model) -> AbstractContextManager[None]:
        """Inside, backward passes through the native modules give what the method takes for gradients."""
        return nullcontext()

    def gradients(
        self,
        model: Model,
        batch: Batch,
        prepared: Prepared,
        settings: Choices,
    ) -> tuple[GradientSums, Passes]:
        """The gradients of one batch, and the passes they took, with the effect of the input.

        Args:
            model: The model.
            batch: The examples.
            prepared: The ablation.
            settings: What the caller chose.
        """
        nodes = self.nodes(settings)
        sums = GradientSums(model, constant_scale=self.constant_scale)
        # The rules come before the passes, so that their hooks see what it made of a value or gradient.
        with model.frozen(), self.rules(model):
            passes = Passes(model, batch, prepared, settings, {node.alpha for node in nodes})
            for node in nodes:
                trace = passes.between(node.alpha)
                sums.add(trace, batch.positions, node.weight)
                trace.release()
            if self.measures_completeness:
                passes.measure_input_effect()
        return sums, passes

    def score(self, model: Model, batch: Batch, prepared: Prepared, settings: Choices) -> BatchScores:
        sums, passes = self.gradients(model, batch, prepared, settings)
        apart, neurons = settings.apart, settings.level == "neuron"
        differences = passes.differences()
        scores = sums.contract(differences, batch.positions, per_example=apart, neurons=neurons)
        return passes.result(scores)

    measures_completeness = False
    constant_scale = False  # of norms, in the passes and in the sums of gradients


class Eap(PathGradient):
    """Edge attribution patching: the gradient at the clean run."""

    key = "eap"
    source = "Syed et al. 2023, arXiv:2310.10348"

    def nodes(self, settings: Choices) -> Sequence[Node]:
        return (Node(1.0, 1.0),)


class CleanCorrupted(PathGradient):
    """The mean of the gradients at the clean and at the corrupted run."""

    key = "clean-corrupted"
    source = "Hanna et al. 2024, arXiv:2403.17806"

    def check(self, settings: Choices) -> None:
        if not settings.ablation.paired:
            raise InputError(
                "clean-corrupted needs the run on the corrupted input, but ablation is "
                f"{settings.ablation.key!r}; use ablation='resample', or method='eap-ig-inputs', which "
                "supports every ablation"
            )

    def nodes(self, settings: Choices) -> Sequence[Node]:
        return (Node(1.0, 0.5), Node(0.0, 0.5))


class EapIgInputs(PathGradient):
    """EAP with the gradient averaged while the input source moves from its ablated to its clean value."""

    key = "eap-ig-inputs"
    source = "Hanna et al. 2024, arXiv:2403.17806"
    measures_completeness = True
    integrates = True

    def nodes(self, settings: Choices) -> Sequence[Node]:
        return quadrature_nodes(settings.steps, settings.quadrature)


class EapIgActivations(BatchMethod):
    """Integrated gradients on activations: each source group moves from its ablated to its clean value.

    Groups are `input`, the heads of one block together, and each MLP; only edges out of the group take the
    group's gradients. A run differs from the clean one behind its group only, so it starts there.
    """

    key = "eap-ig-activations"
    needs_gradients = True
    levels = LEVELS
    integrates = True
    source = "Marks et al. 2024, arXiv:2403.19647"

    def check(self, settings: Choices) -> None:
        quadrature_nodes(settings.steps, settings.quadrature)

    def score(self, model: Model, batch: Batch, prepared: Prepared, settings: Choices) -> BatchScores:
        graph = model.graph
        with model.frozen():
            nodes = quadrature_nodes(settings.steps, settings.quadrature)
            passes = Passes(model, batch, prepared, settings, {node.alpha for node in nodes})
            differences = passes.differences()
            scores = self._group(passes, differences, nodes, slice(0, 1), None)
            for layer in range(model.n_layers):
                first = graph.head_source(layer)
                heads, mlp = slice(first, first + model.n_heads), graph.mlp_sources(layer)
                scores += self._group(passes, differences, nodes, heads, ("heads", layer))
                if graph.mlps:
                    scores += self._group(passes, differences, nodes, mlp, ("mlp", layer))
        return passes.result(scores)

    def _group(
        self,
        passes: Passes,
        differences: ActivationDifferences,
        nodes: Sequence[Node],
        rows: slice,
        site: tuple[str, int] | None,
    ) -> Tensor:
        model, batch = passes.model, passes.batch
        kind, layer = site or ("input", 0)
        reads_own_heads = kind == "heads" and not model.graph.parallel
        first_attention = layer if kind == "input" else layer + 1
        first_mlp = layer if kind == "input" or reads_own_heads else layer + 1
        sums = GradientSums(model, first_attention=first_attention, first_mlp=first_mlp)
        for node in nodes:
            if kind == "input":
                trace = passes.between(node.alpha)
            else:
                trace = self._from_site(passes, kind, layer, node.alpha)
            sums.add(trace, batch.positions, node.weight)
            trace.release()
        apart, neurons = passes.settings.apart, passes.settings.level == "neuron"
        return sums.contract(differences, batch.positions, rows=rows, per_example=apart, neurons=neurons)

    @staticmethod
    def _from_site(passes: Passes, kind: str, layer: int, alpha: float) -> Trace:
        """The run in which one group of block `layer` is at a~ + alpha (a - a~)."""
        model, block = passes.model, passes.model.blocks[layer]
        clean = (passes.clean.z if kind == "heads" else passes.clean.mlp)[layer]
        ablated = (passes.baseline.z if kind == "heads" else passes.baseline.mlp)[layer]
        ablated = ablated.to(clean.dtype).expand_as(clean)
        leaf = (ablated + alpha * (clean - ablated)).requires_grad_()
        with torch.enable_grad(), model.tracing(sources=False, gradients=True) as trace:
            if kind == "heads" and block.branch_norm is not None:
                # What the heads add to the stream moves, not what the norm behind them reads.
                assert block.branch_norm.module is not None
                weight = block.out_weight().flatten(0, 1)
                added = ((leaf - passes.clean.z[layer]).to(weight.dtype) @ weight).to(leaf.dtype)
                handle = block.branch_norm.module.register_forward_hook(
                    lambda module, args, output: output.detach() + added.to(output.device)
                )
            elif kind == "heads":
                handle = block.out.register_forward_pre_hook(lambda module, args: (leaf, *args[1:]))
            else:
                handle = block.mlp_out.register_forward_hook(
                    # A copy: some blocks change in place what their MLP gave.
                    lambda module, args, output: leaf.to(output.device, copy=True)
                )
            try:
                hidden = model.resume(passes.clean.block_in[layer], passes.clean, layer=layer)
                passes._finish(trace, hidden, leaves=[leaf])
            finally:
                handle.remove()
        return trace


for _method in (EapIgInputs(), Eap(), EapIgActivations(), CleanCorrupted()):
    METHODS.add(_method.key, _method)

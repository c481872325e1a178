"""Which missing edges would repair a pair, and which kept ones hold it up."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.circuits import Circuit
from assay.core.errors import InputError, NonFiniteError, check_least
from assay.core.record import Record, same
from assay.execution import Ablation, get_ablation
from assay.execution.batches import free_memory
from assay.execution.forward import check_circuit
from assay.execution.soft import SoftRunner
from assay.graph import Graph
from assay.models import Model
from assay.objectives import OBJECTIVES
from assay.tasks import Batch, ImageTask, PairTask, Task


PAIRS_PER_PASS = 32  # on a CPU: beyond this, passes get no faster
STEPS = 8  # nodes of the integral
LISTED = 20  # edges of each kind that the document lists

PairLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class ExplainedEdge(Record):
    """One edge of an explanation.

    Attributes:
        source, target: Names of its ends.
        score: Nats (or the unit of the divergence) that the edge takes away, mean over pairs.
        share: The score as a share of what all edges of its kind share out; NaN where that is 0.
        kept: Whether the circuit keeps the edge.
    """

    source: str
    target: str
    score: float
    share: float
    kept: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class PathIntegral(Record):
    """Scores of some edges along a straight path of masks.

    Attributes:
        graph: Of the model.
        mask: The edges, cut or kept ones, that change along the path.
        values: `[n_sources, n_targets]`: how much of the divergence each edge takes away, mean over pairs;
            0 for edges that do not change along the path.
        total: Sum of the scores.
        difference: The divergence that they share out: at the poorer end of the path minus at the richer.
        kept: Whether they are edges of the circuit.
    """

    record_layout = {
        **same("difference", "total", "completeness_gap"),
        "top": "_listed",
        **same("by_source", "by_target", "by_layer"),
    }

    graph: Graph
    mask: Bool[Tensor, "n_sources n_targets"]
    values: Float[Tensor, "n_sources n_targets"]
    total: float
    difference: float
    kept: bool

    @property
    def completeness_gap(self) -> float:
        """|sum of the scores - difference| / |difference|: the error of the quadrature. NaN for 0 / 0."""
        if self.difference == 0:
            return float("nan") if self.total == 0 else float("inf")
        return abs(self.total - self.difference) / abs(self.difference)

    def top(self, k: int = 10) -> list[ExplainedEdge]:
        """The k edges of the largest score, all if there are fewer; ties by edge index."""
        check_least(1, k=k)
        flat = self.values.double().masked_fill(~self.mask, -torch.inf).flatten()
        order = torch.sort(flat, descending=True, stable=True).indices[: min(k, int(self.mask.sum()))]
        return [
            ExplainedEdge(
                source=self.graph.sources[index // self.graph.n_targets],
                target=self.graph.targets[index % self.graph.n_targets],
                score=float(flat[index]),
                share=float(flat[index]) / self.difference if self.difference else float("nan"),
                kept=self.kept,
            )
            for index in order.tolist()
        ]

    def by_source(self) -> dict[str, float]:
        """Sum of the scores of the edges out of each source, largest first."""
        return _ranked(self.graph.sources, self.values.sum(1))

    def by_target(self) -> dict[str, float]:
        """Sum of the scores of the edges into each target, largest first."""
        return _ranked(self.graph.targets, self.values.sum(0))

    def by_layer(self) -> dict[str, float]:
        """Sum of the scores of the edges into each block, in forward order; `logits` last."""
        into, layers = self.values.double().sum(0), self.graph.target_layer
        names = [f"block {layer}" for layer in range(self.graph.n_layers)] + ["logits"]
        return {name: float(into[layers == layer].sum()) for layer, name in enumerate(names, start=1)}

    def _listed(self) -> list[ExplainedEdge]:
        return self.top(LISTED)


def _ranked(names: tuple[str, ...], sums: Tensor) -> dict[str, float]:
    order = np.argsort(-sums.double().numpy(), kind="stable")
    return {names[index]: float(sums[index]) for index in order.tolist()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation(Record):
    """What a circuit lacks on some pairs, and what it stands on. Made by `explain`.

    Attributes:
        circuit: The circuit.
        missing: Scores of the cut edges, along the path from the circuit to the whole model; they share out
            the divergence of the circuit.
        kept: Scores of the kept edges, along the path from the circuit to nothing; they share out what the
            empty circuit's divergence has more. None if not asked for.
        n_pairs: Pairs averaged over.
        divergence: Mean divergence of the circuit.
        empty: Mean divergence of the empty circuit; None without `kept`.
        key: Name of the divergence.
        steps: Nodes of the midpoint rule.
    """

    record_kind = "explanation"
    record_layout = {
        "circuit": same("hash", "n_edges", of="circuit"),
        "n_pairs": "n_pairs",
        "divergence": "key",
        "steps": "steps",
        "mean": "divergence",
        "empty_mean": "empty",
        **same("missing", "kept"),
    }

    circuit: Circuit
    missing: PathIntegral
    kept: PathIntegral | None
    n_pairs: int
    divergence: float
    empty: float | None
    key: str
    steps: int


def explain(
    circuit: Circuit,
    model: Model,
    clean: Int[Tensor, "pairs pos"] | Float[Tensor, "pairs 3 h w"],
    corrupted: Int[Tensor, "pairs pos"] | Float[Tensor, "pairs 3 h w"],
    *,
    positions: Int[Tensor, " pairs"] | None = None,
    ablation: str | Ablation = "resample",
    divergence: str | PairLoss = "kl",
    kept: bool = True,
    steps: int = STEPS,
    batch_size: int | None = None,
) -> Explanation:
    """Share out the divergence of a circuit on some pairs among its missing edges.

    score_e = - integral over t in [0, 1] of dK / dw_e, midpoint rule, along w(t) = C + t (1 - C): from the
    circuit to the whole model, where K = 0. The scores of the cut edges sum to K(C) up to the error of the
    rule, which is reported. Along C -> empty the same formula shares out K(empty) - K(C) among the kept
    edges. A positive score always means: with this edge the divergence is smaller.

    Args:
        circuit: The circuit.
        model: The model.
        clean: Token ids of the clean side of each pair; short prompts are padded on the right. Or images.
        corrupted: Token ids or images of the corrupted side, same shape. Not read by an ablation without a
            second input.
        positions: Read position of each prompt; default: the last.
        ablation: What cut edges carry; means are over the clean inputs, unless they were measured elsewhere.
        divergence: `kl` (default), `js`, or a differentiable callable of the model's and the circuit's
            logits `[pairs, d_vocab]` to `[pairs]`, 0 where they agree.
        kept: Also score the kept edges.
        steps: Nodes of the midpoint rule, >= 1.
        batch_size: Pairs per pass; default: by free memory. Results do not depend on it.

    Raises:
        InputError: For steps or a batch size out of range, an unknown divergence, or a circuit at spans of
            positions.
        NonFiniteError: If a divergence is NaN or infinite; the pair is named.
        GraphMismatchError: If the circuit belongs to another graph.

    Notes:
        Cost per pair: `steps` forward and backward passes with a stream per target, twice that with `kept`.
        A full circuit lacks nothing: all scores are 0 and the gap is NaN.

    References:
        Sundararajan et al. 2017, arXiv:1703.01365, for the path; uit de Bos and Garriga-Alonso 2024,
        arXiv:2407.15166, for the pairs.
    """
    check_circuit(model, circuit)
    check_least(1, steps=steps, batch_size=1 if batch_size is None else batch_size)
    key, loss = _pair_loss(divergence)
    if circuit.spans is not None or circuit.partial:
        raise InputError(
            "an explanation shares out the divergence among edges everywhere, but the circuit keeps its "
            "edges at spans of positions, or neurons; give circuit.anywhere(), or a circuit of edges or nodes"
        )
    task = model.bind(_task(model, clean, corrupted, positions))
    runner, carried, n = SoftRunner(model), get_ablation(ablation), len(clean)
    usual = batch_size or (PAIRS_PER_PASS if model.device.type == "cpu" else 1024)
    size = max(1, min(usual, n, free_memory(model.device) // 2 // runner.bytes_per_pair(task.length)))
    baseline = carried.prepare(model, task, batch_size=size, seed=0)
    start, full = (mask.to(model.device, runner.dtype) for mask in (circuit.mask, model.graph.valid))
    ends = {"missing": full} | ({"kept": 0 * full} if kept else {})
    scores = {name: torch.zeros_like(full, dtype=torch.float64) for name in ends}
    means = dict.fromkeys(("circuit", *ends), 0.0)
    for rows in torch.arange(n).split(size):
        batches: Iterator[Batch] = task.subset(rows).batches(len(rows))
        pairs = runner.prepare_batch(next(batches).to(model.device), baseline)

        def mean(mask: Tensor, pairs: Any = pairs, rows: Tensor = rows) -> Tensor:
            """The part of these pairs in the mean divergence of all."""
            values = loss(pairs.model_logits.double(), runner.logits(pairs, mask).double())
            bad = ~torch.isfinite(values.detach())
            if bool(bad.any()):
                raise NonFiniteError(
                    f"the divergence of pair {int(rows[int(bad.nonzero()[0])])} is NaN or infinite; check "
                    "the model's weights and dtype"
                )
            return values.sum() / n

        with torch.no_grad():
            for name, mask in {"circuit": start, **ends}.items():
                means[name] += float(mean(mask))
        for name, end in ends.items():
            for step in range(steps):
                at = (start + (step + 0.5) / steps * (end - start)).requires_grad_()
                (gradient,) = torch.autograd.grad(mean(at), at)
                scores[name] -= gradient.double() * (end - start).abs() / steps

    def integral(name: str, difference: float) -> PathIntegral:
        values, mask = scores[name].cpu(), circuit.mask
        return PathIntegral(
            graph=model.graph,
            mask=mask if name == "kept" else model.graph.valid & ~mask,
            values=values.to(runner.dtype),
            total=float(values.sum()),
            difference=difference,
            kept=name == "kept",
        )

    return Explanation(
        circuit=circuit,
        missing=integral("missing", means["circuit"] - means["missing"]),
        kept=integral("kept", means["kept"] - means["circuit"]) if kept else None,
        n_pairs=n,
        divergence=means["circuit"],
        empty=means.get("kept"),
        key=key,
        steps=steps,
    )


def _task(model: Model, clean: Tensor, corrupted: Tensor, positions: Tensor | None) -> Task:
    if model.vision is not None:
        return ImageTask(images=clean, corrupted=corrupted)
    read = torch.full((len(clean),), clean.shape[1] - 1) if positions is None else positions
    no_answers = torch.zeros((len(read), 1), dtype=torch.long)  # which the run does not read
    return PairTask(clean=clean, corrupted=corrupted, answers=no_answers, positions=read, lengths=read + 1)


def _pair_loss(divergence: str | PairLoss) -> tuple[str, PairLoss]:
    """Key and differentiable form of a divergence between the model's and the circuit's logits."""
    if not isinstance(divergence, str):
        return getattr(divergence, "__name__", type(divergence).__name__), divergence
    if divergence not in OBJECTIVES or not OBJECTIVES[divergence].stationary:
        raise InputError(
            f"{divergence!r} is not a divergence from the model, so it cannot be attributed to edges; "
            "choose 'kl' or 'js', or give a callable of both logits"
        )
    objective = OBJECTIVES[divergence]
    # Such an objective reads nothing of a batch.
    unread: Any = SimpleNamespace(answers=torch.zeros(0, 1, dtype=torch.long), wrong=None)
    return objective.key, lambda full, run: objective(run, full, unread)

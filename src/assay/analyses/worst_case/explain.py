"""Which missing edges would repair a pair, and which kept ones hold it up."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.circuits import Circuit, EdgeScores
from assay.core.errors import InputError, NonFiniteError, ShapeError
from assay.core.record import Record, same
from assay.discovery.edges.masked_runs import PairLoss
from assay.execution import Ablation, get_ablation
from assay.execution.batches import free_memory
from assay.execution.forward import check_circuit
from assay.execution.soft import SoftPairs, SoftRunner
from assay.models import Model
from assay.objectives import OBJECTIVES
from assay.tasks import Batch, ImageTask, PairTask, Task


# Pairs per pass on a CPU: beyond this, passes get no faster.
PAIRS_PER_PASS = 32
STEPS = 8  # nodes of the integral


@dataclass(frozen=True, kw_only=True)
class PathIntegral:
    """Scores of some edges along a straight path of masks.

    Attributes:
        values: `[n_sources, n_targets]`: how much of the divergence each edge takes away, mean over pairs;
            0 for edges that do not change along the path.
        total: Sum of the scores.
        difference: The divergence that they share out: at the poorer end of the path minus at the richer.
    """

    values: Float[Tensor, "n_sources n_targets"]
    total: float
    difference: float

    @property
    def completeness_gap(self) -> float:
        """|sum of the scores - difference| / |difference|: the error of the quadrature. NaN for 0 / 0."""
        if self.difference == 0:
            return float("nan") if self.total == 0 else float("inf")
        return abs(self.total - self.difference) / abs(self.difference)


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


@dataclass(frozen=True, kw_only=True)
class ExplainedPart(Record):
    """What a report shows of the cut edges, or of the kept ones.

    Attributes:
        difference, total, completeness_gap: As in `PathIntegral`.
        top: The edges of the largest score.
        by_source, by_target, by_layer: As the methods of `Explanation`.
    """

    difference: float
    total: float
    completeness_gap: float
    top: list[ExplainedEdge]
    by_source: Mapping[str, float]
    by_target: Mapping[str, float]
    by_layer: Mapping[str, float]


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
        per_pair: Scores of the cut edges of each pair `[n_pairs, n_sources, n_targets]`, if asked for.
        listed: Edges of each kind that the document lists, strongest first.
    """

    record_kind = "explanation"
    record_layout = {
        "circuit": same("hash", "n_edges", of="circuit"),
        "n_pairs": "n_pairs",
        "divergence": "key",
        "steps": "steps",
        "mean": "divergence",
        "empty_mean": "empty",
        "missing": "missing_edges",
        "kept": "kept_edges",
    }

    circuit: Circuit
    missing: PathIntegral
    kept: PathIntegral | None
    n_pairs: int
    divergence: float
    empty: float | None
    key: str
    steps: int
    per_pair: Float[Tensor, "n_pairs n_sources n_targets"] | None = None
    listed: int = 20

    def scores(self) -> EdgeScores:
        """Both kinds in one table: what each edge takes (or would take) away from the divergence."""
        values = self.missing.values if self.kept is None else self.missing.values + self.kept.values
        return EdgeScores(
            self.circuit.graph,
            values,
            provenance={"method": "explain", "circuit": self.circuit.hash, "divergence": self.key},
            details={"completeness_gap": self.missing.completeness_gap, "steps": self.steps},
        )

    def top(self, k: int = 10, *, kept: bool = False) -> list[ExplainedEdge]:
        """The k cut (or kept) edges of the largest score; ties by edge index.

        Args:
            k: How many, at least 1; all if there are fewer.
            kept: Edges of the circuit instead of missing ones.
        """
        if k < 1:
            raise InputError(f"k is {k}; give at least one edge")
        part, mask = self._part(kept=kept)
        flat = part.values.double().masked_fill(~mask, -torch.inf).flatten()
        order = torch.sort(flat, descending=True, stable=True).indices[: min(k, int(mask.sum()))]
        graph, edges = self.circuit.graph, []
        for row, column in (divmod(index, graph.n_targets) for index in order.tolist()):
            score = float(part.values[row, column])
            share = score / part.difference if part.difference else float("nan")
            edges.append(
                ExplainedEdge(
                    source=graph.sources[row],
                    target=graph.targets[column],
                    score=score,
                    share=share,
                    kept=kept,
                )
            )
        return edges

    def by_source(self, *, kept: bool = False) -> dict[str, float]:
        """Sum of the scores of the edges out of each source, largest first."""
        part, _ = self._part(kept=kept)
        return _ranked(self.circuit.graph.sources, part.values.sum(1))

    def by_target(self, *, kept: bool = False) -> dict[str, float]:
        """Sum of the scores of the edges into each target, largest first."""
        part, _ = self._part(kept=kept)
        return _ranked(self.circuit.graph.targets, part.values.sum(0))

    def by_layer(self, *, kept: bool = False) -> dict[str, float]:
        """Sum of the scores of the edges into each block, in forward order; `logits` last."""
        part, _ = self._part(kept=kept)
        graph = self.circuit.graph
        names = [f"block {layer}" for layer in range(graph.n_layers)] + ["logits"]
        into = part.values.double().sum(0)
        return {
            name: float(into[graph.target_layer == layer].sum()) for layer, name in enumerate(names, start=1)
        }

    def _part(self, *, kept: bool) -> tuple[PathIntegral, Bool[Tensor, "n_sources n_targets"]]:
        if not kept:
            return self.missing, self.circuit.graph.valid & ~self.circuit.mask
        if self.kept is None:
            raise InputError("the kept edges were not scored; call explain(..., kept=True)")
        return self.kept, self.circuit.mask

    @property
    def missing_edges(self) -> ExplainedPart:
        """The cut edges, the strongest of them one by one."""
        return self._listed(kept=False)

    @property
    def kept_edges(self) -> ExplainedPart | None:
        """The kept edges likewise; None where they were not scored."""
        return None if self.kept is None else self._listed(kept=True)

    def _listed(self, *, kept: bool) -> ExplainedPart:
        part, _ = self._part(kept=kept)
        return ExplainedPart(
            difference=part.difference,
            total=part.total,
            completeness_gap=part.completeness_gap,
            top=self.top(self.listed, kept=kept),
            by_source=self.by_source(kept=kept),
            by_target=self.by_target(kept=kept),
            by_layer=self.by_layer(kept=kept),
        )


def explain(
    circuit: Circuit,
    model: Model,
    clean: Int[Tensor, "pairs pos"] | Float[Tensor, "pairs 3 h w"],
    corrupted: Int[Tensor, "pairs pos"] | Float[Tensor, "pairs 3 h w"],
    *,
    positions: Int[Tensor, " pairs"] | None = None,
    ablation: str | Ablation = "resample",
    weights: Float[Tensor, " pairs"] | None = None,
    divergence: str | PairLoss = "kl",
    kept: bool = True,
    per_pair: bool = False,
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
        positions: Read position of each prompt; default: the last. `[pairs, reads]` where there are several,
            -1 where a pair has fewer: its divergence is then the mean over them.
        ablation: What cut edges carry; means are over the clean inputs, unless they were measured elsewhere.
        weights: Weight of each pair in the mean, >= 0 and not all 0; default: equal.
        divergence: `kl` (default), `js`, or a differentiable callable of the model's and the circuit's
            logits `[pairs, d_vocab]` to `[pairs]`, 0 where they agree.
        kept: Also score the kept edges.
        per_pair: Also keep the scores of the cut edges pair by pair.
        steps: Nodes of the midpoint rule, >= 1.
        batch_size: Pairs per pass; default: by free memory. Results do not depend on it.

    Raises:
        InputError: For weights, steps or a batch size out of range, an unknown divergence, or a circuit at
            spans of positions.
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
    key, loss = pair_loss(divergence)
    if steps < 1:
        raise InputError(f"steps is {steps}; the midpoint rule needs at least 1")
    shares = _shares(weights, len(clean))
    if circuit.spans is not None:
        raise InputError(
            "an explanation shares out the divergence among edges everywhere, but the circuit keeps its "
            "edges at spans of positions; give circuit.anywhere()"
        )
    runner = SoftRunner(model)
    length = clean.shape[1] if model.vision is None else model.n_tokens
    size = _batch_size(runner, length, len(clean), batch_size)
    prepared = _prepared(runner, clean, corrupted, positions, get_ablation(ablation), size)
    full = model.graph.valid.to(model.device, runner.dtype)
    start = circuit.mask.to(model.device, runner.dtype)
    ends = {"missing": full} | ({"kept": 0 * full} if kept else {})
    scores = {name: torch.zeros_like(full, dtype=torch.float64) for name in ends}
    means = dict.fromkeys(("circuit", *ends), 0.0)
    apart = []
    for rows in torch.arange(len(clean)).split(size):
        pairs = prepared(rows)
        share = shares[rows].to(model.device)

        def values(mask: Tensor, pairs: Any = pairs, rows: Tensor = rows) -> Tensor:
            result = loss(pairs.model_logits.double(), runner.logits(pairs, mask).double())
            _check_finite(result, rows)
            return result

        with torch.no_grad():
            for name, mask in {"circuit": start, **ends}.items():
                means[name] += float(values(mask) @ share)
        for name, end in ends.items():
            n_apart = len(rows) if per_pair and name == "missing" else None
            each = _integral(values, start, end, steps, n_apart, share)
            if n_apart is not None:
                apart.append(each.cpu())
                each = torch.einsum("p,pst->st", share.to(each.dtype), each)
            scores[name] += each.double() * (end - start).abs()
    return Explanation(
        circuit=circuit,
        missing=_path(scores["missing"], means["circuit"] - means["missing"], runner.dtype),
        kept=_path(scores["kept"], means["kept"] - means["circuit"], runner.dtype) if kept else None,
        n_pairs=len(clean),
        divergence=means["circuit"],
        empty=means.get("kept"),
        key=key,
        steps=steps,
        per_pair=torch.cat(apart) * (full - start).cpu() if per_pair else None,
    )


def _prepared(
    runner: SoftRunner,
    clean: Tensor,
    corrupted: Tensor,
    positions: Tensor | None,
    ablation: Ablation,
    size: int,
) -> Callable[[Tensor], SoftPairs]:
    """Some rows of the inputs, ready to be run under masks."""
    model = runner.model
    if model.vision is None and ablation.paired:
        return lambda rows: runner.prepare(
            clean[rows], corrupted[rows], None if positions is None else positions[rows]
        )
    task: Task
    if model.vision is None:
        read = torch.full((len(clean),), clean.shape[1] - 1) if positions is None else positions
        lengths = read.reshape(len(read), -1).amax(1) + 1
        no_answers = torch.zeros((len(read), 1), dtype=torch.long)  # which the run does not read
        task = PairTask(clean=clean, corrupted=clean, answers=no_answers, positions=read, lengths=lengths)
    else:
        task = ImageTask(images=clean, corrupted=corrupted)
    task = model.bind(task)
    values = ablation.prepare(model, task, batch_size=size, seed=0)

    def prepare(rows: Tensor) -> SoftPairs:
        batches: Iterator[Batch] = task.subset(rows).batches(len(rows))
        return runner.prepare_batch(next(batches).to(model.device), values)

    return prepare


def pair_loss(divergence: str | PairLoss) -> tuple[str, PairLoss]:
    """Key and differentiable form of a divergence between the model's and the circuit's logits."""
    if not isinstance(divergence, str):
        return getattr(divergence, "__name__", type(divergence).__name__), divergence
    if divergence not in OBJECTIVES or not OBJECTIVES[divergence].stationary:
        raise InputError(
            f"{divergence!r} is not a divergence from the model, so it cannot be attributed to edges; "
            "choose 'kl' or 'js', or give a callable of both logits"
        )
    objective = OBJECTIVES[divergence]
    return objective.key, lambda full, run: objective(
        run, full, _NoAnswers(answers=full.new_zeros(0, 1).long())
    )


@dataclass(frozen=True, kw_only=True)
class _NoAnswers:
    """What a divergence is given in place of a batch: it reads none of it."""

    answers: Int[Tensor, "batch n_answers"]
    wrong: Int[Tensor, "batch n_wrong"] | None = None


def _integral(
    values: Callable[[Tensor], Tensor], start: Tensor, end: Tensor, steps: int, n: int | None, share: Tensor
) -> Tensor:
    """Minus the mean gradient along the path; of each pair for itself where `n` pairs are given."""
    total = torch.zeros_like(start if n is None else start.expand(n, *start.shape))
    for step in range(steps):
        mask = start + (step + 0.5) / steps * (end - start)
        mask = (mask if n is None else mask.expand(n, *mask.shape)).clone().requires_grad_()
        value = values(mask)
        (gradient,) = torch.autograd.grad(value.sum() if n is not None else value @ share, mask)
        total -= gradient / steps
    return total


def _path(values: Tensor, difference: float, dtype: torch.dtype) -> PathIntegral:
    values = values.cpu()
    return PathIntegral(values=values.to(dtype), total=float(values.sum()), difference=difference)


def _shares(weights: Tensor | None, n: int) -> Float[Tensor, " pairs"]:
    if weights is None:
        return torch.full((n,), 1 / n, dtype=torch.float64)
    if weights.shape != (n,):
        raise ShapeError(f"weights has shape {tuple(weights.shape)}; expected ({n},), one per pair")
    weights = weights.double()
    total = float(weights.sum())
    if not (bool((weights >= 0).all()) and 0 < total < float("inf")):
        raise InputError("weights must be finite, >= 0 and not all 0")
    return weights / total


def _batch_size(runner: SoftRunner, length: int, n: int, asked: int | None) -> int:
    if asked is not None and asked < 1:
        raise InputError(f"batch_size is {asked}; give at least 1, or None to choose by free memory")
    fits = max(1, free_memory(runner.model.device) // 2 // runner.bytes_per_pair(length))
    wanted = asked or (PAIRS_PER_PASS if runner.model.device.type == "cpu" else 1024)
    return min(fits, wanted, n)


def _check_finite(values: Tensor, rows: Tensor) -> None:
    bad = ~torch.isfinite(values.detach())
    if bool(bad.any()):
        row = int(rows[int(bad.nonzero()[0])])
        raise NonFiniteError(
            f"the divergence of pair {row} is NaN or infinite; check the model's weights and dtype"
        )


def _ranked(names: tuple[str, ...], sums: Tensor) -> dict[str, float]:
    order = np.argsort(-sums.double().numpy(), kind="stable")
    return {names[index]: float(sums[index]) for index in order.tolist()}

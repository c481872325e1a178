"""Better circuits of the same size, with the tail in view: learned masks and swaps.

Three draws that share no stream: discovery pairs train and propose, validation pairs choose, certificate
pairs judge, once, what was chosen.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from assay.analyses.worst_case.evaluation import PairEvaluator
from assay.analyses.worst_case.explain import explain, pair_loss
from assay.analyses.worst_case.inputs import PairSample
from assay.analyses.worst_case.sampling import sample_pairs
from assay.circuits import Circuit, EdgeScores
from assay.circuits.circuit import check_n_edges
from assay.circuits.given import takes_text
from assay.core.errors import GraphMismatchError, InputError, unknown_name
from assay.core.random import stream
from assay.core.record import library_version
from assay.discovery.edges.masks import LearnedMask, MaskSettings, PairLoss, learn_mask
from assay.execution.forward import check_circuit
from assay.execution.soft import SoftPairs, SoftRunner
from assay.models import Model
from assay.stats import Certificate, Summary, certificate, summarize
from assay.tasks import PairTask


Method = Literal["mask", "swap"]
METHODS = ("mask", "swap")
PURPOSES = ("discovery", "validation", "certificate")
PROTOCOLS = ("iid", "matched", "file")

TAIL_FROM = 2 / 3  # share of the steps made before the tail counts
WEIGHT_OF_WORST = 0.7  # of the worst pairs against ordinary ones where edges are swapped (section 12.2)
EXPLAINED = 64  # pairs behind the scores of a swap, half of them of the worst
CHECKS = 4  # times that a training's circuit is validated, all of them once the tail counts


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A circuit that was validated.

    Attributes:
        circuit: The circuit.
        origin: `start`, `step 300` or `round 2`.
        mean: Mean divergence of the validation pairs.
        tail_mean: Mean of the worst share 1 - alpha of them.
        bound: Upper bound on the chosen percentile; the largest value where there are too few pairs for one.
    """

    circuit: Circuit
    origin: str
    mean: float
    tail_mean: float
    bound: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; the circuit by its hash and size."""
        facts = {key: value for key, value in vars(self).items() if key != "circuit"}
        return {**facts, "circuit": self.circuit.hash, "n_edges": self.circuit.n_edges}


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """A circuit on the certificate pairs, which no part of the repair has seen.

    Attributes:
        circuit: The circuit.
        divergence: Of each pair.
        independent: Whether the pairs are independent draws new to the circuit: fresh prompts of a grammar,
            or rows that were declared so.
    """

    circuit: Circuit
    divergence: Float64[np.ndarray, " n_pairs"]
    independent: bool = True

    @property
    def summary(self) -> Summary:
        """Mean, percentiles and maximum of the sample."""
        return summarize(self.divergence).resolved(len(self.divergence))

    def certificate(self, percentile: float, *, delta: float = 0.95) -> Certificate:
        """Upper bound on a percentile of the divergence over the distribution of the pairs.

        Raises:
            InputError: If the pairs were not declared independent.
        """
        if not self.independent:
            raise InputError(
                "these pairs are rows of the task that nobody has declared to be independent draws, new to "
                "the start; repair(..., independent=True) does"
            )
        return certificate(self.divergence, percentile, delta=delta)


@dataclass(frozen=True, kw_only=True, eq=False)
class Repair:
    """What `repair` found.

    Attributes:
        circuit: The chosen circuit; the start where nothing better was found.
        before: The start on the certificate pairs.
        after: The chosen circuit on the same pairs.
        empty: Divergence of the empty circuit on them.
        candidates: Every circuit that was validated, the start first.
        training: The learned mask; None for swaps.
        method: `mask` or `swap`.
        percentile: The percentile that candidates were chosen by.
        samples: What was drawn for each purpose.
        cost: Pairs run forward and backward with a stream per target (`soft_forward`, `soft_backward`), plain
            passes (`model`), pairs run by circuits (`circuit`), and `seconds`.
    """

    circuit: Circuit
    before: Judged
    after: Judged
    empty: Float64[np.ndarray, " n_pairs"]
    candidates: list[Candidate]
    training: LearnedMask | None
    method: str
    percentile: float
    samples: Mapping[str, Mapping[str, Any]]
    cost: Mapping[str, int | float]

    @property
    def improved(self) -> bool:
        """Whether another circuit than the start was chosen."""
        return self.circuit != self.before.circuit

    def to_dict(self) -> dict[str, Any]:
        """Everything but the tensors, plain JSON."""
        judged = {}
        for name, part in (("before", self.before), ("after", self.after)):
            judged[name] = {
                "circuit": {"hash": part.circuit.hash, "n_edges": part.circuit.n_edges},
                "summary": part.summary.to_dict(),
                "certificates": [
                    part.certificate(p).to_dict() for p in (0.95, 0.99, 0.999) if part.independent
                ],
            }
        history = [] if self.training is None else [dict(vars(step)) for step in self.training.history]
        return {
            "kind": "repair",
            "method": self.method,
            "percentile": self.percentile,
            "improved": self.improved,
            **judged,
            "empty": summarize(self.empty).resolved(len(self.empty)).to_dict(),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "history": history,
            "samples": {name: dict(sample) for name, sample in self.samples.items()},
            "cost": dict(self.cost),
            "provenance": dict(self.circuit.provenance),
        }


@takes_text()
def repair(
    start: Circuit | EdgeScores,
    model: Model,
    task: PairTask,
    *,
    n_edges: int | None = None,
    method: Method = "mask",
    tail: float = 0.5,
    alpha: float = 0.95,
    percentile: float = 0.99,
    protocol: str | None = None,
    n_discovery: int = 4000,
    n_validation: int = 4000,
    n_certificate: int = 10_000,
    divergence: str | PairLoss = "kl",
    settings: MaskSettings | None = None,
    batch_size: int = 32,
    rounds: int = 10,
    independent: bool = False,
    seed: int = 0,
) -> Repair:
    """Look for a circuit of the same size whose divergence has a lighter tail.

    `mask` trains a gate per edge (see `learn_mask`): first on the mean divergence, in the last third of the
    steps on (1 - tail) mean + tail * mean of the worst share 1 - alpha. Half of a batch is then drawn from
    the worst pairs of the present circuit, found by running it on discovery pairs. `swap` keeps to circuits:
    each round scores all edges on the worst and as many ordinary pairs (`explain`, weights .7 and .3), adds
    the best missing ones, removes as many of the least useful, and keeps the result if the mean of the worst
    share of validation pairs falls; the number swapped begins at a twelfth of the edges and halves after
    every failure.

    Among all circuits met, the one with the smallest bound on the percentile of validation pairs is chosen,
    out of those whose mean there is not above that of the start.

    Args:
        start: A circuit, or scores whose strongest edges are the circuit to beat.
        model: The model.
        task: Its grammar draws the pairs; without one its rows are divided into three parts.
        n_edges: Most edges of the result; default: those of the start. Needed with scores.
        method: `mask` or `swap`.
        tail: Weight of the tail, 0 to 1; 0 looks at the mean alone (`mask`).
        alpha: Pairs beyond this quantile are the tail, in (0, 1).
        percentile: Chooses among the candidates by its certified bound, in (0, 1).
        protocol: `iid` (default with a grammar): clean and corrupted inputs drawn independently; `matched`:
            each clean input with its own corruption; `file` (without a grammar): the task's own pairs.
        n_discovery: Inputs of each side to train or propose on.
        n_validation: Pairs to choose by.
        n_certificate: Pairs to judge by.
        divergence: `kl` (default), `js`, or a differentiable callable of the model's and the circuit's
            logits.
        settings: Steps, rate and gates of `mask`.
        batch_size: Pairs per step of `mask`.
        rounds: Rounds of `swap`, at most.
        independent: Whether a task's own rows are independent draws that the start was not found on; without
            that word their certificates are withheld.
        seed: Root seed; the streams are `repair-discovery:`, `repair-validation:` and `repair-certificate:`
            followed by those of the pairs.

    Returns:
        The circuit, of `n_edges` edges or fewer, all on a path from `input` to `logits`; the start and the
        result on fresh pairs; and what was tried and spent.

    Raises:
        InputError: If an argument is out of range, or a task without a grammar has fewer than 6 pairs.
        UnknownNameError: For an unknown method or protocol.
        GraphMismatchError: If the start belongs to another graph.

    References:
        Rockafellar and Uryasev 2000, for the mean of the worst share; Louizos et al. 2018, arXiv:1712.01312.
    """
    began = time.perf_counter()
    if method not in METHODS:
        raise unknown_name("repair method", method, METHODS)
    for name, share, ends in (
        ("tail", tail, True),
        ("alpha", alpha, False),
        ("percentile", percentile, False),
    ):
        if not (0 < share < 1 or (ends and share in (0, 1))):
            raise InputError(f"{name} is {share}; it must lie {'in [0, 1]' if ends else 'between 0 and 1'}")
    for name, count in (("batch_size", batch_size), ("rounds", rounds)):
        if count < 1:
            raise InputError(f"{name} is {count}; give at least 1")
    first, scores = _starting(start, model, n_edges)
    limit = first.n_edges if n_edges is None else n_edges
    counts = dict(zip(PURPOSES, (n_discovery, n_validation, n_certificate), strict=True))
    samples = disjoint_samples(task, protocol, counts, seed)
    key, loss = pair_loss(divergence)
    search = _Search(
        model=model,
        limit=limit,
        alpha=alpha,
        percentile=percentile,
        divergence="kl" if divergence == "kl" else loss,
        loss=loss,
        discovery=samples["discovery"],
        validation=samples["validation"],
        seed=seed,
    )
    search.validate(first, "start")
    training = None
    if method == "mask":
        chosen = settings or MaskSettings()
        training = search.train(first, scores, tail, chosen, batch_size)
    else:
        search.swap(first, rounds)
    best = search.best()
    circuit = best.circuit
    if best.origin != "start":
        provenance = {
            "library": library_version(),
            "model": model.describe(),
            "task": task.describe(),
            "graph": model.graph.fingerprint,
            "method": f"repair-{method}",
            "origin": best.origin,
            "parents": [first.hash],
            "divergence": key,
            "ablation": "resample",
            "tail": tail if method == "mask" else WEIGHT_OF_WORST,
            "alpha": alpha,
            "percentile": percentile,
            "seed": seed,
        }
        circuit = replace(circuit, provenance=provenance)
    sample = samples["certificate"]
    before, empty = search.run(first, sample)
    certified = independent or not sample.own_rows
    after = before if circuit == first else search.run(circuit, sample)[0]
    return Repair(
        circuit=circuit,
        before=Judged(circuit=first, divergence=before, independent=certified),
        after=Judged(circuit=circuit, divergence=after, independent=certified),
        empty=empty,
        candidates=search.candidates,
        training=training,
        method=method,
        percentile=percentile,
        samples={name: sample.describe() for name, sample in samples.items()},
        cost={**search.cost, "seconds": time.perf_counter() - began},
    )


def largest_top(scores: EdgeScores, n_edges: int) -> Circuit:
    """The strongest edges whose connected form has at most `n_edges` edges, as many as possible.

    Edges that lie on no path from `input` to `logits` cost nothing and do nothing, so the plain top k of a
    ranking often spends some of its k on them.
    """
    check_n_edges(scores.graph, n_edges)
    low, high = n_edges, scores.graph.n_edges
    # The connected part only grows with k, so bisection finds the last k that fits.
    while low < high:
        middle = (low + high + 1) // 2
        if scores.top(middle).connected(warn=False).n_edges <= n_edges:
            low = middle
        else:
            high = middle - 1
    return scores.top(low).connected(warn=False)


def _starting(
    start: Circuit | EdgeScores, model: Model, n_edges: int | None
) -> tuple[Circuit, EdgeScores | None]:
    if isinstance(start, EdgeScores):
        if n_edges is None:
            raise InputError("scores alone name no size; give n_edges, the number of edges to keep")
        if start.graph.fingerprint != model.graph.fingerprint:
            raise GraphMismatchError(
                f"the scores belong to another model: their graph is {start.graph.describe()}, that of "
                f"{model.id!r} is {model.graph.describe()}"
            )
        return largest_top(start, n_edges), start
    check_circuit(model, start)
    if start.n_edges == 0:
        raise InputError("the circuit to repair has no edges; give n_edges and scores to start from")
    if n_edges is not None and n_edges < start.n_edges:
        raise InputError(
            f"n_edges is {n_edges}, but the circuit to repair has {start.n_edges} edges; give at least that "
            "many, or start from scores"
        )
    if n_edges is not None:
        check_n_edges(model.graph, n_edges)
    return start, None


def disjoint_samples(
    task: PairTask, protocol: str | None, counts: Mapping[str, int], seed: int
) -> dict[str, PairSample]:
    """Pairs for each purpose, out of streams or rows that the others never use."""
    if protocol is None:
        protocol = "file" if task.grammar is None else "iid"
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol of repair", protocol, PROTOCOLS)
    if protocol != "file":
        if task.grammar is None:
            raise InputError(
                f"protocol {protocol!r} draws fresh pairs and this task has no grammar; use protocol='file'"
            )
        return {
            purpose: sample_pairs(task, protocol, n, seed=seed, prefix=f"repair-{purpose}:")
            for purpose, n in counts.items()
        }
    if task.n < 2 * len(PURPOSES):
        raise InputError(
            f"the task has {task.n} pairs of its own; {len(PURPOSES)} disjoint parts need at least "
            f"{2 * len(PURPOSES)}"
        )
    parts = np.array_split(stream(seed, "repair-parts").permutation(task.n), len(PURPOSES))
    return {
        purpose: sample_pairs(task.subset(sorted(part[:n].tolist())), "file")
        for (purpose, n), part in zip(counts.items(), parts, strict=True)
    }


Pairs = Int64[np.ndarray, "n_pairs 2"]


@dataclass(kw_only=True, eq=False)
class _Search:
    """The pairs, the candidates so far, and what was spent."""

    model: Model
    limit: int
    alpha: float
    percentile: float
    divergence: Any
    loss: PairLoss
    discovery: PairSample
    validation: PairSample
    seed: int
    candidates: list[Candidate] = field(default_factory=list)
    cost: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.runner = SoftRunner(self.model)
        self.generator = stream(self.seed, "repair-batches")

    # ---- judging ----------------------------------------------------------------------------------

    def run(
        self, circuit: Circuit, sample: PairSample, pairs: Pairs | None = None
    ) -> tuple[Float64[np.ndarray, " n_pairs"], Float64[np.ndarray, " n_pairs"]]:
        """Divergence of the circuit and of the empty one on pairs of a sample."""
        pairs = sample.pairs if pairs is None else pairs
        assert pairs is not None
        evaluator = PairEvaluator(
            self.model, circuit, sample.clean, sample.corrupted, divergence=self.divergence
        )
        found = evaluator.pairs(pairs[:, 0].copy(), pairs[:, 1].copy())
        self.cost["circuit"] += len(pairs)
        return found.divergence, found.empty

    def validate(self, circuit: Circuit, origin: str) -> Candidate:
        """Run a circuit on the validation pairs and remember it."""
        values, _ = self.run(circuit, self.validation)
        bound = certificate(values, self.percentile).bound
        candidate = Candidate(
            circuit=circuit,
            origin=origin,
            mean=float(values.mean()),
            tail_mean=float(values[self.worst(values)].mean()),
            bound=float(values.max()) if bound is None else bound,
        )
        self.candidates.append(candidate)
        return candidate

    def worst(self, values: Float64[np.ndarray, " n"]) -> Int64[np.ndarray, " k"]:
        """Rows of the worst share 1 - alpha, at least one."""
        count = max(1, round((1 - self.alpha) * len(values)))
        ordered: Int64[np.ndarray, " k"] = np.argsort(-values, kind="stable")[:count]
        return ordered

    def best(self) -> Candidate:
        """Smallest bound among the candidates whose mean is not above the start's; the start is one."""
        fair = [each for each in self.candidates if each.mean <= self.candidates[0].mean]
        return min(fair, key=lambda each: (each.bound, each.mean))

    # ---- drawing ----------------------------------------------------------------------------------

    def draw(self, n: int) -> Pairs:
        """Discovery pairs: inputs of both sides crossed where they are independent."""
        sample = self.discovery
        if sample.protocol == "iid" and len({*sample.clean.positions.tolist()}) == 1:
            return np.stack([self.generator.integers(sample.clean.n, size=n) for _ in range(2)], axis=1)
        assert sample.pairs is not None
        chosen: Pairs = sample.pairs[self.generator.integers(len(sample.pairs), size=n)]
        return chosen

    def prepare(self, pairs: Pairs) -> SoftPairs:
        clean, corrupted = (torch.from_numpy(pairs[:, side].copy()) for side in (0, 1))
        inputs = self.discovery
        self.cost["model"] += 2 * len(pairs)
        return self.runner.prepare(
            inputs.clean.tokens[clean], inputs.corrupted.tokens[corrupted], inputs.clean.positions[clean]
        )

    def hard(self, circuit: Circuit) -> Pairs:
        """The worst share of fresh discovery pairs under a circuit."""
        pairs = self.draw(self.discovery.clean.n)
        values, _ = self.run(circuit, self.discovery, pairs)
        worst: Pairs = pairs[self.worst(values)]
        return worst

    # ---- the two methods --------------------------------------------------------------------------

    def train(
        self,
        first: Circuit,
        scores: EdgeScores | None,
        tail: float,
        settings: MaskSettings,
        batch_size: int,
    ) -> LearnedMask:
        """Learn a mask, first on the mean, then on mean and tail; validate what it has become."""
        steps = settings.steps
        begin = int(TAIL_FROM * steps)
        checks = {begin + (steps - 1 - begin) * check // max(CHECKS - 1, 1) for check in range(CHECKS)}
        worst = self.draw(0)
        n_hard = batch_size // 2 if tail > 0 else 0

        def draw(step: int) -> SoftPairs:
            if len(worst) == 0:
                return self.prepare(self.draw(batch_size))
            chosen = worst[self.generator.integers(len(worst), size=n_hard)]
            return self.prepare(np.concatenate([self.draw(batch_size - n_hard), chosen]))

        def loss(divergences: Tensor, progress: float) -> Tensor:
            self.cost["soft_forward"] += len(divergences)
            self.cost["soft_backward"] += len(divergences)
            if len(worst) == 0:
                return divergences.mean()
            ordinary, hard = divergences.tensor_split([len(divergences) - n_hard])
            return (1 - tail) * ordinary.mean() + tail * hard.mean()

        def watch(step: int, ranking: Callable[[], EdgeScores]) -> None:
            nonlocal worst
            if step in checks:
                circuit = largest_top(ranking(), self.limit)
                self.validate(circuit, f"step {step + 1}")
                if n_hard and step + 1 < steps:
                    worst = self.hard(circuit)

        if scores is None:
            scores = self.explained(first, self.draw(EXPLAINED), None)
        return learn_mask(
            self.runner,
            draw,
            self.limit,
            divergence=self.loss,
            loss=loss,
            start=scores,
            settings=settings,
            watch=watch,
            seed=self.seed,
        )

    def explained(self, circuit: Circuit, pairs: Pairs, weights: Tensor | None) -> EdgeScores:
        clean, corrupted = (torch.from_numpy(pairs[:, side].copy()) for side in (0, 1))
        inputs = self.discovery
        found = explain(
            circuit,
            self.model,
            inputs.clean.tokens[clean],
            inputs.corrupted.tokens[corrupted],
            positions=inputs.clean.positions[clean],
            weights=weights,
            divergence=self.loss,
        )
        self.cost["model"] += 2 * len(pairs)
        self.cost["soft_forward"] += (2 * found.steps + 3) * len(pairs)
        self.cost["soft_backward"] += 2 * found.steps * len(pairs)
        return found.scores()

    def swap(self, first: Circuit, rounds: int) -> None:
        """Exchange edges as long as validation pairs agree that the tail gets lighter."""
        best, count = self.candidates[0], max(1, self.limit // 12)
        for number in range(1, rounds + 1):
            worst = self.hard(best.circuit)
            worst = worst[self.generator.permutation(len(worst))[: EXPLAINED // 2]]
            pairs = np.concatenate([worst, self.draw(len(worst))])
            weights = torch.tensor([WEIGHT_OF_WORST, 1 - WEIGHT_OF_WORST]).repeat_interleave(len(worst))
            scores = self.explained(best.circuit, pairs, weights).values
            proposal = self.validate(exchanged(best.circuit, scores, count, self.limit), f"round {number}")
            if proposal.tail_mean < best.tail_mean:
                best = proposal
            elif count == 1:
                break
            else:
                count //= 2


def exchanged(circuit: Circuit, scores: Tensor, count: int, limit: int) -> Circuit:
    """`count` kept edges of the smallest score out, the best missing ones in, up to `limit` edges.

    The result is connected; edges that this frees are filled with the next best missing ones, as far as
    those are connected themselves.
    """
    graph = circuit.graph
    kept = scores.double().masked_fill(~circuit.mask, torch.inf).flatten()
    mask = circuit.mask.flatten().clone()
    out = min(count, circuit.n_edges - 1)
    mask[torch.sort(kept, stable=True).indices[:out]] = False
    candidates = graph.valid & ~circuit.mask
    missing = scores.double().masked_fill(~candidates, -torch.inf).flatten()
    order = torch.sort(missing, descending=True, stable=True).indices[: int(candidates.sum())]

    def with_first(added: int) -> Circuit:
        trial = mask.clone()
        trial[order[:added]] = True
        return Circuit(graph=graph, mask=trial.view_as(graph.valid)).connected(warn=False)

    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        if with_first(middle).n_edges <= limit:
            low = middle
        else:
            high = middle - 1
    return with_first(low)

"""Better circuits of the same size, with the tail in view: learned masks and swaps.

Three draws that share no stream: discovery pairs train and propose, validation pairs choose, certificate
pairs judge, once, what was chosen.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64

from assay.analyses.worst_case.bounds import CERTIFIED
from assay.analyses.worst_case.explain import pair_loss
from assay.analyses.worst_case.inputs import PairSample
from assay.analyses.worst_case.repair_search import (
    ALPHA,
    BATCH_SIZE,
    ROUNDS,
    WEIGHT_OF_WORST,
    Candidate,
    RepairSearch,
    largest_top,
)
from assay.analyses.worst_case.sampling import sample_pairs
from assay.circuits import Circuit, EdgeScores
from assay.circuits.given import takes_text
from assay.circuits.slots import check_n_edges
from assay.core.errors import GraphMismatchError, InputError, check_fraction, check_least, check_name
from assay.core.random import stream
from assay.core.record import Record, library_version, same
from assay.discovery.edges.masks import LearnedMask, MaskSettings, MaskStep, PairLoss
from assay.execution.forward import check_circuit
from assay.models import Model
from assay.stats import Certificate, Summary, certificate, summarize
from assay.tasks import PairTask


Method = Literal["mask", "swap"]
METHODS = ("mask", "swap")
PURPOSES = ("discovery", "validation", "certificate")
PROTOCOLS = ("iid", "matched", "file")


@dataclass(frozen=True, kw_only=True, eq=False)
class CertificateSample(Record):
    """A circuit on the certificate pairs, which no part of the repair has seen.

    Attributes:
        circuit: The circuit.
        divergence: Of each pair.
        independent: Whether the pairs are independent draws new to the circuit: fresh prompts of a grammar,
            or rows that were declared so.
    """

    record_layout = {"circuit": same("hash", "n_edges", of="circuit"), **same("summary", "certificates")}

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
                "these pairs are rows of the task that were not declared independent and new to the start; "
                "use repair(..., independent=True) if they are"
            )
        return certificate(self.divergence, percentile, delta=delta)

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The usual ones; none without independent pairs."""
        return tuple(map(self.certificate, CERTIFIED)) if self.independent else ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Repair(Record):
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

    record_kind = "repair"
    record_layout = {
        **same("method", "percentile", "improved", "before", "after"),
        "empty": "empty_summary",
        **same("candidates", "history", "samples", "cost"),
        "provenance": "circuit.provenance",
    }

    circuit: Circuit
    before: CertificateSample
    after: CertificateSample
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

    @property
    def empty_summary(self) -> Summary:
        """The empty circuit on the certificate pairs."""
        return summarize(self.empty).resolved(len(self.empty))

    @property
    def history(self) -> Sequence[MaskStep]:
        """The steps of the training; none for swaps."""
        return () if self.training is None else self.training.history


@takes_text(reads=True)
def repair(
    start: Circuit | EdgeScores,
    model: Model,
    task: PairTask,
    *,
    n_edges: int | None = None,
    method: Method = "mask",
    tail: float = 0.5,
    alpha: float = ALPHA,
    percentile: float = 0.99,
    protocol: str | None = None,
    n_discovery: int = 4000,
    n_validation: int = 4000,
    n_certificate: int = 10_000,
    divergence: str | PairLoss = "kl",
    settings: MaskSettings | None = None,
    batch_size: int = BATCH_SIZE,
    rounds: int = ROUNDS,
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
    _check(method, {"tail": tail}, {"alpha": alpha, "percentile": percentile}, batch_size, rounds)
    first, scores = _starting(start, model, n_edges)
    counts = dict(zip(PURPOSES, (n_discovery, n_validation, n_certificate), strict=True))
    samples = disjoint_samples(task, protocol, counts, seed)
    key, loss = pair_loss(divergence)
    search = RepairSearch(
        model=model,
        limit=first.n_edges if n_edges is None else n_edges,
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
        training = search.train(first, scores, tail, settings or MaskSettings(), batch_size)
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
    before, after, empty = _judged(search, first, circuit, samples["certificate"], independent=independent)
    return Repair(
        circuit=circuit,
        before=before,
        after=after,
        empty=empty,
        candidates=search.candidates,
        training=training,
        method=method,
        percentile=percentile,
        samples={name: sample.describe() for name, sample in samples.items()},
        cost={**search.cost, "seconds": time.perf_counter() - began},
    )


def _check(
    method: str, closed: Mapping[str, float], shares: Mapping[str, float], batch_size: int, rounds: int
) -> None:
    """Refuse arguments out of range; those in `closed` may be 0 and 1."""
    check_name("repair method", method, METHODS)
    for name, share in closed.items():
        if not 0 <= share <= 1:
            raise InputError(f"{name} is {share}; expected a fraction in [0, 1]")
    check_fraction(**shares)
    check_least(1, batch_size=batch_size, rounds=rounds)


def _judged(
    search: RepairSearch, first: Circuit, circuit: Circuit, sample: PairSample, *, independent: bool
) -> tuple[CertificateSample, CertificateSample, Float64[np.ndarray, " n_pairs"]]:
    """The start and the chosen circuit on the certificate pairs, and the empty circuit on the same."""
    certified = independent or not sample.own_rows
    before, empty = search.run(first, sample)
    after = before if circuit == first else search.run(circuit, sample)[0]
    one, other = (
        CertificateSample(circuit=each, divergence=values, independent=certified)
        for each, values in ((first, before), (circuit, after))
    )
    return one, other, empty


def _starting(
    start: Circuit | EdgeScores, model: Model, n_edges: int | None
) -> tuple[Circuit, EdgeScores | None]:
    if isinstance(start, EdgeScores):
        if n_edges is None:
            raise InputError("scores alone do not set a size; give n_edges, the number of edges to keep")
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
    check_name("protocol of repair", protocol, PROTOCOLS)
    if protocol != "file":
        if task.grammar is None:
            raise InputError(
                f"protocol {protocol!r} draws fresh pairs, but this task has no grammar; use protocol='file'"
            )
        return {
            purpose: sample_pairs(task, protocol, n, seed=seed, prefix=f"repair-{purpose}:")
            for purpose, n in counts.items()
        }
    if task.n < 2 * len(PURPOSES):
        raise InputError(
            f"the task has {task.n} pairs of its own, but {len(PURPOSES)} disjoint parts need at least "
            f"{2 * len(PURPOSES)}"
        )
    parts = np.array_split(stream(seed, "repair-parts").permutation(task.n), len(PURPOSES))
    return {
        purpose: sample_pairs(task.subset(sorted(part[:n].tolist())), "file")
        for (purpose, n), part in zip(counts.items(), parts, strict=True)
    }

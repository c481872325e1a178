"""The worst case as a stage: taken from the store where the same pairs were run before."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from assay.analyses.worst_case import WorstCase, explain, run_sample, sample_pairs, search_worst
from assay.analyses.worst_case.attack import PREFIX, facts_of, notes_on
from assay.analyses.worst_case.inputs import PairSample
from assay.analyses.worst_case.outside import outside_grammar
from assay.analyses.worst_case.pair_divergence import get_divergence
from assay.analyses.worst_case.reads import likeliest_differs, pair_divergences
from assay.analyses.worst_case.rerun import Rerun
from assay.analyses.worst_case.row_by_row import ablation_of
from assay.analyses.worst_case.rows import count_pairs
from assay.analyses.worst_case.sampling import INPUTS, grammar_of, usual_protocol
from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.execution import CircuitRuns
from assay.execution.forward import check_finite
from assay.models import Model
from assay.pipeline.stage import Content, Memo, Progress, Stage, silent
from assay.store import About, Store, StoredResult
from assay.tasks import ImageTask, PairTask, Task


# Default inputs a side, and pairs, of a run: the fewest in round numbers that bound the 99th
# percentile of all pairs, and the 99.9th of independent ones.
DEFAULT_SIDE, DEFAULT_PAIRS = 300, 3000
USUAL_SIDE = 60  # inputs a side inside an audit: the fewest in round numbers that bound the 95th percentile
EXPLAINED = 10  # worst pairs that are explained
OUTSIDE_SIDE = 200  # most inputs a side of a run on inputs from outside the grammar


@dataclass(frozen=True, kw_only=True)
class PairCounts:
    """How many inputs or pairs a protocol draws; see `sizes`."""

    n_clean: int
    n_corrupted: int


def sizes(
    protocol: str,
    *,
    n_clean: int | None = None,
    n_corrupted: int | None = None,
    n_pairs: int | None = None,
    enumerate: bool = False,  # noqa: A002 - the name users know
) -> PairCounts:
    """The sizes of a sample, each protocol's own by default.

    Raises:
        InputError: For a count that the protocol has no use for.
    """
    useless = {
        "all": {"n_pairs": n_pairs},
        INPUTS: {"n_corrupted": n_corrupted, "n_pairs": n_pairs},
        "file": {"n_clean": n_clean, "n_corrupted": n_corrupted, "n_pairs": n_pairs},
    }.get(protocol, {"n_clean": n_clean, "n_corrupted": n_corrupted})
    if enumerate:
        useless = {"n_clean": n_clean, "n_corrupted": n_corrupted, "n_pairs": n_pairs}
    given = [name.replace("_", "-") for name, count in useless.items() if count is not None]
    if given:
        what = "an enumeration" if enumerate else f"protocol {protocol!r}"
        own = {
            "all": "--n-clean and --n-corrupted",
            INPUTS: "--n-clean",
            "file": "no count; --protocol all combines the prompts of a file",
        }.get(protocol, "--n-pairs")
        raise InputError(f"{what} does not use --{given[0]}; it takes {'no count' if enumerate else own}")
    if protocol == "all":
        return PairCounts(n_clean=n_clean or DEFAULT_SIDE, n_corrupted=n_corrupted or DEFAULT_SIDE)
    if protocol == INPUTS:
        n_pairs = n_clean
    return PairCounts(n_clean=n_pairs or DEFAULT_PAIRS, n_corrupted=n_pairs or DEFAULT_PAIRS)


def usual_sizes(task: Task, ablation: str = "resample") -> tuple[str, PairCounts]:
    """Protocol and sizes of the worst case inside a full audit.

    All pairs of a few inputs where the prompts have one length, matched pairs where they have several or are
    read at several positions, single inputs where the ablation reads no second one. Where no grammar can draw
    others, the task's own pairs; of images every combination of them.
    """
    protocol = usual_protocol(task, ablation)
    if isinstance(task, ImageTask) and protocol == "file":
        protocol = "all"
    if grammar_of(task) is None or protocol == INPUTS:
        return protocol, PairCounts(n_clean=task.n, n_corrupted=task.n)
    side = min(task.n, USUAL_SIDE)
    if task.positions.ndim == 1 and bool((task.lengths == task.lengths[0]).all()):
        # As many inputs as rows would be taken for the rows themselves.
        side -= side == task.n
        return "all", PairCounts(n_clean=max(side, 1), n_corrupted=max(side, 1))
    return "matched", PairCounts(n_clean=task.n, n_corrupted=task.n)


def pairs_of(
    task: Task, protocol: str, size: PairCounts, *, independent: bool = False, **options: Any
) -> PairSample:
    """The pairs of a run; further options are those of `sample_pairs`."""
    return sample_pairs(
        task,
        protocol,
        size.n_clean,
        size.n_corrupted,
        independent=independent,
        prefix=PREFIX,
        **options,
    )


def worst_case_stage(
    circuit: Circuit,
    model: Model,
    sample: PairSample,
    *,
    divergence: str = "kl",
    thresholds: Sequence[float] = (),
    compute: Callable[[], WorstCase] | None = None,
    **options: Any,
) -> Stage[WorstCase]:
    """The worst case of a circuit over a sample; further options are those of `run_sample`.

    `compute` makes it of runs that exist already, instead of `run_sample`.
    """
    facts = facts_of(circuit, model, sample, divergence, thresholds)

    def run() -> WorstCase:
        return run_sample(circuit, model, sample, divergence=divergence, thresholds=thresholds, **options)

    def read(stored: StoredResult) -> WorstCase:
        return WorstCase(
            divergence=stored.arrays["divergence"].double().numpy(),
            empty=stored.arrays["empty"].double().numpy(),
            argmax_differs=stored.arrays["argmax_differs"].bool().numpy(),
            sample=sample,
            facts=facts,
            thresholds=tuple(thresholds),
            notes=notes_on(circuit, sample),
            seconds=float(stored.payload["seconds"]),
            rerun=Rerun(model=model, circuit=circuit, sample=sample, divergence=divergence),
        )

    def write(worst: WorstCase) -> Content:
        about = About(
            model=model.id,
            task=sample.task["name"],
            metric=worst.facts["divergence"],
            n=worst.n_distinct_pairs,
            seed=sample.seed,
            value=worst.statistics.absolute["max"],
            circuit=circuit.hash,
            size=circuit.n_edges,
            ablation=worst.facts["ablation"],
        )
        return Content(payload=worst.to_dict(), about=about, arrays=worst.arrays())

    return Stage(
        kind="worst_case", record=facts["provenance"], compute=compute or run, write=write, read=read
    )


def worst_case_stored(
    circuit: Circuit,
    model: Model,
    task: Task,
    protocol: str,
    size: PairCounts,
    *,
    seed: int = 0,
    divergence: str = "kl",
    thresholds: Sequence[float] = (),
    directory: str | os.PathLike[str] | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
    **sampling: Any,
) -> Memo[WorstCase]:
    """`assay.worst_case`, its numbers taken from the store where they were computed before.

    Finished blocks are kept in `directory`, if one is given. `ablation`, `reuse_clean`, `independent`,
    `enumerate` and `max_pairs` are those of `assay.worst_case`.
    """
    return worst_case_stage(
        circuit,
        model,
        pairs_of(model.bind(task), protocol, size, seed=seed, **sampling),
        divergence=divergence,
        thresholds=thresholds,
        directory=directory,
        progress=progress,
    ).run(store)


def worst_measured(runs: CircuitRuns, *, store: Store | None = None) -> WorstCase:
    """The worst case over the pairs, or inputs, that a circuit was measured on, from those very runs.

    Only the worst of them are run again, by another engine, which must confirm them.

    Raises:
        NonFiniteError: NaN or infinite logits, with the prompt.
    """
    task = runs.task
    protocol = "file" if runs.ablation_object.paired else INPUTS
    if protocol == INPUTS and isinstance(task, PairTask):
        task = replace(task, grammar=None)  # its own rows, over which the means were taken
    size = PairCounts(n_clean=task.n, n_corrupted=task.n)
    sample = pairs_of(task, protocol, size, seed=runs.seed, ablation=runs.ablation)
    divergence = get_divergence("kl")

    def compute() -> WorstCase:
        full, keep, empty = (runs.logits(which) for which in ("full", "keep", "empty"))
        for logits, what in ((full, "the model"), (keep, "the circuit"), (empty, "the empty circuit")):
            check_finite(logits, what, torch.arange(task.n))
        clean = sample.clean
        kept, nothing = (pair_divergences(divergence, full, each, clean) for each in (keep, empty))
        precise = runs.model.result_dtype == torch.float64
        return WorstCase(
            divergence=kept if precise else kept.astype(np.float32).astype(np.float64),
            empty=nothing if precise else nothing.astype(np.float32).astype(np.float64),
            argmax_differs=likeliest_differs(full, keep, clean),
            sample=sample,
            facts=facts_of(runs.circuit, runs.model, sample, divergence, ()),
            thresholds=(),
            notes=notes_on(runs.circuit, sample),
            rerun=Rerun(model=runs.model, circuit=runs.circuit, sample=sample, divergence=divergence),
        )

    return worst_case_stage(runs.circuit, runs.model, sample, compute=compute).run(store).value


def with_findings(
    result: WorstCase,
    circuit: Circuit,
    model: Model,
    task: Task,
    *,
    search: int | None = None,
    explained: bool = False,
    words: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
    divergence: str = "kl",
    progress: Progress | None = None,
) -> WorstCase:
    """A worst case with what is reported beside its statistics and never enters them, under its ablation.

    Args:
        result: The result.
        circuit: Its circuit.
        model: Its model.
        task: Its task.
        search: Evaluations of a search for worse pairs; None: no search.
        explained: Share out the divergence of the worst pairs among the missing edges.
        words: Options of the task's grammar, one mapping per run on inputs from outside it.
        seed: Root seed of all random draws.
        divergence: Key of the divergence.
        progress: Told of each part as it begins.
    """
    tell = progress or silent
    found: dict[str, Any] = {}
    ablation = result.sample.ablation
    if search is not None:
        tell("search", 0, 1)
        sought = search_worst(
            circuit, model, task, ablation=ablation, budget=search, seed=seed, divergence=divergence
        )
        found["search"] = replace(sought, sampled=float(result.divergence.max())).to_dict()
    if explained:
        tell("explain", 0, 1)
        found["explanation"] = _explanation(result, circuit, model, divergence)
    if words:
        tell("own words", 0, 1)
        sizes = {
            f"n_{side}": min(OUTSIDE_SIDE, getattr(result.sample, side).n) for side in ("clean", "corrupted")
        }
        common: dict[str, Any] = {"ablation": ablation, "seed": seed, "divergence": divergence, **sizes}
        assert isinstance(task, PairTask)  # images have no words
        found["outside"] = [
            outside_grammar(circuit, model, task, **common, **options).to_dict() for options in words
        ]
    return replace(result, **found) if found else result


def _explanation(result: WorstCase, circuit: Circuit, model: Model, divergence: str) -> dict[str, Any]:
    worst = result.worst(min(EXPLAINED, count_pairs(result.sample)))
    sides = (
        result.sample.clean.subset([pair.clean_index for pair in worst]),
        result.sample.corrupted.subset([pair.corrupted_index for pair in worst]),
    )
    images = sides[0].images
    clean, corrupted = (side.tokens if images is None else images[side.tokens[:, 0]] for side in sides)
    return explain(
        circuit,
        model,
        clean,
        corrupted,
        positions=sides[0].positions,
        ablation=ablation_of(result.sample),
        divergence=divergence,
    ).to_dict()

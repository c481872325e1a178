"""The worst case as a stage: taken from the store where the same pairs were run before."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from assay.analyses.worst_case import WorstCase, explain, run_sample, sample_pairs, search_worst
from assay.analyses.worst_case.attack import PREFIX
from assay.analyses.worst_case.divergence import get_divergence, pair_divergences
from assay.analyses.worst_case.result import facts_of, notes_on
from assay.analyses.worst_case.rows import Rerun, count_pairs
from assay.analyses.worst_case.sampling import INPUTS, PairSample, grammar_of, usual_protocol
from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.execution import CircuitRuns
from assay.execution.forward import check_finite
from assay.models import Model
from assay.pipeline.stage import Content, Progress, Stage, silent
from assay.store import About, Store, StoredResult
from assay.tasks import ImageTask, PairTask, Task


# Default inputs a side, and pairs, of a run: the fewest in round numbers that bound the 99th
# percentile of all pairs, and the 99.9th of independent ones.
DEFAULT_SIDE, DEFAULT_PAIRS = 300, 3000
USUAL_SIDE = 60  # inputs a side inside an audit: the fewest in round numbers that bound the 95th percentile
EXPLAINED = 10  # worst pairs that are explained
Counts = tuple[int, int]  # clean and corrupted inputs, or pairs, that a protocol draws; see `sizes`


# Options by which a protocol is sized; the others by --n-clean alone, or --n-pairs of a plan.
COUNTED = {"all": ("n-clean", "n-corrupted"), "file": ()}


def sizes(
    protocol: str, *, n_clean: int | None = None, n_corrupted: int | None = None, n_pairs: int | None = None
) -> Counts:
    """The sizes of a sample, each protocol's own by default.

    Raises:
        InputError: For a count that the protocol has no use for.
    """
    counts = {"n-clean": n_clean, "n-corrupted": n_corrupted, "n-pairs": n_pairs}
    used = COUNTED.get(protocol, ("n-clean",) if protocol == INPUTS else ("n-clean", "n-pairs"))
    for name, count in counts.items():
        if count is not None and name not in used:
            own = " and ".join(f"--{each}" for each in used) or "no count"
            raise InputError(f"protocol {protocol!r} does not use --{name} here; it takes {own}")
    if protocol == "all":
        return n_clean or DEFAULT_SIDE, n_corrupted or DEFAULT_SIDE
    n = n_clean or n_pairs or DEFAULT_PAIRS
    return n, n


def usual_sizes(task: Task, ablation: str = "resample") -> tuple[str, Counts]:
    """Protocol and sizes of the worst case inside a full audit.

    All pairs of a few inputs where the prompts have one length, matched pairs where they have several,
    single inputs where the ablation reads no second one. Where no grammar can draw
    others, the task's own pairs; of images every combination of them.
    """
    protocol, n = usual_protocol(task, ablation), task.n
    if isinstance(task, ImageTask) and protocol == "file":
        protocol = "all"
    if grammar_of(task) is not None and protocol != INPUTS:
        protocol = "matched"
        if bool((task.lengths == task.lengths[0]).all()):
            # As many inputs as rows would be taken for the rows themselves.
            protocol, n = "all", max(min(task.n - 1, USUAL_SIDE), 1)
    return protocol, (n, n)


def pairs_of(task: Task, protocol: str, size: Counts, **options: Any) -> PairSample:
    """The pairs of a run, not independent unless told; further options are those of `sample_pairs`."""
    options = {"independent": False, "prefix": PREFIX, **options}
    return sample_pairs(task, protocol, *size, **options)


def worst_case_stage(
    circuit: Circuit,
    model: Model,
    sample: PairSample,
    *,
    divergence: str = "kl",
    compute: Callable[[], WorstCase] | None = None,
    **options: Any,
) -> Stage[WorstCase]:
    """The worst case of a circuit over a sample; further options are those of `run_sample`.

    `compute` makes it of runs that exist already, instead of `run_sample`.
    """
    facts = facts_of(circuit, model, sample, get_divergence(divergence), ())

    def read(stored: StoredResult) -> WorstCase:
        arrays = {name: stored.arrays[name].double().numpy() for name in ("divergence", "empty")}
        arrays["argmax_differs"] = stored.arrays["argmax_differs"].bool().numpy()
        worst = _result(circuit, model, sample, divergence, **arrays)
        return replace(worst, seconds=float(stored.payload["seconds"]))

    def write(worst: WorstCase) -> Content:
        about = About(
            model=model.id,
            task=sample.task["name"],
            metric=facts["divergence"],
            n=worst.n_distinct_pairs,
            seed=sample.seed,
            value=worst.statistics.absolute["max"],
            circuit=circuit.hash,
            size=circuit.n_edges,
            ablation=facts["ablation"],
        )
        return Content(payload=worst.to_dict(), about=about, arrays=worst.arrays())

    compute = compute or partial(run_sample, circuit, model, sample, divergence=divergence, **options)
    return Stage(kind="worst_case", record=facts["provenance"], compute=compute, write=write, read=read)


def _result(circuit: Circuit, model: Model, sample: PairSample, key: str, **arrays: Any) -> WorstCase:
    """The result with the arrays of its pairs, by a divergence."""
    return WorstCase(
        sample=sample,
        facts=facts_of(circuit, model, sample, get_divergence(key), ()),
        notes=notes_on(circuit, sample),
        rerun=Rerun(model=model, circuit=circuit, sample=sample, divergence=key),
        **arrays,
    )


def worst_measured(runs: CircuitRuns, *, store: Store | None = None) -> WorstCase:
    """The worst case over the pairs, or inputs, that a circuit was measured on, from those very runs.

    Only the worst of them are run again, by another engine, which must confirm them.

    Raises:
        NonFiniteError: NaN or infinite logits, with the prompt.
    """
    task, circuit, model = runs.task, runs.circuit, runs.model
    protocol = "file" if runs.ablation_object.paired else INPUTS
    if protocol == INPUTS and isinstance(task, PairTask):
        task = replace(task, grammar=None)  # its own rows, over which the means were taken
    sample = pairs_of(task, protocol, (task.n, task.n), seed=runs.seed, ablation=runs.ablation)

    def compute() -> WorstCase:
        divergence = get_divergence("kl")
        full, keep, empty = (runs.logits(which) for which in ("full", "keep", "empty"))
        for what, logits in {"the model": full, "the circuit": keep, "the empty circuit": empty}.items():
            check_finite(logits, what, torch.arange(task.n))
        kept, nothing = (pair_divergences(divergence, full, each, sample.clean) for each in (keep, empty))
        if model.result_dtype != torch.float64:
            kept, nothing = (each.astype(np.float32).astype(np.float64) for each in (kept, nothing))
        arrays = {"empty": nothing, "argmax_differs": (keep.argmax(-1) != full.argmax(-1)).numpy()}
        return _result(circuit, model, sample, "kl", divergence=kept, **arrays)

    return worst_case_stage(circuit, model, sample, compute=compute).run(store).value


def with_findings(
    result: WorstCase,
    circuit: Circuit,
    model: Model,
    task: Task,
    *,
    search: int | None = None,
    explained: bool = False,
    seed: int = 0,
    divergence: str = "kl",
    progress: Progress = silent,
) -> WorstCase:
    """A worst case with what is reported beside its statistics and never enters them, under its ablation.

    Args:
        result: The result.
        circuit: Its circuit.
        model: Its model.
        task: Its task.
        search: Evaluations of a search for worse pairs; None: no search.
        explained: Share out the divergence of the worst pairs among the missing edges.
        seed: Root seed of all random draws.
        divergence: Key of the divergence.
        progress: Told of each part as it begins.
    """
    found = dict[str, Any]()
    if search is not None:
        progress("search", 0, 1)
        how: dict[str, Any] = {"ablation": result.sample.ablation, "seed": seed, "divergence": divergence}
        sought = search_worst(circuit, model, task, budget=search, **how)
        found["search"] = replace(sought, sampled=float(result.divergence.max())).to_dict()
    if explained:
        progress("explain", 0, 1)
        found["explanation"] = _explanation(result, circuit, model, divergence)
    return replace(result, **found) if found else result


def _explanation(result: WorstCase, circuit: Circuit, model: Model, divergence: str) -> dict[str, Any]:
    sample = result.sample
    worst = result.worst(min(EXPLAINED, count_pairs(sample)))
    clean = sample.clean.subset([pair.clean_index for pair in worst])
    corrupted = sample.corrupted.subset([pair.corrupted_index for pair in worst])
    sides = (
        side.tokens if side.images is None else side.images[side.tokens[:, 0]] for side in (clean, corrupted)
    )
    how: dict[str, Any] = {"ablation": sample.carried, "divergence": divergence}
    return explain(circuit, model, *sides, positions=clean.positions, **how).to_dict()

"""The run: every pair of a sample, streamed, resumable, checked."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from assay.analyses.worst_case.divergence import Divergence, Kernel, get_divergence
from assay.analyses.worst_case.evaluation import FORMAT, Progress, sample_values
from assay.analyses.worst_case.result import WorstCase, facts_of, notes_on
from assay.analyses.worst_case.rows import Rerun
from assay.analyses.worst_case.sampling import PairSample, grammar_of, sample_pairs, usual_protocol
from assay.analyses.worst_case.sanity import check_known_runs
from assay.circuits import Circuit
from assay.circuits.naming import named_task
from assay.core.errors import InputError
from assay.core.record import record_id
from assay.discovery.heads.shelf import Shelf
from assay.execution.forward import check_circuit
from assay.models import Model
from assay.tasks import Task, is_task_file, load_task


# Streams of what is certified: prompts drawn to discover a circuit come from others.
PREFIX = "certificate:"
DEFAULT_N = 1000  # inputs of either side, or pairs


def worst_case(
    circuit: Circuit,
    model: Model,
    task: Task | str | os.PathLike[str],
    protocol: str | None = None,
    n_clean: int | None = None,
    n_corrupted: int | None = None,
    *,
    ablation: str = "resample",
    seed: int = 0,
    divergence: str | Divergence | Kernel = "kl",
    thresholds: Sequence[float] = (),
    reuse_clean: bool = False,
    independent: bool | None = None,
    directory: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> WorstCase:
    """How far a circuit departs from its model in the worst case, on which inputs, and what that proves.

    K(x, x~) = KL(M(x) || C(x, x~)) at the read position, for every pair of a sample: M the model, C the
    circuit with every edge outside it carrying what it carries in the model's run on x~. Under an ablation
    that reads no second input, K belongs to a clean input alone.

    Args:
        circuit: Edges to keep, everywhere or at spans of positions.
        model: The model.
        task: What inputs are drawn from: a task, the key of a registered one, or a JSONL file; for an image
            classifier images, or what `assay.load_images` takes. Images have no grammar: their own pairs are
            run, or with `all` every combination of an image and a counterpart, or, as donors, of two images.
        protocol: `all`: `n_clean` x `n_corrupted` inputs, every combination. `matched`: `n_clean` pairs of a
            prompt and its own corruption. `iid`: `n_clean` pairs of independent inputs. `file`: the task's
            own pairs. `inputs`, under ablations without a second input: `n_clean` prompts, or all rows of a
            task without a grammar. Under `all`, both counts equal to the number of rows of the task take all
            of these in order. Default: `file` for a JSONL file, and for a task without a grammar if no count
            is given; else `all`; `inputs` where that alone applies.
        n_clean: Clean inputs, or pairs; default: 1,000, all rows of a task without a grammar.
        n_corrupted: Corrupted inputs of `all`; default: the same.
        ablation: What cut edges carry: `resample`, `resample-donor` (values of another clean input), `zero`,
            `mean` or `mean-positional`. Means are taken over 200 prompts drawn for that alone (stream
            `certificate:baseline`), over the rows that are run where the task has no grammar.
        seed: Root seed of the draws, whose streams are `certificate:clean`, `certificate:corrupted`, ...
        divergence: `kl`, `reverse-kl`, `js`, `tv`, `logit-diff-gap`, or a callable `(model logits, circuit
            logits) -> [pairs]`.
        thresholds: Report the share of pairs above each.
        reuse_clean: `all` only: corrupt the clean prompts of the sample, as the published runs did.
        independent: Whether a task's own rows are independent draws that the circuit was not found on; no
            certificate without that word. False withholds certificates from drawn prompts too.
        directory: Keep finished blocks here; the same call then goes on where it was interrupted.
        progress: Told of `attack`, pairs done, pairs in all.

    Returns:
        The result; warnings are in `.warnings`.

    Raises:
        InputError: A bad count or protocol, prompts of unequal length, or a directory of another job.
        GraphMismatchError: A circuit of another graph.
        NonFiniteError: NaN or infinite logits, with the pair.
        InconsistentRunError: If a run whose result is known comes out otherwise.
        OutputError: If a block cannot be written; those before it stay usable.

    Notes:
        Equal inputs are run once and counted as often as they were drawn. Divergences are kept in float32, in
        float64 for a float64 model; logits of no more than one block of pairs exist at a time.

    References:
        uit de Bos and Garriga-Alonso (2024), arXiv:2407.15166.

    Example:
        >>> model = load_model("mini")
        >>> circuit = Circuit.full(model.graph)
        >>> worst = worst_case(circuit, model, "ioi", n_clean=4, n_corrupted=3)
        >>> worst.divergence.shape, bool(worst.divergence.max() < 1e-6)
        ((4, 3), True)
    """
    counted = n_clean is not None or n_corrupted is not None
    if not isinstance(task, Task):
        if model.vision is not None:
            task = named_task(os.fspath(task), model)
        elif not is_task_file(task):
            # Of a named task only the grammar counts; as many rows as the sample has would be taken for it.
            task = load_task(os.fspath(task), model, n=2 if n_clean == 1 else 1)
        elif protocol is None and counted:
            raise InputError(
                f"{os.fspath(task)} is a file, whose own pairs are run unchanged. Give protocol='all' to "
                "combine its prompts, or remove n_clean and n_corrupted"
            )
        else:
            task = load_task(os.fspath(task), model)
    if protocol is None:
        protocol = usual_protocol(task, ablation)
        protocol = "all" if protocol == "file" and counted else protocol
    default = task.n if protocol == "all" and grammar_of(task) is None else DEFAULT_N
    sample = sample_pairs(
        model.bind(task),
        protocol,
        default if n_clean is None else n_clean,
        default if n_corrupted is None else n_corrupted,
        ablation=ablation,
        seed=seed,
        reuse_clean=reuse_clean,
        independent=bool(independent),
        prefix=PREFIX,
    )
    if independent is False:
        sample = replace(sample, independent=False)
    return run_sample(
        circuit,
        model,
        sample,
        divergence=divergence,
        thresholds=thresholds,
        directory=directory,
        progress=progress,
    )


def run_sample(
    circuit: Circuit,
    model: Model,
    sample: PairSample,
    *,
    divergence: str | Divergence | Kernel = "kl",
    thresholds: Sequence[float] = (),
    directory: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> WorstCase:
    """`worst_case` on a sample that exists already; arguments as there."""
    started = time.perf_counter()
    check_circuit(model, circuit)
    if directory is not None and not isinstance(divergence, str | Divergence):
        raise InputError(
            "finished blocks are stored by the name of the divergence, but a bare callable has no unique "
            "name. Give Divergence(key=..., kernel=...), or remove directory"
        )
    measured = get_divergence(divergence)
    facts = facts_of(circuit, model, sample, measured, thresholds)
    shelf = None
    if directory is not None:
        record = facts["provenance"]
        job = {name: record[name] for name in record if name not in ("machine", "thresholds")}
        shelf = Shelf(Path(directory), record_id("blocks", {"format": FORMAT, **job}), job)
    check_known_runs(model, circuit, sample)
    values = sample_values(circuit, model, sample, measured, shelf=shelf, progress=progress)
    return WorstCase(
        **values._asdict(),
        sample=sample,
        facts=facts,
        thresholds=tuple(float(threshold) for threshold in thresholds),
        notes=notes_on(circuit, sample),
        seconds=time.perf_counter() - started,
        rerun=Rerun(model=model, circuit=circuit, sample=sample, divergence=measured),
    )

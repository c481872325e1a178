"""The run: every pair of a sample, streamed, resumable, checked."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.analyses.worst_case.blocks import FolderShelf, PairBlocks, Progress
from assay.analyses.worst_case.bounds import counted_rows
from assay.analyses.worst_case.inputs import PairSample
from assay.analyses.worst_case.pair_divergence import Divergence, Kernel, get_divergence
from assay.analyses.worst_case.rerun import Rerun
from assay.analyses.worst_case.result import WorstCase
from assay.analyses.worst_case.sampling import grammar_of, sample_pairs, usual_protocol
from assay.analyses.worst_case.sanity import check_known_runs
from assay.circuits import Circuit
from assay.circuits.naming import named_task
from assay.core.errors import InputError
from assay.core.record import library_version
from assay.execution.forward import check_circuit
from assay.models import Model
from assay.tasks import Task, is_task_file, load_task


# Streams of what is certified: prompts drawn to discover or repair a circuit come from others.
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
    memory: int | None = None,
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
        memory: Bytes to spend on prepared inputs and on passes, half each. Default: 60 % of what is free.
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
    check_circuit(model, circuit)
    asked = (n_clean, n_corrupted)
    counted = asked != (None, None)
    n_clean, n_corrupted = (DEFAULT_N if count is None else count for count in (n_clean, n_corrupted))
    if not isinstance(task, Task) and model.vision is not None:
        task = named_task(os.fspath(task), model)
    if not isinstance(task, Task):
        named = not is_task_file(task)
        # Of a named task only the grammar counts; a size equal to the sample's would be taken for its rows.
        rows = (1 if n_clean != 1 else 2) if named else None
        if not named and protocol is None and counted:
            raise InputError(
                f"{os.fspath(task)} is a file, whose own pairs are run unchanged. Give protocol='all' to "
                "combine its prompts, or remove n_clean and n_corrupted"
            )
        task = load_task(os.fspath(task), model, n=rows)
    if protocol is None:
        protocol = usual_protocol(task, ablation)
        if protocol == "file" and counted:
            protocol = "all"
    if protocol == "all" and grammar_of(task) is None:
        n_clean, n_corrupted = (task.n if count is None else count for count in asked)
    task = model.bind(task)
    sample = sample_pairs(
        task,
        protocol,
        n_clean,
        n_corrupted,
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
        memory=memory,
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
    memory: int | None = None,
    progress: Progress | None = None,
) -> WorstCase:
    """`worst_case` on a sample that exists already; arguments as there."""
    started = time.perf_counter()
    if directory is not None and not isinstance(divergence, str | Divergence):
        raise InputError(
            "finished blocks are stored by the name of the divergence, but a bare callable has no unique "
            "name. Give Divergence(key=..., kernel=...), or remove directory"
        )
    measured = get_divergence(divergence)
    facts = facts_of(circuit, model, sample, measured, thresholds)
    blocks = None if directory is None else FolderShelf(Path(directory), block_record(facts))
    check_known_runs(model, circuit, sample)
    values = PairBlocks(circuit, model, sample, measured, memory=memory).run(blocks, progress or _silent)
    return WorstCase(
        divergence=values.divergence,
        empty=values.empty,
        argmax_differs=values.argmax_differs,
        sample=sample,
        facts=facts,
        thresholds=tuple(float(threshold) for threshold in thresholds),
        notes=notes_on(circuit, sample),
        seconds=time.perf_counter() - started,
        rerun=Rerun(model=model, circuit=circuit, sample=sample, divergence=measured),
    )


def _silent(stage: str, done: int, total: int) -> None:
    """Progress that is not shown."""


def block_record(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What blocks of a run are a function of, out of its `facts_of`."""
    record = facts["provenance"]
    return {name: record[name] for name in record if name not in ("machine", "thresholds")}


def facts_of(
    circuit: Circuit,
    model: Model,
    sample: PairSample,
    divergence: str | Divergence | Kernel,
    thresholds: Sequence[float],
) -> dict[str, Any]:
    """What the document says of model, task and circuit, and the record behind the result."""
    measured = get_divergence(divergence)
    provenance = {
        "library": library_version(),
        "model": model.describe(),
        "sample": sample.describe(),
        "circuit": circuit.hash,
        "graph": circuit.graph.fingerprint,
        "ablation": sample.ablation,
        "divergence": measured.key,
        "thresholds": [float(threshold) for threshold in thresholds],
        "machine": {
            "device": str(model.device),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
        },
    }
    return {
        "model": {**model.describe(), "n_parameters": model.n_parameters},
        "task": {"data_hash": sample.data_hash, **sample.task},
        "circuit": {
            "hash": circuit.hash,
            "name": _name(circuit),
            "n_edges": circuit.n_edges,
            "n_graph_edges": circuit.graph.n_edges,
        },
        "ablation": sample.ablation,
        "divergence": measured.key,
        "unit": measured.unit,
        "provenance": provenance,
    }


def _name(circuit: Circuit) -> str:
    """What a reader may call the circuit."""
    for key in ("published", "method"):
        value = circuit.provenance.get(key)
        if isinstance(value, str):
            return value
    return "circuit"


def notes_on(circuit: Circuit, sample: PairSample) -> dict[str, str]:
    """Named warnings about a circuit and a sample."""
    left_out = sample.task.get("notes")
    notes = {"examples_left_out": ". ".join(left_out)} if left_out else {}
    left = sample.clean.n - len(counted_rows(sample)) if sample.own_rows and sample.independent else 0
    if left:
        notes["rows_not_counted"] = (
            f"{left:,} of the {sample.clean.n:,} rows are copies of others or equal their counterparts; "
            "certificates do not count them"
        )
    if circuit.spans is None and circuit.connected(warn=False).n_edges == 0:
        notes["disconnected_circuit"] = (
            "no kept path leads from the input to the logits: the output of the circuit is that of the "
            "model on the corrupted input, whatever the clean input"
        )
    for name in ("clean", "corrupted"):
        exist, drawn = sample.population[name], getattr(sample, name).n
        if exist is not None and drawn > exist:
            notes[f"repeated_{name}_inputs"] = (
                f"{drawn:,} {name} inputs were drawn and {exist:,} distinct ones exist"
            )
    if sample.own_rows and sample.protocol == "all" and sample.paired and not sample.reuse_clean:
        notes["own_rows"] = (
            f"the task's own {sample.clean.n:,} rows were used in order, so a certificate has only half as "
            "many independent pairs"
            + ("; other counts draw fresh inputs" if sample.clean.images is None else "")
        )
    if sample.reference is not None and "baseline" in sample.streams:
        notes["given_baseline"] = (
            f"the values of {sample.ablation!r} ablation were measured on {sample.reference.n:,} prompts "
            "drawn apart from the sample: certificates hold for these values, not for those that other "
            "prompts give"
        )
    return notes

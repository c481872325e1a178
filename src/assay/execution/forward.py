"""Running a model, whole or reduced to a circuit, over the examples of a task."""

import warnings
from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from assay.circuits import Circuit
from assay.core.errors import AssayWarning, GraphMismatchError, InputError, NonFiniteError, ShapeError
from assay.execution.ablation import Ablation, get_ablation
from assay.execution.baseline import BaselineShelf
from assay.execution.batches import choose_batch_size, with_room
from assay.execution.pairs import PairRunner
from assay.execution.runner import CircuitRunner
from assay.execution.soft import SoftRunner
from assay.models import Model, Trace
from assay.tasks import PairTask, Task


def finite_rows(logits: Float[Tensor, "n *reads d_vocab"]) -> Bool[Tensor, " n"]:
    """Examples whose logits are all finite."""
    return torch.isfinite(logits).flatten(1).all(1)


def check_finite(
    logits: Float[Tensor, "batch *reads d_vocab"], what: str, rows: Int[Tensor, " batch"]
) -> None:
    """Refuse NaN or infinite logits, naming the first example."""
    bad = ~finite_rows(logits)
    if bool(bad.any()):
        row = int(rows[bad.nonzero()[0, 0]])
        raise NonFiniteError(
            f"{what} has NaN or infinite logits for example {row}; check the model's weights and dtype "
            "(float16 overflows)"
        )


def check_circuit(model: Model, circuit: Circuit) -> None:
    """Refuse a circuit of another graph; warn where it was found on other weights."""
    if circuit.graph.mlps != model.graph.mlps:
        owners = {True: "a model with MLPs", False: "an attention-only model"}
        raise GraphMismatchError(
            f"the circuit belongs to {owners[circuit.graph.mlps]}, but {model.id!r} is "
            f"{owners[model.graph.mlps]}, so their graphs differ. Run the circuit on the model it was "
            "discovered on"
        )
    if circuit.graph.fingerprint != model.graph.fingerprint:
        raise GraphMismatchError(
            f"the circuit belongs to another model: its graph is {circuit.graph.describe()}, that of "
            f"{model.id!r} is "
            f"{model.graph.describe()}"
        )
    found_on = circuit.provenance.get("model")
    if isinstance(found_on, dict) and found_on.get("weight_hash") not in (None, model.weight_hash):
        warnings.warn(
            f"the circuit was discovered on {found_on.get('id')!r} with weights {found_on['weight_hash']}, "
            f"but runs on {model.id!r} with weights {model.weight_hash}",
            AssayWarning,
            stacklevel=3,
        )


def run_model(
    model: Model,
    task: Task,
    *,
    corrupted: bool = False,
    batch_size: int | None = None,
    memory: int | None = None,
    check: bool = True,
) -> Float[Tensor, "n *reads d_vocab"]:
    """Logits of the unablated model at the read position of every example.

    Args:
        model: The model.
        task: The examples.
        corrupted: Run the corrupted inputs instead of the clean ones.
        batch_size: Examples per pass; default: by free memory.
        memory: Bytes that a pass may take; default: 60 % of what is free.
        check: Refuse NaN or infinite logits; False returns them, for callers that count such examples.

    Returns:
        `[N, V]`; `[N, reads, V]` where the prompts are read at several positions (what stands at a filled one
        means nothing).

    Raises:
        NonFiniteError: If a logit is NaN or infinite; the message names the example.
    """
    task = model.bind(task)
    which = "corrupted" if corrupted else "clean"

    @torch.no_grad()
    def run(size: int) -> Tensor:
        results = []
        for batch in task.batches(size):
            batch = batch.to(model.device)
            hidden = model.forward(batch.corrupted if corrupted else batch.clean)
            logits = model.read(hidden, batch.positions).to(model.result_dtype).cpu()
            if check:
                check_finite(logits, f"{model.id} on the {which} input", batch.indices)
            results.append(logits)
        return torch.cat(results)

    return with_room(run, choose_batch_size(model, task, asked=batch_size, memory=memory))


def run_circuit(
    model: Model,
    task: Task,
    circuit: Circuit,
    *,
    ablation: str | Ablation | None = None,
    pairs: Int[Tensor, "pairs 2"] | None = None,
    batch_size: int | None = None,
    memory: int | None = None,
    seed: int = 0,
    check: bool = True,
    post_norm: str | None = None,
    shelf: BaselineShelf | None = None,
    labels: Int64[Tensor, "n pos"] | None = None,
) -> Float[Tensor, "n *reads d_vocab"]:
    """Logits of the model with every edge outside the circuit ablated, at the read position.

    Args:
        model: The model.
        task: The examples.
        circuit: The edges to keep, everywhere or at spans of positions.
        ablation: What a cut edge carries: `resample`, `zero`, `mean`, `mean-positional` or `noise`; default:
            the task's own.
        pairs: (clean index, corrupted index) pairs to run instead of the task's own pairing; needs
            `resample`. Inputs that many pairs share are run once per block of inputs, not once per pair.
        batch_size: Examples or pairs per pass; default: by free memory.
        memory: Bytes that a pass may take; default: 60 % of what is free.
        seed: Root seed of the noise.
        check: Refuse NaN or infinite logits; False returns them, for callers that count such examples.
        post_norm: Treatment of norms behind branches; see `Model.treating`.
        shelf: Keeps the ablated activations for the next circuit of the same model, task and ablation.
        labels: Span of every position `[N, T]`, -1 at padding; needed for spans that were given as labels.

    Returns:
        `[N, V]`, or `[P, V]` with `pairs` (`[N, reads, V]` where prompts are read at several positions); CPU,
        float32 (float64 for a float64 model). Full circuit: the model's logits. Empty circuit under
        `resample`: the model's logits on the corrupted input.

    Raises:
        GraphMismatchError: If the circuit belongs to another graph.
        NonFiniteError: If a logit is NaN or infinite.
        InputError: For a circuit at spans: `pairs`, or positions that cannot be labelled.

    Notes:
        At spans every target has its own stream at every position, so a run costs what one under a
        real-valued mask does: two passes to prepare a batch, and a product over all sources per target. The
        mask of an example takes T S R numbers; prompts whose spans have the same places share one.

    References:
        Conmy et al. 2023, arXiv:2304.14997; uit de Bos and Garriga-Alonso 2024, equation 1.
    """
    model = model.treating(post_norm)
    replacement = get_ablation(ablation or task.ablation)
    check_circuit(model, circuit)
    task = model.bind(task)
    if circuit.spans is not None:
        if pairs is not None:
            raise InputError(
                "pairs= works only with ordinary circuits; give circuit.anywhere(), or task.paired(pairs)"
            )
        where = circuit.spans.label(task, labels)
        return _run_soft(
            model, task, circuit, where, replacement, asked=batch_size, memory=memory, seed=seed, check=check
        )
    dense = model.post_norm == "eap-ig"
    if pairs is not None:
        _check_pairs(task, replacement, pairs)
        if isinstance(task, PairTask) and task.positions.ndim == 1:
            run = _run_pairs_soft if dense else _run_pairs
            return run(model, task, circuit, pairs, batch_size, memory)
        task = task.paired(pairs)
    if dense:
        return _run_soft(
            model, task, circuit, None, replacement, asked=batch_size, memory=memory, seed=seed, check=check
        )
    several = task.positions.ndim == 2
    runner = CircuitRunner(model, circuit, resample=replacement.paired, several=several)
    extra = runner.bytes_per_pair(task.length)
    size = choose_batch_size(model, task, asked=batch_size, bytes_per_example=extra, memory=memory)
    if runner.plan.everything:
        return run_model(model, task, batch_size=size, check=check)
    kept = BaselineShelf(max_bytes=0) if shelf is None else shelf
    depth = model.n_layers if runner.clean_depth is None else runner.clean_depth

    def ablated(size: int) -> Tensor:
        prepared = kept.prepared(lambda: replacement.prepare(model, task, batch_size=size, seed=seed))
        results = []
        for batch in task.batches(size):
            batch = batch.to(model.device)
            trace = kept.clean(batch, depth, partial(clean_pass, model, runner, batch.clean))
            logits = runner.logits(trace, kept.baseline(prepared, batch), batch.positions)
            logits = logits.to(runner.dtype).cpu()
            if check:
                check_finite(logits, "the circuit run", batch.indices)
            results.append(logits)
        return torch.cat(results)

    return with_room(ablated, size)


def _run_soft(
    model: Model,
    task: Task,
    circuit: Circuit,
    labels: Int64[Tensor, "n pos"] | None,
    ablation: Ablation,
    *,
    asked: int | None,
    memory: int | None,
    seed: int,
    check: bool,
) -> Tensor:
    """A circuit whose targets do not read a sum over kept sources, or whose edges differ by position."""
    where = None if labels is None else labels.clamp(min=0)  # what is at padding is never read
    shared = where is None or bool((where == where[0]).all())
    runner = SoftRunner(model)
    masks = 2 * task.length * model.graph.valid.numel() * model.result_dtype.itemsize
    extra = runner.bytes_per_pair(task.length) + (0 if shared else masks)
    size = choose_batch_size(model, task, asked=asked, bytes_per_example=extra, memory=memory)
    prepared = ablation.prepare(model, task, batch_size=size, seed=seed)
    weights = circuit.mask.to(device=model.device, dtype=model.result_dtype)
    results = []
    with torch.no_grad():
        for batch in task.batches(size):
            batch = batch.to(model.device)
            mask = weights
            if where is not None:
                rows = where[:1] if shared else where[batch.indices.cpu()]
                mask = weights[rows.to(model.device)]
            logits = runner.logits(runner.prepare_batch(batch, prepared), mask).cpu()
            if check:
                check_finite(logits, "the circuit run", batch.indices)
            results.append(logits)
    return torch.cat(results)


def clean_pass(model: Model, runner: CircuitRunner, inputs: Tensor) -> Trace:
    """As much of a plain pass over the clean input as the circuit reads directly."""
    with (
        torch.no_grad(),
        model.tracing(until=runner.clean_depth if runner.clean_depth != model.n_layers else None) as trace,
    ):
        model.forward(inputs)
    return trace


def _run_pairs(
    model: Model,
    task: PairTask,
    circuit: Circuit,
    pairs: Int[Tensor, "pairs 2"],
    asked: int | None,
    memory: int | None,
) -> Tensor:
    """Tile by tile: a clean input is prepared once, a corrupted one once per block of clean inputs."""
    runner = PairRunner(model, circuit)
    extra = runner.bytes_per_pair(task.length)
    extra += sum(runner.bytes_to_prepare(task.length, clean=clean) for clean in (True, False))
    size = choose_batch_size(model, task, n=len(pairs), asked=asked, bytes_per_example=extra, memory=memory)
    logits: Tensor | None = None
    read = task.positions[pairs[:, 0]]
    for position in read.unique():
        here = (read == position).nonzero().squeeze(1)
        until = int(position) + 1  # a causal model reads no further
        for clean_rows, tiles in _pair_tiles(pairs[here], max(1, size // 2)):
            clean = runner.prepare_clean(task.clean[clean_rows, :until])
            for ablated_rows, chosen in tiles:
                corrupted = runner.prepare_corrupted(task.corrupted[ablated_rows, :until])
                for part in here[chosen].split(size):
                    rows = (
                        torch.searchsorted(each, pairs[part, side].contiguous()).to(model.device)
                        for side, each in enumerate((clean_rows, ablated_rows))
                    )
                    result = runner.pairs(clean, corrupted, *rows).to(model.result_dtype).cpu()
                    check_finite(result, "the circuit run", pairs[part, 0])
                    if logits is None:
                        logits = result.new_empty(len(pairs), result.shape[1])
                    logits[part] = result
    assert logits is not None
    return logits


def _run_pairs_soft(
    model: Model,
    task: PairTask,
    circuit: Circuit,
    pairs: Int[Tensor, "pairs 2"],
    asked: int | None,
    memory: int | None,
) -> Tensor:
    """Pair by pair, where targets do not read a sum of parts that pairs could share."""
    runner = SoftRunner(model)
    extra = runner.bytes_per_pair(task.length)
    size = choose_batch_size(model, task, n=len(pairs), asked=asked, bytes_per_example=extra, memory=memory)
    mask = circuit.mask.to(device=model.device, dtype=model.result_dtype)
    results = []
    with torch.no_grad():
        for clean, corrupted in (part.unbind(1) for part in pairs.split(size)):
            prepared = runner.prepare(task.clean[clean], task.corrupted[corrupted], task.positions[clean])
            logits = runner.logits(prepared, mask).cpu()
            check_finite(logits, "the circuit run", clean)
            results.append(logits)
    return torch.cat(results)


def _pair_tiles(
    pairs: Int[Tensor, "pairs 2"], side: int
) -> Iterator[tuple[Tensor, list[tuple[Tensor, Tensor]]]]:
    """Tiles of the clean x corrupted table, at most `side` inputs a side.

    Yields each block of clean rows with its tiles: the corrupted rows, and which pairs fall into the tile.
    """
    clean_block = pairs[:, 0].unique(return_inverse=True)[1] // side
    ablated_block = pairs[:, 1].unique(return_inverse=True)[1] // side
    for block in clean_block.unique():
        in_block = (clean_block == block).nonzero().squeeze(1)
        tiles = []
        for tile in ablated_block[in_block].unique():
            chosen = in_block[ablated_block[in_block] == tile]
            tiles.append((pairs[chosen, 1].unique(), chosen))
        yield pairs[in_block, 0].unique(), tiles


def _check_pairs(task: Task, ablation: Ablation, pairs: Tensor) -> None:
    if not ablation.paired:
        raise InputError(
            f"pairs= chooses corrupted inputs, but {ablation.key!r} ablation does not use them; use "
            "ablation='resample', or remove pairs"
        )
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype != torch.int64 or len(pairs) == 0:
        raise ShapeError(
            f"pairs is {pairs.dtype} {tuple(pairs.shape)}; expected int64 [n_pairs, 2] of (clean "
            "index, corrupted index), n_pairs >= 1"
        )
    if int(pairs.min()) < 0 or int(pairs.max()) >= task.n:
        raise InputError(
            f"pairs hold indices from {int(pairs.min())} to {int(pairs.max())}, but the task has rows 0 to "
            f"{task.n - 1}"
        )
    unequal = (task.lengths[pairs[:, 0]] != task.lengths[pairs[:, 1]]).nonzero()
    if len(unequal):
        clean, corrupted = pairs[unequal[0, 0]].tolist()
        raise InputError(
            f"pair ({clean}, {corrupted}) joins prompts of {int(task.lengths[clean])} and "
            f"{int(task.lengths[corrupted])} tokens, but edges can only be patched between prompts of one "
            "length"
        )

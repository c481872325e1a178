"""Running a model, whole or reduced to a circuit, over the examples of a task."""

import warnings
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.circuits import Circuit
from assay.core.errors import AssayWarning, GraphMismatchError, InputError, NonFiniteError
from assay.execution.ablation import Ablation, Baseline, BaselineShelf, get_ablation
from assay.execution.batches import choose_batch_size, with_room
from assay.execution.runner import CircuitRunner
from assay.execution.soft import SoftRunner
from assay.models import Model, Trace
from assay.models.attention import PlacedAttention
from assay.tasks import Batch, PairTask, Task


def finite_rows(logits: Float[Tensor, "n d_vocab"]) -> Bool[Tensor, " n"]:
    """Examples whose logits are all finite."""
    return torch.isfinite(logits).flatten(1).all(1)


def check_finite(logits: Float[Tensor, "batch d_vocab"], what: str, rows: Int[Tensor, " batch"]) -> None:
    """Refuse NaN or infinite logits, naming the first example."""
    bad = ~finite_rows(logits)
    if bool(bad.any()):
        row = int(rows[bad.nonzero()[0, 0]])
        raise NonFiniteError(
            f"{what} has NaN or infinite logits for example {row}; check the model's weights and dtype "
            "(float16 overflows)"
        )


def check_circuit(model: Model, circuit: Circuit, *, weights: str | None = None) -> None:
    """Refuse a circuit of another graph; warn where it was found on other weights.

    Args:
        model: The model it is to run on.
        circuit: The circuit.
        weights: The model's `weight_hash`, where it is known already.
    """
    if circuit.graph.fingerprint != model.graph.fingerprint:
        raise GraphMismatchError(
            f"the circuit belongs to another model: its graph is {circuit.graph.describe()}, that of "
            f"{model.id!r} is {model.graph.describe()}"
        )
    if circuit.level == "neuron" and circuit.items.shape[1] != model.d_model:
        width = circuit.items.shape[1]
        raise GraphMismatchError(
            f"the circuit has {width} neurons per node, {model.id!r} has {model.d_model}"
        )
    found_on = circuit.provenance.get("model")
    if not isinstance(found_on, dict) or found_on.get("weight_hash") is None:
        return
    weights = weights or model.weight_hash
    if found_on["weight_hash"] != weights:
        warnings.warn(
            f"the circuit was discovered on {found_on.get('id')!r} with weights {found_on['weight_hash']}, "
            f"but runs on {model.id!r} with weights {weights}",
            AssayWarning,
            stacklevel=3,
        )


@torch.no_grad()
def run_model(
    model: Model,
    task: Task,
    *,
    corrupted: bool = False,
    batch_size: int | None = None,
    check: bool = True,
) -> Float[Tensor, "n d_vocab"]:
    """Logits of the unablated model at the read position of every example.

    Args:
        model: The model.
        task: The examples.
        corrupted: Run the corrupted inputs instead of the clean ones.
        batch_size: Examples per pass; default: by free memory.
        check: Refuse NaN or infinite logits; False returns them, for callers that count such examples.

    Returns:
        `[N, V]`.

    Raises:
        NonFiniteError: If a logit is NaN or infinite; the message names the example.
    """
    task = model.bind(task)

    def run(size: int) -> Tensor:
        results = []
        for batch in task.batches(size):
            batch = batch.to(model.device)
            hidden = model.forward(batch.corrupted if corrupted else batch.clean)
            results.append(model.read(hidden, batch.positions).to(model.result_dtype).cpu())
        return torch.cat(results)

    logits = with_room(run, choose_batch_size(model, task, asked=batch_size))
    if check:
        which = "corrupted" if corrupted else "clean"
        check_finite(logits, f"{model.id} on the {which} input", torch.arange(task.n))
    return logits


def run_circuit(
    circuit: Circuit,
    model: Model,
    task: Task,
    *,
    ablation: str | Ablation | None = None,
    pairs: Int[Tensor, "pairs 2"] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    check: bool = True,
    shelf: BaselineShelf | None = None,
) -> Float[Tensor, "n d_vocab"]:
    """Logits of the model with every edge outside the circuit ablated, at the read position.

    Args:
        circuit: The edges to keep, everywhere or at spans of positions, or nodes or neurons.
        model: The model.
        task: The examples.
        ablation: What a cut edge carries: `resample`, `zero`, `mean`, `mean-positional` or `noise-additive`;
            default: the task's own.
        pairs: (clean index, corrupted index) pairs to run instead of the task's own pairing; needs
            `resample`. A pass over an input serves all pairs of a block of inputs.
        batch_size: Examples or pairs per pass; default: by free memory.
        seed: Root seed of the noise.
        check: Refuse NaN or infinite logits; False returns them, for callers that count such examples.
        shelf: Keeps the ablated activations for the next circuit of the same model, task and ablation.

    Returns:
        `[N, V]`, or `[P, V]` with `pairs`; CPU,
        float32 (float64 for a float64 model). Full circuit: the model's logits. Empty circuit under
        `resample`: the model's logits on the corrupted input.

    Raises:
        GraphMismatchError: If the circuit belongs to another graph.
        NonFiniteError: If a logit is NaN or infinite.
        InputError: For positions that cannot be labelled, and `pairs` that do not fit the task.

    Notes:
        A circuit of neurons that keeps parts of nodes runs as one at spans does, with one mask.
        At spans every target has its own stream at every position, so a run costs what one under a
        real-valued mask does: two passes to prepare a batch, and a product over all sources per target. The
        mask of an example takes T S R numbers; prompts whose spans have the same places share one.

    References:
        Conmy et al. 2023, arXiv:2304.14997; uit de Bos and Garriga-Alonso 2024, equation 1.
    """
    replacement = get_ablation(ablation or task.ablation)
    check_circuit(model, circuit)
    task = model.bind(task)
    if pairs is not None:
        _check_pairs(task, replacement, pairs)
    if circuit.spans is not None or circuit.partial or model.post_norm == "eap-ig":
        task = task if pairs is None else task.paired(pairs)
        runner: CircuitRunner | _SoftRuns = _SoftRuns(model, task, circuit)
    else:
        runner = CircuitRunner(model, circuit, resample=replacement.paired)
        if runner.plan.everything:
            logits = run_model(model, task, batch_size=batch_size, check=check)
            return logits if pairs is None else logits[pairs[:, 0]]
    extra = runner.bytes_per_pair(task.length)
    n = task.n if pairs is None else len(pairs)
    size = choose_batch_size(model, task, n=n, asked=batch_size, bytes_per_example=extra)
    kept = BaselineShelf(max_bytes=0) if shelf is None else shelf

    def ablated(size: int) -> Tensor:
        if pairs is not None and isinstance(runner, CircuitRunner):
            return _run_pairs(model, runner, task, pairs, size)
        prepared = kept.prepared(lambda: replacement.prepare(model, task, batch_size=size, seed=seed))
        results = []
        for batch in task.batches(size):
            batch = batch.to(model.device)
            if isinstance(runner, _SoftRuns):
                made = runner.soft.prepare_batch(batch, prepared)
                logits = runner.soft.logits(made, runner.mask(batch), cells=runner.cells)
            else:
                depth = model.n_layers if runner.clean_depth is None else runner.clean_depth
                trace = kept.clean(batch, depth, partial(clean_pass, model, runner, batch.clean))
                logits = runner.logits(trace, kept.baseline(prepared, batch), batch.positions)
            results.append(logits.to(model.result_dtype).cpu())
        return torch.cat(results)

    with torch.no_grad():
        logits = with_room(ablated, size)
    if check:
        check_finite(logits, "the circuit run", torch.arange(task.n) if pairs is None else pairs[:, 0])
    return logits


class _SoftRuns:
    """Runs of a circuit of neurons, of edges by position, or where targets do not read a sum of sources."""

    def __init__(self, model: Model, task: Task, circuit: Circuit) -> None:
        self.soft = SoftRunner(model)
        self.weights = circuit.mask.to(device=model.device, dtype=model.result_dtype)
        self.cells = circuit.cells.to(self.weights) if circuit.cells is not None and circuit.partial else None
        # What is at padding is never read.
        self.labels = None if circuit.spans is None else circuit.spans.label(task).clamp(min=0)
        self.shared = self.labels is None or bool((self.labels == self.labels[0]).all())

    def bytes_per_pair(self, length: int) -> int:
        masks = 0 if self.shared else 2 * length * self.weights[0].nbytes
        return self.soft.bytes_per_pair(length) + masks

    def mask(self, batch: Batch) -> Tensor:
        """The weights of edges for some examples, position by position where there are spans."""
        if self.labels is None:
            return self.weights
        rows = self.labels[:1] if self.shared else self.labels[batch.indices.cpu()]
        return self.weights[rows.to(self.weights.device)]


def clean_pass(model: Model, runner: CircuitRunner, inputs: Tensor) -> Trace:
    """As much of a plain pass over the clean input as the circuit reads directly."""
    until = None if runner.clean_depth == model.n_layers else runner.clean_depth
    with torch.no_grad(), model.tracing(until=until) as trace:
        model.forward(inputs)
    return trace


def _run_pairs(
    model: Model, runner: CircuitRunner, task: Task, pairs: Int[Tensor, "pairs 2"], size: int
) -> Tensor:
    """Tile by tile of the clean x corrupted table: each input of a tile is run once for all its pairs."""
    places = torch.stack([each.unique(return_inverse=True)[1] for each in pairs.unbind(1)], 1)
    tiles = places.div(max(1, size // 2), rounding_mode="floor")
    order, results = [], []
    for tile in tiles.unique(dim=0):
        here = (tiles == tile).all(1).nonzero().squeeze(1)
        sides, at = [], []
        for column in pairs[here].unbind(1):
            rows, inverse = column.unique(return_inverse=True)
            few: Any = task.subset(rows)
            sides.append(next(iter(few.batches(few.n))).to(model.device))
            at.append(inverse)
        clean, corrupted = sides
        trace = clean_pass(model, runner, clean.clean)
        with model.tracing(streams=True) as streams:
            model.forward(corrupted.corrupted)
        baseline = Baseline.of(model, streams)
        for part in torch.arange(len(here)).split(size):
            first, second = (place[part].to(model.device) for place in at)
            found = runner.logits(trace, baseline, clean.positions[first], rows=(first, second))
            order.append(here[part])
            results.append(found.to(model.result_dtype).cpu())
    return torch.cat(results)[torch.cat(order).argsort()]


def _check_pairs(task: Task, ablation: Ablation, pairs: Tensor) -> None:
    if not ablation.paired:
        raise InputError(
            f"pairs= chooses corrupted inputs, but {ablation.key!r} ablation does not use them; use "
            "ablation='resample', or remove pairs"
        )
    fits = pairs.ndim == 2 and pairs.shape[1] == 2 and len(pairs) > 0
    if not (fits and int(pairs.min()) >= 0 and int(pairs.max()) < task.n):
        raise InputError(
            f"pairs of shape {tuple(pairs.shape)} do not fit; expected int64 [n_pairs, 2], each a clean and "
            f"a corrupted index from 0 to {task.n - 1}"
        )
    lengths = task.lengths[pairs]
    unequal = (lengths[:, 0] != lengths[:, 1]).nonzero().flatten()
    if len(unequal):
        (clean, corrupted), (one, other) = pairs[unequal[0]].tolist(), lengths[unequal[0]].tolist()
        raise InputError(
            f"pair ({clean}, {corrupted}) joins prompts of {one} and {other} tokens, but edges can only be "
            "patched between prompts of one length"
        )


# ---- attention of one prompt ------------------------------------------------------------------------------


@torch.no_grad()
def attention_pattern(model: Model, task: PairTask, row: int) -> Float[Tensor, "n_layers n_heads pos pos"]:
    """Attention of every head on one clean prompt of a task.

    Args:
        model: The model.
        task: The prompts.
        row: Which of them.

    Returns:
        Shares in [0, 1]: `[layer, head, query, key]`; each query's shares sum to 1. Float32 on the CPU.

    Notes:
        One forward pass. The weights are those that mix the values, with masks, caps and biases: they are
        read off by mixing the rows of the identity matrix in place of values.
    """
    length = int(task.lengths[row])
    with model.tracing(streams=True) as trace:
        model.forward(task.clean[row, :length][None].to(model.device))
    attention = PlacedAttention(
        model.rules, model.tables(trace.calls), length=length, causal=model.causal, read=None
    )
    heads = range(model.n_heads)
    patterns = []
    for layer, block in enumerate(model.blocks):
        channels = block.channels(trace.qkv[layer]).transpose(-3, -2)
        queries, keys, values = channels.split([block.n_heads, block.n_kv_heads, block.n_kv_heads], -3)
        unit = torch.eye(length, dtype=values.dtype, device=values.device)
        mixed = attention.mix(
            layer,
            attention.queries(layer, queries, heads, everywhere=True),
            attention.keys(layer, keys, range(block.n_kv_heads)),
            unit.expand(*values.shape[:-2], length, length),
            everywhere=True,
            heads=heads,
            kv_of_head=[block.kv_head(head) for head in heads],
        )
        patterns.append(mixed[0].float().cpu())
    return torch.stack(patterns)

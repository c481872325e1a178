"""Whether a module computes what its description says, seen on one short pass.

Attribution, circuits and head scores go by closed forms: a projection is its weight and bias, a head is
softmax attention over them, the stream is the sum of what its sources write. Adapters around a layer and
quantised layers keep the names of the plain ones and compute something else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from assay.core.errors import UnsupportedModelError
from assay.models.attention import PlacedAttention
from assay.models.block import Block, Norm
from assay.models.model import Model
from assay.models.tracing import Trace


N_TOKENS = 8
# By how much a part may differ, relative to its largest value; below float32 in units in the last place.
# Some norms and rotary tables are float32 whatever the weights are.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
_UNITS, _UNITS_OF_PATTERN = 6, 16  # scores of attention are large and exponentiated
HEADS = "what it reads, its heads"


def check_conformance(model: Model) -> None:
    """Run the module once, on 8 tokens or an image, and compare each described part with its closed form.

    Norms, q/k/v projections, heads, output projections, what MLPs read, the sums of the stream after every
    block, and the logits. Number types below float32 may differ by a few units in the last place. The mode of
    the module stays as it is, and evaluation draws no random numbers.

    Raises:
        UnsupportedModelError: For the first part that computes something else; the module is named.
    """
    with torch.no_grad(), _in_evaluation(model.module):
        inputs, outputs = short_input(model), Outputs()

        def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor):
                outputs[module] = output.detach().to(model.device, copy=True)

        with register_module_forward_hook(keep), model.tracing(streams=True) as trace:
            result: Any = model.module(inputs)
        with model.tracing(until=0) as entering:
            model.forward(inputs)
        _compare(model, model.module, "the stream entering the first block", entering.input, trace.input)
        logits = result if isinstance(result, Tensor) else result.logits
        for module, what, closed, native in _closed_forms(model, trace, outputs, logits):
            _compare(model, module, what, closed, native)


@contextmanager
def _in_evaluation(module: nn.Module) -> Iterator[None]:
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def short_input(model: Model) -> Tensor:
    """Eight tokens, or an image, as a model reads them."""
    if model.vision is not None:
        height, width = model.image_size
        pixels = torch.linspace(-1, 1, 3 * height * width, device=model.device)
        return pixels.view(3, width, height).transpose(1, 2).contiguous()[None].to(model.dtype)
    length = min(N_TOKENS, model.n_positions or N_TOKENS)
    step = max(1, model.n_vocab // (length + 1))
    return (torch.arange(1, length + 1, device=model.device) * step % model.n_vocab)[None]


Outputs = dict[nn.Module, Tensor]  # of all parts in one pass
Form = tuple[nn.Module, str, Tensor, Tensor]  # a part, what of it, its closed form, the native numbers


def _closed_forms(model: Model, trace: Trace, outputs: Outputs, logits: Tensor) -> Iterator[Form]:
    """Every described part of one pass beside its closed form, in the order of computation."""
    wide = model.result_dtype
    tables, length = model.tables(trace.calls), trace.input.shape[1]
    attention = PlacedAttention(model.rules, tables, length=length, causal=model.causal, read=None)

    def native(module: nn.Module) -> Tensor:
        return outputs[module] if module in outputs else _refuse(model, module, "it is never called")

    def linear(module: nn.Module, entering: Tensor) -> Form:
        weight: Any = getattr(module, "weight", None)
        if not isinstance(weight, Tensor):
            _refuse(model, module, "it has no weight")
        weight = weight.T if isinstance(module, nn.Linear) else weight
        if weight.shape != (entering.shape[-1], native(module).shape[-1]):
            _refuse(model, module, f"its weight of shape {tuple(weight.shape)} is not what it maps with")
        closed = entering.to(wide) @ weight.to(entering.device, wide)
        bias = getattr(module, "bias", None)
        closed = closed if bias is None else closed + bias.to(closed)
        return module, "its output", closed, native(module)

    def norm(norm: Norm, entering: Tensor) -> Form:
        module = norm.module or model.module
        if norm.kind is None:  # a classifier that pools first may normalise behind it
            return module, "its output", entering, outputs.get(module, entering)
        closed, shift = norm.scaled_by_gain(norm.standardise(entering)[0]), norm.shift
        closed = closed if shift is None else closed + shift.to(closed.device)
        return module, "its output", closed, native(module).view(closed.shape)

    assert trace.final_in is not None
    streams = [*trace.block_in, trace.final_in]
    for layer, block in enumerate(model.blocks):
        stream, z = streams[layer], trace.z[layer]
        yield (normed := norm(block.attention_norm, stream))
        for projection in block.qkv:
            yield linear(projection, normed[-1])
        yield block.out, HEADS, _heads(layer, block, trace, attention), z
        yield linear(block.out, trace.head_z[layer])
        adding = block.attention_scale or block.out
        if block.branch_norm is not None:
            bias = getattr(block.out, "bias", None)
            if isinstance(bias, Tensor) and bool(bias.any()):
                _refuse(model, block.out, "its bias goes through the norm of the branch")
            yield norm(block.branch_norm, outputs[block.out])
            adding = block.branch_norm.module or adding
        added, bias = native(adding), block.out_bias()
        written = z.flatten(0, -2).to(wide) @ block.out_weight().flatten(0, 1).to(wide)
        written = written if bias is None else written + bias.to(wide)
        yield adding, "its output", written.view_as(added), added
        mlp = torch.zeros_like(stream)
        if model.graph.mlps:
            read = stream if model.graph.parallel else stream + added
            yield norm(block.mlp_norm, read)
            mlp = block.run_mlp(read)
        yield block.mlp_out, "what it adds to the stream", mlp, trace.mlp[layer]
        behind = stream + added + trace.mlp[layer]
        yield block.module, "the sum of the stream behind it", behind, streams[layer + 1]
    yield (normed := norm(model.final_norm, trace.final_in))
    hidden, last = normed[-1], 0
    if model.vision is None:
        yield linear(model.unembed_module, hidden)
        last = hidden.shape[1] - 1
        logits = logits[:, last]
    closed = model.read(hidden, torch.tensor([last], device=hidden.device))
    yield model.module, "the logits", closed, logits


def _heads(layer: int, block: Block, trace: Trace, attention: PlacedAttention) -> Tensor:
    """What the heads give to the output projection, from the native q, k and v."""
    channels = block.channels(trace.qkv[layer]).transpose(-3, -2)
    queries, keys, values = channels.split([block.n_heads, block.n_kv_heads, block.n_kv_heads], -3)
    heads, kv_heads = range(block.n_heads), range(block.n_kv_heads)
    mixed = attention.mix(
        layer,
        attention.queries(layer, queries, heads, everywhere=True),
        attention.keys(layer, keys, kv_heads),
        values,
        everywhere=True,
        heads=heads,
        kv_of_head=[block.kv_head(head) for head in heads],
    )
    return block.rescaled(mixed).transpose(-3, -2).flatten(-2)


def _compare(model: Model, module: nn.Module, what: str, closed: Tensor, native: Tensor) -> None:
    if closed.shape != native.shape:
        _refuse(model, module, f"{what} has shape {tuple(native.shape)}, and {tuple(closed.shape)} follows")
    units = _UNITS_OF_PATTERN if what == HEADS else _UNITS
    tolerance = _TOLERANCE.get(model.dtype, units * torch.finfo(model.dtype).eps)
    native, closed = native.to(model.result_dtype), closed.to(model.result_dtype)
    largest = float(native.abs().amax())
    difference = float((closed - native).abs().amax())
    # Where the module itself gives NaN, the run proper names the example.
    if torch.isfinite(native).all() and not difference <= tolerance * largest:
        _refuse(model, module, f"{what} is off by {difference:.3g}, of at most {largest:.3g}")


def _refuse(model: Model, module: nn.Module, how: str) -> NoReturn:
    names = {part: path for path, part in model.module.named_modules()}
    raise UnsupportedModelError(
        f"{names.get(module) or 'the module'} ({type(module).__name__}) of {model.id} does not compute what "
        f"its weights and the description of family {model.family.key!r} imply: {how}. Circuits read the "
        "weights directly: merge adapters (merge_and_unload()) and dequantise the weights first "
        "(model.dequantize()). In your own family, correct the description"
    )

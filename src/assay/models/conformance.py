"""Whether a module computes what its description says, seen on one short pass.

Attribution, circuits and head scores go by closed forms: a projection is its weight and bias, a head is
softmax attention over them, the stream is the sum of what its sources write. Adapters around a layer and
quantised layers keep the names of the plain ones and compute something else.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from assay.core.errors import UnsupportedModelError
from assay.models.adapter import Model
from assay.models.attention import PlacedAttention
from assay.models.block import Block, Norm
from assay.models.tracing import Trace


N_TOKENS = 8
# By how much a part may differ, relative to its largest value; below float32 in units in the last place.
# Some norms and rotary tables are float32 whatever the weights are.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
_UNITS, _UNITS_OF_PATTERN = 6, 16  # scores of attention are large and exponentiated


def check_conformance(model: Model) -> None:
    """Run the module once, on 8 tokens or an image, and compare each described part with its closed form.

    Norms, q/k/v projections, heads, output projections, what MLPs read, the sums of the stream after every
    block, and the logits. Number types below float32 may differ by a few units in the last place. The mode of
    the module and the random numbers of the program stay as they are.

    Raises:
        UnsupportedModelError: For the first part that computes something else; the module is named.
    """
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), _in_evaluation(model.module):
        inputs = short_input(model)
        with _watched(model) as seen, model.tracing(streams=True) as trace:
            output = model.module(inputs)
        logits = _logits(output)
        with model.tracing(until=0) as entering:
            model.forward(inputs)
        _PartCheck(model, trace, seen).run(entering.input, logits)


def _logits(output: Any) -> Tensor:
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


def check_heads_apart(model: Model, what: str, *, projected: bool = False) -> None:
    """Refuse a model whose heads of a block depend on each other, where one head is changed by itself.

    Args:
        model: The model.
        what: Who asks, for the message.
        projected: Whether single queries and keys are changed too, not only what heads write.

    Raises:
        UnsupportedModelError: Naming the norm that couples them.
    """
    family = model.family
    if family.branch_norm is not None:
        between = f"a norm of what they write together ({family.branch_norm})"
    elif projected and model.coupling != "none":
        between = f"norms of all their queries and keys ({family.q_norm}, {family.k_norm})"
    else:
        return
    raise UnsupportedModelError(
        f"{what} changes the heads of {model.id} one by one, but the heads of a block depend on each other "
        f"through {between}. discover with a gradient method, measure, run_circuit and worst_case support "
        "such models"
    )


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


Seen = dict[nn.Module, tuple[Tensor, Tensor]]  # what a part was given, and what it gave


@contextmanager
def _watched(model: Model) -> Iterator[Seen]:
    """What the described parts read and write in the pass made inside."""
    seen: Seen = {}

    home = model.device

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen[module] = (args[0].detach().to(home), output.detach().to(home, copy=True))

    with ExitStack() as hooks:
        for part in _parts(model):
            hooks.callback(part.register_forward_hook(keep).remove)
        yield seen


def _parts(model: Model) -> list[nn.Module]:
    parts = [model.final_norm.module]
    if model.vision is None:
        parts.append(model.unembed_module)
    for block in model.blocks:
        parts += [block.attention_norm.module, *block.qkv, block.out, block.attention_scale]
        parts += [] if block.branch_norm is None else [block.branch_norm.module]
        parts += [block.mlp_norm.module, block.mlp] if model.graph.mlps else []
    return list(dict.fromkeys(part for part in parts if part is not None))


class _PartCheck:
    """The parts of one pass beside their closed forms."""

    def __init__(self, model: Model, trace: Trace, seen: Seen) -> None:
        self.model, self.trace, self.seen = model, trace, seen
        self.attention = PlacedAttention(
            model.rules,
            model.tables(trace.calls),
            length=trace.input.shape[1],
            causal=model.causal,
            read=None,
        )
        self.names = {part: path for path, part in model.module.named_modules()}
        eps = torch.finfo(model.dtype).eps
        self.tolerance = _TOLERANCE.get(model.dtype, _UNITS * eps)
        self.tolerance_of_pattern = _TOLERANCE.get(model.dtype, _UNITS_OF_PATTERN * eps)

    def run(self, entering: Tensor, logits: Tensor) -> None:
        model, trace = self.model, self.trace
        for part in _parts(model):
            if part not in self.seen:
                raise UnsupportedModelError(
                    f"{self.named(part)} is never called, so it cannot be read; correct the description of "
                    f"family {model.family.key!r}"
                )
        self.same(model.module, "the stream entering the first block", entering, trace.input)
        assert trace.final_in is not None
        streams = [*trace.block_in[1:], trace.final_in]
        for layer, block in enumerate(model.blocks):
            self.block(layer, block, streams[layer])
        hidden = self.norm(model.final_norm, trace.final_in)
        if model.vision is None:
            self.linear(model.unembed_module)
        last = 0 if model.vision is not None else hidden.shape[1] - 1
        read = model.read(hidden, torch.tensor([last], device=hidden.device))
        native = logits if model.vision is not None else logits[:, last]
        self.same(model.module, "the logits", read, native)

    def block(self, layer: int, block: Block, after: Tensor) -> None:
        trace = self.trace
        normed = self.norm(block.attention_norm, trace.block_in[layer])
        for projection in block.qkv:
            self.same(projection, "what it reads", normed, self.seen[projection][0])
            self.linear(projection)
        z = trace.z[layer]
        self.same(
            block.out, "what it reads, its heads", self.heads(layer, block), z, self.tolerance_of_pattern
        )
        if block.branch_norm is not None:
            bias = getattr(block.out, "bias", None)
            if isinstance(bias, Tensor) and bool(bias.any()):
                self.refuse(block.out, "its bias goes through the norm of the branch, which is not supported")
            self.norm(block.branch_norm, self.seen[block.out][1])
        self.linear(block.out)
        adding = block.attention_scale or block.out
        if block.branch_norm is not None and block.branch_norm.module is not None:
            adding = block.branch_norm.module
        attention = self.seen[adding][1]
        written = z.flatten(0, -2).to(self.wide) @ block.out_weight().flatten(0, 1).to(self.wide)
        bias = block.out_bias()
        written = (written if bias is None else written + bias.to(self.wide)).view_as(attention)
        self.same(adding, "its output", written, attention)
        stream = trace.block_in[layer].to(self.wide)
        if self.model.graph.mlps:
            reads = stream if self.model.graph.parallel else stream + attention
            self.same(block.mlp_norm.module or block.mlp, "the stream it reads", reads, trace.mlp_in[layer])
            normed = self.norm(block.mlp_norm, trace.mlp_in[layer])
            given = self.seen[block.mlp][0].view(normed.shape)
            self.same(block.mlp, "what it reads", normed, given)
            mlp = block.run_mlp(trace.mlp_in[layer])
            self.same(block.mlp_out, "its output", mlp, trace.mlp[layer])
        else:
            self.same(block.mlp, "what it adds to the stream", torch.zeros_like(stream), trace.mlp[layer])
        stream = stream + attention + trace.mlp[layer]
        self.same(block.module, "the sum of the stream behind it", stream, after)

    @property
    def wide(self) -> torch.dtype:
        return self.model.result_dtype

    def norm(self, norm: Norm, stream: Tensor) -> Tensor:
        """Output of a norm, after comparing it; the native one."""
        if norm.module is None:
            return stream
        entering, output = (value.view(stream.shape) for value in self.seen[norm.module])
        self.same(norm.module, "the stream it reads", stream, entering)
        if isinstance(norm.module, nn.Identity):  # a classifier that pools first may normalise behind it
            return output
        closed, shift = norm.scaled_by_gain(norm.standardise(entering)[0]), norm.shift
        closed = closed if shift is None else closed + shift.to(closed.device)
        self.same(norm.module, "its output", closed, output)
        return output

    def linear(self, module: nn.Module) -> None:
        """Compare a projection with what its weight and bias give."""
        entering, output = self.seen[module]
        weight: Any = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or not weight.is_floating_point():
            kind = weight.dtype if isinstance(weight, Tensor) else "no tensor"
            self.refuse(module, f"its weight is {kind}")
        weight = weight.T if isinstance(module, nn.Linear) else weight
        if weight.shape != (entering.shape[-1], output.shape[-1]):
            wanted = (entering.shape[-1], output.shape[-1])
            self.refuse(module, f"its weight has shape {tuple(weight.shape)}, where it maps {wanted}")
        closed = entering.to(self.wide) @ weight.to(entering.device, self.wide)
        bias = getattr(module, "bias", None)
        self.same(module, "its output", closed if bias is None else closed + bias.to(closed), output)

    def heads(self, layer: int, block: Block) -> Tensor:
        """What the heads give to the output projection, from the native q, k and v."""
        channels = block.channels(self.trace.qkv[layer]).transpose(-3, -2)
        queries, keyed = channels.tensor_split([block.n_heads], -3)
        keys, values = keyed.chunk(2, -3)
        heads, kv_heads = range(block.n_heads), range(block.n_kv_heads)
        mixed = self.attention.mix(
            layer,
            self.attention.queries(layer, queries, heads, everywhere=True),
            self.attention.keys(layer, keys, kv_heads),
            self.attention.values(layer, values),
            everywhere=True,
            heads=heads,
            kv_of_head=[block.kv_head(head) for head in heads],
        )
        return block.rescaled(mixed).transpose(-3, -2).flatten(-2)

    def same(
        self, module: nn.Module, what: str, closed: Tensor, native: Tensor, tolerance: float | None = None
    ) -> None:
        if closed.shape != native.shape:
            self.refuse(module, f"{what} has shape {tuple(native.shape)}, and {tuple(closed.shape)} follows")
        native, closed = native.to(self.wide), closed.to(self.wide)
        largest = float(native.abs().amax())
        difference = float((closed - native).abs().amax())
        # Where the module itself gives NaN, the run proper names the example.
        if torch.isfinite(native).all() and not difference <= (tolerance or self.tolerance) * largest:
            self.refuse(module, f"{what} is off by {difference:.3g}, of at most {largest:.3g}")

    def named(self, module: nn.Module) -> str:
        path = self.names.get(module) or "the module"
        return f"{path} ({type(module).__name__}) of {self.model.id}"

    def refuse(self, module: nn.Module, how: str) -> NoReturn:
        raise UnsupportedModelError(
            f"{self.named(module)} does not compute what its weights and the description of family "
            f"{self.model.family.key!r} imply: {how}. Circuits read the weights directly: merge adapters "
            "(merge_and_unload()) and dequantise the weights first (model.dequantize()). In your own "
            "family, correct the description"
        )

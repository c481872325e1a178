"""A planted vision transformer: `patch-marker`, name the colour of the patch that looks like the marked one.

An image is a grid of 4 x 4 patches. In each patch one quadrant is lit, red or blue. One patch is marked (its
ground is green); exactly one other patch has the same quadrant lit. The class is the colour of that one.

The stream is a set of registers, each a pair of coordinates (+x, -x), so its mean is 0. A large constant
register keeps LayerNorm's scale nearly constant (to 1e-4, with extras to 1e-2), so the norms are all but the
identity on registers.
What the program does:

1. an attention head of block 0 finds the marked patch and copies which quadrant it lights to every position;
2. the MLP of block 0 turns quadrants into four-way codes: each patch's own (the marked patch gets none), and
   the copied one;
3. an attention head of block 1 compares the copied code (query) with the patches' own (keys) and copies the
   colour of the patch that fits to the CLS token, whose class register the classifier reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.random import stream
from assay.models.adapter import FAMILIES, Model
from assay.models.family import Config
from assay.models.planted.patches import PATCH, QUADRANTS, SIDE, draw_patches
from assay.models.planted.planted import PLANTED, Planted


CONSTANT = 300.0  # of the register that fixes LayerNorm's scale; others are about 1
FIND, MATCH = 8.0, 8.0  # attention scores, above 0, of the marked patch and of the patch that fits
LOGIT = 2.0  # of the right class; minus as much of the other
CLASSES = ("red", "blue")
_REGISTERS = (
    "constant", "colour", "across", "down", "marked",
    "copied_across", "copied_down", "class",
    "own0", "own1", "own2", "own3", "copied0", "copied1", "copied2", "copied3",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Where the circuit is in a model of a given size.

    Attributes:
        n_layers, n_heads, width, mlp: Size of the model.
        finder, matcher: Head numbers, in block 0 and 1.
        mlp_rows: First of the eight neurons of block 0 that code quadrants.
    """

    n_layers: int
    n_heads: int
    width: int
    mlp: int
    finder: int = 0
    matcher: int = 0
    mlp_rows: int = 0

    @property
    def d_head(self) -> int:
        return self.width // self.n_heads

    @property
    def n_spare(self) -> int:
        """Registers that the circuit neither writes nor reads."""
        return self.width // 2 - len(_REGISTERS)


_SMALL = _Plan(n_layers=2, n_heads=1, width=2 * len(_REGISTERS), mlp=8)
_LARGE = _Plan(n_layers=3, n_heads=4, width=64, mlp=32, finder=1, matcher=2, mlp_rows=16)


@dataclass(frozen=True, eq=False)
class _Writer:
    """Writes weights by register name into a module made of zeros."""

    module: nn.Module
    plan: _Plan
    rng: np.random.Generator
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        spare = tuple(f"spare{number}" for number in range(self.plan.n_spare))
        object.__setattr__(self, "names", (*_REGISTERS, *spare))

    @property
    def spare(self) -> tuple[str, ...]:
        """Registers outside the circuit."""
        return self.names[len(_REGISTERS) :]

    def part(self, path: str) -> Any:
        return self.module.get_submodule(path)

    def writes(self, register: str) -> Float[Tensor, " width"]:
        """The direction of a register: what is added to the stream to add 1 to it."""
        direction = torch.zeros(self.plan.width, dtype=torch.float64)
        place = 2 * self.names.index(register)
        direction[place], direction[place + 1] = 1, -1
        return direction

    def reads(self, register: str) -> Float[Tensor, " width"]:
        """Weights that give the value of a register."""
        return self.writes(register) / 2

    def norms(self) -> None:
        """Gains that undo the scale, which the constant register decides."""
        gain = CONSTANT * (2 / self.plan.width) ** 0.5
        for path, part in self.module.named_modules():
            if isinstance(part, nn.LayerNorm):
                assert path  # the module itself is not a norm
                part.weight.copy_(torch.full((self.plan.width,), gain))

    def embed(self) -> None:
        """Pixels to registers: colour, quadrant and mark of each patch; the constant at every position."""
        kernel = torch.zeros(self.plan.width, 3, PATCH, PATCH, dtype=torch.float64)
        lit = PATCH * PATCH / 4  # pixels of a quadrant
        red_less_blue = torch.zeros(3, PATCH, PATCH, dtype=torch.float64)
        red_less_blue[0], red_less_blue[2] = 0.5, -0.5
        light = torch.zeros(3, PATCH, PATCH, dtype=torch.float64)
        light[0] = light[2] = 0.5  # 0 where lit and -1 where dark, so sides cancel what is dark in both
        half = PATCH // 2
        across, down = light.clone(), light.clone()
        across[:, :, half:] *= -1
        down[:, half:] *= -1
        green = torch.zeros(3, PATCH, PATCH, dtype=torch.float64)
        green[1] = 0.5 / (PATCH * PATCH)  # 1/2 where marked, -1/2 elsewhere; the bias adds 1/2
        for register, weights in (
            ("colour", -red_less_blue / lit),  # class 0 is red: -1
            ("across", across / lit),
            ("down", down / lit),
            ("marked", green),
        ):
            kernel += self.writes(register)[:, None, None, None] * weights
        projection = self.part("vit.embeddings.patch_embeddings.projection")
        projection.weight.copy_(kernel)
        projection.bias.copy_(self.writes("marked") / 2)
        self.part("vit.embeddings").position_embeddings.copy_(CONSTANT * self.writes("constant"))

    def head(
        self,
        layer: int,
        head: int,
        *,
        values: Sequence[tuple[str, str]],
        queries: Sequence[Mapping[str, float] | float] = (),
        keys: Sequence[Mapping[str, float]] = (),
    ) -> None:
        """One attention head.

        `values` pairs a register read with a register written, one per coordinate of the head. `queries` and
        `keys` say per coordinate what is compared: a constant, or a sum of registers.
        """
        rows = slice(head * self.plan.d_head, (head + 1) * self.plan.d_head)
        block = f"vit.layers.{layer}.attention"
        q, k, v = (self.part(f"{block}.{name}_proj") for name in "qkv")
        out = self.part(f"{block}.o_proj")
        for place, query in enumerate(queries):
            # The score is divided by the root of the head's width.
            if isinstance(query, Mapping):
                q.weight[rows][place] = self.plan.d_head**0.5 * self._sum(query)
            else:
                q.bias[rows][place] = self.plan.d_head**0.5 * query
        for place, key in enumerate(keys):
            k.weight[rows][place] = self._sum(key)
        for place, (read, written) in enumerate(values):
            v.weight[rows][place] = self.reads(read)
            out.weight[:, rows][:, place] = self.writes(written)

    def neuron(
        self, layer: int, row: int, *, reads: Mapping[str, float], bias: float, writes: Mapping[str, float]
    ) -> None:
        """One neuron: a sum of registers, a bias, ReLU, then a sum of directions."""
        mlp = f"vit.layers.{layer}.mlp"
        first, second = (self.part(f"{mlp}.{name}") for name in ("fc1", "fc2"))
        first.weight[row] = self._sum(reads)
        first.bias[row] = bias
        for register, weight in writes.items():
            second.weight[:, row] += weight * self.writes(register)

    def classify(self) -> None:
        """Class 1 where the class register is positive."""
        classifier = self.part("classifier")
        for label, sign in ((0, -1), (1, 1)):
            classifier.weight[label] = sign * LOGIT * self.reads("class")

    def _sum(self, terms: Mapping[str, float]) -> Float[Tensor, " width"]:
        total = torch.zeros(self.plan.width, dtype=torch.float64)
        for register, weight in terms.items():
            total += weight * self.reads(register)
        return total

    def some(self, registers: Sequence[str], n: int) -> list[str]:
        """`n` different registers at random."""
        return [str(name) for name in self.rng.choice(list(registers), n, replace=False)]

    def signs(self, registers: Sequence[str]) -> dict[str, float]:
        """A random sum of registers, weights +-1."""
        return {name: float(self.rng.choice([-1.0, 1.0])) for name in registers}


def _circuit(writer: _Writer) -> None:
    """The program itself."""
    plan = writer.plan
    writer.embed()
    writer.head(
        0,
        plan.finder,
        queries=[FIND],
        keys=[{"marked": 1.0}],
        values=[("across", "copied_across"), ("down", "copied_down")],
    )
    for number, (across, down) in enumerate(QUADRANTS):
        # Of the sum of two signs, 2 if both fit, less 1: 1 or at most -1. The mark takes it below 0.
        writer.neuron(
            0,
            plan.mlp_rows + number,
            reads={"across": across, "down": down, "marked": -2.0},
            bias=-1.0,
            writes={f"own{number}": 1.0},
        )
        writer.neuron(
            0,
            plan.mlp_rows + 4 + number,
            reads={"copied_across": across, "copied_down": down},
            bias=-1.0,
            writes={f"copied{number}": 1.0},
        )
    writer.head(
        1,
        plan.matcher,
        queries=[{f"copied{number}": MATCH} for number in range(4)],
        keys=[{f"own{number}": 1.0} for number in range(4)],
        values=[("colour", "class")],
    )
    writer.classify()


# ------------------------------------------------------------------------------------------------- extras


def _bare(writer: _Writer) -> None:
    """Nothing beside the circuit."""


def _inert(writer: _Writer) -> None:
    """Every other head and MLP reads at random and writes to registers that are never read."""
    plan = writer.plan
    for layer in range(plan.n_layers):
        for head in range(plan.n_heads):
            if not _is_circuit(plan, layer, head):
                _idle_head(writer, layer, head, writer.names[1:])
        for row in _free_rows(plan, layer):
            reads = writer.signs(writer.some(writer.names[1:], 3))
            written = dict.fromkeys(writer.some(writer.spare, 2), 0.5)
            writer.neuron(layer, row, reads=reads, bias=0.1, writes=written)


def _interfering(writer: _Writer) -> None:
    """Other heads and MLPs that read the circuit's registers and write where it reads, to no effect.

    - Heads of block 0 attend evenly and add the same amount to all keys of the matching head: softmax
      ignores it. The amount depends on the image.
    - Heads of block 1 repeat the comparison of the matching head and copy the colour to spare registers.
    - The MLP of block 1 writes to the class register, but only at patches, where it is not read: its neurons
      are off at the CLS token, which has no quadrant.
    - The MLP of block 0 has neurons beside those of the codes, which write to spare registers.
    - Block 2 reads the class register and writes to spare registers.
    """
    plan = writer.plan
    seen = ("colour", "across", "down", "marked")
    own = [f"own{number}" for number in range(4)]
    for head in range(plan.n_heads):
        if not _is_circuit(plan, 0, head):
            written = [*writer.some(own, 2), *writer.some(writer.spare, 1)]
            writer.head(0, head, values=_pairs(writer.some(seen, 3), written))
        if not _is_circuit(plan, 1, head):
            writer.head(
                1,
                head,
                queries=[{f"copied{number}": MATCH / 2} for number in range(4)],
                keys=[{f"own{number}": 1.0} for number in range(4)],
                values=_pairs(["colour", *writer.some(own, 2)], writer.some(writer.spare, 3)),
            )
        _idle_head(writer, 2, head, ("class", "colour", *own))
    for layer in range(plan.n_layers):
        for row in _free_rows(plan, layer):
            spare = dict.fromkeys(writer.some(writer.spare, 2), 0.5)
            if layer == 1:
                reads = {**writer.signs(["across", "down"]), **writer.signs(["colour"])}
                writer.neuron(1, row, reads=reads, bias=-0.5, writes={"class": 0.5, **spare})
            else:
                reads = writer.signs(writer.some((*seen, "copied_across", "copied_down", "class"), 3))
                writer.neuron(layer, row, reads=reads, bias=0.1, writes=spare)


def _pairs(read: Sequence[str], written: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(read, written, strict=True))


def _idle_head(writer: _Writer, layer: int, head: int, read: Sequence[str]) -> None:
    """A head that attends by the content of two registers and writes to three spare ones."""
    attended = writer.some(read, 2)
    writer.head(
        layer,
        head,
        queries=[1.0, writer.signs(writer.some(read, 2))],
        keys=[writer.signs([name]) for name in attended],
        values=_pairs(writer.some(read, 3), writer.some(writer.spare, 3)),
    )


def _is_circuit(plan: _Plan, layer: int, head: int) -> bool:
    return (layer, head) in ((0, plan.finder), (1, plan.matcher))


def _free_rows(plan: _Plan, layer: int) -> list[int]:
    """Neurons that the circuit leaves free."""
    taken = range(plan.mlp_rows, plan.mlp_rows + 8) if layer == 0 else range(0)
    return [row for row in range(plan.mlp) if row not in taken]


_EXTRAS: dict[str, tuple[_Plan, Callable[[_Writer], None]]] = {
    "bare": (_SMALL, _bare),
    "inert": (_LARGE, _inert),
    "interfering": (_LARGE, _interfering),
}


# ------------------------------------------------------------------------------------------------- model


def _edges(plan: _Plan) -> tuple[str, ...]:
    """What the program reads and writes, as edges."""
    finder, matcher = f"a0.h{plan.finder}", f"a1.h{plan.matcher}"
    return (
        f"input->{finder}.k",
        f"input->{finder}.v",
        "input->m0",
        f"input->{matcher}.v",
        f"{finder}->m0",
        f"m0->{matcher}.q",
        f"m0->{matcher}.k",
        f"{matcher}->logits",
    )


def _roles(plan: _Plan) -> dict[str, str]:
    return {
        "input": "colour, lit quadrant and mark of each patch",
        f"a0.h{plan.finder}": "finds the marked patch and copies its quadrant to every position",
        "m0": "codes quadrants four ways: each patch's own, unless marked, and the copied one",
        f"a1.h{plan.matcher}": "finds the patch whose code is the copied one and copies its colour to CLS",
        "logits": "reads the colour at CLS",
    }


def _module(plan: _Plan) -> nn.Module:
    """A ViT of the plan's size with every weight 0, in float64."""
    from transformers import ViTConfig, ViTForImageClassification

    config: Config = ViTConfig(
        image_size=SIDE,
        patch_size=PATCH,
        hidden_size=plan.width,
        num_hidden_layers=plan.n_layers,
        num_attention_heads=plan.n_heads,
        intermediate_size=plan.mlp,
        hidden_act="relu",
        id2label=dict(enumerate(CLASSES)),
        label2id={name: label for label, name in enumerate(CLASSES)},
    )
    with torch.random.fork_rng(devices=[]):  # its random weights are overwritten
        module: nn.Module = ViTForImageClassification(config)
    module.to(torch.float64)
    for parameter in module.parameters():
        parameter.requires_grad_(False).zero_()
    return module.eval()


def _build(extras: str, seed: int, dtype: torch.dtype) -> Planted:
    """The planted model with the given extras."""
    plan, add = _EXTRAS[extras]
    name = f"patch-marker/vit/{extras}"
    module = _module(plan)
    writer = _Writer(module, plan, stream(seed, f"planted/{name}"))
    with torch.no_grad():
        writer.norms()
        _circuit(writer)
        add(writer)
    module.to(dtype)
    model = Model(module, FAMILIES["vit"], name=f"planted:{name}", preprocessing=_PROCESSOR)
    return Planted(
        name=name,
        model=model,
        edges=tuple(sorted(_edges(plan), key=model.graph.edge_index)),
        roles=_roles(plan),
        draw=draw_patches,
    )


_PROCESSOR: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": SIDE, "width": SIDE},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


# ------------------------------------------------------------------------------------------------- images


def _builder(extras: str) -> Callable[[int, torch.dtype], Planted]:
    return lambda seed, dtype: _build(extras, seed, dtype)


for _extras in _EXTRAS:
    PLANTED.add(f"patch-marker/vit/{_extras}", _builder(_extras))

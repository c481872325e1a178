"""What a planted model is, and the registry that builds one by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import InputError, unknown_name
from assay.core.registry import Registry
from assay.models.adapter import Model


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedExamples:
    """Pairs of a clean and a corrupted input of a planted model, as tensors.

    Attributes:
        clean: Token ids `[n, pos]`, or images `[n, 3, h, w]`.
        corrupted: The counterparts, same shape: another draw of the same program, with another answer.
        answers: Right next token of each clean prompt `[n, 1]`; None for images.
        wrong: Tokens the answers are compared with `[n, w]`; None for images.
        positions: Position whose logits are read `[n]`; None: the last one.
        labels: Class of each clean image `[n]`; None for text.
        lengths: Tokens of each prompt `[n]`; None: all of them.
        fields: Facts about each pair, name to a list of n.
    """

    clean: Int[Tensor, "n pos"] | Float[Tensor, "n channel h w"]
    corrupted: Int[Tensor, "n pos"] | Float[Tensor, "n channel h w"]
    answers: Int[Tensor, "n one"] | None = None
    wrong: Int[Tensor, "n w"] | None = None
    positions: Int[Tensor, " n"] | None = None
    labels: Int[Tensor, " n"] | None = None
    lengths: Int[Tensor, " n"] | None = None
    fields: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of pairs."""
        return len(self.clean)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Planted:
    """A transformer whose circuit is known because its weights were written by hand.

    Attributes:
        name: `program/layout/extras`.
        model: The native module, described as any other.
        edges: Names of the edges of the circuit, in the order of the graph: those that carry what differs
            between a clean and a corrupted input to the answer, under `resample` ablation.
        roles: What each node of the circuit does, one line each, by node name.
        draw: Draws n pairs under a seed; call `examples`.
        tokens: What each token id stands for; empty for images.
        notes: What holds of this model alone: variants, edges whose single cut is partly silent.
    """

    name: str
    model: Model
    edges: tuple[str, ...]
    roles: Mapping[str, str]
    draw: Callable[[int, int], PlantedExamples]
    tokens: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Planted({self.name!r}, edges={len(self.edges)} of {self.model.graph.n_edges})"

    @property
    def program(self) -> str:
        """What it computes."""
        return self.name.split("/")[0]

    @property
    def layout(self) -> str:
        """The architecture it is written in."""
        return self.name.split("/")[1]

    @property
    def extras(self) -> str:
        """What the model holds besides the circuit."""
        return self.name.split("/")[2]

    def examples(self, n: int, seed: int = 0) -> PlantedExamples:
        """Pairs of inputs, drawn from the program's own distribution.

        Args:
            n: Number of pairs, at least 1.
            seed: Root seed. The first k of n pairs do not depend on n.

        Raises:
            InputError: If n is below 1.
        """
        if n < 1:
            raise InputError(f"{self.name}: n is {n}; give at least 1 example")
        return self.draw(n, seed)


# A builder takes the seed of the slight random weights and of the extra parts, and the dtype of the weights.
Builder = Callable[[int, torch.dtype], Planted]

PLANTED: Registry[Builder] = Registry("planted model", plural="planted")


def planted_names() -> tuple[str, ...]:
    """Names of all planted models, `program/layout/extras`, in order of registration.

    Example:
        >>> "induction/gpt2/inert" in planted_names()
        True
    """
    return tuple(PLANTED)


def planted_model(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Planted:
    """Build a transformer whose circuit is known by construction.

    Args:
        name: One of `planted_names()`, `program/layout/extras`.
        seed: Seed of the slight random weights and of the extra parts, >= 0; the circuit does not depend
            on it.
        dtype: Number type of the weights.

    Returns:
        The model (native weights, evaluation mode), its true edges, and a source of examples. Equal
        arguments give equal weights.

    Raises:
        UnknownNameError: If there is no such program, or the program does not come in that layout or with
            those extras; the message names all of them.
        InputError: If the seed is negative or the dtype no floating-point type.

    Example:
        >>> planted = planted_model("induction/gpt2/bare")
        >>> planted.edges[0]
        'input->a0.h0.v'
    """
    if seed < 0:
        raise InputError(f"seed is {seed}; give 0 or more")
    if not dtype.is_floating_point:
        raise InputError(f"weights of a planted model are floating-point numbers; got dtype {dtype}")
    if name not in PLANTED:
        raise _unknown(name)
    return PLANTED[name](seed, dtype)


def _unknown(name: str) -> InputError:
    """The error for a name that is not registered, with what its parts allow."""
    parts = name.split("/")
    names = [known.split("/") for known in planted_names()]
    if len(parts) != 3:
        return unknown_name("planted model", name, planted_names())
    program, layout, extras = parts
    programs = dict.fromkeys(known[0] for known in names)
    if program not in programs:
        return unknown_name("planted program", program, programs)
    layouts = dict.fromkeys(known[1] for known in names if known[0] == program)
    if layout not in layouts:
        return unknown_name(f"layout of {program!r}", layout, layouts)
    offered = dict.fromkeys(known[2] for known in names if known[:2] == [program, layout])
    return unknown_name(f"extras of {program + '/' + layout!r}", extras, offered)

"""Planted models by name: their weights, their true edges, and a source of examples."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from assay.core.errors import check_least, unknown_name
from assay.models.loading import load_model
from assay.models.model import Model
from assay.models.planted.programs import PROGRAMS, PlantedExamples, Program, duplicate
from assay.models.planted.weights import Assembler, Extras


SHARP = 4.0  # of the saturated variant

# Name -> program, sharpness (factor on attention scores and slopes of units), what stands beside its parts.
_Variant = tuple[Callable[[float], Program], float, Extras]
_VARIANTS: dict[str, _Variant] = {}
for _name, _program in PROGRAMS.items():
    _VARIANTS[f"{_name}/gpt2/bare"] = (_program, 1.0, "bare")
    _VARIANTS[f"{_name}/gpt2/interfering"] = (_program, 1.0, "interfering")
    _VARIANTS[f"{_name}/gpt2/saturated"] = (_program, SHARP, "inert")
_VARIANTS["duplicate/gpt2/vote"] = (partial(duplicate, vote=True), 1.0, "inert")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Planted:
    """A transformer whose circuit is known because its weights were written by hand.

    Attributes:
        name: `program/layout/extras`.
        model: The native module, described as any other.
        edges: Names of the edges of the circuit, in the order of the graph: those that carry what differs
            between a clean and a corrupted input to the answer, under `resample` ablation.
        program: What the weights were written for; `program.tokens` says what each token id stands for.
    """

    name: str
    model: Model
    edges: tuple[str, ...]
    program: Program

    def __repr__(self) -> str:
        return f"Planted({self.name!r}, edges={len(self.edges)} of {self.model.graph.n_edges})"

    def examples(self, n: int, seed: int = 0) -> PlantedExamples:
        """Pairs of inputs, drawn from the program's own distribution.

        Args:
            n: Number of pairs, at least 1.
            seed: Root seed. The first k of n pairs do not depend on n.

        Raises:
            InputError: If n is below 1.
        """
        check_least(1, n=n)
        return self.program.examples(n, seed)


def planted_names() -> tuple[str, ...]:
    """Names of all planted models, `program/layout/extras`.

    Example:
        >>> "induction/gpt2/bare" in planted_names()
        True
    """
    return tuple(_VARIANTS)


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
        UnknownNameError: If there is no such model; the message names those that there are.
        InputError: If the seed is negative.

    Example:
        >>> planted = planted_model("induction/gpt2/bare")
        >>> planted.edges[0]
        'input->a0.h0.v'
    """
    check_least(0, seed=seed)
    if name not in _VARIANTS:
        raise unknown_name("planted model", name, planted_names())
    write, sharpness, extras = _VARIANTS[name]
    program = write(sharpness)
    assembler = Assembler(program, extras, seed)
    model = load_model(assembler.module(dtype))
    model.id = f"planted:{name}"
    nodes = assembler.nodes
    edges = [
        f"{nodes.get(writer, writer)}->{nodes.get(reader, reader)}{channel and '.'}{channel}"
        for writer, reader, channel in program.wires()
    ]
    edges.sort(key=model.graph.edge_index)
    return Planted(name=name, model=model, edges=tuple(edges), program=program)

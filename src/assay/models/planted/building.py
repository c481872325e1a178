"""Builders of the planted language models, registered for every program, layout and set of extras."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from assay.models.loading import load_model
from assay.models.planted.assembly import Assembler, Extras, true_edges
from assay.models.planted.layouts import LAYOUTS, build_module
from assay.models.planted.planted import PLANTED, Planted
from assay.models.planted.program import LOGITS, Program
from assay.models.planted.programs import PROGRAMS, duplicate_by_vote


EXTRAS: tuple[Extras, ...] = ("bare", "inert", "interfering")
SHARP = 4.0  # of the saturated variant


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What the third part of a name stands for.

    Attributes:
        program: The program itself, or one changed so that some method fails on it.
        sharpness: Factor on its attention scores and the slopes of its units.
        beside: What the model holds besides its parts.
    """

    program: Callable[[float], Program]
    sharpness: float = 1.0
    beside: Extras


def _variants(program: str, layout: str) -> dict[str, Variant]:
    """The extras that a program comes with in a layout."""
    plain = PROGRAMS[program]
    variants: dict[str, Variant] = {extras: Variant(program=plain, beside=extras) for extras in EXTRAS}
    if layout == "gpt2":
        variants["saturated"] = Variant(program=plain, beside="inert", sharpness=SHARP)
        if program == "duplicate":
            variants["vote"] = Variant(program=duplicate_by_vote, beside="inert")
    return variants


def build(program: str, layout: str, extras: str, seed: int, dtype: torch.dtype) -> Planted:
    """One planted language model; `planted_model` checks the arguments."""
    variant = _variants(program, layout)[extras]
    written = variant.program(variant.sharpness)
    assembler = Assembler(written, LAYOUTS[layout], variant.beside, seed)
    module = build_module(layout, assembler.weights(), written.length, dtype)
    model = load_model(module)
    model.id = f"planted:{program}/{layout}/{extras}"
    edges = true_edges(written, LAYOUTS[layout], assembler.placement)
    places = {name: model.graph.edge_index(name) for name in edges}
    roles = {
        "input": "embeds the token, its position where the layout embeds it, and the constants of the norms"
    }
    roles |= {assembler.placement.nodes[part.name]: part.role for part in written.parts}
    roles[LOGITS] = "reads register 'out'"
    return Planted(
        name=f"{program}/{layout}/{extras}",
        model=model,
        edges=tuple(sorted(edges, key=lambda name: places[name])),
        roles=roles,
        draw=written.draw,
        tokens=written.tokens,
        notes=written.notes,
    )


def _builder(program: str, layout: str, extras: str) -> Callable[[int, torch.dtype], Planted]:
    return lambda seed, dtype: build(program, layout, extras, seed, dtype)


for _program in PROGRAMS:
    for _layout in LAYOUTS:
        for _extras in _variants(_program, _layout):
            PLANTED.add(f"{_program}/{_layout}/{_extras}", _builder(_program, _layout, _extras))

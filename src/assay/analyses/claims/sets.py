"""Head sets of a claim's controls and rivals, in a model of a known shape."""

import itertools
from dataclasses import dataclass
from pathlib import Path

from assay.analyses.claims.claim import Claim, Control, head_name
from assay.circuits.heads import Head
from assay.core.errors import InputError
from assay.core.random import stream
from assay.core.untrusted import MALFORMED
from assay.models import Model
from assay.models.loading import MINI


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What of a model a claim's heads are compared with.

    Attributes:
        name: What messages call it.
        n_layers: Layers.
        n_heads: Heads per layer.
    """

    name: str
    n_layers: int
    n_heads: int


def shape_of(model: Model) -> Shape:
    """Shape of a loaded model."""
    return Shape(name=model.id, n_layers=model.n_layers, n_heads=model.n_heads)


def known_shape(source: str) -> Shape | None:
    """Shape of the embedded model or of a local directory, from its configuration alone.

    Args:
        source: As `load_model` takes it.

    Returns:
        None for a hub id, and for a configuration that cannot be read or names no heads: loading the model
        will tell.
    """
    path = MINI if source == "mini" else Path(source)
    if not (path / "config.json").is_file():
        return None
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, StrictDataclassError, *MALFORMED):
        return None
    n_layers, n_heads = (getattr(config, key, None) for key in ("num_hidden_layers", "num_attention_heads"))
    if type(n_layers) is not int or type(n_heads) is not int:
        return None
    return Shape(name=source, n_layers=n_layers, n_heads=n_heads)


def head_sets(claim: Claim, shape: Shape) -> dict[str, list[tuple[Head, ...]]]:
    """Heads of each control and rival by its name; drawn ones are drawn.

    Raises:
        InputError: For heads that the model does not have, or too few heads to draw from.
    """
    named = [
        *((f"role {name!r}", role.heads) for name, role in claim.roles.items()),
        *((f"[[controls]] {i + 1}", each.heads) for i, each in enumerate(claim.controls)),
        *((f"[[rivals]] {i + 1}", each.heads) for i, each in enumerate(claim.rivals)),
    ]
    for place, heads in named:
        for layer, head in () if isinstance(heads, str) else heads:
            if layer >= shape.n_layers or head >= shape.n_heads:
                raise InputError(
                    f"{place} names {head_name((layer, head))}, which {shape.name} does not have: it has "
                    f"{shape.n_layers} layers of {shape.n_heads} heads, counted from 0"
                )
    sets: dict[str, list[tuple[Head, ...]]] = {}
    for number, control in enumerate(claim.controls):
        sets[f"control {number + 1}"] = (
            _draws(claim, control, number, shape) if isinstance(control.heads, str) else [control.heads]
        )
    for number, rival in enumerate(claim.rivals):
        if not isinstance(rival.heads, str):
            sets[f"rival {number + 1}"] = [rival.heads]
    return sets


def _draws(claim: Claim, control: Control, number: int, shape: Shape) -> list[tuple[Head, ...]]:
    """Random head sets outside the claim, all of them different where there are enough."""
    own = claim.heads_of(control.of)
    everywhere = itertools.product(range(shape.n_layers), range(shape.n_heads))
    others = [head for head in everywhere if head not in claim.heads]
    groups = (
        [(len(own), others)]
        if control.heads == "random"
        else [
            (sum(head[0] == layer for head in own), [head for head in others if head[0] == layer])
            for layer in sorted({layer for layer, _ in own})
        ]
    )
    for wanted, there in groups:
        if wanted > len(there):
            where = "" if control.heads == "random" else " of one layer"
            raise InputError(
                f"[[controls]] {number + 1}: {control.heads} needs {wanted} heads{where} outside the claim, "
                f"but there are only {len(there)}; list the heads of the control instead"
            )
    rng = stream(claim.seed, f"claim/control/{number}")
    sets: dict[tuple[Head, ...], None] = {}
    for _ in range(20 * control.draws):  # repeats are drawn again, but not for ever
        chosen = [
            there[place]
            for wanted, there in groups
            for place in rng.permutation(len(there))[:wanted].tolist()
        ]
        sets[tuple(sorted(chosen))] = None
        if len(sets) == control.draws:
            break
    return list(sets)

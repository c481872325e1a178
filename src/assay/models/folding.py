"""Bare parameters between the projections of a module, folded into the projections on a copy."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import UnsupportedModelError
from assay.models.family import Family


def folded(module: nn.Module, family: Family) -> nn.Module:
    """The module itself, or a copy that computes the same with its bare parameters folded in.

    A bias that is added behind a projection becomes the bias of the projection; a scale of a branch becomes a
    factor of the weight and bias that the branch ends with. All other weights are shared with the module.
    """
    if family.fold is None:
        return module
    shared = {id(each): each for each in (*module.parameters(), *module.buffers())}
    own = copy.deepcopy(module, shared)
    return own if family.fold(own) else module


def check_unfolded(model: Any) -> None:
    """Refuse to train a folded copy: its weights are not those of the module, nor in its layout.

    Raises:
        UnsupportedModelError: If the model is such a copy.
    """
    if model.origin.get("folded"):
        raise UnsupportedModelError(
            f"{model.id} was loaded as a copy with its bare parameters folded into projections, which cannot "
            "be trained by circuits or saved in its own layout; start from another class, e.g. a ViT"
        )


def scale_output(projection: nn.Linear, factors: Tensor) -> None:
    """Multiply what a projection gives, in new parameters."""
    projection.weight = nn.Parameter(projection.weight.detach() * factors.detach()[:, None])
    if projection.bias is not None:
        projection.bias = nn.Parameter(projection.bias.detach() * factors.detach())


def add_bias(projection: nn.Linear, *parts: Tensor) -> None:
    """Give a projection that has no bias one, from the biases of its parts."""
    projection.bias = nn.Parameter(torch.cat([part.detach() for part in parts]))

"""The blocks of a live module, as the description of its family says."""

import warnings

import torch
from torch import nn

from assay.core.errors import AssayWarning, NonFiniteError, UnsupportedModelError
from assay.models.attention import AttentionRule, HeadNorm
from assay.models.block import Block, Norm
from assay.models.family import Family, Sizes, submodule


def check_weights(module: nn.Module, name: str) -> None:
    """Refuse weights that nothing can be computed with.

    Raises:
        UnsupportedModelError: If a parameter was never given memory, or is stored in a type of one byte.
        NonFiniteError: If a parameter is NaN or infinite.
    """
    parameters = list(module.named_parameters())
    empty = [path for path, parameter in parameters if parameter.is_meta]
    if empty:
        raise UnsupportedModelError(
            f"weight {empty[0]!r} of {name} has no values (device 'meta'), like {len(empty)} of "
            f"{len(parameters)} weights; load them first, e.g. with from_pretrained. Parts that accelerate "
            "keeps on the CPU or the disk have none either: give load_model the folder and device_map="
        )
    for path, parameter in parameters:
        if parameter.is_floating_point() and parameter.dtype.itemsize == 1:
            raise UnsupportedModelError(
                f"weight {path!r} of {name} is stored as {parameter.dtype}, which layers cannot compute "
                "with; dequantise the weights first (model.dequantize())"
            )
        if not bool(torch.isfinite(parameter).all()):
            raise NonFiniteError(
                f"weight {path!r} of {name} holds NaN or infinite values; reload or retrain the model"
            )


def warn_of_length(task: str, length: int, model: str, most: int) -> None:
    """Warn of prompts beyond the length that a model was made for, though it reads them."""
    warnings.warn(
        f"the longest prompt of {task!r} has {length} tokens, but {model} was made for {most}. Results on "
        "longer prompts are unreliable; make the prompts shorter",
        AssayWarning,
        stacklevel=3,
    )


def bind_norm(root: nn.Module, family: Family, path: str | None) -> Norm:
    """The norm at a path from `root`; without a path or with a placeholder there, none."""
    module = None if path is None else submodule(root, path)
    kind = None if module is None or isinstance(module, nn.Identity) else family.norm
    return Norm(module=module, kind=kind)


def bind_blocks(
    module: nn.Module, family: Family, sizes: Sizes, *, per_target: bool = False
) -> tuple[Block, ...]:
    """All blocks in order.

    Args:
        module: The module.
        family: Its description.
        sizes: Its heads and widths.
        per_target: Whether targets apply a norm behind the heads of a block to what they read of them.
    """
    blocks = submodule(module, family.blocks).children()
    return tuple(
        _block(module, family, sizes, layer, block, per_target) for layer, block in enumerate(blocks)
    )


def _block(
    module: nn.Module, family: Family, sizes: Sizes, layer: int, block: nn.Module, per_target: bool
) -> Block:
    mlp, mlp_scale = submodule(block, family.mlp), _optional(block, family.mlp_scale)
    behind = None if family.branch_norm is None else bind_norm(block, family, family.branch_norm)
    return Block(
        root=module,
        module=block,
        family=family,
        n_heads=sizes.n_heads,
        n_kv_heads=sizes.n_kv_heads,
        d_head=sizes.d_head,
        attention_norm=bind_norm(block, family, family.attention_norm),
        mlp_norm=bind_norm(block, family, family.mlp_norm),
        qkv=tuple(submodule(block, path) for path in family.qkv.paths),
        out=submodule(block, family.out),
        mlp=mlp,
        mlp_out=mlp_scale or (mlp if family.mlp_out is None else submodule(block, family.mlp_out)),
        attention_scale=_optional(block, family.attention_scale),
        branch_norm=None if per_target else behind,
        target_norm=behind if per_target else None,
        mlp_scale=mlp_scale,
        rule=_rule(module, family, layer, block),
    )


def _rule(module: nn.Module, family: Family, layer: int, block: nn.Module) -> AttentionRule:
    """What the description says about the attention of one block."""

    def norm(path: str | None) -> HeadNorm | None:
        found = _optional(block, path)
        return None if found is None else HeadNorm(module=found, over=family.norms_over)

    return AttentionRule(
        scaling=float(family.scaling(submodule(block, family.attention))),
        window=family.window(module, layer),
        softcap=family.softcap(module),
        table=family.table(module, layer),
        adjacent=family.adjacent,
        q_norm=norm(family.q_norm),
        k_norm=norm(family.k_norm),
        bias=family.position_bias(module, layer),
    )


def _optional(block: nn.Module, path: str | None) -> nn.Module | None:
    """The module at a path; None without a path, and where nothing or a placeholder stands there."""
    module = None if path is None else dict(block.named_modules()).get(path)
    return None if isinstance(module, nn.Identity) else module

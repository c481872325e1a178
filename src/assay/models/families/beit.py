"""BEiT of Hugging Face: a bias by relative position, of each block or shared."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from assay.models.adapter import FAMILIES
from assay.models.classifier_reading import ClassifierReading, read_by
from assay.models.families.vit import VIT
from assay.models.family import pair
from assay.models.folding import scale_output


def _bias(module: Any, layer: int) -> Callable[[int], Tensor] | None:
    own, shared = module.beit.layers[layer].relative_position_bias, module.beit.shared_position_bias
    tables = [each for each in (own, shared) if each is not None]
    (height, width), (down, across) = pair(module.config.image_size), pair(module.config.patch_size)
    window = height // down, width // across

    def table(length: int) -> Tensor:
        first, *more = (each(window)[0] for each in tables)
        bias: Tensor = sum(more, first)
        return bias

    return table if tables else None


def _fold(module: Any) -> bool:
    """Scales of the branches are parameters of a block, or the number 1."""
    found = False
    for block in module.beit.layers:
        for name, projection in (("lambda_1", block.attention.o_proj), ("lambda_2", block.mlp.fc2)):
            factors = getattr(block, name)
            if isinstance(factors, Tensor):
                scale_output(projection, factors)
                delattr(block, name)
                setattr(block, name, 1.0)
                found = True
    return found


_READING = ClassifierReading(
    backbone="beit",
    features=lambda module, hidden: (module.beit.pooler(hidden),),
    pools=lambda config: config.use_mean_pooling,
)
FAMILIES.add(
    "beit",
    replace(
        VIT,
        key="beit",
        serves="BEiT",
        model_types=("beit",),
        backbone="beit",
        blocks="beit.layers",
        final_norm="beit.layernorm",
        position_bias=_bias,
        fold=_fold,
        **read_by({"BeitForImageClassification": _READING}),
    ),
)

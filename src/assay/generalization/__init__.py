"""What a circuit says about generalization: before deployment, and after it. Numbers in, numbers out."""

from assay.generalization.dependency import (
    LayerSets,
    dependency_depth_bias,
    dependency_matrix,
    layer_sets,
    output_depth_bias,
)


__all__ = [
    "LayerSets",
    "dependency_depth_bias",
    "dependency_matrix",
    "layer_sets",
    "output_depth_bias",
]

"""Where integrated gradients look along the path from the ablated to the clean value."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from assay.core.errors import InputError, check_name


Rule = Literal["midpoint", "left", "right", "gauss-legendre"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One evaluation: at `ablated + alpha (clean - ablated)`, with its weight in the mean."""

    alpha: float
    weight: float


def quadrature_nodes(steps: int, rule: str = "midpoint") -> tuple[Node, ...]:
    """Nodes and weights of a rule on [0, 1]; weights sum to 1.

    Args:
        steps: Number of nodes, >= 1.
        rule: `midpoint` (default), `left` (alpha = k/n, k = 0..n-1: the published EAP-IG), `right`
            (k = 1..n), or `gauss-legendre`.

    Raises:
        InputError: If `steps` is below 1 or the rule is unknown.

    Example:
        >>> [node.alpha for node in quadrature_nodes(2, "left")]
        [0.0, 0.5]
    """
    if steps < 1:
        raise InputError(f"steps is {steps}; integrated gradients need at least 1")
    if rule == "gauss-legendre":
        points, weights = np.polynomial.legendre.leggauss(steps)
        return tuple(
            Node(alpha=float(point + 1) / 2, weight=float(weight) / 2)
            for point, weight in zip(points, weights, strict=True)
        )
    check_name("quadrature", rule, get_args(Rule))
    shift = {"midpoint": 0.5, "left": 0.0, "right": 1.0}[rule]
    return tuple(Node(alpha=(k + shift) / steps, weight=1 / steps) for k in range(steps))

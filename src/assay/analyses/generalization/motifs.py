"""Which dependencies between layers go with performance, over models or domains (generalization motif)."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor

from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError, ShapeError, unknown_name
from assay.core.plotted import Plotted


if TYPE_CHECKING:
    import pandas as pd

CONSTANT = 1e-12  # spread below which an entry does not vary, relative to the largest entry of all matrices


@dataclass(frozen=True, kw_only=True, eq=False)
class Motif(Plotted):
    """How each entry of the dependency matrix goes with performance on one task.

    Attributes:
        loadings: float64 `[L + 1, L + 1]`: correlation of each entry with the canonical variate, in [-1, 1];
            0 where the entry does not vary.
        weights: float64 `[L + 1, L + 1]`: coefficients of the standardised entries in the variate.
        correlation: Canonical correlation of variate and performance, in [0, 1]. 1 says nothing where there
            are no more models than used entries and no ridge.
        used: True where the entry varies over the models.
        n: Number of models (or domains).
        kind: Which of the two `values` gives.
        ridge: Penalty on the weights.
    """

    drawn_by = "assay.analyses.generalization.rank_plots:plot_motif"

    loadings: Float[Tensor, "n_layers n_layers"]
    weights: Float[Tensor, "n_layers n_layers"]
    correlation: float
    used: Bool[Tensor, "n_layers n_layers"]
    n: int
    kind: str
    ridge: float

    @property
    def values(self) -> Float[Tensor, "n_layers n_layers"]:
        """The loadings or the weights, as `kind` says."""
        return self.loadings if self.kind == "loadings" else self.weights

    def __repr__(self) -> str:
        return f"Motif({self.n} models, canonical correlation {self.correlation:.3g})"

    def to_frame(self) -> "pd.DataFrame":
        """One row per pair of layers: source, target (places), loading, weight, used."""
        import pandas as pd

        source, target = np.indices(self.used.shape).reshape(2, -1)
        columns = {"loading": self.loadings, "weight": self.weights, "used": self.used}
        flat = {name: each.flatten().numpy() for name, each in columns.items()}
        return pd.DataFrame({"source": source, "target": target, **flat})


def motif(
    matrices: Sequence[Float[Tensor, "n_layers n_layers"]]
    | Float[Tensor, "n n_layers n_layers"]
    | Float[np.ndarray, "n n_layers n_layers"],
    performance: Sequence[float] | Real[Tensor, " n"] | Real[np.ndarray, " n"],
    *,
    kind: str = "loadings",
    ridge: float = 0.0,
) -> Motif:
    """The generalization motif of one task: dependency matrices of its models against their performance.

    Or of one model: its matrices on several domains against its performance there, which need not look like
    the motif over models (the paper's contradictory patterns after deployment).

    With Z the standardised entries that vary and y the standardised performance: a = pinv(Z) y, or
    (Z'Z/n + ridge I)^-1 Z'y/n. The weights are a; the loading of entry j is Pearson(X_j, Z a).

    Args:
        matrices: Dependency matrix of each model, or of one model on each domain, all of one size.
        performance: True performance of each, in the same order; any unit, larger is better.
        kind: What `Motif.values` gives: `"loadings"` (stable under collinear entries) or `"weights"`.
        ridge: Penalty, >= 0, on standardised columns.

    Returns:
        The motif; positive entries: models that depend on this pair of layers more perform better, or the
        model performs better where it depends on it more.

    Raises:
        InputError: For fewer than 3 matrices, constant performance, a negative ridge, matrices that do not
            vary, or not one performance per matrix.
        NonFiniteError: For NaN or infinite numbers.
        UnknownNameError: For another `kind`.

    Notes:
        A picture, not a predictor: performance is one-dimensional, so the canonical correlation is the
        multiple correlation of a regression, which is 1 without ridge once entries are as many as models.
        Loadings are then still defined (minimum-norm weights). Where performance is uncorrelated with every
        entry, loadings are NaN with a `DegenerateDataWarning`.

    References:
        Peng et al. (2026), arXiv:2604.08192, Eq. 3.

    Example:
        >>> matrices = [torch.tensor([[0.0, each], [0.0, 0.0]]) for each in (1.0, 2.0, 4.0)]
        >>> motif(matrices, [0.9, 0.7, 0.3]).loadings
        tensor([[ 0., -1.],
                [ 0.,  0.]], dtype=torch.float64)
    """
    if kind not in ("loadings", "weights"):
        raise unknown_name("kind", kind, ("loadings", "weights"))
    if not ridge >= 0:
        raise InputError(f"ridge is {ridge}; expected a penalty of 0 or more")
    x = _stacked(matrices)
    y = np.asarray(performance, dtype=np.float64)
    size = x.shape[1]
    x = x.reshape(len(x), -1)
    _check(x, y)
    spread = x.std(0)
    used = spread > CONSTANT * np.abs(x).max()
    if not used.any():
        raise InputError("all dependency matrices are equal, so they cannot predict performance")
    z = (x[:, used] - x[:, used].mean(0)) / spread[used]
    target = (y - y.mean()) / y.std()
    if ridge:
        n, width = z.shape
        a = np.linalg.solve(z.T @ z / n + ridge * np.eye(width), z.T @ target / n)
    else:
        a = np.linalg.pinv(z) @ target
    variate = z @ a
    length = float(np.linalg.norm(variate))
    if length <= CONSTANT * math.sqrt(len(y)):
        warnings.warn(
            "the motif has no loadings: performance is uncorrelated with every entry",
            DegenerateDataWarning,
            stacklevel=2,
        )
        correlation, loads = 0.0, np.full(len(a), np.nan)
    else:
        # variate and columns have mean 0; pinv and ridge both give a variate that points along performance
        correlation = float(np.clip(variate @ target / (length * np.linalg.norm(target)), 0.0, 1.0))
        loads = np.clip(z.T @ variate / (np.linalg.norm(z, axis=0) * length), -1.0, 1.0)
    shape = (size, size)
    return Motif(
        loadings=_placed(loads, used).view(shape),
        weights=_placed(a, used).view(shape),
        correlation=correlation,
        used=torch.from_numpy(used).view(shape),
        n=len(y),
        kind=kind,
        ridge=ridge,
    )


def universal_motif(motifs: Sequence[Motif], *, norm: str = "max") -> Float[Tensor, "n_layers n_layers"]:
    """The mean of the motifs of several tasks, each scaled first.

    Args:
        motifs: At least one, all of one size and kind.
        norm: Scale by the largest magnitude (`"max"`) or the Euclidean norm (`"l2"`).

    Returns:
        float64 `[L + 1, L + 1]`, in [-1, 1].

    Raises:
        InputError: For no motif, motifs of different kinds or sizes, or one that is NaN or 0 throughout.
        UnknownNameError: For another `norm`.

    References:
        Peng et al. (2026), arXiv:2604.08192, section 4.
    """
    if norm not in ("max", "l2"):
        raise unknown_name("norm", norm, ("max", "l2"))
    if not motifs:
        raise InputError("a universal motif is the mean of at least one motif; got none")
    if len({(each.kind, tuple(each.values.shape)) for each in motifs}) > 1:
        seen = ", ".join(f"{each.kind} of shape {tuple(each.values.shape)}" for each in motifs)
        raise InputError(f"motifs of different kinds or sizes cannot be averaged; got {seen}")
    scaled = []
    for index, each in enumerate(motifs):
        scale = float(each.values.abs().max() if norm == "max" else each.values.norm())
        if not scale > 0:
            raise InputError(f"motif {index} is NaN, or 0 everywhere; remove it")
        scaled.append(each.values / scale)
    return torch.stack(scaled).mean(0)


def _stacked(
    matrices: Sequence[Float[Tensor, "n_layers n_layers"]]
    | Float[Tensor, "n n_layers n_layers"]
    | Float[np.ndarray, "n n_layers n_layers"],
) -> Float[np.ndarray, "n n_layers n_layers"]:
    if isinstance(matrices, np.ndarray):
        x = matrices.astype(np.float64)
    elif isinstance(matrices, Tensor):
        x = matrices.detach().cpu().double().numpy()
    else:
        shapes = sorted({tuple(each.shape) for each in matrices})
        if len(shapes) > 1:
            raise ShapeError(f"dependency matrices have shapes {shapes}; expected one size")
        x = (
            np.stack([each.detach().cpu().double().numpy() for each in matrices])
            if shapes
            else np.zeros((0, 1, 1))
        )
    if x.ndim != 3 or x.shape[1] != x.shape[2]:
        raise ShapeError(
            f"dependency matrices have shape {x.shape}; expected square ones, one per model or domain"
        )
    return x


def _check(x: Float[np.ndarray, "n entries"], y: np.ndarray) -> None:
    if y.ndim != 1 or len(x) != len(y):
        raise InputError(
            f"got {len(x)} dependency matrices and performances of shape {y.shape}; give one per matrix"
        )
    if len(y) < 3:
        raise InputError(f"a motif needs at least 3 models or domains; got {len(y)}")
    for name, array in (("dependency matrix", x), ("performance", y)):
        bad = np.flatnonzero(~np.isfinite(array.reshape(len(y), -1)).all(1))
        if len(bad):
            raise NonFiniteError(f"{name} {bad[0]} is not finite; remove that model or domain")
    if np.ptp(y) <= CONSTANT * np.abs(y).max():
        raise InputError(f"every performance is {y[0]}, so a correlation with it is undefined")


def _placed(
    values: Float[np.ndarray, " n_used"], used: Bool[np.ndarray, " entries"]
) -> Float[Tensor, " entries"]:
    full = np.zeros(len(used))
    full[used] = values
    return torch.from_numpy(full)

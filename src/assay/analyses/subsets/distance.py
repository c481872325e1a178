"""How far examples lie from the in-distribution ones in an embedding space."""

from typing import Literal

import numpy as np
from jaxtyping import Float, Float64

from assay.core.errors import InputError, ShapeError, unknown_name


MODES = ("nearest", "centroid")
_ROWS = 4096  # in-distribution examples compared at a time
_ENTRIES = 1 << 22  # similarities held at a time
_CANCELLED = 1e-12  # length of a mean of unit vectors that is rounding


def distance_scores(
    embedding: Float[np.ndarray, "n d"],
    id_embedding: Float[np.ndarray, "n_id d"],
    mode: Literal["nearest", "centroid"] | str = "nearest",
) -> Float64[np.ndarray, " n"]:
    """How far each example lies from the in-distribution ones, by cosine.

    `nearest`: 1 - max_i cos(e_j, e_i) over in-distribution examples i. `centroid`: 1 - cos(e_j, their mean
    direction), the direction of the mean of the unit vectors.

    Args:
        embedding: Of the examples; any length, no row zero.
        id_embedding: Of in-distribution examples, by the same encoder.
        mode: `nearest` or `centroid`.

    Returns:
        In [0, 2]; larger is further.

    Raises:
        InputError: Rows that are zero or not finite, no in-distribution example, or directions that cancel.
        ShapeError: Embeddings of different widths.

    Notes:
        `nearest` takes O(n n_id d) and holds 4 million similarities at a time.
    """
    if mode not in MODES:
        raise unknown_name("kind of distance", mode, MODES)
    if embedding.ndim != 2 or id_embedding.ndim != 2 or embedding.shape[1] != id_embedding.shape[1]:
        raise ShapeError(
            f"embedding has shape {embedding.shape}, id_embedding {id_embedding.shape}; rows of one width, "
            "from one encoder, are needed"
        )
    if not len(id_embedding):
        raise InputError("id_embedding is empty; a distance needs at least one in-distribution example")
    ood, known = _directions(embedding, "embedding"), _directions(id_embedding, "id_embedding")
    if mode == "centroid":
        mean = known.mean(axis=0)
        length = float(np.linalg.norm(mean))
        if length < _CANCELLED:
            raise InputError(
                "the directions of id_embedding cancel, so they have no mean direction; use mode='nearest'"
            )
        similarity = ood @ (mean / length)
    else:
        similarity = _nearest(ood, known)
    return np.asarray(np.clip(1 - similarity, 0.0, 2.0))


def _directions(rows: Float[np.ndarray, "n d"], name: str) -> Float64[np.ndarray, "n d"]:
    """Rows of unit length."""
    rows = rows.astype(np.float64)
    lengths = np.sqrt((rows * rows).sum(axis=1))
    bad = np.flatnonzero(~((lengths > 0) & np.isfinite(lengths)))
    if len(bad):
        raise InputError(
            f"{name}[{bad[0]}] has length {lengths[bad[0]]} ({len(bad)} such rows); a direction needs finite "
            "numbers that are not all 0: drop these examples or embed them again"
        )
    return np.asarray(rows / lengths[:, None])


def _nearest(
    ood: Float64[np.ndarray, "n d"], known: Float64[np.ndarray, "n_id d"]
) -> Float64[np.ndarray, " n"]:
    """Largest cosine of each row with any known one."""
    found = np.full(len(ood), -np.inf)
    columns = min(len(known), _ROWS)
    rows = max(1, _ENTRIES // columns)
    for start in range(0, len(ood), rows):
        block = ood[start : start + rows]
        best = found[start : start + rows]
        for first in range(0, len(known), columns):
            np.maximum(best, (block @ known[first : first + columns].T).max(axis=1), out=best)
    return found

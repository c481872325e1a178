"""Labelled images in distribution, split into those that readings learn from and those that are corrupted."""

import operator
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from assay.analyses.generalization.accuracy_estimate import WINDOWS
from assay.core.errors import InputError
from assay.core.random import stream
from assay.tasks import ImageSet, ImageStream
from assay.tasks.image_decoding import Arrays


Known = ImageSet | ImageStream
MOST_LABELLED = 1000  # images that readings learn from


class KnownParts(NamedTuple):
    """Labelled images in distribution, split once.

    Attributes:
        learn: What ATC and other readings learn from; None where the images are too few to split.
        corrupt: What calibration domains are made of.
    """

    learn: Known | None
    corrupt: Known


def split_known(images: Known, n: int, *, seed: int = 0) -> KnownParts:
    """Split labelled images, so that no reading of a calibration domain has seen the labels of its images.

    With N images, min(N // 2, max(N - 4 n, n), 1000) are to learn from and the rest to corrupt: four batches
    are kept for the domains before learning gets more than one. Fewer than 2 n images are not split.

    Args:
        images: In distribution, not those of the reference circuit.
        n: Images of a batch to watch.
        seed: Of the stream `domains/known`.

    Notes:
        Which images are where depends on their ids alone, not on their order; images of one id stay together.
    """
    ids = np.unique(np.asarray(images.ids))
    size = learning_size(len(ids), n)
    if not size:
        return KnownParts(learn=None, corrupt=images)
    learns = np.isin(np.asarray(images.ids), stream(seed, "domains/known").permutation(ids)[:size])
    return KnownParts(
        learn=images.subset(np.flatnonzero(learns)), corrupt=images.subset(np.flatnonzero(~learns))
    )


def learning_size(n_images: int, n: int) -> int:
    """Images that `split_known` gives to learn from; 0 where they are too few to split."""
    return 0 if n_images < 2 * n else min(n_images // 2, max(n_images - WINDOWS * n, n), MOST_LABELLED)


def check_apart(images: Known, labelled: Known) -> None:
    """Refuse images that readings would learn from and be judged on.

    Raises:
        InputError: If an image of one id is in both.
    """
    ids, known = np.asarray(images.ids), np.asarray(labelled.ids)
    _, rows, others = np.intersect1d(ids, known, return_indices=True)
    shared = sum(map(operator.eq, _marks(images, rows), _marks(labelled, others)))
    if shared:
        raise InputError(
            f"{shared} of the {images.n} images to corrupt are among the {labelled.n} that readings learn "
            "from, which would make an estimate of accuracy too sure; split them with split_known"
        )


def _marks(images: Known, rows: Int64[np.ndarray, " k"]) -> Iterator[str]:
    """What identifies the images in some rows; of a stream, without reading them."""
    if isinstance(images, ImageSet):
        return Arrays(images.name, images.pixels).marks(rows.tolist())
    return images.pictures.marks(images.rows.numpy()[rows].tolist())

"""Labelled images in distribution, split into those that readings learn from and those that are corrupted."""

from typing import NamedTuple

import numpy as np

from assay.core.random import stream
from assay.tasks import ImageSet, ImageStream


Known = ImageSet | ImageStream
MOST_LABELLED = 1000  # images that baselines learn from
WINDOWS = 4  # batches kept for the domains before baselines learn from more than one


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

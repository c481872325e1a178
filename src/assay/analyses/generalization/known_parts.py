"""Labelled images in distribution, split into those that readings learn from and those that are corrupted."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from assay.analyses.generalization.accuracy_estimate import WINDOWS
from assay.core.errors import InputError
from assay.core.random import stream
from assay.tasks import ImageSet, ImageStream
from assay.tasks.image_decoding import PIECE, Arrays


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

    Only images of one id are compared: two sets by their pixels, two streams by what identifies a picture in
    its source (such as name and size of its file), a set and a stream by the pixels after resize and crop,
    which are decoded. An image that is in both under two ids, or at two sizes, is not noticed.

    Raises:
        InputError: If an image is in both.
        FileFormatError: If a picture of a stream beside a set cannot be decoded.
    """
    shared = np.intersect1d(np.asarray(images.ids), np.asarray(labelled.ids))
    if not len(shared):
        return
    decode = isinstance(images, ImageSet) != isinstance(labelled, ImageSet)
    known = set(_identities(labelled, shared, decode=decode))
    count = sum(each in known for each in _identities(images, shared, decode=decode))
    if count:
        raise InputError(
            f"{count} of the {images.n} images to corrupt are among the {labelled.n} that readings learn "
            "from, which would make an estimate of accuracy too sure; split them with split_known"
        )


def _identities(images: Known, shared: Int64[np.ndarray, " k"], *, decode: bool) -> Iterator[tuple[int, str]]:
    """Id and mark of the images whose ids are shared; a stream is read only to `decode` it."""
    ids = np.asarray(images.ids)
    rows = np.flatnonzero(np.isin(ids, shared))
    marks: Iterator[str]
    if isinstance(images, ImageSet):
        marks = Arrays(images.name, images.pixels).marks(rows.tolist())
    elif decode:
        some = images.subset(rows)
        pixels = (batch.pixels.numpy() for batch in some.decoded(PIECE))
        marks = (mark for each in pixels for mark in Arrays(some.name, each).marks(range(len(each))))
    else:  # one by one: a source may give several marks of several rows
        marks = ("\0".join(images.pictures.marks([row])) for row in images.rows.numpy()[rows].tolist())
    return zip(ids[rows].tolist(), marks, strict=True)

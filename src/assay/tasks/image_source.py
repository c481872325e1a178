"""Images by name or place: folders, tables of WILDS and others, drawn domains. No image is decoded here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from assay.core.errors import FileFormatError, InputError, check_name
from assay.tasks.digits import COLOUR_DIGITS, DIGIT_AGREEMENTS, digits_task, draw_digits
from assay.tasks.image_datasets import read_dataset
from assay.tasks.image_files import is_table, of_folder, of_table
from assay.tasks.image_reading import Pictures
from assay.tasks.image_transform import EvalTransform
from assay.tasks.images import ImageTask
from assay.tasks.load import DEFAULT_N, digits_source
from assay.tasks.shapes import SHAPE_DOMAINS, draw_shapes


SHAPES = "shapes"
FIRST_FREE = 20_000  # number of the first drawn image that no model of the embedded zoo was trained on
FIRST_KNOWN = 1_000_000  # the same for known images, which are no targets


def is_shapes(source: str | Path) -> bool:
    """Whether a source is drawn, `shapes` or `shapes:DOMAIN`.

    Raises:
        UnknownNameError: If there is no such domain.
    """
    name, _, domain = str(source).partition(":")
    if name == SHAPES and domain:
        check_name("style of shapes", domain, SHAPE_DOMAINS)
    return name == SHAPES


def find_domains(
    source: str | Path,
    *,
    by: Sequence[str] | None = None,
    n: int | None = None,
    seed: int = 0,
    start: int = 0,
    drawn: int = 300,
) -> dict[str, ImageTask]:
    """The images of a name or a path, by domain; none is read yet.

    Args:
        source: `shapes` or `shapes:DOMAIN`; `colour-digits` or `colour-digits:AGREEMENT` (of digits that no
            model was trained on); `folder/DOMAIN/CLASS/IMAGE`; `folder/CORRUPTION/SEVERITY/CLASS/IMAGE`;
            `folder/CLASS/IMAGE`; a folder of unlabelled images; or a table as in `read_table`.
        by: Columns of a table: a domain for each combination of their values. Empty: those of its layout.
            None: the table is one domain.
        n: A random sample of this many images of each domain; None, or more than there are: all.
        seed: Of the sample, or of the drawing.
        start: Number of the first drawn image: images of other numbers are other images.
        drawn: Images per drawn domain where there is no `n`.

    Returns:
        Domain to its images, sorted by domain; labels mean the same in all domains of a folder, also where
        one lacks a class. The `transform` is the model's that they are run on.

    Raises:
        UnknownNameError: If there is no such drawn domain, or no such column.
        FileFormatError: If nothing is at the path.
        InputError: If a folder holds no image, or mixes kinds of entries.

    Example:
        >>> {domain: images.n for domain, images in find_domains("shapes:flat", n=4).items()}
        {'flat': 4}
    """
    if by and not is_table(source):
        raise InputError(f"domains by {', '.join(by)} need a table, and {source} is not one")
    draws: dict[str, partial[ImageTask]] = {}
    if is_shapes(source):
        style = str(source).partition(":")[2]
        draws = {each: partial(draw_shapes, each) for each in ([style] if style else SHAPE_DOMAINS)}
    elif (digits := digits_source(source)) is not None:
        for share in [digits["agreement"]] if "agreement" in digits else DIGIT_AGREEMENTS:
            draws[f"agreement-{share:g}"] = partial(draw_digits, agreement=share, split="test")
    if draws:
        n = drawn if n is None else n
        return {name: _drawn(draws[name], n, seed, start) for name in sorted(draws)}
    if is_table(source):
        domains = of_table(str(source), by)
    elif Path(source).is_dir():
        domains = of_folder(Path(source))
    else:
        raise FileFormatError(
            f"{source} has no images; expected a folder, a .csv file, '{COLOUR_DIGITS}', 'shapes' or "
            f"'shapes:DOMAIN' with a domain of {', '.join(SHAPE_DOMAINS)}"
        )
    for name, images in domains.items():
        sample = images if n is None else images.sample(n, seed=seed)
        domains[name] = replace(sample, config={**images.config, "n": n, "seed": seed})
    return domains


def one_domain(domains: Mapping[str, ImageTask], source: str | Path) -> ImageTask:
    """The only domain of a source.

    Raises:
        InputError: If there are several; they are named.
    """
    if len(domains) > 1:
        raise InputError(f"{source} holds {len(domains)} domains; name one of {', '.join(sorted(domains))}")
    return next(iter(domains.values()))


def load_images(
    source: Any,
    model: Any,
    *,
    n: int | None = None,
    seed: int = 0,
    skip_bad: bool = False,
    workers: int | None = None,
    hold: bool = True,
) -> ImageTask:
    """Images of one domain, as an image classifier reads them.

    Args:
        source: `shapes:DOMAIN` (drawn, no download; numbers from 20,000 on, which no model of the embedded
            zoo was trained on), `colour-digits[:AGREEMENT[/SWAP]]` (as `digits_task` draws
            them; default 0.9 and `both`), a folder with a folder per class, a folder of unlabelled images, a
            table as in `read_table`; or a data set of PyTorch or of the `datasets` library, as `read_dataset`
            takes it.
        model: A loaded image classifier; its stored transform is applied, its class names give the labels.
        n: Number of images, a random sample. Default: 200 drawn ones, all of a file or folder.
        seed: Seed of the sample, or of the drawing.
        skip_bad: Leave out files that cannot be decoded, and count them, instead of failing. Each image is
            decoded once for it.
        workers: Threads that decode beside this one; see `ImageTask`.
        hold: Decode the images now, once, and hold them in 8 bits. False: decode them whenever the task is
            run, for more images than the memory holds; coloured digits then have no counterparts.

    Raises:
        InputError: If the model reads prompts, the source holds several domains, or classes differ.
        FileFormatError: If nothing is there, or an image cannot be read.

    Example:
        >>> from assay.zoo import Zoo
        >>> zoo = Zoo.embedded()
        >>> load_images("shapes:flat", zoo.load(zoo.keys[0]), n=3).clean.shape
        torch.Size([3, 3, 32, 32])
    """
    if getattr(model, "vision", None) is None:
        raise InputError(
            f"{getattr(model, 'id', model)} reads prompts, not images; use load_task(name, model)"
        )
    if hold and (digits := digits_source(source)) is not None:
        return digits_task(model, DEFAULT_N if n is None else n, seed=seed, **digits)
    if isinstance(source, str | Path):
        # Drawn images are those that no model was trained on.
        domains = find_domains(source, n=n, seed=seed, start=FIRST_FREE, drawn=DEFAULT_N)
        images = one_domain(domains, source)
    else:
        images = read_dataset(source, n=n, seed=seed)
    images = replace(images.for_model(model), workers=workers)
    if hold:
        return images.held(skip_bad=skip_bad)
    return images.readable() if skip_bad else images


# -------------------------------------------------------------------------------------------------- drawn


class _Drawn(Pictures):
    """Pictures that are drawn at the size that a model reads."""

    def __init__(self, draw: partial[ImageTask], name: str, ids: Sequence[int], seed: int) -> None:
        super().__init__(len(ids), name)
        self._draw, self._ids, self._seed = draw, ids, seed

    def name(self, row: int) -> str:
        return f"{self._title}, image {self._ids[row]}"

    def content(self, row: int) -> None:
        """There is none: see `decoded`."""

    def decoded(self, row: int, transform: EvalTransform) -> UInt8[np.ndarray, "h w 3"]:
        side = transform.crop or transform.resize or 32
        height, width = side if isinstance(side, tuple) else (side, side)
        if height != width:
            raise InputError(f"images are drawn square, but the model reads {height} x {width}")
        pixels = self._draw(1, seed=self._seed, size=height, start=self._ids[row]).pixels
        assert pixels is not None
        return np.asarray(pixels[0])

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        how = (self._draw.func.__name__, self._draw.args, self._draw.keywords)  # no address in memory
        yield f"{self._title} {how} {self._seed} {[self._ids[row] for row in rows]}"


def _drawn(draw: partial[ImageTask], n: int, seed: int, start: int) -> ImageTask:
    """Images of one drawn domain, numbered from `start`."""
    facts = draw(n, seed=seed, size=16, start=start)
    source = _Drawn(draw, facts.name, facts.ids.tolist(), seed)
    config = {name: value for name, value in facts.config.items() if name != "size"}
    return replace(facts, pixels=None, source=source, config=config)

"""A zoo as separate pieces of work: the training of each model, then the list of all."""

import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.core.errors import AssayWarning, InputError, NonFiniteError
from assay.core.record import library_version
from assay.store import About, Store
from assay.tasks import EvalTransform, ReadOptions, find_domains, is_shapes
from assay.zoo import Grid, Recipe, Zoo, split, train_zoo
from assay.zoo.building import enrol, train_recipe
from assay.zoo.feeding import Images
from assay.zoo.scoring import images_hash


ANY_SIZE = 32  # side of images for models that read any size
DRAWN = 1200  # images of a drawn domain


@dataclass(frozen=True, kw_only=True, eq=False)
class ZooPlan:
    """The models of a zoo that are to be trained, and the images they are trained on.

    Attributes:
        grid: Their recipes.
        images: Of the domain, training and validation together.
        folder: Directory of the zoo.
        holdout: Share of each class that validates.
        seed: Of the split.
        precision: Number type of training passes.
        device: Where models train.
    """

    grid: Grid
    images: Images
    folder: Path
    holdout: float
    seed: int
    precision: str
    device: str | None

    @functools.cached_property
    def sets(self) -> tuple[Images, Images]:
        """Images to train on and to validate on."""
        return split(self.images, self.holdout, seed=self.seed)

    def record(self, recipe: Recipe) -> dict[str, Any]:
        """What one of the models is a function of."""
        training, validation = self.sets
        return {
            "zoo": str(self.folder),
            "recipe": recipe.to_dict(),
            "start": self.grid.initialisations[recipe.init].to_dict(),
            "images": {"train": images_hash(training), "validation": images_hash(validation)},
            "precision": self.precision,
        }

    def enrol(self) -> None:
        """Make the zoo's directory with a list of what is to be trained; one of the same images is kept."""
        enrol(self.grid, *self.sets, self.folder)

    def train(self, recipe: Recipe) -> None:
        """Train one model in its place in the zoo, or go on with it; `assemble` writes down how it ended.

        A model that diverges is left out here: `assemble` meets the same, and writes it down as failed.
        """
        try:
            train_recipe(
                self.grid,
                recipe,
                *self.sets,
                self.folder / "models" / recipe.key,
                device=self.device,
                precision=self.precision,
            )
        except NonFiniteError:
            return

    def assemble(self) -> Zoo:
        """The zoo of all models; what is not trained yet is trained."""
        training, validation = self.sets
        return train_zoo(
            self.grid,
            training,
            self.folder,
            validation=validation,
            device=self.device,
            precision=self.precision,
        )


@functools.lru_cache(maxsize=1)
def zoo_plan(
    *,
    grid: str,
    images: str,
    out: str,
    size: int | None = None,
    n: int | None = None,
    holdout: float = 0.2,
    seed: int = 0,
    precision: str = "float32",
    skip_bad: bool = False,
    device: str | None = None,
) -> ZooPlan:
    """Read a grid and its images.

    Args:
        grid: TOML or JSON file, or a preset.
        images: Folder or archive of one domain, or `shapes:STYLE`.
        out: Directory of the zoo.
        size: Height and width of the images; None: what the models state, else 32.
        n: Images; None: all of a folder, 1200 drawn ones.
        holdout: Share of each class that validates.
        seed: Of the sample and of the split.
        precision: Number type of training passes.
        skip_bad: Leave out files that cannot be decoded, with a warning that names the first.
        device: Where models train.

    Raises:
        InputError: If `images` holds several domains, or images without labels.
        FileFormatError: If the grid or the images cannot be read.
    """
    read = Grid.read(grid)
    options = ReadOptions(n=n, seed=seed, skip_bad=skip_bad)
    found = training_images(images, read, size=size, options=options)
    if found.skipped:
        warnings.warn(
            f"{len(found.skipped)} files of {found.domain} were skipped, e.g. {found.skipped[0]}",
            AssayWarning,
            stacklevel=2,
        )
    return ZooPlan(
        grid=read,
        images=found,
        folder=Path(out),
        holdout=holdout,
        seed=seed,
        precision=precision,
        device=device,
    )


def training_images(source: str | Path, grid: Grid, *, size: int | None, options: ReadOptions) -> Images:
    """The images that a zoo is trained on: drawn ones in memory, others as a stream.

    Args:
        source: Folder or archive of one domain, or `shapes:STYLE`.
        grid: Its starts say which size they read.
        size: Height and width instead; None: what the starts state, else 32.
        options: Sample, seed, bad files, workers; its transform does not count.

    Raises:
        InputError: If the source holds several domains, or starts read different sizes.
        FileFormatError: If the images cannot be read.
    """
    domains = find_domains(source, drawn=DRAWN)
    if len(domains) != 1:
        names = ", ".join(each.name for each in domains)
        raise InputError(f"{source} holds {len(domains)} domains ({names}); a zoo is trained on one, name it")
    sides = grid.image_size() if size is None else (size, size)
    options = replace(options, transform=EvalTransform(resize=sides or (ANY_SIZE, ANY_SIZE)))
    return domains[0].read(options, None) if is_shapes(source) else domains[0].stream(options, None)


def zoo_document(zoo: Zoo) -> dict[str, Any]:
    """A zoo as the JSON document of `assay zoo`."""
    classes = None if zoo.classes is None else list(zoo.classes)
    facts = {"name": zoo.name, "path": str(zoo.path), "id_domain": zoo.id_domain, "classes": classes}
    models: Sequence[Mapping[str, Any]] = [entry.to_dict() for entry in zoo.entries]
    return {**facts, "data": dict(zoo.data), "selection": zoo.selection, "models": models}


def zoo_identity(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the result of a trained zoo is found by."""
    return {key: document[key] for key in ("name", "data", "models")}


def about_zoo(zoo: Zoo, seed: int) -> About:
    """What the row of a trained zoo is found by."""
    return About(
        task=zoo.id_domain,
        metric="accuracy",
        n=len(zoo.keys),
        seed=seed,
        value=max((each.id_accuracy for each in zoo.entries if each.id_accuracy is not None), default=None),
        name=zoo.name,
    )


def keep_zoo(store: Store, zoo: Zoo, seed: int) -> str:
    """Store the document of a trained zoo; returns its id."""
    document = zoo_document(zoo)
    record = {"library": library_version(), **zoo_identity(document)}
    return store.put("zoo", record, document, about=about_zoo(zoo, seed))

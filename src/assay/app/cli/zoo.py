"""`assay zoo`: train the models of a grid, record what they predict, list them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.cli.parsing import IMAGES, command, family
from assay.app.delivery import (
    Computing,
    Talking,
    echo,
    make_room,
    note,
    print_table,
    progress_on_stderr,
    remark,
)
from assay.app.options import INPUTS, OUTPUT, Count, own_group
from assay.app.settings import Placed, Seeded, SkipBad, Typed
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.tasks import ImageTask
    from assay.zoo import Zoo

TRAINING = own_group("Training")
DRAWN = 1200  # images of a drawn domain
FIRST_OWN = 1_000_000  # number of the first drawn image for ID accuracy: neither trained on nor recorded

zoo_app = family(IMAGES, "zoo", "Train, record and list zoos of image classifiers.")


@dataclass(frozen=True, kw_only=True)
class Running(Talking, Seeded, Placed, SkipBad):
    """How the command runs.

    Attributes:
        n: Images of each domain, in total. Default: all of a folder, 1200 shapes.
    """

    n: Annotated[Count | None, INPUTS] = None

    def domains(self, source: str, start: int = 0) -> "Mapping[str, ImageTask]":
        """The domains of a source; drawn images count from `start`."""
        from assay.tasks import find_domains

        return find_domains(source, n=self.n, seed=self.seed, start=start, drawn=DRAWN)


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Computing, Running):
    """What models are trained on.

    Attributes:
        images: Labelled domain, DIR/CLASS, or shapes:STYLE.
        out: Output directory of the zoo.
        holdout: Share of each class used for validation.
        shard: Part of the grid, as 2/8; the parts may be trained at once.
    """

    images: Annotated[str, INPUTS]
    out: Annotated[Path, OUTPUT]
    holdout: Annotated[float, TRAINING] = 0.2
    shard: Annotated[str, TRAINING] = "1/1"


@command(parent=zoo_app, name="train", example="assay zoo train tiny --images shapes:flat --out zoo")
def train_(grid: Annotated[str, Parameter(name="CONFIG")], /, *, settings: TrainSettings) -> None:
    """Train a model for every recipe of a grid.

    Run the same command again to resume.

    Args:
        grid: TOML or JSON file of a grid, or a preset.
        settings: The options.
    """
    from assay.store import About
    from assay.tasks import EvalTransform, is_shapes, one_domain
    from assay.zoo import Grid, split, train_zoo

    part, _, parts = settings.shard.partition("/")
    if not (part.isdecimal() and parts.isdecimal()):
        raise InputError(f"--shard is {settings.shard}; give PART/PARTS, e.g. 2/8")
    chosen, source = Grid.read(grid), settings.images
    transform = EvalTransform(resize=chosen.image_size())
    images = one_domain(settings.domains(source), source).with_transform(transform)
    if is_shapes(source):
        images = images.held()
    elif settings.skip_bad:
        images = images.readable()
    for text in images.notes:
        remark(text)

    def validated(key: str, row: Mapping[str, Any]) -> None:
        note(f"{key}: step {row['step']:,}, validation loss {row['loss']:.3f}, score {row['score']:.3f}")

    with progress_on_stderr() as progress:
        zoo = train_zoo(
            chosen,
            *split(images, settings.holdout, seed=settings.seed),
            settings.out,
            shard=(int(part), int(parts)),
            device=settings.place(),
            progress=progress,
            validated=validated,
        )
    document = zoo.to_dict() | {"path": str(zoo.path)}
    best = max((each.id_accuracy for each in zoo.entries if each.id_accuracy is not None), default=None)
    n, seed = len(zoo.keys), settings.seed
    about = About(task=zoo.id_domain, metric="accuracy", n=n, seed=seed, value=best, name=zoo.name)
    provenance = {key: document[key] for key in ("name", "data", "models")}
    identity = settings.keep("zoo", provenance, document, about)
    settings.deliver(document, show=lambda: _show(zoo), identity=identity)
    note(f"next: assay rank --zoo {settings.out} --images IMAGES")


@dataclass(frozen=True, kw_only=True)
class IndexSettings(Typed, Running):
    """What is recorded of every model.

    Attributes:
        images: Labelled domains, DIR/CLASS, or shapes:STYLE; repeat for several.
        id_images: In-distribution domain for ID accuracy. Default: the validation images.
        out: Directory for DOMAIN.npz, the correctness matrices. Default: ZOO/correctness.
    """

    images: Annotated[tuple[str, ...], INPUTS]
    id_images: Annotated[str | None, INPUTS] = None
    out: Annotated[Path | None, OUTPUT] = None


ZooFolder = Annotated[Path | None, Parameter(name="ZOO")]


@command(parent=zoo_app, example="assay zoo index zoo --images shapes:sketch")
def index(zoo: ZooFolder = None, /, *, settings: IndexSettings) -> None:
    """Record logits and correct answers of every model.

    What is recorded already is not repeated.

    Args:
        zoo: A zoo. Default: the embedded one.
        settings: The options.
    """
    from assay.tasks import EvalTransform, one_domain
    from assay.tasks.image_source import FIRST_FREE
    from assay.zoo.archive import EMBEDDED

    opened = _opened(zoo)
    if opened.path == EMBEDDED and settings.out is None:
        raise InputError("the embedded zoo is read-only. Pass --out to write to another directory")
    opened.check_done()
    first = opened.load(opened.keys[0])
    transform, classes = EvalTransform.for_model(first), opened.classes or first.classes

    def read(images: "ImageTask") -> "ImageTask":
        return images.with_classes(classes).with_transform(transform).held(skip_bad=settings.skip_bad)

    within = None
    if (source := settings.id_images) is not None:
        within = read(one_domain(settings.domains(source, FIRST_OWN), source))
    # Drawn images of the first numbers are those that `zoo train` trains on.
    found = [each for source in settings.images for each in settings.domains(source, FIRST_FREE).values()]
    folder, device = settings.out or opened.path / "correctness", settings.place()
    records, lines = [], []
    for images in map(read, found):
        for text in images.notes:
            remark(text)
        how = {"device": device, "dtype": settings.torch_dtype}
        with progress_on_stderr() as progress:
            matrix = opened.correctness(images, id_images=within, progress=progress, **how)
        path = matrix.save(make_room(folder / f"{matrix.domain.replace('/', '-')}.npz"))
        accuracies = zip(matrix.keys, matrix.id_accuracy.tolist(), matrix.accuracy.tolist(), strict=True)
        models = [
            {"key": key, "weights": opened.entry(key).weight_hash, "id_accuracy": own, "accuracy": new}
            for key, own, new in accuracies
        ]
        records.append({"domain": matrix.domain, "path": str(path), "n": images.n, "models": models})
        who = f"{matrix.domain}: {len(models)} models of {opened.name}, {images.n} images"
        lines.append(f"{who}, accuracy {matrix.accuracy.min():.1%} to {matrix.accuracy.max():.1%}  {path}")
    settings.deliver(records, show=lambda: echo("\n".join(lines)))


@command(parent=zoo_app, name="list", example="assay zoo list zoo --json")
def list_(zoo: ZooFolder = None, /, *, settings: Talking) -> None:
    """List the models of a zoo with recipes and ID accuracies.

    Args:
        zoo: A zoo. Default: the embedded one.
        settings: The options.
    """
    opened = _opened(zoo)
    settings.deliver(opened.to_dict() | {"path": str(opened.path)}, show=lambda: _show(opened))


def _opened(path: Path | None) -> "Zoo":
    from assay.zoo import Zoo

    return Zoo.embedded() if path is None else Zoo.open(path)


def _show(zoo: "Zoo") -> None:
    trained = f", trained on {zoo.id_domain}" if zoo.id_domain else ""
    echo(f"{zoo.name}: {len(zoo.keys)} of {len(zoo.entries)} models done{trained}")
    rows = []
    for entry in zoo.entries:
        accuracy = "" if entry.id_accuracy is None else f"{entry.id_accuracy:.1%}"
        rows.append([entry.key, entry.status, accuracy, str(entry.best_step or ""), entry.reason])
    columns = ["model", "status", "ID accuracy", "best step", ""]
    print_table("", columns, rows, right=("ID accuracy", "best step"))

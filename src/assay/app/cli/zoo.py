"""`assay zoo`: train the models of a grid, record what they predict, list them, choose configurations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.cli.parsing import IMAGES, command, family
from assay.app.console import echo, echo_result, note, print_table, progress_on_stderr, remark
from assay.app.delivery import Computing, Talking, json_file, make_room
from assay.app.options import DISCOVERY, INPUTS, OUTPUT, Count, at_least, call, own_group
from assay.app.settings import Ablating, Discovering, Placed, RunningModels, Seeded, SkipBad, Typed
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.tasks import EvalTransform, ImageSet
    from assay.zoo import Correctness, Zoo
    from assay.zoo.feeding import Images

TRAINING, CONFIGURATIONS = own_group("Training"), own_group("Configurations")

zoo_app = family(IMAGES, "zoo", "Train, record and list zoos of image classifiers.")


@dataclass(frozen=True, kw_only=True)
class Domains(SkipBad):
    """Labelled images.

    Attributes:
        images: Domain, DIR/CLASS/*, or an .npz archive; repeat where several are read.
        shapes: Style of the drawn shapes, instead of images: flat, sketch, neon, stripes or relief.
        n: Images of each domain, in total. Default: all of a folder, 1200 shapes.
    """

    images: Annotated[tuple[Path, ...], INPUTS] = ()
    shapes: Annotated[tuple[str, ...], INPUTS] = ()
    n: Annotated[Count | None, INPUTS] = None


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Computing, Seeded, Placed, Domains):
    """What models are trained on.

    Attributes:
        out: Output directory of the zoo.
        size: Height and width of the images. Default: what the models state, else 32.
        holdout: Share of each class used for validation.
        checkpoint: Step at which to save models too; repeat for several.
        precision: Number type of training passes; float16 needs a GPU.
    """

    out: Annotated[Path, OUTPUT]
    size: Annotated[int | None, INPUTS, at_least(16)] = None
    holdout: Annotated[float, TRAINING] = 0.2
    checkpoint: Annotated[tuple[int, ...], TRAINING] = ()
    precision: Annotated[str, TRAINING] = "float32"


@command(parent=zoo_app, name="train", example="assay zoo train tiny --shapes flat --out zoo")
def train_(grid: Annotated[str, Parameter(name="CONFIG")], /, *, settings: TrainSettings) -> None:
    """Train a model for every recipe of a grid.

    Run the same command again to resume.

    Args:
        grid: TOML or JSON file of a grid, or a preset.
        settings: The options.
    """
    from assay.pipeline.zoo_training import about_zoo, training_images, zoo_document, zoo_identity
    from assay.tasks import ReadOptions
    from assay.zoo import Grid, train_zoo

    chosen = Grid.read(grid)
    sources = _sources(settings.images, settings.shapes)
    if len(sources) != 1:
        raise InputError(f"{len(sources)} domains are given; a zoo is trained on one")
    options = ReadOptions(n=settings.n, seed=settings.seed, skip_bad=settings.skip_bad)
    images = training_images(sources[0], chosen, size=settings.size, options=options)
    tell_skipped(images)
    with progress_on_stderr() as progress:
        zoo = train_zoo(
            chosen,
            images,
            settings.out,
            holdout=settings.holdout,
            split_seed=settings.seed,
            checkpoints=settings.checkpoint,
            device=settings.place(),
            precision=settings.precision,
            progress=progress,
            validated=lambda key, report: note(f"{key}: {report}"),
        )
    document = zoo_document(zoo)
    identity = settings.keep("zoo", zoo_identity(document), document, about_zoo(zoo, settings.seed))
    settings.deliver(document, show=lambda: _show(zoo), identity=identity)


@dataclass(frozen=True, kw_only=True)
class IndexSettings(RunningModels, Typed, Ablating, Discovering, Domains):
    """What is recorded of every model.

    Attributes:
        size: Height and width of the images. Default: the input size of the first model.
        id_images: In-distribution domain for ID accuracy. Default: the validation images.
        circuits: Discover each model's circuit on each domain.
        steps: Number of quadrature nodes of the method.
        out: Directory for DOMAIN.npz, the correctness matrices. Default: ZOO/correctness.
    """

    size: Annotated[int | None, INPUTS, at_least(16)] = None
    id_images: Annotated[Path | None, INPUTS] = None
    circuits: Annotated[bool, OUTPUT] = False
    steps: Annotated[Count, DISCOVERY] = 5
    out: Annotated[Path | None, OUTPUT] = None


ZooFolder = Annotated[Path | None, Parameter(name="ZOO")]


@command(parent=zoo_app, example="assay zoo index zoo --shapes sketch --circuits")
def index(zoo: ZooFolder = None, /, *, settings: IndexSettings) -> None:
    """Record logits, correct answers and circuits of every model.

    What is recorded already is not repeated.

    Args:
        zoo: A zoo. Default: the embedded one.
        settings: The options.
    """
    from assay.zoo import correctness, edge_scores

    opened = _opened(zoo)
    placed = {"device": settings.place(), "dtype": settings.torch_dtype}
    domains, within = _domains(opened, settings)
    folder = settings.out or opened.path / "correctness"
    written = []
    with progress_on_stderr() as progress:
        for domain in domains:
            matrix = call(
                settings, correctness, opened, domain, id_images=within, progress=progress, **placed
            )
            path = matrix.save(make_room(folder / f"{domain.domain.replace('/', '-')}.npz"))
            written.append((path, matrix, _keep_matrix(settings, opened, domain, path, matrix)))
            for number, key in enumerate(opened.keys if settings.circuits else ()):
                progress("discover", number, len(opened.keys))
                call(settings, edge_scores, opened, key, domain, **placed)

    def show() -> None:
        for path, matrix, identity in written:
            low, high = matrix.accuracy.min(), matrix.accuracy.max()
            sizes = f"{len(matrix.keys)} models, {len(matrix.ids)} images"
            echo(f"{matrix.domain}: {sizes}, accuracy {low:.1%} to {high:.1%}  {path}")
            echo_result(identity)

    settings.deliver([_matrix_record(path, matrix) for path, matrix, _ in written], show=show)


def _domains(zoo: "Zoo", settings: IndexSettings) -> "tuple[list[ImageSet], ImageSet | None]":
    """The images to record, and those of the models' own domain."""
    from assay.pipeline.targets import FIRST_TARGET
    from assay.tasks import EvalTransform
    from assay.zoo.archive import EMBEDDED

    if zoo.path == EMBEDDED and settings.out is None:
        raise InputError("the embedded zoo is read-only. Pass --out to write to another directory")
    zoo.check_done()
    first = zoo.load(zoo.keys[0])
    side = settings.size
    transform = EvalTransform.for_model(first) if side is None else EvalTransform(resize=(side, side))
    read: dict[str, Any] = {"transform": transform, "classes": zoo.classes or first.classes}
    # Drawn images of the first numbers are those that `zoo train` trains on.
    domains = read_images(settings, settings.seed, start=FIRST_TARGET, **read)
    if settings.id_images is None:
        return domains, None
    own = Domains(images=(settings.id_images,), n=settings.n, skip_bad=settings.skip_bad)
    return domains, read_images(own, settings.seed, **read)[0]


@command(parent=zoo_app, name="list", example="assay zoo list zoo --json")
def list_(zoo: ZooFolder = None, /, *, settings: Talking) -> None:
    """List the models of a zoo with recipes and ID accuracies.

    Args:
        zoo: A zoo. Default: the embedded one.
        settings: The options.
    """
    from assay.pipeline.zoo_training import zoo_document

    opened = _opened(zoo)
    settings.deliver(zoo_document(opened), show=lambda: _show(opened))


@dataclass(frozen=True, kw_only=True)
class ConfigurationSettings(Talking):
    """Which configurations are kept.

    Attributes:
        save: JSON file for the smaller grid, the input of `assay zoo train`.
        tolerance: Accuracy below the best that still counts as near-optimal.
        configurations: Number of configurations. Default: as few as needed.
    """

    save: Annotated[Path, OUTPUT]
    tolerance: Annotated[float, CONFIGURATIONS] = 0.02
    configurations: Annotated[int | None, CONFIGURATIONS] = None


@command(parent=zoo_app, example="assay zoo select sweep grid.toml --save smaller.json")
def select(
    sweep: Path,
    grid: Annotated[str, Parameter(name="CONFIG")],
    /,
    *,
    settings: ConfigurationSettings,
) -> None:
    """Keep few configurations that serve every initialisation.

    Each initialisation keeps a near-optimal one.

    Args:
        sweep: A zoo trained on one domain.
        grid: The grid it was trained from.
        settings: The options.
    """
    from assay.zoo import Grid, Zoo, select_configurations

    whole, trained = Grid.read(grid), Zoo.open(sweep)
    selection = select_configurations(trained, tolerance=settings.tolerance, size=settings.configurations)
    smaller = whole.with_configurations(selection.configurations)

    def show() -> None:
        echo(f"{len(selection.configurations)} configurations kept, {len(smaller.recipes())} models")
        rows = [[init, f"{gap:.3f}"] for init, gap in selection.shortfall.items()]
        print_table("", ["initialisation", "below its best"], rows, right=("below its best",))

    settings.deliver(selection.to_dict(), {"grid": json_file(settings.save, smaller.to_dict())}, show=show)


def _sources(images: Sequence[Path], shapes: Sequence[str]) -> list[str | Path]:
    if not images and not shapes:
        raise InputError("images are missing; name a domain with --images DIR, or --shapes STYLE")
    return [*(f"shapes:{style}" for style in shapes), *images]


def read_images(
    domains: Domains,
    seed: int,
    *,
    transform: "EvalTransform",
    classes: tuple[str, ...] | None = None,
    start: int = 0,
) -> "list[ImageSet]":
    """The images of every domain; drawn ones count from `start`."""
    from assay.tasks import ReadOptions, read_source

    options = ReadOptions(n=domains.n, seed=seed, skip_bad=domains.skip_bad)
    sets: list[ImageSet] = []
    for source in _sources(domains.images, domains.shapes):
        read = read_source(
            source, transform=transform, classes=classes, options=options, start=start, drawn=1200
        )
        sets += read.values()
    for each in sets:
        tell_skipped(each)
    return sets


def tell_skipped(images: "Images") -> None:
    """Say how many files could not be read."""
    if images.skipped:
        remark(f"{len(images.skipped)} files of {images.domain} were skipped")


def _opened(path: Path | None) -> "Zoo":
    from assay.zoo import Zoo

    return Zoo.embedded() if path is None else Zoo.open(path)


def _keep_matrix(
    settings: IndexSettings, zoo: "Zoo", images: "ImageSet", path: Path, matrix: "Correctness"
) -> str:
    """Store which model gets which image right; returns the id."""
    from assay.store import About
    from assay.zoo.scoring import images_hash

    weights = {key: zoo.entry(key).weight_hash for key in matrix.keys}
    record = {"zoo": zoo.name, "images": images_hash(images), "weights": weights, "dtype": settings.dtype}
    record["id_accuracy"] = matrix.id_accuracy.tolist()
    about = About(
        task=matrix.domain,
        metric="accuracy",
        n=len(matrix.ids),
        seed=settings.seed,
        value=float(matrix.accuracy.max()),
        name=f"{len(matrix.keys)} models of {zoo.name}",
    )
    arrays = {"correct": matrix.correct, "ids": matrix.ids, "labels": matrix.labels}
    return settings.keep("correctness", record, _matrix_record(path, matrix), about, arrays)


def _matrix_record(path: Path, matrix: "Correctness") -> dict[str, Any]:
    return {
        "domain": matrix.domain,
        "path": str(path),
        "n": len(matrix.ids),
        "models": [
            {"key": key, "id_accuracy": float(y), "accuracy": float(a)}
            for key, y, a in zip(matrix.keys, matrix.id_accuracy, matrix.accuracy, strict=True)
        ],
    }


def _show(zoo: "Zoo") -> None:
    trained = f", trained on {zoo.id_domain}" if zoo.id_domain else ""
    echo(f"{zoo.name}: {len(zoo.keys)} of {len(zoo.entries)} models done{trained}")
    rows = [
        [
            entry.key,
            entry.status,
            "" if entry.id_accuracy is None else f"{entry.id_accuracy:.1%}",
            "" if entry.best_step is None else str(entry.best_step),
            str(len(entry.checkpoints) or ""),
            entry.reason,
        ]
        for entry in zoo.entries
    ]
    columns = ["model", "status", "ID accuracy", "best step", "checkpoints", ""]
    print_table("", columns, rows, right=("ID accuracy", "best step", "checkpoints"))

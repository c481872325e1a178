"""`assay zoo`: train the models of a grid, record what they predict, list them, choose configurations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.cli.parsing import IMAGES, command, family
from assay.app.console import echo, print_json, print_table, progress_on_stderr, remark
from assay.app.options import INPUTS, OUTPUT, Count, at_least, one_of, own_group
from assay.app.running import Batched, DryRun, Placed, Seeded, Talking, call, make_room, write_json
from assay.app.settings import Ablating, Discovering, SkipBad, Typed
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.tasks import EvalTransform, ImageSet
    from assay.zoo import Correctness, Grid, Zoo

STYLES = ("flat", "sketch", "neon", "stripes", "relief")
TRAINING, CONFIGURATIONS = own_group("Training"), own_group("Configurations")

zoo_app = family(IMAGES, "zoo", "Train, record and list zoos of image classifiers.")


@dataclass(frozen=True, kw_only=True)
class Domains(SkipBad):
    """Labelled images.

    Attributes:
        images: Domain, DIR/CLASS/*, or an .npz archive; repeat where several are read.
        shapes: Style of the drawn shapes, instead of images: flat, sketch, neon, stripes or relief.
        n: Images per domain. Default: all of a folder, 1200 shapes.
    """

    images: Annotated[tuple[Path, ...], INPUTS] = ()
    shapes: Annotated[tuple[str, ...], INPUTS, one_of(*STYLES)] = ()
    n: Annotated[Count | None, INPUTS] = None


@dataclass(frozen=True, kw_only=True)
class Validating:
    """What training is judged on.

    Attributes:
        holdout: Share of each class used for validation.
    """

    holdout: Annotated[float, TRAINING] = 0.2


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Talking, DryRun, Seeded, Placed, Validating, Domains):
    """What models are trained on.

    Attributes:
        out: Output directory of the zoo.
        size: Height and width of the images, in pixels.
        checkpoint: Step at which to save models too; repeat for several.
    """

    out: Annotated[Path, OUTPUT]
    size: Annotated[int, INPUTS, at_least(16)] = 32
    checkpoint: Annotated[tuple[int, ...], TRAINING] = ()


@command(
    parent=zoo_app, name="train", example="assay zoo train shapes-quick --shapes flat --out zoo --dry-run"
)
def train_(grid: Annotated[str, Parameter(name="CONFIG")], /, *, settings: TrainSettings) -> None:
    """Train a model for every recipe of a grid.

    Run the same command again to resume.

    Args:
        grid: TOML or JSON file of a grid, or a preset.
        settings: The options.
    """
    from assay.tasks import EvalTransform
    from assay.zoo import Grid, train_zoo

    chosen = Grid.read(grid)
    if settings.dry_run:
        _show_plan(settings, chosen)
        return
    transform = EvalTransform(resize=(settings.size, settings.size))
    domains = read_images(settings, settings.seed, transform=transform)
    _one_domain(len(domains))
    with progress_on_stderr() as progress:
        zoo = train_zoo(
            chosen,
            domains[0],
            settings.out,
            holdout=settings.holdout,
            split_seed=settings.seed,
            checkpoints=settings.checkpoint,
            device=settings.place(),
            progress=progress,
        )
    _show(zoo, as_json=settings.json)


def _show_plan(settings: TrainSettings, grid: "Grid") -> None:
    """Steps and images of every model."""
    if settings.images or settings.shapes:
        _one_domain(domain_count(settings.images, settings.shapes))
    recipes = grid.recipes()
    steps = sum(recipe.steps for recipe in recipes)
    passes = sum(recipe.steps * recipe.batch_size for recipe in recipes)
    if settings.json:
        keys = [recipe.key for recipe in recipes]
        print_json({"grid": grid.to_dict(), "models": keys, "steps": steps, "images": passes})
        return
    echo(f"{grid.name}: {len(recipes)} models, {steps:,} steps over {passes:,} images in all")
    print_table("", ["model", "steps"], [[r.key, f"{r.steps:,}"] for r in recipes], right="steps")


@dataclass(frozen=True, kw_only=True)
class IndexSettings(Talking, Seeded, Batched, Typed, Ablating, Discovering, Domains):
    """What is recorded of every model.

    Attributes:
        size: Height and width of the images. Default: the input size of the first model.
        id_images: In-distribution domain for ID accuracy. Default: the validation images.
        circuits: Discover each model's circuit on each domain.
        out: Directory for DOMAIN.npz, the correctness matrices. Default: ZOO/correctness.
    """

    size: Annotated[int | None, INPUTS, at_least(16)] = None
    id_images: Annotated[Path | None, INPUTS] = None
    circuits: Annotated[bool, OUTPUT] = False
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
            written.append((path, matrix))
            for number, key in enumerate(opened.keys if settings.circuits else ()):
                progress("discover", number, len(opened.keys))
                steps = int(settings.steps)
                call(settings, edge_scores, opened, key, domain, steps=steps, **placed)
    if settings.json:
        print_json([_matrix_record(path, matrix) for path, matrix in written])
        return
    for path, matrix in written:
        low, high = matrix.accuracy.min(), matrix.accuracy.max()
        echo(
            f"{matrix.domain}: {len(matrix.keys)} models, {len(matrix.ids)} images, accuracy {low:.1%} to "
            f"{high:.1%}  {path}"
        )


def _domains(zoo: "Zoo", settings: IndexSettings) -> "tuple[list[ImageSet], ImageSet | None]":
    """The images to record, and those of the models' own domain."""
    from assay.pipeline.targets import FIRST_TARGET
    from assay.tasks import EvalTransform
    from assay.zoo.archive import EMBEDDED

    if zoo.path == EMBEDDED and settings.out is None:
        raise InputError("the embedded zoo is read-only. Pass --out to write to another directory")
    first = zoo.load(zoo.keys[0]) if zoo.keys else None
    if first is None:
        raise InputError(f"the zoo {zoo.name!r} does not have a trained model yet; run `assay zoo train`")
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
    _show(_opened(zoo), as_json=settings.json)


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

    whole = Grid.read(grid)
    selection = select_configurations(
        Zoo.open(sweep), tolerance=settings.tolerance, size=settings.configurations
    )
    smaller = whole.with_configurations(selection.configurations)
    write_json(settings.save, smaller.to_dict())
    if settings.json:
        print_json(selection.to_dict())
        return
    echo(
        f"{len(selection.configurations)} configurations kept, {len(smaller.recipes())} models  "
        f"{settings.save}"
    )
    rows = [[init, f"{gap:.3f}"] for init, gap in selection.shortfall.items()]
    print_table("", ["initialisation", "below its best"], rows, right="below its best")


def _one_domain(count: int) -> None:
    if count != 1:
        raise InputError(f"{count} domains are given; a zoo is trained on one")


def domain_count(images: Sequence[Path], shapes: Sequence[str]) -> int:
    """How many domains `--images` and `--shapes` name; no image is read."""
    from assay.tasks import find_domains

    return sum(len(find_domains(source)) for source in _sources(images, shapes))


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
        if each.skipped:
            remark(f"{len(each.skipped)} files of {each.domain} were skipped")
    return sets


def _opened(path: Path | None) -> "Zoo":
    from assay.zoo import Zoo

    return Zoo.embedded() if path is None else Zoo.open(path)


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


def _show(zoo: "Zoo", *, as_json: bool) -> None:
    if as_json:
        models = [entry.to_dict() for entry in zoo.entries]
        classes = None if zoo.classes is None else list(zoo.classes)
        facts = {"name": zoo.name, "path": str(zoo.path), "id_domain": zoo.id_domain, "classes": classes}
        print_json({**facts, "data": dict(zoo.data), "selection": zoo.selection, "models": models})
        return
    trained = f", trained on {zoo.id_domain}" if zoo.id_domain else ""
    echo(f"{zoo.name}: {len(zoo.keys)} of {len(zoo.entries)} models done{trained}")
    rows = []
    for entry in zoo.entries:
        accuracy = "" if entry.id_accuracy is None else f"{entry.id_accuracy:.1%}"
        step = "" if entry.best_step is None else str(entry.best_step)
        rows.append(
            [entry.key, entry.status, accuracy, step, str(len(entry.checkpoints) or ""), entry.reason]
        )
    columns = ["model", "status", "ID accuracy", "best step", "checkpoints", ""]
    print_table("", columns, rows, right="ID accuracy best step checkpoints")

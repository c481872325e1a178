"""`assay zoo`: train the models of a grid, record what they predict, list them, choose configurations."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.app.cli.border import command, echo, make_room, print_json, print_table, progress_on_stderr
from assay.app.cli.commands import app
from assay.app.cli.options import (
    AblationOption,
    BatchOption,
    DeviceOption,
    DryRunOption,
    JsonOption,
    MethodOption,
    ObjectiveOption,
    QuietOption,
    SeedOption,
    StepsOption,
    TracebackOption,
    option,
)
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.tasks import EvalTransform, ImageSet
    from assay.zoo import Correctness, Zoo

zoo_app = typer.Typer(
    name="zoo",
    help="Train, record and list zoos of image classifiers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(zoo_app)

ImagesOption = Annotated[
    list[Path] | None,
    option("--images", "A domain, DIR/CLASS/*, or an .npz archive; may be repeated where several are read."),
]
ShapesOption = Annotated[
    list[str] | None,
    option("--shapes", "A style of the drawn shapes instead: flat, sketch, neon, stripes or relief."),
]
SizeOption = Annotated[int, option("--size", "Height and width that images are read at, in pixels.", min=16)]
ImageCountOption = Annotated[
    int | None, option("--n", "Images per domain.  [default: all of a folder, 1200 shapes]", min=1)
]
SkipOption = Annotated[bool, option("--skip-bad", "Leave out image files that cannot be decoded; counted.")]
ZooArgument = Annotated[
    Path | None, typer.Argument(metavar="[ZOO]", help="A zoo.  [default: the embedded one]")
]


@zoo_app.command("train")
@command
def train_(
    grid: Annotated[str, typer.Argument(metavar="CONFIG", help="TOML or JSON file of a grid, or a preset.")],
    out: Annotated[Path, option("--out", "Directory of the zoo.")],
    images: ImagesOption = None,
    shapes: ShapesOption = None,
    size: SizeOption = 32,
    n: ImageCountOption = None,
    holdout: Annotated[float, option("--holdout", "Share of each class to validate on.")] = 0.2,
    checkpoints: Annotated[
        list[int] | None, option("--checkpoint", "Step after which models are kept too; may be repeated.")
    ] = None,
    skip_bad: SkipOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    dry_run: DryRunOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Train a model for every recipe of a grid; the same command goes on after a kill."""
    from assay.tasks import EvalTransform
    from assay.zoo import Grid, train_zoo

    chosen = Grid.read(grid)
    recipes = chosen.recipes()
    if dry_run:
        if images or shapes:
            _one_domain(domain_count(images, shapes))
        steps = sum(recipe.steps for recipe in recipes)
        passes = sum(recipe.steps * recipe.batch_size for recipe in recipes)
        if as_json:
            keys = [recipe.key for recipe in recipes]
            print_json({"grid": chosen.to_dict(), "models": keys, "steps": steps, "images": passes})
            return
        echo(f"{chosen.name}: {len(recipes)} models, {steps:,} steps over {passes:,} images in all")
        print_table("", ["model", "steps"], [[r.key, f"{r.steps:,}"] for r in recipes], right="steps")
        return
    transform = EvalTransform(resize=(size, size))
    domains = read_images(images, shapes, transform=transform, n=n, seed=seed, skip_bad=skip_bad)
    _one_domain(len(domains))
    with progress_on_stderr(quiet=quiet) as progress:
        zoo = train_zoo(
            chosen,
            domains[0],
            out,
            holdout=holdout,
            split_seed=seed,
            checkpoints=tuple(checkpoints or ()),
            device=device,
            progress=progress,
        )
    _show(zoo, as_json=as_json)


@zoo_app.command("index")
@command
def index(
    zoo: ZooArgument = None,
    images: ImagesOption = None,
    shapes: ShapesOption = None,
    size: Annotated[
        int | None, option("--size", "Side of the images.  [default: what the first model reads]", min=16)
    ] = None,
    n: ImageCountOption = None,
    id_images: Annotated[
        Path | None,
        option("--id-images", "In-distribution domain to measure ID accuracy on.  [default: as validated]"),
    ] = None,
    circuits: Annotated[bool, option("--circuits", "Discover each model's circuit on each domain.")] = False,
    method: MethodOption = "eap-ig-inputs",
    objective: ObjectiveOption = None,
    ablation: AblationOption = None,
    steps: StepsOption = 5,
    out: Annotated[
        Path | None,
        option("--out", "Directory for DOMAIN.npz, the correctness matrices.  [default: ZOO/correctness]"),
    ] = None,
    skip_bad: SkipOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Record logits, correct answers and circuits of every model on images; what is there is not repeated."""
    from assay.pipeline.targets import FIRST_TARGET
    from assay.tasks import EvalTransform
    from assay.zoo import correctness, edge_scores
    from assay.zoo.archive import EMBEDDED

    found = _opened(zoo)
    if found.path == EMBEDDED and out is None:
        raise InputError("the embedded zoo is part of the package and stays as it is; give --out")
    first = found.load(found.keys[0]) if found.keys else None
    if first is None:
        raise InputError(f"the zoo {found.name!r} has no trained model yet; run `assay zoo train`")
    options: dict[str, Any] = {
        "transform": EvalTransform.for_model(first) if size is None else EvalTransform(resize=(size, size)),
        "classes": found.classes or first.classes,
        "n": n,
        "seed": seed,
        "skip_bad": skip_bad,
    }
    # Drawn images of the first numbers are those that `zoo train` trains on.
    domains = read_images(images, shapes, start=FIRST_TARGET, **options)
    within = None if id_images is None else read_images([id_images], None, **options)[0]
    folder = out or found.path / "correctness"
    written = []
    with progress_on_stderr(quiet=quiet) as progress:
        for domain in domains:
            matrix = correctness(
                found, domain, id_images=within, batch_size=batch_size, device=device, progress=progress
            )
            path = matrix.save(make_room(folder / f"{domain.domain.replace('/', '-')}.npz"))
            written.append((path, matrix))
            for number, key in enumerate(found.keys if circuits else ()):
                progress("discover", number, len(found.keys))
                edge_scores(
                    found,
                    key,
                    domain,
                    method=method,
                    objective=objective,
                    ablation=ablation,
                    steps=int(steps),
                    seed=seed,
                    batch_size=batch_size,
                    device=device,
                )
    if as_json:
        print_json([_matrix_record(path, matrix) for path, matrix in written])
        return
    for path, matrix in written:
        low, high = matrix.accuracy.min(), matrix.accuracy.max()
        echo(
            f"{matrix.domain}: {len(matrix.keys)} models, {len(matrix.ids)} images, accuracy {low:.1%} to "
            f"{high:.1%}  {path}"
        )


@zoo_app.command("list")
@command
def list_(
    zoo: ZooArgument = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """List the models of a zoo with their recipes and in-distribution accuracies."""
    _show(_opened(zoo), as_json=as_json)


@zoo_app.command("select")
@command
def select(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP", help="A zoo trained on one domain.")],
    grid: Annotated[str, typer.Argument(metavar="CONFIG", help="The grid it was trained from.")],
    out: Annotated[Path, option("--out", "JSON file of the smaller grid, for `assay zoo train`.")],
    tolerance: Annotated[
        float, option("--tolerance", "Accuracy below the best that is near-optimal.")
    ] = 0.02,
    size: Annotated[
        int | None, option("--configurations", "How many to keep.  [default: as few as serve]")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Keep few configurations of a sweep such that each initialisation has a near-optimal one."""
    from assay.circuits import write_atomically
    from assay.zoo import Grid, Zoo, select_configurations

    whole = Grid.read(grid)
    found = select_configurations(Zoo.open(sweep), tolerance=tolerance, size=size)
    smaller = whole.with_configurations(found.configurations)
    content = json.dumps(smaller.to_dict(), indent=1, allow_nan=False)
    write_atomically(make_room(out), content.encode())
    if as_json:
        print_json(found.to_dict())
        return
    echo(f"{len(found.configurations)} configurations kept, {len(smaller.recipes())} models  {out}")
    rows = [[init, f"{gap:.3f}"] for init, gap in found.shortfall.items()]
    print_table("", ["initialisation", "below its best"], rows, right="below its best")


def _one_domain(count: int) -> None:
    if count != 1:
        raise InputError(f"{count} domains are given; a zoo is trained on one")


def domain_count(images: list[Path] | None, shapes: list[str] | None) -> int:
    """How many domains `--images` and `--shapes` name; no image is read."""
    from assay.tasks import find_domains

    return sum(len(find_domains(source)) for source in _sources(images, shapes))


def _sources(images: list[Path] | None, shapes: list[str] | None) -> list[str | Path]:
    if not images and not shapes:
        raise InputError("no images are given; name a domain with --images DIR, or --shapes STYLE")
    return [*(f"shapes:{style}" for style in shapes or ()), *(images or ())]


def read_images(
    images: list[Path] | None,
    shapes: list[str] | None,
    *,
    transform: "EvalTransform",
    n: int | None,
    seed: int,
    skip_bad: bool,
    classes: tuple[str, ...] | None = None,
    start: int = 0,
) -> "list[ImageSet]":
    """The domains that `--images` and `--shapes` name; drawn images count from `start`."""
    from assay.tasks import ReadOptions, read_source

    options = ReadOptions(n=n, seed=seed, skip_bad=skip_bad)
    found: list[ImageSet] = []
    for source in _sources(images, shapes):
        sets = read_source(
            source, transform=transform, classes=classes, options=options, start=start, drawn=1200
        )
        found += sets.values()
    for each in found:
        if each.skipped:
            echo(f"note: {len(each.skipped)} files of {each.domain} were skipped", err=True)
    return found


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

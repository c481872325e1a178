"""`assay dynamics`: the depth bias at every checkpoint of a training run, on images of any domain."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from assay.app.cli.parsing import IMAGES, command
from assay.app.cli.zoo import Domains, read_images
from assay.app.console import print_table
from assay.app.option_groups import INPUTS, OUTPUT, Count, own_group
from assay.app.options import Typed
from assay.app.running import Batched, Computing, File, Saving, Seeded, check_outputs, json_file
from assay.core.errors import InputError


if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.models import Model
    from assay.tasks import ImageSet

DEPTH = own_group("Depth bias", 39)


@dataclass(frozen=True, kw_only=True)
class DynamicsSettings(Computing, Saving, Seeded, Batched, Typed, Domains):
    """Which run is read, on which images.

    Attributes:
        run: Folder of a training run with checkpoints, as zoo train --checkpoint and finetune write it.
        ratio: Share of the blocks counted as shallow, and as deep; at most 0.5.
        steps: Quadrature nodes of the attribution.
        figure: File for the figure of the course, .png or .svg.
    """

    run: Annotated[Path, INPUTS]
    ratio: Annotated[float, DEPTH] = 0.3
    steps: Annotated[Count, DEPTH] = 5
    figure: Annotated[Path | None, OUTPUT] = None


@command(IMAGES, example="assay dynamics --run zoo/models/a --shapes sketch --shapes flat --n 300")
def dynamics(settings: DynamicsSettings) -> None:
    """Follow the depth bias of a training run.

    At every checkpoint: the depth bias on the first domain with its interval and its two sides, and accuracy
    on all domains. Give a domain out of distribution first to see whether its circuit turns to deep layers.
    """
    from assay.analyses.generalization.circuit_loss import CircuitSettings
    from assay.analyses.generalization.dynamics import checkpoints_of, training_dynamics
    from assay.models import load_model
    from assay.report.dynamics import dynamics_figure
    from assay.store import About

    if settings.figure is not None and settings.figure.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"--figure is {settings.figure.name}; give a name ending in .png or .svg")
    checkpoints = checkpoints_of(settings.run)
    model = load_model(next(iter(checkpoints.values())), device=settings.place(), dtype=settings.torch_dtype)
    sets = _images(settings, model)
    check_outputs(settings, settings.figure)
    found = training_dynamics(
        settings.run,
        sets[0],
        settings=CircuitSettings(ratio=settings.ratio),
        watch={each.domain: each for each in sets if each.labels is not None},
        steps=settings.steps,
        batch_size=settings.batch_size,
        device=settings.place(),
        dtype=settings.torch_dtype,
    )
    document = found.to_dict()
    files = {
        "document": json_file(settings.path_of(settings.save, "dynamics.json"), document),
        "picture": File(settings.figure, lambda path: dynamics_figure(document, path)),
    }
    about = About(metric="ddb-output", n=sets[0].n, seed=settings.seed, name=settings.run.absolute().name)
    identity = settings.keep("dynamics", found.facts, document, about)
    settings.deliver(document, files, show=lambda: _print(document), identity=identity)


def _images(settings: DynamicsSettings, model: "Model") -> "list[ImageSet]":
    """The images of every domain as the model of a checkpoint reads them."""
    from assay.pipeline.targets import FIRST_TARGET
    from assay.tasks import EvalTransform

    if not settings.images and not settings.shapes:
        raise InputError("images are missing; name a domain with --images DIR, or --shapes STYLE")
    transform = EvalTransform.for_model(model)
    sets = read_images(
        settings, settings.seed, transform=transform, classes=model.classes, start=FIRST_TARGET
    )
    names = [each.domain for each in sets]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"two domains are named {twice[0]!r}; rename one of the folders")
    return sets


def _print(document: "Mapping[str, Any]") -> None:
    """A row per checkpoint."""
    readings = document["readings"]
    names = list(readings[-1]["scores"])
    rows = [
        [
            str(each["step"]),
            *(f"{each['scores'][name]:.1%}" for name in names),
            "" if each["depth_bias"] is None else f"{each['depth_bias']:+.2f}",
            "" if each["low"] is None else f"[{each['low']:+.2f}, {each['high']:+.2f}]",
            f"{each['deep']:.3g}",
            f"{each['shallow']:.3g}",
        ]
        for each in readings
    ]
    columns = ["step", *names, "bias", "interval", "deep", "shallow"]
    print_table(f"circuits of {document['images']['domain']}", columns, rows, right=" ".join(columns))

"""`assay finetune`: training with a loss on the circuit, and what it did to the circuit."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from assay.app.cli.parsing import IMAGES, command
from assay.app.cli.zoo import STYLES, TRAINING, Domains, Validating, read_images
from assay.app.console import echo, print_table, progress_on_stderr, remark
from assay.app.option_groups import INPUTS, OUTPUT, Count, at_least, one_of, own_group
from assay.app.options import Revised
from assay.app.running import Batched, Computing, File, Seeded, call
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.analyses.generalization.circuit_loss import CircuitSettings
    from assay.analyses.generalization.finetuning import FineTuning
    from assay.models import Model
    from assay.tasks import ImageSet
    from assay.zoo import Recipe

# Drawn images to train on start where nothing else does: the embedded zoo was trained on those from 0 on,
# targets start at 20,000, known ones at 1,000,000, watched ones at 2,000,000. So a tuned model can be ranked.
FIRST_TUNED = 3_000_000
_BLOCKS = re.compile(r"(\d+)(?:-(\d+))?")
LOSS = own_group("Circuit loss", 39)


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(Computing, Seeded, Batched, Revised, Validating, Domains):
    """What is trained on which images, and with which loss.

    Attributes:
        out: Output directory of the run; it becomes a model directory.
        model: Image classifier: directory, hub id or timm:NAME. Default: first of the embedded zoo.
        watch: Labelled domain to evaluate too, DIR/CLASS/* or .npz; repeat for several.
        watch_shapes: Style of shapes to evaluate too; repeat for several.
        lambda_circuit: Weight of the circuit loss; 0 is plain training.
        variant: Variant of the circuit loss: eap_ig_detach_g, eap_ig_detach_actdiff (second order),
            target_logit or accumulated.
        loss: Form of the loss: log is -log(deep/shallow), ratio is shallow/deep.
        points: m: scores are averaged over the m - 1 points k/m between mean and image.
        memory: Batches over which the variant accumulated averages gradients.
        ratio: Share of the blocks counted as shallow, and as deep; at most 0.5.
        shallow: Shallow blocks, instead of --ratio, e.g. 0-3.
        deep: Deep blocks, instead of --ratio, e.g. 9-11.
        train_steps: Optimiser steps.
        lr: Peak learning rate.
        train_batch: Images per training step.
        weight_decay: Weight decay of AdamW.
        warmup: Steps of linear warm-up.
        validate_every: Steps between evaluations; each evaluation saves the model.
        circuit_images: Validation images to measure circuits on.
        figure: File for the figure of the training course, .png or .svg.
    """

    out: Annotated[Path, OUTPUT]
    model: Annotated[str | None, INPUTS] = None
    watch: Annotated[tuple[Path, ...], INPUTS] = ()
    watch_shapes: Annotated[tuple[str, ...], INPUTS, one_of(*STYLES)] = ()
    lambda_circuit: Annotated[float, LOSS] = 0.1
    variant: Annotated[
        str, LOSS, one_of("eap_ig_detach_g", "eap_ig_detach_actdiff", "target_logit", "accumulated")
    ] = "eap_ig_detach_g"
    loss: Annotated[str, LOSS, one_of("log", "ratio")] = "log"
    points: Annotated[int, LOSS] = 4
    memory: Annotated[int, LOSS] = 4
    ratio: Annotated[float, LOSS] = 0.3
    shallow: Annotated[str | None, LOSS] = None
    deep: Annotated[str | None, LOSS] = None
    train_steps: Annotated[Count, TRAINING] = 1000
    lr: Annotated[float, TRAINING] = 1e-4
    train_batch: Annotated[Count, TRAINING] = 32
    weight_decay: Annotated[float, TRAINING] = 5e-7
    warmup: Annotated[int, TRAINING, at_least(0)] = 0
    validate_every: Annotated[Count, TRAINING] = 100
    circuit_images: Annotated[int, TRAINING, at_least(2)] = 128
    figure: Annotated[Path | None, OUTPUT] = None


@command(IMAGES, example="assay finetune --shapes flat --watch-shapes sketch --out tuned")
def finetune(settings: FinetuneSettings) -> None:
    """Fine-tune a classifier with a loss that favours depth.

    The step with the best validation accuracy is kept. Both sides of the depth bias are reported at every
    evaluation, with a verdict that says whether deep scores only inflated. Run it again to resume.
    """
    from assay.report.dynamics import dynamics_figure
    from assay.store import About

    loss, figure = _loss(settings), settings.figure
    if figure is not None and figure.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"--figure is {figure.name}; give a name ending in .png or .svg")
    model = _load(settings.model, settings.revision)
    result = _run(settings, model, loss)
    document = result.to_dict()

    def draw(path: Path) -> None:
        dynamics_figure(document["dynamics"], path, title=f"lambda {settings.lambda_circuit:g}")

    files = {"model": File(settings.out, lambda path: None), "picture": File(figure, draw)}
    shown = {"folder": str(settings.out), **document}
    identity = settings.keep(
        "finetune",
        {
            "model": model.describe(),
            **{name: document[name] for name in ("circuit", "recipe", "weights")},
            "dynamics": result.dynamics.facts,
        },
        shown,
        About(
            model=model.id,
            method=settings.variant,
            metric="accuracy",
            seed=settings.seed,
            value=result.score,
            name=settings.out.absolute().name,
        ),
    )
    settings.deliver(shown, files, show=lambda: print_course(document), identity=identity)


def _loss(settings: FinetuneSettings) -> "CircuitSettings":
    from assay.analyses.generalization.circuit_loss import CircuitSettings

    return call(
        settings,
        CircuitSettings,
        weight=settings.lambda_circuit,
        variant=settings.variant.replace("-", "_"),
        steps=settings.points,
        shallow=_blocks("--shallow", settings.shallow),
        deep=_blocks("--deep", settings.deep),
    )


def _recipe(settings: FinetuneSettings) -> "Recipe":
    from assay.analyses.generalization.finetuning import DEFAULT_RECIPE

    return replace(
        DEFAULT_RECIPE,
        init=settings.model or "embedded",
        lr=settings.lr,
        batch_size=settings.train_batch,
        weight_decay=settings.weight_decay,
        warmup=settings.warmup,
        steps=settings.train_steps,
        validate_every=settings.validate_every,
        seed=settings.seed,
    )


def _run(settings: FinetuneSettings, model: "Model", loss: "CircuitSettings") -> "FineTuning":
    from assay.analyses.generalization.finetuning import finetune as run_finetune
    from assay.zoo import split

    own, watched = _images(settings, model)
    with progress_on_stderr() as progress:
        return run_finetune(
            model,
            *split(own, settings.holdout, seed=settings.seed),
            settings.out,
            circuit=loss,
            recipe=_recipe(settings),
            watch={each.domain: each for each in watched},
            n_images=settings.circuit_images,
            batch_size=settings.batch_size,
            device=settings.place(),
            progress=progress,
        )


def _images(settings: FinetuneSettings, model: "Model") -> "tuple[ImageSet, list[ImageSet]]":
    """The images to train on, and those that are only scored."""
    from assay.pipeline.targets import FIRST_TARGET
    from assay.tasks import EvalTransform

    read: dict[str, Any] = {"transform": EvalTransform.for_model(model), "classes": model.classes}
    own = read_images(settings, settings.seed, start=FIRST_TUNED, **read)
    if len(own) != 1:
        raise InputError(f"{len(own)} domains are given; fine-tuning uses one, --watch takes more")
    watched: list[ImageSet] = []
    if settings.watch or settings.watch_shapes:
        others = replace(settings, images=settings.watch, shapes=settings.watch_shapes)
        watched = read_images(others, settings.seed, start=FIRST_TARGET, **read)
    names = [each.domain for each in watched]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"two watched sets are named {twice[0]!r}; rename one of the folders")
    return own[0], watched


def _blocks(name: str, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = _BLOCKS.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{name} is {text!r}; give the first and the last block, counted from 0, e.g. 0-3")
    return int(found[1]), int(found[2] or found[1])


def _load(name: str | None, revision: str | None) -> "Model":
    from assay.models import load_model
    from assay.zoo import Zoo

    if name is not None:
        return load_model(name, device=None, revision=revision)  # training places it
    zoo = Zoo.embedded()
    return zoo.load(zoo.keys[0])


def print_course(document: Mapping[str, Any]) -> None:
    """A row per evaluation, then the selected step, the verdict, and what other labels would choose."""
    readings, selected = document["dynamics"]["readings"], document["selected"]
    names = list(readings[-1]["scores"])
    rows = [
        [
            f"{each['step']}{' *' if each['step'] == selected['step'] else ''}",
            *(f"{each['scores'][name]:.1%}" for name in names),
            "" if each["depth_bias"] is None else f"{each['depth_bias']:+.2f}",
            f"{each['deep']:.3g}",
            f"{each['shallow']:.3g}",
        ]
        for each in readings
    ]
    columns = ["step", *names, "bias", "deep", "shallow"]
    print_table("", columns, rows, right=" ".join(columns))
    echo(f"* best by validation: step {selected['step']}, {selected['score']:.1%}")
    start = readings[0]["scores"][names[0]]
    if readings[0]["step"] == 0 and start > selected["score"]:
        echo(f"the starting model had {start:.1%} by validation: no step of this training did as well")
    echo(f"verdict: {document['verdict']['text']}")
    for name, choice in document["leaking"].items():
        echo(f"selected by {name}, which uses its labels: step {choice['step']}, {choice['score']:.1%}")
    if document["guarded"]:
        remark(f"{document['guarded']} gradient entries were not finite, counted as 0")
    if document["undefined"]:
        remark(f"the circuit loss was undefined, and omitted, on {document['undefined']} batches")

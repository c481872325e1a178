"""`assay finetune`: training with a loss on the circuit, and what it did to the circuit."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from assay.app.cli.border import command, echo, make_room, print_json, print_table, progress_on_stderr
from assay.app.cli.commands import app
from assay.app.cli.options import (
    BatchOption,
    ConfigOption,
    DeviceOption,
    DryRunOption,
    JsonOption,
    QuietOption,
    SeedOption,
    TracebackOption,
    option,
)
from assay.app.cli.zoo import ImageCountOption, ImagesOption, ShapesOption, SkipOption, read_images
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.models import Model

# Drawn images to train on start where nothing else does: the embedded zoo was trained on those from 0 on,
# targets start at 20,000, known ones at 1,000,000, watched ones at 2,000,000. So a tuned model can be ranked.
FIRST_TUNED = 3_000_000
_BLOCKS = re.compile(r"(\d+)(?:-(\d+))?")


@app.command()
@command
def finetune(
    out: Annotated[Path, option("--out", "Directory of the run; becomes a model directory.")],
    model: Annotated[
        str | None,
        option(
            "--model",
            "An image classifier: directory, hub id or timm:NAME.  [default: first of the embedded zoo]",
        ),
    ] = None,
    images: ImagesOption = None,
    shapes: ShapesOption = None,
    watch: Annotated[
        list[Path] | None,
        option("--watch", "Labelled domain, DIR/CLASS/* or .npz, to score beside; may be repeated."),
    ] = None,
    watch_shapes: Annotated[
        list[str] | None, option("--watch-shapes", "Style of shapes to score beside; may be repeated.")
    ] = None,
    n: ImageCountOption = None,
    holdout: Annotated[float, option("--holdout", "Share of each class to validate on.")] = 0.2,
    lambda_circuit: Annotated[
        float, option("--lambda-circuit", "Weight of the circuit loss; 0 trains plainly.")
    ] = 0.1,
    variant: Annotated[
        str,
        option(
            "--variant",
            "eap_ig_detach_g, eap_ig_detach_actdiff (second order), target_logit or accumulated.",
        ),
    ] = "eap_ig_detach_g",
    loss: Annotated[str, option("--loss", "log: -log(deep/shallow); ratio: shallow/deep.")] = "log",
    points: Annotated[
        int, option("--points", "m: scores are averaged over the m - 1 points k/m between mean and image.")
    ] = 4,
    memory: Annotated[int, option("--memory", "Batches that accumulated averages over.")] = 4,
    ratio: Annotated[
        float, option("--ratio", "Share of the blocks that is shallow, and that is deep, up to 0.5.")
    ] = 0.3,
    shallow: Annotated[str | None, option("--shallow", "Blocks instead of the share, e.g. 0-3.")] = None,
    deep: Annotated[str | None, option("--deep", "Blocks instead of the share, e.g. 9-11.")] = None,
    train_steps: Annotated[int, option("--train-steps", "Steps of the optimiser.", min=1)] = 1000,
    lr: Annotated[float, option("--lr", "Largest learning rate.")] = 1e-4,
    train_batch: Annotated[int, option("--train-batch", "Images per training step.", min=1)] = 32,
    weight_decay: Annotated[float, option("--weight-decay", "Weight decay of AdamW.")] = 5e-7,
    warmup: Annotated[int, option("--warmup", "Steps of linear warm-up.", min=0)] = 0,
    validate_every: Annotated[
        int,
        option("--validate-every", "Steps between evaluations; the model is kept at each.", min=1),
    ] = 100,
    circuit_images: Annotated[
        int, option("--circuit-images", "Validation images that circuits are measured on.", min=2)
    ] = 128,
    figure: Annotated[Path | None, option("--figure", "Picture of the course, .png or .svg.")] = None,
    skip_bad: SkipOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Fine-tune an image classifier with a loss that favours deep circuits; goes on after a kill.

    The step with the best validation accuracy is kept. Both sides of the depth bias are reported at every
    evaluation, with a verdict that says whether deep scores only inflated.
    """
    from dataclasses import replace

    from assay.analyses.generalization.circuit_loss import CircuitSettings
    from assay.analyses.generalization.finetuning import DEFAULT_RECIPE
    from assay.analyses.generalization.finetuning import finetune as run_finetune
    from assay.pipeline.targets import FIRST_TARGET
    from assay.report.dynamics import dynamics_figure
    from assay.tasks import EvalTransform
    from assay.zoo import split

    settings = CircuitSettings(
        weight=lambda_circuit,
        variant=variant.replace("-", "_"),
        loss=loss,
        steps=points,
        memory=memory,
        ratio=ratio,
        shallow=_blocks("--shallow", shallow),
        deep=_blocks("--deep", deep),
    )
    recipe = replace(
        DEFAULT_RECIPE,
        init=model or "embedded",
        lr=lr,
        batch_size=train_batch,
        weight_decay=weight_decay,
        warmup=warmup,
        steps=train_steps,
        validate_every=validate_every,
        seed=seed,
    )
    if figure is not None and figure.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"--figure is {figure.name}; pictures are written as .png or .svg")
    loaded = _load(model)
    if dry_run:
        _show_plan(loaded, settings.sets(loaded.n_layers), settings, train_steps, as_json=as_json)
        return
    reading: dict[str, Any] = {"transform": EvalTransform.for_model(loaded), "classes": loaded.classes}
    reading |= {"n": n, "seed": seed, "skip_bad": skip_bad}
    given = read_images(images, shapes, start=FIRST_TUNED, **reading)
    if len(given) != 1:
        raise InputError(f"{len(given)} domains are given; a model is fine-tuned on one, --watch takes more")
    beside = read_images(watch, watch_shapes, start=FIRST_TARGET, **reading) if watch or watch_shapes else []
    twice = [each.domain for each in beside if [other.domain for other in beside].count(each.domain) > 1]
    if twice:
        raise InputError(f"two watched sets are named {twice[0]!r}; rename one of the folders")
    with progress_on_stderr(quiet=quiet) as progress:
        found = run_finetune(
            loaded,
            *split(given[0], holdout, seed=seed),
            out,
            circuit=settings,
            recipe=recipe,
            watch={each.domain: each for each in beside},
            n_images=circuit_images,
            batch_size=batch_size,
            device=device,
            progress=progress,
        )
    document = found.to_dict()
    if figure is not None:
        dynamics_figure(document["dynamics"], make_room(figure), title=f"lambda {lambda_circuit:g}")
    if as_json:
        print_json({"folder": str(out), **document})
        return
    print_course(document)
    echo(f"model    {out}")
    if figure is not None:
        echo(f"picture  {figure}")


def _blocks(name: str, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = _BLOCKS.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{name} is {text!r}; give the first and the last block, from 0 on, e.g. 0-3")
    return int(found[1]), int(found[2] or found[1])


def _load(name: str | None) -> "Model":
    from assay.models import load_model
    from assay.zoo import Zoo

    if name is not None:
        return load_model(name)
    zoo = Zoo.embedded()
    return zoo.load(zoo.keys[0])


def _show_plan(loaded: "Model", sets: Any, settings: Any, steps: int, *, as_json: bool) -> None:
    """What a step costs, a backward pass counted as two forward ones."""
    from assay.analyses.generalization.live_scores import SECOND_ORDER

    inner = (settings.steps - 1) * (4 if settings.variant == SECOND_ORDER else 1)
    if settings.variant == "target_logit":
        inner = 0
    each = 3 + (3 + inner if settings.weight > 0 else 0)
    low, high = (f"{a - 1} to {b - 1}" for a, b in (sets.low, sets.high))
    if as_json:
        plan = {"model": loaded.describe(), "circuit": settings.to_dict(), "steps": steps}
        print_json({**plan, "forward_passes_per_step": each})
        return
    echo(f"{loaded.id}: shallow blocks {low}, deep blocks {high}")
    echo(f"{steps:,} steps of about {each} forward passes over a batch; plain training takes 3")


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
        echo(f"the start had {start:.1%} by validation: no step of this training did as well")
    echo(f"verdict: {document['verdict']['text']}")
    for name, choice in document["leaking"].items():
        echo(f"choosing by {name}, whose labels that would use: step {choice['step']}, {choice['score']:.1%}")
    if document["guarded"]:
        echo(f"note: {document['guarded']} gradient entries were not finite, counted as 0", err=True)
    if document["undefined"]:
        echo(f"note: the circuit loss was left out on {document['undefined']} batches", err=True)

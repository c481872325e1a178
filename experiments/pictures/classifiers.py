"""Pictures of circuits of the embedded image classifiers."""

from functools import cache

from matplotlib.figure import Figure
from texts import of, panels
from torch import Tensor

import assay
from assay.analyses.generalization import InspectionSettings, discover_reference
from assay.page.draw import INK, MUTED
from assay.tasks import EvalTransform, draw_shapes
from assay.tasks.corruptions import CORRUPTIONS, corrupt


TARGET, N = "sketch", 60


@cache
def zoo() -> assay.Zoo:
    return assay.Zoo.embedded()


@cache
def matrices() -> dict[str, tuple[Tensor, float]]:
    """Dependency matrix of each model on sketches, and its accuracy there."""
    images = draw_shapes(TARGET, N, start=20_000)
    found = {}
    for key in zoo().keys:
        model = zoo().load(key)
        task = images.with_transform(EvalTransform.for_model(model))
        right = assay.run_model(model, task).argmax(1) == task.labels
        matrix = assay.dependency_matrix(assay.discover(model, task))
        found[key] = (matrix, float(right.double().mean()))
    return found


def depth_bias() -> Figure:
    by_bias = sorted(matrices().items(), key=lambda item: assay.dependency_depth_bias(item[1][0]))
    figure, axes = panels(1, 2, (8.5, 3.8))
    for axis, (key, (matrix, accuracy)) in zip(axes.flat, (by_bias[0], by_bias[-1]), strict=True):
        shares = 100 * matrix / matrix.sum()
        axis.imshow(shares, cmap="Blues", vmin=0, vmax=40)
        names = ["input", *(f"block {block}" for block in range(len(matrix) - 2)), "logits"]
        axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axis.set_yticks(range(len(names)), names)
        for row, column in (shares >= 1).nonzero().tolist():
            shade = "white" if shares[row, column] > 25 else INK
            axis.text(
                column, row, f"{shares[row, column]:.0f}", ha="center", va="center", fontsize=7, color=shade
            )
        bias = assay.dependency_depth_bias(matrix)
        axis.set_title(f"{key}\nDDB {bias:+.2f}, accuracy {accuracy:.0%}", fontsize=9, color=INK)
        axis.set_xlabel("read by", fontsize=9, color=MUTED)
    axes[0, 0].set_ylabel("written by", fontsize=9, color=MUTED)
    return figure


def motif() -> Figure:
    found, performance = zip(*matrices().values(), strict=True)
    return of(assay.motif(found, performance), (5.5, 4.5))


def ranking() -> Figure:
    metrics = ["ddb-output", "id-accuracy", "average-confidence", "atc"]
    found = assay.rank(
        zoo(),
        draw_shapes(TARGET, N, start=20_000),
        id_data=draw_shapes("flat", N, start=1_000_000),
        metrics=metrics,
        settings=InspectionSettings(draws=200),
    )
    figure = Figure(figsize=(9, 5), layout="constrained")
    found.plot(figure.subplots())
    return figure


def monitor() -> Figure:
    """Four batches of each style before the monitor of the model that is best on flat drawings."""
    key = max(zoo().entries, key=lambda entry: entry.id_accuracy or 0.0).key
    model, batch = zoo().load(key), 24
    known = draw_shapes("flat", 20 * batch, start=1_000_000).with_transform(EvalTransform.for_model(model))
    first, rest = known.subset(range(4 * batch)), known.subset(range(4 * batch, known.n))
    reference = discover_reference(model, first, batch=batch)
    watched = assay.Monitor(model, reference, outputs=first, alpha=0.2)
    watched.calibrate(rest, batch_size=batch)
    for style in ("flat", TARGET, "neon"):
        for start in range(3_000_000, 3_000_000 + 4 * batch, batch):
            watched.observe(draw_shapes(style, batch, start=start))
    return of(watched, (8.6, 3.9))


def corruptions() -> Figure:
    keys = list(CORRUPTIONS)
    images = draw_shapes("flat", 1, start=1_000_000)
    figure, axes = panels(5, 8, (9, 6.6))
    for axis in axes.flat:
        axis.axis("off")
    shown = {"as drawn": images.pixels[0], **{key: corrupt(images, key).held().pixels[0] for key in keys}}
    for axis, (name, pixels) in zip(axes.flat, shown.items(), strict=True):
        axis.imshow(pixels)
        axis.set_title(name, fontsize=6, color=INK)
    return figure


PICTURES = {
    "depth-bias.svg": depth_bias,
    "motif-shapes.svg": motif,
    "ranking-shapes.svg": ranking,
    "monitor-shapes.svg": monitor,
    "corruptions.png": corruptions,
}

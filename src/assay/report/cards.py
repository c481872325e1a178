"""What a notebook shows of values that have no picture: models, tasks, images, zoos, stores."""

import html
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from assay.analyses.subsets import CorrectnessData
from assay.core import display
from assay.execution import CircuitRuns
from assay.graph import Graph
from assay.models import Model
from assay.page.thumbnail import thumbnail
from assay.store import Store
from assay.tasks import ImageSet, ImageStream, ImageTask, PairTask
from assay.zoo import Zoo


MOST_PAIRS, MOST_IMAGES = 4, 10


def model_card(model: Model) -> str:
    """Family, size, number type, device, classes, and the hash of the weights."""
    rows = (
        ("family", model.family.key),
        ("blocks and heads", f"{model.n_layers} blocks of {model.n_heads} heads"),
        ("edges of its graph", model.graph.n_edges),
        ("classes", ", ".join(model.classes) if model.vision and model.classes else None),
        ("number type", str(model.dtype).removeprefix("torch.")),
        ("device", str(model.device)),
    )
    return display.card(f"model {model.id}", rows, id=model.weight_hash)


def graph_card(graph: Graph) -> str:
    """Its sources, targets and edges, and its fingerprint."""
    rows = (
        ("blocks and heads", f"{graph.n_layers} blocks of {graph.n_heads} heads"),
        ("sources", f"{graph.n_sources}: {_some(graph.sources)}"),
        ("targets", f"{graph.n_targets}: {_some(graph.targets)}"),
        ("edges", graph.n_edges),
    )
    return display.card("graph", rows, id=graph.fingerprint)


def pairs_card(task: PairTask) -> str:
    """The first pairs of prompts with their answers, and the hash of all."""

    def answer(tokens: torch.Tensor) -> str:
        kept = tokens[tokens >= 0].tolist()
        return str(kept) if task.tokenizer is None else repr(task.tokenizer.decode(kept))

    def prompt(texts: Sequence[str] | None, tokens: torch.Tensor, place: int) -> str:
        return texts[place] if texts is not None else str(tokens[place].tolist())

    rows = [
        (
            prompt(task.texts, task.clean, place),
            prompt(task.corrupted_texts, task.corrupted, place),
            answer(task.answers[place]),
        )
        for place in range(min(task.n, MOST_PAIRS))
    ]
    title = f"task {task.name}: {task.n} pairs, objective {task.objective}, ablation {task.ablation}"
    return display.table(title, ("clean", "corrupted", "answer"), rows, id=task.data_hash[:16])


def image_task_card(task: ImageTask, *, n: int | None = None, identity: str | None = None) -> str:
    """The first images as they enter the model, spread over all shades.

    Args:
        task: The images.
        n: Number of all images, where these are the first of them.
        identity: Hash of all images.
    """
    low, high = task.images.aminmax()
    scaled = (task.images[:MOST_IMAGES] - low) / (high - low).clamp_min(torch.finfo(low.dtype).tiny)
    pixels = (255 * scaled).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    title = f"task {task.name}: {n or task.n} images, objective {task.objective}, ablation {task.ablation}"
    labels = None if task.labels is None else task.labels.cpu().numpy()
    rows = (("domain", task.domain or None),)
    return _gallery(title, rows, pixels, labels, task.classes, (identity or task.data_hash)[:16])


def image_stream_card(stream: ImageStream) -> str:
    """The first images as they enter the model, which are decoded for it."""
    first = stream.first(MOST_IMAGES).loaded()
    return image_task_card(first, n=stream.n, identity=stream.source_hash)


def image_set_card(images: ImageSet) -> str:
    """The first images with their labels."""
    rows = (
        ("domain", images.domain or None),
        ("size", "x".join(map(str, images.pixels.shape[1:3]))),
        ("files left out", len(images.skipped) or None),
    )
    title = f"{images.n:,} images of {images.name}"
    return _gallery(title, rows, images.pixels[:MOST_IMAGES], images.labels, images.classes, None)


def runs_card(runs: CircuitRuns) -> str:
    """What is run, on what, and how the rest is ablated."""
    rows = (
        ("model", runs.model.id),
        ("task", f"{runs.task.name}, n = {runs.task.n}"),
        ("circuit", f"{runs.circuit.n_edges:,} of {runs.circuit.graph.n_edges:,} edges"),
        ("ablation", runs.ablation),
        ("objective", runs.objective),
    )
    return display.card("runs of a circuit", rows, id=runs.circuit.hash)


def answers_card(data: CorrectnessData) -> str:
    """Models, examples, what is known of both, and the range of the accuracies."""

    def different(names: Sequence[object] | None) -> int | None:
        return None if names is None else len(set(names))

    low, high = data.id_accuracy.min(), data.id_accuracy.max()
    rows = (
        ("models", data.n_models),
        ("training runs", different(data.groups)),
        ("families", different(data.families)),
        ("examples", data.n_examples),
        ("in-distribution accuracy", f"{low:.1%} to {high:.1%}"),
        ("known of the examples", ", ".join(data.meta) or None),
    )
    return display.card("right and wrong answers", rows, id=data.hash)


def zoo_card(zoo: Zoo) -> str:
    """Its models, best in distribution first."""
    entries = sorted(zoo.entries, key=lambda each: -1.0 if each.id_accuracy is None else -each.id_accuracy)
    rows = [(each.key, each.status, each.id_accuracy) for each in entries]
    title = f"zoo {zoo.name}: {len(rows)} models" + (f", trained on {zoo.id_domain}" if zoo.id_domain else "")
    return display.table(title, ("model", "status", "in-distribution accuracy"), rows)


def store_card(store: Store) -> str:
    """How many results of each kind it holds."""
    kinds = Counter(each.kind for each in store.query())
    return display.table(f"store: {sum(kinds.values())} results", ("kind", "results"), sorted(kinds.items()))


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])} ... {names[-1]}"


def _gallery(
    title: str,
    rows: Sequence[tuple[str, object]],
    pixels: np.ndarray,
    labels: np.ndarray | None,
    classes: Sequence[str] | None,
    identity: str | None,
) -> str:
    """A card with a row of small pictures, each under its label."""

    def name(place: int) -> str:
        if labels is None:
            return "?"
        label = int(labels[place])
        return classes[label] if classes else str(label)

    pictures = "".join(
        f'<div style="display:inline-block;text-align:center;margin:0 6px 4px 0">'
        f'<img alt="{html.escape(name(place))}" width="56" style="width:56px;image-rendering:pixelated" '
        f'src="{thumbnail(image)}"><br>{html.escape(name(place))}</div>'
        for place, image in enumerate(pixels)
    )
    return display.card(title, rows, picture=f"<div>{pictures}</div>", id=identity)

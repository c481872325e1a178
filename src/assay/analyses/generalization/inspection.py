"""What one model showed on some images: its answers, the spectrum of its features, edge scores.

An inspection holds four numbers for each image, sums over the images, and no model, so many models can be
compared that never were in memory together. It is kept under the hash of weights, images and settings, so an
interrupted comparison goes on.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float, Float32, Float64, Int64
from scipy.special import log_softmax, logsumexp
from torch import Tensor

from assay.analyses.generalization.baselines import negative_entropies
from assay.analyses.generalization.dependency import dependency_matrix, layer_sums
from assay.analyses.generalization.sharpness import sharpness
from assay.circuits import EdgeScores
from assay.circuits.files import read_arrays, write_arrays
from assay.core.errors import InputError, NonFiniteError, check_least, check_name
from assay.core.record import HIDDEN, Record, library_version, record_id
from assay.discovery.edges import METHODS, OutputScores, OutputSums, ScoreSums
from assay.execution import Mean, MeanSums
from assay.execution.batches import choose_batch_size
from assay.graph import Graph, build_graph
from assay.models import Model
from assay.stats.resampled import FEWEST
from assay.tasks import EvalTransform, ImageBatch, ImageTask


KIND = "inspection"
LAYOUT = 5  # of the files in a cache: those of another one are made again
HELD = 1 << 28  # bytes of pixels, at most, that are held
# What can be asked for beyond the answers.
PARTS = ("logits", "features", "output-scores", "edge-scores", "sharpness")


@dataclass(frozen=True, kw_only=True)
class InspectionSettings(Record):
    """How edge scores and sharpness are measured; equal for every model of a comparison.

    Attributes:
        objective: Loss to attribute.
        ablation: What a cut edge carries; by default the mean over the images, per position.
        steps: Quadrature nodes.
        quadrature: Rule of the nodes.
        sharpness_batch: Images of one sharpness batch; published with 256.
        draws: Bootstrap resamples of the images, at least 20.
        seed: Root seed of the resamples.
        batch_size: Images per pass; None: by free memory. Results do not depend on it.
    """

    objective: str = "kl"
    ablation: str = "mean-positional"
    steps: int = 5
    quadrature: str = "midpoint"
    sharpness_batch: int = 256
    draws: int = 200
    seed: int = 0
    batch_size: int | None = field(default=None, metadata=HIDDEN)

    def __post_init__(self) -> None:
        check_least(1, steps=self.steps, sharpness_batch=self.sharpness_batch)
        check_least(FEWEST, draws=self.draws)

    @property
    def of_discovery(self) -> dict[str, Any]:
        """What discovering a circuit takes, by the names of its arguments."""
        names = ("objective", "ablation", "steps", "quadrature", "seed")
        return {"resamples": self.draws, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, kw_only=True, eq=False)
class Inspection:
    """What one model showed on the images of one domain.

    Attributes:
        graph: Of the model.
        n_classes: Classes the model tells apart.
        predictions: Class of the largest logit, the first of equals, `[n_images]`.
        confidence: Largest probability, `[n_images]`.
        negative_entropy: Sum of p log p over the classes, nats, `[n_images]`.
        energies: -log sum exp of the logits, `[n_images]`.
        labels: `[n_images]`; None if unknown.
        ids: Number of each image in its data set, `[n_images]`.
        classes: Names, label 0 first; None if neither model nor data know them.
        logits: `[n_images, n_classes]`.
        spectrum: Singular values of the features that the classifier reads, descending.
        centred_spectrum: Likewise, of the features less their mean.
        output_scores: Signed score of the edge from each source into the logits, mean over the images,
            `[n_sources]`, with the ablation's means over all images.
        output_draws: The same under each resample of the images, `[draws, n_sources]`.
        dependency: Inter-layer dependency matrix, `[L + 1, L + 1]`.
        dependency_draws: The matrix under each resample of the images, `[draws, L + 1, L + 1]`.
        sharpness: Rise of the loss on batches of labelled images, their mean.
        provenance: Model, images and settings, JSON-able.
        passes: Passes per image of each stage, forward and backward.
    """

    graph: Graph
    n_classes: int
    predictions: Int64[np.ndarray, " n"]
    confidence: Float64[np.ndarray, " n"]
    negative_entropy: Float64[np.ndarray, " n"]
    energies: Float64[np.ndarray, " n"]
    ids: Int64[np.ndarray, " n"]
    labels: Int64[np.ndarray, " n"] | None = None
    classes: tuple[str, ...] | None = None
    logits: Float[np.ndarray, "n n_classes"] | None = None
    spectrum: Float64[np.ndarray, " d"] | None = None
    centred_spectrum: Float64[np.ndarray, " d"] | None = None
    output_scores: Float64[np.ndarray, " n_sources"] | None = None
    output_draws: Float32[np.ndarray, "draws n_sources"] | None = None
    dependency: Float64[np.ndarray, "layers layers"] | None = None
    dependency_draws: Float32[np.ndarray, "draws layers layers"] | None = None
    sharpness: float | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    passes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of images."""
        return len(self.predictions)


def answers_of(logits: Float64[np.ndarray, "n c"]) -> dict[str, np.ndarray]:
    """The four numbers of each image that an inspection keeps, by the names of its attributes."""
    log_p = log_softmax(logits, axis=1)
    return {
        "predictions": logits.argmax(1),
        "confidence": np.exp(log_p).max(1),
        "negative_entropy": negative_entropies(log_p),
        "energies": -logsumexp(logits, axis=1),
    }


# ----------------------------------------------------------------------------------------- running


def inspect_model(
    model: Model,
    task: ImageTask,
    parts: Iterable[str] = (),
    *,
    settings: InspectionSettings | None = None,
    cache: str | Path | None = None,
) -> Inspection:
    """Run a model on the images of one domain and keep what predictors of performance read.

    Args:
        model: An image classifier in evaluation mode.
        task: The images, at least 2.
        parts: Beyond the answers: `"logits"`; `"features"`, their spectrum; `"output-scores"`, scores of the
            edges into the logits by the fast path; `"edge-scores"`, scores of all edges, which give those
            too, and the dependency matrix with its resamples; `"sharpness"`, which needs labels.
        settings: How scores and sharpness are measured.
        cache: Folder of earlier inspections: one of the same weights, images, parts and settings is read
            instead of made again. Made if it does not exist.

    Raises:
        InputError: For fewer than 2 images, a model in training mode, images or labels that do not fit the
            model, or sharpness without labels.
        UnknownNameError: For another part.
        NonFiniteError: If a logit is NaN or infinite; the message names the image.
        FileFormatError: If a file of the cache was damaged.

    Notes:
        Costs one forward pass for answers and features together, the passes of `assay.discover` or of
        `output_scores`, and 41 forward and 20 backward passes per sharpness batch.
    """
    settings, wanted = settings or InspectionSettings(), set(parts)
    for name in wanted:
        check_name("part of an inspection", name, PARTS)
    if "edge-scores" in wanted:
        wanted.discard("output-scores")  # among them
    name = task.domain or task.name
    if task.n < 2:
        raise InputError(
            f"domain {name!r} has {task.n} image, but mean ablation and intervals need 2 or more"
        )
    if "sharpness" in wanted and task.labels is None:
        raise InputError(f"sharpness needs labels, but the images of {name!r} have none")
    task = model.bind(task)
    provenance = {
        "library": library_version(),
        "layout": LAYOUT,
        "model": model.describe(),
        "task": task.describe("source_hash"),
        "parts": sorted(wanted),
        "settings": settings.to_dict(),
    }
    path = None if cache is None else Path(cache) / f"{record_id(KIND, provenance)}.safetensors"
    if path is not None and path.exists():
        return load_inspection(path)
    made = _inspected(model, task, wanted, settings)
    made = replace(made, provenance={**provenance, "task": task.describe()})  # the images are read by now
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_inspection(made, path)
    return made


def _inspected(model: Model, task: ImageTask, parts: set[str], settings: InspectionSettings) -> Inspection:
    """Two passes over the images where edges are scored: the first gives the means that cut edges carry."""
    passes: dict[str, Any] = {"inspect": {"forward": 1}}
    method = METHODS["eap-ig-inputs"]
    choices = method.choices(task, **settings.of_discovery)
    stage = next((part for part in ("edge-scores", "output-scores") if part in parts), None)
    means, extra = None, 0
    if stage is not None:
        method.check(choices)
        extra = method.bytes_per_example(model, task.length, choices)
        means = MeanSums(model, choices.ablation) if isinstance(choices.ablation, Mean) else None
    size = choose_batch_size(model, task, asked=settings.batch_size, bytes_per_example=extra)
    kept: dict[str, list[np.ndarray]] = {}
    for batch in task.batches(size):
        logits, features = _outputs(model, task, batch)
        shown = answers_of(logits)
        if "logits" in parts:
            shown["logits"] = logits if model.result_dtype == torch.float64 else logits.astype(np.float32)
        if "features" in parts:
            shown["features"] = features
        for name, each in shown.items():
            kept.setdefault(name, []).append(each)
        if means is not None:
            means.add(batch)
    arrays: dict[str, Any] = {name: np.concatenate(kept.pop(name)) for name in list(kept)}
    if (features := arrays.pop("features", None)) is not None:
        arrays["spectrum"] = scipy.linalg.svdvals(features)
        arrays["centred_spectrum"] = scipy.linalg.svdvals(features - features.mean(0))
    if stage is not None:
        prepared = (
            choices.ablation.prepare(model, task, batch_size=size, seed=choices.seed)
            if means is None
            else means.prepared()
        )
        sums: OutputSums | ScoreSums = (
            ScoreSums(model, method, choices, prepared)
            if stage == "edge-scores"
            else OutputSums(model, choices, prepared)
        )
        for batch in task.batches(size):
            sums.add(batch)
        found = sums.scores()
        arrays |= _circuit(model.graph, found)
        passes[stage] = found.details["passes"]
    if "sharpness" in parts:
        size = min(settings.sharpness_batch, task.n)  # a short last batch would weigh as much as the others
        pairs = (
            (each.images, each.labels)
            for each in task.batches(size)
            if each.labels is not None and len(each.labels) == size
        )
        arrays["sharpness"] = sharpness(model, pairs)
        passes["sharpness"] = {"forward": 41, "backward": 20}
    return Inspection(
        graph=model.graph,
        n_classes=model.n_classes,
        labels=None if task.labels is None else task.labels.numpy().astype(np.int64),
        ids=task.ids.numpy().astype(np.int64),
        classes=model.classes or task.classes,
        passes=passes,
        **arrays,
    )


def _outputs(model: Model, task: ImageTask, batch: ImageBatch) -> list[Float64[np.ndarray, "n c"]]:
    """Logits, and the features that they are read from, of one pass."""
    vision = model.vision
    assert vision is not None  # `bind` refuses images for any other model
    with torch.no_grad():
        hidden = model.forward(batch.images.to(model.device))
        read = [part(model.module, hidden).double().cpu() for part in (vision.logits, vision.features)]
    bad = (~torch.isfinite(read[0])).any(1).nonzero().flatten()
    if len(bad):
        raise NonFiniteError(
            f"{model.id} gives NaN or infinite logits for image {int(batch.ids[bad[0]])} of "
            f"{task.domain or task.name!r}; check its weights"
        )
    return [each.numpy() for each in read]


def _circuit(graph: Graph, found: EdgeScores | OutputScores) -> dict[str, np.ndarray]:
    """Scores of the edges into the logits, the dependency matrix where all edges were scored, their draws."""
    assert found.resampled is not None  # `of_discovery` asks for it
    if not isinstance(found, EdgeScores):
        values = found.values.detach().double().cpu().numpy()
        return {"output_scores": values, "output_draws": found.resampled.numpy()}
    into_logits = graph.valid.nonzero()[:, 1] == graph.n_targets - 1
    return {
        "output_scores": found.values[:, -1].detach().double().cpu().numpy(),
        "output_draws": found.resampled[:, into_logits].contiguous().numpy(),
        "dependency": dependency_matrix(found).numpy(),
        "dependency_draws": layer_sums(graph, found.resampled.abs().double().numpy()).astype(np.float32),
    }


# ------------------------------------------------------------------------------------------- images


def image_task(model: Model, images: ImageTask | Tensor, transform: EvalTransform | None = None) -> ImageTask:
    """Images as a model reads them: a task, or a tensor of normalised images `[N, 3, H, W]`.

    The transform is used in place of the model's own, for images that have none.
    """
    if isinstance(images, Tensor):
        return ImageTask(images=images)
    return images.for_model(model, transform if images.transform is None else None)


def decoded_once(images: ImageTask) -> ImageTask:
    """Images that are read many times: those in files are decoded now, up to 256 MiB of pixels."""
    return images if 3 * images.n * math.prod(images.image_size) > HELD else images.held()


def labelled_inspection(model: Model, task: ImageTask, *, cache: str | Path | None = None) -> Inspection:
    """What a model answers on labelled images in distribution: `atc` and others learn from it.

    Raises:
        InputError: If the images have no labels, or one is outside the classes.
        NonFiniteError: If a logit is NaN or infinite.
    """
    if task.labels is None:
        raise InputError(
            f"the images of {task.domain or task.name!r} have no labels, but performance and ATC need them; "
            "give labelled images"
        )
    return inspect_model(model, task, cache=cache)


# -------------------------------------------------------------------------------------------- files


def save_inspection(inspection: Inspection, path: Path) -> Path:
    """Write an inspection as safetensors with JSON metadata, whole or not at all."""
    described = ("n_classes", "classes", "sharpness", "provenance", "passes")
    metadata = {"kind": KIND, "graph": inspection.graph.describe()}
    metadata |= {name: getattr(inspection, name) for name in described}
    arrays = {
        name: torch.from_numpy(np.ascontiguousarray(each))
        for name, each in vars(inspection).items()
        if isinstance(each, np.ndarray)
    }
    return write_arrays(path, arrays, metadata)


def load_inspection(path: str | Path) -> Inspection:
    """Read what `save_inspection` wrote.

    Raises:
        FileFormatError: If the file is truncated, tampered with or of another kind.
    """
    arrays, metadata = read_arrays(Path(path), KIND)
    facts = {name: metadata[name] for name in ("n_classes", "sharpness", "provenance", "passes")}
    classes = None if metadata["classes"] is None else tuple(metadata["classes"])
    numbers: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
    return Inspection(graph=build_graph(**metadata["graph"]), classes=classes, **facts, **numbers)

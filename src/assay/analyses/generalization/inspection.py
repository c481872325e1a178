"""What one model shows on some images: logits, features, edge scores; one forward pass serves the first two.

An inspection holds arrays and no model, so many models can be compared that never were in memory together,
and it is kept under the hash of weights, images and settings, so an interrupted comparison goes on.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from assay.analyses.generalization.depth_bias import node_layers
from assay.analyses.generalization.sharpness import sharpness
from assay.circuits.files import read_arrays, write_arrays
from assay.core.errors import GraphMismatchError, InputError, NonFiniteError, unknown_name
from assay.core.random import stream
from assay.core.record import HIDDEN, Record, library_version, record_id
from assay.discovery.edges import discover, output_scores
from assay.execution.batches import choose_batch_size
from assay.graph import Graph, build_graph
from assay.models import Model
from assay.stats.intervals import draw_counts
from assay.tasks import ImageStream, ImageTask


# What can be asked for beyond the logits.
PARTS = ("features", "output-scores", "edge-scores", "sharpness")
STREAM = "rank/images"
_KIND = "inspection"
_DRAW_BLOCK = 1 << 25  # numbers of resampled edge scores held at a time


@dataclass(frozen=True, kw_only=True)
class InspectionSettings(Record):
    """How edge scores and sharpness are measured; equal for every model of a comparison.

    Attributes:
        objective: Loss to attribute; None: the task's own (KL).
        ablation: What a cut edge carries; None: the task's own (mean over the images, per position).
        steps: Quadrature nodes.
        quadrature: Rule of the nodes.
        sharpness_batch: Images of one sharpness batch; published with 256.
        draws: Bootstrap resamples of the images.
        seed: Root seed of the resamples.
        batch_size: Images per pass; None: by free memory. Results do not depend on it.
    """

    objective: str | None = None
    ablation: str | None = None
    steps: int = 5
    quadrature: str = "midpoint"
    sharpness_batch: int = 256
    draws: int = 1000
    seed: int = 0
    batch_size: int | None = field(default=None, metadata=HIDDEN)

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("steps", "sharpness_batch", "draws")}
        small = [f"{name}={value}" for name, value in counts.items() if value < 1]
        if small:
            raise InputError(f"{', '.join(small)}: expected at least 1")

    @property
    def of_discovery(self) -> dict[str, Any]:
        """What discovering a circuit takes, by the names of its arguments."""
        names = ("objective", "ablation", "steps", "quadrature", "batch_size")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True, eq=False)
class Inspection:
    """What one model showed on the images of one domain.

    Attributes:
        graph: Of the model.
        logits: `[n_images, n_classes]`.
        labels: `[n_images]`; None if unknown.
        ids: Number of each image in its data set, `[n_images]`.
        classes: Names, label 0 first; None if neither model nor data know them.
        features: What the classifier reads, `[n_images, n_features]`.
        output_scores: Signed score of the edge from each source into the logits, per image,
            `[n_images, n_sources]`, with the ablation's means over all images.
        dependency: Inter-layer dependency matrix, `[L + 1, L + 1]`.
        dependency_draws: The matrix under each resample of the images, `[draws, L + 1, L + 1]`.
        sharpness: Rise of the loss on each batch of labelled images, `[n_batches]`.
        provenance: Model, images and settings, JSON-able.
        cost: Seconds and passes per image of each stage.
    """

    graph: Graph
    logits: Float64[np.ndarray, "n n_classes"]
    labels: Int64[np.ndarray, " n"] | None
    ids: Int64[np.ndarray, " n"]
    classes: tuple[str, ...] | None
    features: Float32[np.ndarray, "n n_features"] | None = None
    output_scores: Float32[np.ndarray, "n n_sources"] | None = None
    dependency: Float64[np.ndarray, "layers layers"] | None = None
    dependency_draws: Float32[np.ndarray, "draws layers layers"] | None = None
    sharpness: Float64[np.ndarray, " n_batches"] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of images."""
        return len(self.logits)

    @property
    def predictions(self) -> Int64[np.ndarray, " n"]:
        """Class of the largest logit, the first of equals."""
        return np.asarray(self.logits.argmax(1), dtype=np.int64)


def inspect_model(
    model: Model,
    task: ImageTask | ImageStream,
    parts: Iterable[str] = (),
    *,
    settings: InspectionSettings | None = None,
    cache: str | Path | None = None,
) -> Inspection:
    """Run a model on the images of one domain and keep what predictors of performance read.

    Args:
        model: An image classifier in evaluation mode.
        task: The images, at least 2.
        parts: Beyond the logits: `"features"`; `"output-scores"`, scores of the edges into the logits by the
            fast path; `"edge-scores"`, scores of all edges, which give those too, and the dependency matrix
            with its resamples; `"sharpness"`, which needs labels.
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
        Costs one forward pass for logits and features together, the passes of `assay.discover` or of
        `output_scores`, and 41 forward and 20 backward passes per sharpness batch.
    """
    settings = settings or InspectionSettings()
    wanted = tuple(dict.fromkeys(parts))
    for name in wanted:
        if name not in PARTS:
            raise unknown_name("part of an inspection", name, PARTS)
    if "edge-scores" in wanted:
        wanted = tuple(name for name in wanted if name != "output-scores")
    if task.n < 2:
        raise InputError(
            f"domain {task.domain or task.name!r} has {task.n} image, but mean ablation and intervals need "
            "2 or more"
        )
    if "sharpness" in wanted and task.labels is None:
        raise InputError(f"sharpness needs labels, but the images of {task.domain or task.name!r} have none")
    provenance = {
        "library": library_version(),
        "model": model.describe(),
        "task": task.describe(),
        "parts": sorted(wanted),
        "settings": settings.to_dict(),
    }
    path = None if cache is None else Path(cache) / f"{record_id(_KIND, provenance)}.safetensors"
    if path is not None and path.exists():
        return load_inspection(path)
    inspection = _inspect(model, task, wanted, settings, provenance)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_inspection(inspection, path)
    return inspection


def check_comparable_inspections(
    names: tuple[str, str], first: Inspection, second: Inspection, *, what: str, circuits: bool = False
) -> None:
    """Refuse models whose numbers do not compare.

    Args:
        names: Of the two models.
        first: What one showed.
        second: What the other showed.
        what: Which images these are, for the message.
        circuits: Whether circuits are compared, too.

    Raises:
        GraphMismatchError: If circuits are compared and the graphs differ.
        InputError: If the models know other classes, or were given other images or labels.
    """
    one, other = names
    if circuits and first.graph != second.graph:
        raise GraphMismatchError(
            f"{one} and {other} have different graphs ({first.graph.describe()} and "
            f"{second.graph.describe()}), so their circuits cannot be compared; rank them separately, or by "
            "metrics without circuits"
        )
    if first.logits.shape[1] != second.logits.shape[1] or first.classes != second.classes:
        raise InputError(
            f"{one} and {other} have different classes ({_classes(first)} and {_classes(second)}); rank "
            "models with the same class list"
        )
    if first.labels is None or second.labels is None:
        same_labels = first.labels is second.labels
    else:
        same_labels = np.array_equal(first.labels, second.labels)
    if not (np.array_equal(first.ids, second.ids) and same_labels):
        raise InputError(f"{one} and {other} were given different {what} images; give both the same images")


def _classes(inspection: Inspection) -> str:
    if inspection.classes is None:
        return f"{inspection.logits.shape[1]} unnamed"
    more = ", ..." if len(inspection.classes) > 4 else ""
    return f"{len(inspection.classes)}: {', '.join(inspection.classes[:4])}{more}"


def _inspect(
    model: Model,
    task: ImageTask | ImageStream,
    parts: Sequence[str],
    settings: InspectionSettings,
    provenance: Mapping[str, Any],
) -> Inspection:
    cost: dict[str, Any] = {}
    with _timed(cost, "inspect", {"forward": 1}):
        logits, features = _forward(model, task, settings.batch_size)
    arrays: dict[str, Any] = {"features": features if "features" in parts else None}
    if "output-scores" in parts:
        with _timed(cost, "output-scores") as passes:
            fast = output_scores(model, task, per_example=True, **settings.of_discovery)
            passes |= fast.details.get("passes", {})
        arrays["output_scores"] = _single(fast.per_example)
    if "edge-scores" in parts:
        with _timed(cost, "edge-scores") as passes:
            full = discover(
                model, task, "eap-ig-inputs", per_example=True, seed=settings.seed, **settings.of_discovery
            )
            passes |= full.details.get("passes", {})
        with _timed(cost, "metrics"):
            assert full.per_example is not None
            arrays["output_scores"] = _single(full.per_example[:, :, -1])
            counts = resamples(task.n, settings)
            draws = resampled_matrices(model.graph, full.per_example, counts)
            arrays["dependency"] = resampled_matrices(model.graph, full.per_example, np.ones((1, task.n)))[0]
            arrays["dependency_draws"] = draws.astype(np.float32)
    if "sharpness" in parts:
        with _timed(cost, "sharpness", {"forward": 41, "backward": 20}):
            arrays["sharpness"] = _sharpness(model, task, settings.sharpness_batch)
    return Inspection(
        graph=model.graph,
        logits=logits,
        labels=None if task.labels is None else task.labels.numpy().astype(np.int64),
        ids=task.ids.numpy().astype(np.int64),
        classes=model.classes or task.classes,
        provenance=provenance,
        cost=cost,
        **arrays,
    )


def _forward(
    model: Model, task: ImageTask | ImageStream, batch_size: int | None
) -> tuple[Float64[np.ndarray, "n n_classes"], Float32[np.ndarray, "n n_features"]]:
    """Logits and features of all images, from one pass."""
    bound = model.bind(task)
    logits, features = [], []
    vision = model.vision
    assert vision is not None  # `bind` refuses images for any other model
    for batch in bound.batches(choose_batch_size(model, bound, asked=batch_size)):
        with torch.no_grad():
            hidden = model.forward(batch.images.to(model.device))
            logits.append(vision.logits(model.module, hidden).double().cpu())
            features.append(vision.features(model.module, hidden).float().cpu())
    joined = torch.cat(logits)
    bad = (~torch.isfinite(joined)).any(1).nonzero().flatten()
    if len(bad):
        raise NonFiniteError(
            f"{model.id} gives NaN or infinite logits for image {int(task.ids[bad[0]])} of "
            f"{task.domain or task.name!r}; check its weights"
        )
    return joined.numpy(), torch.cat(features).numpy()


def _sharpness(model: Model, task: ImageTask | ImageStream, size: int) -> Float64[np.ndarray, " n_batches"]:
    """Of each whole batch; a last short one, which would weigh as much as the others, is left out."""
    values = []
    for batch in task.batches(min(size, task.n)):
        if len(batch.indices) < min(size, task.n):
            break
        assert batch.labels is not None
        pair = (batch.images.to(model.device, model.dtype), batch.labels.to(model.device))
        values.append(sharpness(model, [pair]))
    return np.array(values)


def resamples(n: int, settings: InspectionSettings) -> Float64[np.ndarray, "draws n"]:
    """How often each image is drawn in each resample; the same for every model that saw the same number."""
    return draw_counts(n, settings.draws, stream(settings.seed, STREAM))


def resampled_matrices(
    graph: Graph, per_example: Tensor, counts: Float64[np.ndarray, "draws n"]
) -> Float64[np.ndarray, "draws layers layers"]:
    """Dependency matrix of the mean scores under each resample of the images.

    Args:
        graph: Of the model.
        per_example: Signed scores of the edges for each image, `[n, n_sources, n_targets]`.
        counts: How often each image counts; rows of ones give the matrix itself.
    """
    source, target, n_layers = node_layers(graph)
    rows, columns = graph.valid.nonzero(as_tuple=True)
    cells = source[rows] * n_layers + target[columns]
    order = torch.argsort(cells, stable=True)  # edges of one cell side by side: a sum is a difference of ends
    present, sizes = torch.unique_consecutive(cells[order], return_counts=True)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)[:-1]]).numpy()
    scores = per_example.detach().cpu()[:, rows[order], columns[order]].double().numpy()
    matrices = np.zeros((len(counts), n_layers * n_layers))
    block = max(1, _DRAW_BLOCK // scores.shape[1])
    for first in range(0, len(counts), block):
        part = slice(first, first + block)
        means = np.abs(counts[part] @ scores / scores.shape[0])
        matrices[part, present.numpy()] = np.add.reduceat(means, starts, axis=1)
    return matrices.reshape(len(counts), n_layers, n_layers)


def _single(values: Tensor | None) -> Float32[np.ndarray, "n n_sources"]:
    assert values is not None  # asked for per example
    return np.asarray(values.detach().float().cpu().numpy())


@contextmanager
def _timed(
    cost: dict[str, Any], stage: str, passes: Mapping[str, int] | None = None
) -> Iterator[dict[str, float]]:
    """Note the seconds of a stage, and the passes per image that it makes."""
    counts: dict[str, float] = {**(passes or {})}
    started = time.perf_counter()
    yield counts
    cost[stage] = {"seconds": time.perf_counter() - started, "passes": counts}


# -------------------------------------------------------------------------------------------- files

_ARRAYS = (
    "logits",
    "labels",
    "ids",
    "features",
    "output_scores",
    "dependency",
    "dependency_draws",
    "sharpness",
)


def save_inspection(inspection: Inspection, path: Path) -> Path:
    """Write an inspection as safetensors with JSON metadata, whole or not at all."""
    arrays = {
        name: torch.from_numpy(np.ascontiguousarray(value))
        for name in _ARRAYS
        if (value := getattr(inspection, name)) is not None
    }
    metadata = {
        "kind": _KIND,
        "graph": inspection.graph.describe(),
        "classes": None if inspection.classes is None else list(inspection.classes),
        "provenance": dict(inspection.provenance),
        "cost": dict(inspection.cost),
    }
    return write_arrays(path, arrays, metadata)


def load_inspection(path: str | Path) -> Inspection:
    """Read what `save_inspection` wrote.

    Raises:
        FileFormatError: If the file is truncated, tampered with or of another kind.
    """
    arrays, metadata = read_arrays(Path(path), _KIND)
    shape = metadata["graph"]
    columns: dict[str, Any] = {name: arrays[name].numpy() if name in arrays else None for name in _ARRAYS}
    return Inspection(
        graph=build_graph(
            shape["n_layers"],
            shape["n_heads"],
            shape["n_kv_heads"],
            parallel=shape["parallel"],
            mlps=shape["mlps"],
        ),
        classes=None if metadata["classes"] is None else tuple(metadata["classes"]),
        provenance=metadata["provenance"],
        cost=metadata["cost"],
        **columns,
    )

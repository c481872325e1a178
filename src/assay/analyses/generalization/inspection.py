"""What one model showed on some images: its answers, the spectrum of its features, edge scores.

An inspection holds four numbers for each image, sums over the images, and no model, so many models can be
compared that never were in memory together. It is kept under the hash of weights, images and settings, so an
interrupted comparison goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from scipy.special import log_softmax, logsumexp

from assay.analyses.generalization.baselines import negative_entropies
from assay.analyses.generalization.spectra import Spectra
from assay.circuits.files import read_arrays, write_arrays
from assay.core.errors import InputError, check_least
from assay.core.random import stream
from assay.core.record import HIDDEN, Record
from assay.graph import Graph, build_graph
from assay.stats import poisson_weights
from assay.stats.resampled import FEWEST


STREAM = "rank/images"
KIND = "inspection"


@dataclass(frozen=True, kw_only=True)
class InspectionSettings(Record):
    """How edge scores and sharpness are measured; equal for every model of a comparison.

    Attributes:
        objective: Loss to attribute; None: the task's own (KL).
        ablation: What a cut edge carries; None: the task's own (mean over the images, per position).
        steps: Quadrature nodes.
        quadrature: Rule of the nodes.
        sharpness_batch: Images of one sharpness batch; published with 256.
        draws: Bootstrap resamples of the images, at least 20.
        seed: Root seed of the resamples.
        batch_size: Images per pass; None: by free memory. Results do not depend on it.
    """

    objective: str | None = None
    ablation: str | None = None
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
        names = ("objective", "ablation", "steps", "quadrature", "batch_size", "seed")
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
        logits: `[n_images, n_classes]`, in a temporary file until they are read.
        spectra: Singular values of the features that the classifier reads.
        output_scores: Signed score of the edge from each source into the logits, mean over the images,
            `[n_sources]`, with the ablation's means over all images.
        output_draws: The same under each resample of the images, `[draws, n_sources]`.
        dependency: Inter-layer dependency matrix, `[L + 1, L + 1]`.
        dependency_draws: The matrix under each resample of the images, `[draws, L + 1, L + 1]`.
        sharpness: Rise of the loss on each batch of labelled images, `[n_batches]`.
        provenance: Model, images and settings, JSON-able.
        cost: Seconds and passes per image of each stage.
    """

    graph: Graph
    n_classes: int
    predictions: Int64[np.ndarray, " n"]
    confidence: Float64[np.ndarray, " n"]
    negative_entropy: Float64[np.ndarray, " n"]
    energies: Float64[np.ndarray, " n"]
    labels: Int64[np.ndarray, " n"] | None
    ids: Int64[np.ndarray, " n"]
    classes: tuple[str, ...] | None
    logits: Float[np.ndarray, "n n_classes"] | None = None
    spectra: Spectra | None = None
    output_scores: Float64[np.ndarray, " n_sources"] | None = None
    output_draws: Float32[np.ndarray, "draws n_sources"] | None = None
    dependency: Float64[np.ndarray, "layers layers"] | None = None
    dependency_draws: Float32[np.ndarray, "draws layers layers"] | None = None
    sharpness: Float64[np.ndarray, " n_batches"] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)

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


def copied_from(inspections: Sequence[Inspection]) -> Int64[np.ndarray, " models"]:
    """Place of the first model that shows what each model shows: a copy of it, or the model itself.

    Copies predict the same class for every image, with energies equal to 1 %, as rounding may change them;
    models trained apart that agree on every image differ in the size of their logits.
    """
    firsts: dict[bytes, list[int]] = {}
    found = np.arange(len(inspections))
    for place, each in enumerate(inspections):
        alike = firsts.setdefault(each.predictions.tobytes(), [])
        earlier = (i for i in alike if np.allclose(each.energies, inspections[i].energies, rtol=0.01))
        found[place] = next(earlier, place)
        if found[place] == place:
            alike.append(place)
    return found


def check_comparable_inspections(
    names: tuple[str, str], first: Inspection, second: Inspection, *, what: str
) -> None:
    """Refuse models whose numbers do not compare.

    Graphs may differ: a depth bias compares the same share of the blocks at both ends of any model.

    Args:
        names: Of the two models.
        first: What one showed.
        second: What the other showed.
        what: Which images these are, for the message.

    Raises:
        InputError: If the models know other classes, or were given other images or labels.
    """
    one, other = names
    if first.n_classes != second.n_classes or first.classes != second.classes:
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
        return f"{inspection.n_classes} unnamed"
    more = ", ..." if len(inspection.classes) > 4 else ""
    return f"{len(inspection.classes)}: {', '.join(inspection.classes[:4])}{more}"


def resamples(
    ids: Int64[np.ndarray, " n"], settings: InspectionSettings, name: str = STREAM
) -> Float64[np.ndarray, "draws n"]:
    """How often each image counts in each resample; the same for every model, whatever else is resampled.

    Args:
        ids: Number of each image.
        settings: Number of resamples and root seed.
        name: Other than the default: independent weights, for images that are not the target's.
    """
    seed = settings.seed if name == STREAM else int(stream(settings.seed, name).integers(2**62))
    return poisson_weights(ids, settings.draws, seed=seed).astype(np.float64)


# -------------------------------------------------------------------------------------------- files

_ARRAYS = (
    "predictions",
    "confidence",
    "negative_entropy",
    "energies",
    "labels",
    "ids",
    "logits",
    "output_scores",
    "output_draws",
    "dependency",
    "dependency_draws",
    "sharpness",
)
_SPECTRA = ("raw", "centred")


def save_inspection(inspection: Inspection, path: Path) -> Path:
    """Write an inspection as safetensors with JSON metadata, whole or not at all."""
    arrays = {
        name: torch.from_numpy(np.ascontiguousarray(value))
        for name in _ARRAYS
        if (value := getattr(inspection, name)) is not None
    }
    if inspection.spectra is not None:
        for name in _SPECTRA:
            arrays[f"spectra/{name}"] = torch.from_numpy(getattr(inspection.spectra, name))
    metadata = {
        "kind": KIND,
        "n_classes": inspection.n_classes,
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
    arrays, metadata = read_arrays(Path(path), KIND)
    shape = metadata["graph"]
    columns: dict[str, Any] = {name: arrays[name].numpy() if name in arrays else None for name in _ARRAYS}
    spectra = {name: arrays[f"spectra/{name}"].numpy() for name in _SPECTRA if f"spectra/{name}" in arrays}
    return Inspection(
        graph=build_graph(
            shape["n_layers"],
            shape["n_heads"],
            shape["n_kv_heads"],
            parallel=shape["parallel"],
            mlps=shape["mlps"],
        ),
        n_classes=metadata["n_classes"],
        spectra=Spectra(**spectra) if spectra else None,
        classes=None if metadata["classes"] is None else tuple(metadata["classes"]),
        provenance=metadata["provenance"],
        cost=metadata["cost"],
        **columns,
    )

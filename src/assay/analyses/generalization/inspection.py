"""What one model showed on some images, and the metrics that read it: one table for rankings and monitors.

An inspection holds four numbers for each image, sums over the images, and no model, so many models can be
compared that never were in memory together. It is kept under the hash of weights, images and settings, so an
interrupted comparison goes on.

Each metric is computed once, for weights of the images: the first row counts every image once and gives the
value, each further row is a resample and gives a replicate. The resamples are the same for every model, so
replicates of two models can be compared one by one. Held fixed are the models, and the ablation's means.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float, Float32, Float64, Int64
from scipy.special import log_softmax, logsumexp

from assay.analyses.generalization import baselines
from assay.analyses.generalization.baselines import mean_of, once
from assay.analyses.generalization.dependency import DepthRule, dependency_matrix, depth_biases, layer_sums
from assay.circuits import EdgeScores
from assay.circuits.files import read_arrays, write_arrays
from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError, check_least, check_name
from assay.core.record import HIDDEN, Record, library_version, record_id
from assay.discovery.edges import METHODS, OutputScores, OutputSums, ScoreSums
from assay.execution import Mean, MeanSums
from assay.execution.batches import choose_batch_size
from assay.graph import Graph, build_graph
from assay.models import Model
from assay.stats.resampled import FEWEST, UNBOUNDED
from assay.tasks import ImageBatch, ImageTask


KIND = "inspection"
LAYOUT = 5  # of the files in a cache: those of another one are made again
HELD = 1 << 28  # bytes of pixels, at most, that are held
_FACTS = ("n_classes", "classes", "sharpness", "provenance")  # besides graph and arrays
# What can be asked for beyond the answers.
PARTS = ("labels", "logits", "features", "output-scores", "edge-scores", "sharpness")
COT_LIMIT = 200_000  # images times classes, above which COT runs only where it is named
SHARE = (0.0, 1.0)  # bounds of a metric that estimates a share of the images
Rows = Float64[np.ndarray, " rows"]
Numbers = Float64[np.ndarray, "rows models"]
Calculation = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class InspectionSettings(Record):
    """How edge scores and sharpness are measured; equal for every model of a comparison.

    Attributes:
        steps: Quadrature nodes of EAP-IG (midpoint rule, KL objective; a cut edge carries the mean over the
            images, per position).
        sharpness_batch: Images of one sharpness batch; published with 256.
        draws: Bootstrap resamples of the images, at least 20.
        seed: Root seed of the resamples.
        batch_size: Images per pass; None: by free memory. Results do not depend on it.
    """

    steps: int = 5
    sharpness_batch: int = 256
    draws: int = 200
    seed: int = 0
    batch_size: int | None = field(default=None, metadata=HIDDEN)

    def __post_init__(self) -> None:
        check_least(1, steps=self.steps, sharpness_batch=self.sharpness_batch)
        check_least(FEWEST, draws=self.draws)


@dataclass(frozen=True, kw_only=True, eq=False)
class Inspection:
    """What one model showed on the images of one domain.

    Attributes:
        graph: Of the model.
        n_classes: Number of classes of the model.
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
        "negative_entropy": baselines.negative_entropies(log_p),
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
        parts: Beyond the answers: `"labels"`, which must then be known; `"logits"`; `"features"`, their
            spectrum; `"output-scores"`, scores of the edges into the logits by the fast path;
            `"edge-scores"`, scores of all edges, which give those too, and the dependency matrix with its
            resamples; `"sharpness"`, which needs labels.
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
        raise InputError(f"domain {name!r} has {task.n} image; mean ablation and intervals need 2 or more")
    if task.labels is None and wanted & {"labels", "sharpness"}:
        raise InputError(f"the images of {name!r} have no labels; give labelled images")
    task = model.bind(task)
    provenance = {"library": library_version(), "layout": LAYOUT, "model": model.describe()}
    provenance |= {"task": task.describe("source_hash"), "settings": settings.to_dict()}
    provenance["parts"] = sorted(wanted)
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
    method, ablation = METHODS["eap-ig-inputs"], Mean(per_position=True)
    how: dict[str, Any] = {"steps": settings.steps, "seed": settings.seed, "resamples": settings.draws}
    choices = method.choices(task, objective="kl", ablation=ablation, quadrature="midpoint", **how)
    stage = next((part for part in ("edge-scores", "output-scores") if part in parts), None)
    extra = method.bytes_per_example(model, task.length, choices) if stage else 0
    size = choose_batch_size(model, task, asked=settings.batch_size, bytes_per_example=extra)
    means = MeanSums(model, ablation)
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
        if stage:
            means.add(batch)
    arrays: dict[str, Any] = {name: np.concatenate(kept.pop(name)) for name in list(kept)}
    if (features := arrays.pop("features", None)) is not None:
        arrays["spectrum"] = scipy.linalg.svdvals(features)
        arrays["centred_spectrum"] = scipy.linalg.svdvals(features - features.mean(0))
    if stage:
        replacing = means.prepared()
        sums: ScoreSums = OutputSums(model, choices, replacing)
        if stage == "edge-scores":
            sums = ScoreSums(model, method, choices, replacing)
        for batch in task.batches(size):
            sums.add(batch)
        arrays |= _circuit(model.graph, sums.scores())
    if "sharpness" in parts:
        size = min(settings.sharpness_batch, task.n)  # a short last batch would weigh as much as the others
        pairs = ((each.images, each.labels) for each in task.batches(size) if len(each.images) == size)
        arrays["sharpness"] = baselines.sharpness(model, pairs)
    return Inspection(
        graph=model.graph,
        n_classes=model.n_classes,
        labels=None if task.labels is None else task.labels.numpy().astype(np.int64),
        ids=task.ids.numpy().astype(np.int64),
        classes=model.classes or task.classes,
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
        image = f"image {int(batch.ids[bad[0]])} of {task.domain or task.name!r}"
        raise NonFiniteError(f"{model.id} gives NaN or infinite logits for {image}; check its weights")
    return [each.numpy() for each in read]


def _circuit(graph: Graph, found: EdgeScores | OutputScores) -> dict[str, np.ndarray]:
    """Scores of the edges into the logits, the dependency matrix where all edges were scored, their draws."""
    assert found.resampled is not None  # `_inspected` asks for it
    values, draws = found.values.detach().double().cpu().numpy(), found.resampled
    if not isinstance(found, EdgeScores):
        return {"output_scores": values, "output_draws": draws.numpy()}
    into_logits = graph.valid.nonzero()[:, 1] == graph.n_targets - 1
    matrices = layer_sums(graph, draws.abs().double().numpy()).astype(np.float32)
    shown = {"output_scores": values[:, -1], "output_draws": draws[:, into_logits].contiguous().numpy()}
    return shown | {"dependency": dependency_matrix(found).numpy(), "dependency_draws": matrices}


# ------------------------------------------------------------------------------------------- images


def decoded_once(images: ImageTask) -> ImageTask:
    """Images that are read many times: those in files are decoded now, up to 256 MiB of pixels."""
    return images if 3 * images.n * math.prod(images.image_size) > HELD else images.held()


# -------------------------------------------------------------------------------------------- files


def save_inspection(inspection: Inspection, path: Path) -> Path:
    """Write an inspection as safetensors with JSON metadata, whole or not at all."""
    metadata: dict[str, Any] = {name: getattr(inspection, name) for name in _FACTS}
    metadata |= {"kind": KIND, "graph": inspection.graph.describe()}
    numbers = {name: each for name, each in vars(inspection).items() if isinstance(each, np.ndarray)}
    arrays = {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in numbers.items()}
    return write_arrays(path, arrays, metadata)


def load_inspection(path: str | Path) -> Inspection:
    """Read what `save_inspection` wrote.

    Raises:
        FileFormatError: If the file is truncated, tampered with or of another kind.
    """
    arrays, metadata = read_arrays(Path(path), KIND)
    found: dict[str, Any] = {name: metadata[name] for name in _FACTS}
    found |= {name: array.numpy() for name, array in arrays.items()}
    found["classes"] = found["classes"] and tuple(found["classes"])
    return Inspection(graph=build_graph(**metadata["graph"]), **found)


# ----------------------------------------------------------------------------------------- metrics

Shown = tuple[Inspection, Inspection | None]  # of the target, and of labelled images of the own domain


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """How often each image counts, a row of ones first, and what else is the same for every model.

    Attributes:
        target: Of the target images; rows may add up to other numbers than n.
        known: Of the labelled images of the models' own domain; empty without them.
        measure: `"accuracy"` or `"macro-f1"`.
    """

    target: Float64[np.ndarray, "rows n"]
    known: Float64[np.ndarray, "_ m"] = field(default_factory=lambda: once(0))
    measure: str = "accuracy"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that may predict performance.

    Attributes:
        key: What `rank_models` calls it.
        name: For tables and pictures; in lower case its key in readings of a monitor.
        summary: One line.
        direction: 1: rises with performance; -1: falls; 0: neither.
        best_at: The value that predicts best, for a metric of direction 0. None: its source does not say, so
            nothing is ranked by it.
        needs: Parts of the inspection of the target (`"logits"`, `"features"`, `"output-scores"`,
            `"edge-scores"`), and `"known"`: labelled images of the models' own domain; `"sharpness"` of
            these.
        over: Whose images its replicates draw: those of the `"target"`, or the `"known"` ones.
        of: From both inspections of a model and the weights to `[rows]`; `together`: from pairs of them, of
            all models, to `[rows, models]`.
        together: Whether it looks at all models at once rather than at one after the other.
        bounds: Smallest and largest value there is.
    """

    key: str
    name: str
    summary: str
    of: Calculation
    direction: int = 1
    best_at: float | None = None
    needs: frozenset[str] = frozenset()
    over: str = "target"
    together: bool = False
    bounds: tuple[float, float] = UNBOUNDED

    def oriented(self, values: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"] | None:
        """The values such that higher predicts better; None where the source states no direction."""
        if self.best_at is not None:
            return np.asarray(-np.abs(values - self.best_at))
        return None if self.direction == 0 else np.asarray(self.direction * values)


def estimate(metric: Metric, shown: Sequence[Shown], weights: Weights) -> tuple[Numbers, str | None]:
    """The numbers of a metric, NaN where undefined, `[rows, models]`, and the reason where one is undefined.

    A metric that does not need labelled images of the own domain may get the target in their place.
    """
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", DegenerateDataWarning)
        try:
            if "known" in metric.needs and any(known is None or known.labels is None for _, known in shown):
                raise InputError("needs labelled images of the models' own domain (id_data, --id-images)")
            if metric.together:
                rows = metric.of(shown, weights)
            else:
                columns = [metric.of(target, known or target, weights) for target, known in shown]
                rows = np.stack(columns, axis=1)
        except InputError as error:
            return np.full((len(weights.target), len(shown)), math.nan), str(error)
    if np.isfinite(rows).all():
        return rows, None
    said = [str(each.message) for each in raised if issubclass(each.category, DegenerateDataWarning)]
    return rows, next(iter(said), None if np.isfinite(rows[0]).all() else "undefined on these images")


def readings(keys: Sequence[str], target: Inspection, known: Inspection | None) -> dict[str, float]:
    """Metrics of one model on some images, by their names in lower case; those that are undefined left out.

    Args:
        keys: Of `METRICS`.
        target: On the images.
        known: On labelled images in distribution, which some metrics learn from.
    """
    weights = Weights(target=once(target.n), known=once(known.n if known else 0))
    values = {METRICS[key].name: estimate(METRICS[key], [(target, known)], weights)[0][0, 0] for key in keys}
    return {name.lower(): float(value) for name, value in values.items() if math.isfinite(value)}


# ------------------------------------------------------------------------------------- the table

METRICS: dict[str, Metric] = {}  # in the order of tables


def _metric(key: str, name: str, *needs: str, **facts: Any) -> Callable[[Calculation], Calculation]:
    """Enter a metric, summed up by its docstring."""

    def enter(of: Calculation) -> Calculation:
        summary = (of.__doc__ or "").rstrip(".")
        METRICS[key] = Metric(key=key, name=name, summary=summary, of=of, needs=frozenset(needs), **facts)
        return of

    return enter


def _part(shown: Inspection, name: str) -> Any:
    """What a model was inspected for."""
    if (value := getattr(shown, name)) is None:
        raise InputError(f"the models were inspected without {name.replace('_', ' ')}; name the metric")
    return value


def _depth_bias(target: Inspection, targets: str, weights: Weights) -> Rows:
    """Depth bias with the scores of all images, then with those of each resample."""
    name = "output" if targets == "output" else "dependency"
    value = _part(target, "output_scores" if targets == "output" else name)
    rows = np.concatenate([value[None], _part(target, f"{name}_draws")])[: len(weights.target)]
    matrices = layer_sums(target.graph, np.abs(rows)) if targets == "output" else rows
    return depth_biases(matrices, targets, DepthRule())


@_metric("ddb-output", "DDB output", "output-scores")
def _ddb_output(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Depth bias of the edges into the logits."""
    return _depth_bias(target, "output", weights)


@_metric("ddb-deep", "DDB deep", "edge-scores")
def _ddb_deep(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Depth bias of the edges into deep layers and logits."""
    return _depth_bias(target, "deep", weights)


@_metric("ddb-global", "DDB global", "edge-scores")
def _ddb_global(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Depth bias of all edges."""
    return _depth_bias(target, "global", weights)


@_metric("id-accuracy", "ID accuracy", "known", over="known", bounds=SHARE)
def _id_accuracy(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Performance on the models' own domain."""
    labels = _part(known, "labels")
    return baselines.performance_of(known.predictions, labels, weights.known, measure=weights.measure)


@_metric("sharpness", "Sharpness", "known", "sharpness", direction=-1)
def _sharpness(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Rise of the loss when every weight changes a little."""
    return _alone(_part(known, "sharpness"), weights)


@_metric("average-confidence", "AC", bounds=SHARE)
def _confidence(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Mean largest probability."""
    return mean_of(target.confidence, weights.target)


@_metric("negative-entropy", "ANE", bounds=(-math.inf, 0.0))
def _negative_entropy(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Mean of sum p log p."""
    return mean_of(target.negative_entropy, weights.target)


@_metric("energy", "MDE", direction=0)
def _energy(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Spread of the energies of the images."""
    return baselines.spread_of_energies(target.energies, weights.target)


@_metric("rankme", "RankMe", "features", bounds=(1.0, math.inf))
def _rankme(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Effective rank of the features."""
    return _alone(baselines.effective_rank(_part(target, "spectrum")), weights)


@_metric("alpha-req", "alpha-ReQ", "features", direction=0, best_at=1.0)
def _alpha_req(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Decay of the spectrum of the features."""
    sizes = _part(target, "centred_spectrum")
    return _alone(baselines.spectral_decay(sizes, (target.n, len(sizes))), weights)


def _alone(value: float, weights: Weights) -> Rows:
    """A value without replicates, as of a rank, which repeated images alone would lower."""
    return np.array([value, *[math.nan] * (len(weights.target) - 1)])


@_metric("atc", "ATC", "known", bounds=SHARE)
def _atc(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Share of images above a confidence threshold learned in-distribution."""
    correct = known.predictions == known.labels
    return baselines.passing(known.confidence, correct, target.confidence, weights.known, weights.target)


@_metric("doc", "DoC", "known", bounds=SHARE)
def _doc(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """In-distribution accuracy minus the drop of mean confidence."""
    correct = (known.predictions == known.labels).astype(np.float64)
    drop = mean_of(known.confidence, weights.known) - mean_of(target.confidence, weights.target)
    return np.asarray(np.clip(mean_of(correct, weights.known) - drop, 0.0, 1.0))


@_metric("cot", "COT", "known", "logits", bounds=SHARE)
def _cot(target: Inspection, known: Inspection, weights: Weights) -> Rows:
    """Cost of matching the predictions to known label shares."""
    match = baselines.matched(_part(known, "labels"), _part(target, "logits"))
    of_known = mean_of(match.of_classes[known.labels], weights.known)
    rows = mean_of(match.of_examples, weights.target) + of_known
    rows[0] = match.gain  # which the prices give up to the solver's tolerance
    return np.asarray(np.clip(rows, 0.0, 1.0))


@_metric("agreement-line", "ALine-D", "known", together=True, bounds=SHARE)
def _agreement(shown: Sequence[tuple[Inspection, Inspection]], weights: Weights) -> Numbers:
    """Accuracy read off the line of the models' agreements."""
    after, before = (np.stack([each[place].predictions for each in shown]) for place in (0, 1))
    labels = _part(shown[0][1], "labels")
    rows = baselines.agreement_line(before, labels, after, weights.known, weights.target)
    if np.isnan(rows[0]).all():
        raise InputError("every pair of models agrees equally often; give models that differ")
    return rows


# What held-out labels say comes first. Sharpness takes 61 passes per image, 20 of them backward: it runs only
# where it is named.
DEFAULT_METRICS = ("id-accuracy", *(key for key in METRICS if key not in ("id-accuracy", "sharpness")))

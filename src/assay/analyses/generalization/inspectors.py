"""Models that look at the same images together: each batch is read once and serves all of them."""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from assay.analyses.generalization.batches import batch_outputs, normalised
from assay.analyses.generalization.dependency import dependency_matrix, layer_sums
from assay.analyses.generalization.inspection import Inspection, InspectionSettings, answers_of
from assay.analyses.generalization.sharpness import sharpness
from assay.analyses.generalization.spectra import SpectrumSums
from assay.circuits import EdgeScores
from assay.discovery.edges import METHODS, OutputSums, ScoreSums
from assay.discovery.edges.running import resolve
from assay.execution import Mean, MeanSums, Prepared
from assay.execution.batches import choose_batch_size
from assay.models import Model
from assay.tasks import EvalTransform, ImageBatch, ImageInputs, ImageStream


ARITHMETIC = ("mean", "std", "rescale")  # of a transform: applied to decoded pixels
CIRCUITS = ("output-scores", "edge-scores")


class Inspector:
    """One model on the images of one domain, fed batch by batch.

    Every batch goes to `look`, then, if `scores` is true, every batch to `score`.

    Args:
        model: An image classifier in evaluation mode.
        task: The images; read here only for sharpness, and for ablations other than means.
        parts: As of `inspect_model`.
        settings: How scores are measured.

    Attributes:
        task: The images, bound to the model.
        size: Images of a pass that fit into memory.
    """

    def __init__(
        self, model: Model, task: ImageInputs, parts: Sequence[str], settings: InspectionSettings
    ) -> None:
        self.model, self.task, self.parts, self.settings = model, model.bind(task), parts, settings
        self.cost: dict[str, Any] = {}
        self._answers: list[dict[str, np.ndarray]] = []
        self._logits = _on_disk(model, self.task.n) if "logits" in parts else None
        self._spectra = SpectrumSums(self.task.n, settings.seed) if "features" in parts else None
        self._means: MeanSums | None = None
        self._sums: OutputSums | ScoreSums | None = None
        self._method = METHODS["eap-ig-inputs"]
        options = settings.of_discovery
        self.size = choose_batch_size(model, self.task, asked=options.pop("batch_size"))
        self._choices = self._method.choices(self.task, **options)
        if self.scores:
            resolved = resolve(model, self.task, self._method, self._choices, batch_size=settings.batch_size)
            self.size = min(self.size, resolved.size)
            if isinstance(self._choices.ablation, Mean):
                self._means = MeanSums(model, self._choices.ablation)

    @property
    def scores(self) -> bool:
        """Whether a second pass over the images scores edges."""
        return any(part in self.parts for part in CIRCUITS)

    def look(self, batch: ImageBatch) -> None:
        """Answers and features of a batch, and what a mean ablation needs of it."""
        with self._timed("inspect", {"forward": 1}):
            outputs = batch_outputs(self.model, self.task, batch)
            logits = outputs.logits.numpy()
            self._answers.append(answers_of(logits))
            if self._logits is not None:
                self._logits[batch.indices.numpy()] = logits
            if self._spectra is not None:
                self._spectra.add(batch.indices.numpy(), outputs.features)
        if self._means is not None:
            with self._timed(self._stage):
                self._means.add(batch)

    def score(self, batch: ImageBatch) -> None:
        """Scores of a batch, added up; after `look` has seen every batch."""
        with self._timed(self._stage):
            if self._sums is None:
                made: type[OutputSums | ScoreSums] = OutputSums
                arguments: tuple[Any, ...] = (self.model, self._choices, self._prepared())
                if self._stage == "edge-scores":
                    made, arguments = ScoreSums, (self.model, self._method, *arguments[1:])
                self._sums = made(*arguments)
            self._sums.add(batch)

    def inspection(self, provenance: Mapping[str, Any]) -> Inspection:
        """What the model showed."""
        arrays: dict[str, Any] = {
            name: np.concatenate([each[name] for each in self._answers]) for name in self._answers[0]
        }
        if self._spectra is not None:
            with self._timed("metrics"):
                arrays["spectra"] = self._spectra.spectra()
        if self._sums is not None:
            arrays |= self._circuit()
        if "sharpness" in self.parts:
            with self._timed("sharpness", {"forward": 41, "backward": 20}):
                arrays["sharpness"] = _sharpness(self.model, self.task, self.settings.sharpness_batch)
        return Inspection(
            graph=self.model.graph,
            n_classes=self.model.n_classes,
            logits=self._logits,
            labels=None if self.task.labels is None else self.task.labels.numpy().astype(np.int64),
            ids=self.task.ids.numpy().astype(np.int64),
            classes=self.model.classes or self.task.classes,
            provenance=provenance,
            cost=self.cost,
            **arrays,
        )

    def _circuit(self) -> dict[str, Any]:
        assert self._sums is not None
        found = self._sums.scores()
        self.cost[self._stage]["passes"] = dict(found.details["passes"])
        assert found.resampled is not None  # `of_discovery` asks for it
        if isinstance(self._sums, OutputSums):
            return {"output_scores": _double(found.values), "output_draws": found.resampled.numpy()}
        assert isinstance(found, EdgeScores)
        with self._timed("metrics"):
            graph = self.model.graph
            drawn = found.resampled.abs().double().numpy()
            into_logits = graph.valid.nonzero()[:, 1] == graph.n_targets - 1
            return {
                "output_scores": _double(found.values[:, -1]),
                "output_draws": found.resampled[:, into_logits].contiguous().numpy(),
                "dependency": dependency_matrix(found).numpy(),
                "dependency_draws": layer_sums(graph, drawn).astype(np.float32),
            }

    @property
    def _stage(self) -> str:
        return next(part for part in ("edge-scores", "output-scores") if part in self.parts)

    def _prepared(self) -> Prepared:
        if self._means is not None:
            return self._means.prepared()
        choices = self._choices
        return choices.ablation.prepare(self.model, self.task, batch_size=self.size, seed=choices.seed)

    @contextmanager
    def _timed(self, stage: str, passes: Mapping[str, int] | None = None) -> Iterator[None]:
        """Add to the seconds of a stage; note the passes per image that it makes."""
        spent = self.cost.setdefault(stage, {"seconds": 0.0, "passes": dict(passes or {})})
        started = time.perf_counter()
        yield
        spent["seconds"] += time.perf_counter() - started


def _on_disk(model: Model, n: int) -> Float[np.ndarray, "n n_classes"]:
    """Room for logits of so many images, as the model gives them; gone with the last array that shows it."""
    form = np.float64 if model.result_dtype == torch.float64 else np.float32
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, form, mode="w+", shape=(n, model.n_classes))


def inspect_together(inspectors: Sequence[Inspector]) -> None:
    """Feed the images to models that were given the same rows, each batch to all of them."""
    size = min(inspector.size for inspector in inspectors)
    _feed(inspectors, size, "look")
    _feed([inspector for inspector in inspectors if inspector.scores], size, "score")


def _feed(inspectors: Sequence[Inspector], size: int, what: str) -> None:
    if not inspectors:
        return
    for batches in shared_batches([inspector.task for inspector in inspectors], size):
        for inspector, batch in zip(inspectors, batches, strict=True):
            getattr(inspector, what)(batch)


def shared_batches(tasks: Sequence[ImageInputs], size: int) -> Iterator[list[ImageBatch]]:
    """Batches of the same rows for every task; streams of one source and geometry are decoded once.

    Args:
        tasks: Bound to their models, with the same rows.
        size: Images of a batch.
    """
    keys = [_reading(task, place) for place, task in enumerate(tasks)]
    first = {key: tasks[keys.index(key)] for key in keys}
    reads = [
        task.decoded(size) if isinstance(task, ImageStream) else task.batches(size) for task in first.values()
    ]
    for pieces in zip(*reads, strict=True):
        read = dict(zip(first, pieces, strict=True))
        yield [normalised(task, read[key]) for key, task in zip(keys, tasks, strict=True)]


def _reading(task: ImageInputs, place: int) -> str:
    """Equal for streams that decode the same pixels; every other task reads for itself."""
    if not isinstance(task, ImageStream):
        return f"task {place}"
    return json.dumps([id(task.pictures), geometry_of(task.transform)], sort_keys=True)


def geometry_of(transform: EvalTransform) -> dict[str, Any]:
    """Size, crop and filter: what of a transform decides which pixels are decoded."""
    return {name: value for name, value in transform.to_dict().items() if name not in ARITHMETIC}


def _double(values: Tensor) -> Float64[np.ndarray, " n_sources"]:
    return np.asarray(values.detach().double().cpu().numpy())


def _sharpness(model: Model, task: ImageInputs, size: int) -> Float64[np.ndarray, " n_batches"]:
    """Of each whole batch; a last short one, which would weigh as much as the others, is left out."""
    values = []
    for batch in task.batches(min(size, task.n)):
        if len(batch.indices) < min(size, task.n):
            break
        assert batch.labels is not None
        pair = (batch.images.to(model.device, model.dtype), batch.labels.to(model.device))
        values.append(sharpness(model, [pair]))
    return np.array(values)

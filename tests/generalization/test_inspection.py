"""What inspections hold, against the functions they stand for; their cache; rankings of models that run."""

import copy
import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose as assert_close
from small_vits import untrained_vit

import assay
from assay.analyses.generalization import dependency_matrix
from assay.analyses.generalization.baselines import sharpness
from assay.analyses.generalization.inspection import METRICS, InspectionSettings, inspect_model
from assay.analyses.generalization.ranking import rank_models
from assay.core.errors import FileFormatError, InputError, NonFiniteError, UnknownNameError
from assay.discovery.edges import output_scores
from assay.models import Model
from assay.stats import poisson_weights
from assay.tasks import EvalTransform, ImageTask, draw_shapes


FEW = InspectionSettings(draws=20, steps=2, sharpness_batch=8)
STORED = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
IMAGES = draw_shapes("sketch", 18, seed=3)
KNOWN = draw_shapes("flat", 24, seed=3, start=100)


@functools.cache
def vit(seed: int = 0, *, classes: int = 6) -> Model:
    """An untrained classifier of 32-pixel images; shared, not to be changed."""
    found = assay.load_model(untrained_vit(seed, 4, classes))
    return Model(found.module, found.family, name=f"vit-{seed}", preprocessing=STORED)


def task_of(model: Model) -> ImageTask:
    return IMAGES.with_transform(EvalTransform.for_model(model))


def test_answers_and_spectra_come_from_one_pass_and_are_those_of_the_models_own_outputs() -> None:
    model = vit()
    task = task_of(model)
    found = inspect_model(model, task, ["features", "logits"], settings=FEW)
    logits = assay.run_model(model, task).double()
    assert_close(found.logits, logits.numpy(), rtol=1e-6)
    assert found.logits.dtype == np.float32
    np.testing.assert_array_equal(found.predictions, logits.argmax(1).numpy())
    p = logits.softmax(1)
    assert_close(found.confidence, p.amax(1).numpy(), rtol=1e-6)
    assert_close(found.negative_entropy, (p * p.log()).sum(1).numpy(), rtol=1e-6)
    assert_close(found.energies, -logits.logsumexp(1).numpy(), rtol=1e-6)
    features = model.features(task.clean).double()
    largest = torch.linalg.svdvals(features)[0]
    assert_close(found.spectrum, torch.linalg.svdvals(features), atol=1e-6 * largest)
    centred = torch.linalg.svdvals(features - features.mean(0))
    assert_close(found.centred_spectrum, centred, atol=1e-6 * largest)
    assert found.output_scores is None
    np.testing.assert_array_equal(found.labels, IMAGES.labels)


def test_edge_scores_give_the_matrix_its_replicates_and_the_same_output_scores() -> None:
    model = vit()
    task = task_of(model)
    found = inspect_model(model, task, ["edge-scores", "output-scores"], settings=FEW)
    full = assay.discover(model, task, "eap-ig-inputs", steps=2, per_example=True)
    assert_close(found.dependency, dependency_matrix(full).numpy(), rtol=1e-4)
    assert found.provenance["parts"] == ["edge-scores"]
    fast = inspect_model(model, task, ["output-scores"], settings=FEW)
    largest = np.abs(fast.output_scores).max()
    assert_close(found.output_scores, fast.output_scores, atol=1e-5 * largest)
    assert_close(found.output_draws, fast.output_draws, atol=1e-4 * largest)
    expected = output_scores(model, task, steps=2).values.numpy()
    assert_close(fast.output_scores, expected, rtol=1e-4, atol=1e-7)


def relative_spread(counts: np.ndarray) -> float:
    """Standard deviation of the weights of a resample over their mean."""
    shares = counts / counts.sum()
    return float(np.sqrt(len(counts) * ((shares - 1 / len(counts)) ** 2).sum()))


def test_resampled_matrices_equal_those_of_repeated_images() -> None:
    model = vit()
    full = assay.discover(model, task_of(model), "eap-ig-inputs", steps=2, per_example=True)
    counts = poisson_weights(IMAGES.ids.numpy(), FEW.draws, seed=FEW.seed).astype(np.float64)
    found = inspect_model(model, task_of(model), ["edge-scores"], settings=FEW).dependency_draws
    for draw in (0, 7):
        rows = np.repeat(np.arange(18), counts[draw].astype(int))
        # What a resample moves the mean by, over the spread of its own weights (see `WeightedSums.means`).
        moved = (full.per_example[rows].mean(0) - full.values) / relative_spread(counts[draw])
        scores = assay.EdgeScores(model.graph, full.values + moved)
        assert_close(found[draw], dependency_matrix(scores).numpy(), rtol=1e-4)


def test_sharpness_is_that_of_whole_batches() -> None:
    model = vit()
    task = KNOWN.with_transform(EvalTransform.for_model(model))
    found = inspect_model(model, task, ["sharpness"], settings=InspectionSettings(sharpness_batch=10))
    pairs = [(task.clean[rows], task.labels[rows]) for rows in (slice(0, 10), slice(10, 20))]  # 4 are left
    assert found.sharpness == pytest.approx(sharpness(model, pairs), rel=1e-4)


def test_an_inspection_is_read_from_the_cache_and_made_again_for_other_settings(tmp_path: Path) -> None:
    model = vit()
    task = task_of(model)
    folder = tmp_path / "made" / "here"
    first = inspect_model(model, task, ["edge-scores", "features"], settings=FEW, cache=folder)
    (path,) = folder.iterdir()
    before = path.stat().st_mtime_ns
    again = inspect_model(model, task, ["features", "edge-scores"], settings=FEW, cache=folder)
    assert path.stat().st_mtime_ns == before
    arrays = {name: each for name, each in vars(first).items() if isinstance(each, np.ndarray)}
    assert len(arrays) > 8
    assert all(np.array_equal(each, getattr(again, name)) for name, each in arrays.items())
    assert again.graph == model.graph
    inspect_model(model, task, ["features"], settings=FEW, cache=folder)
    inspect_model(vit(1), task, ["features"], settings=FEW, cache=folder)
    inspect_model(model, task.subset(range(12)), ["features"], settings=FEW, cache=folder)
    assert len(list(folder.iterdir())) == 4
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(FileFormatError, match=path.name):
        inspect_model(model, task, ["edge-scores", "features"], settings=FEW, cache=folder)


def test_the_batch_size_changes_nothing() -> None:
    given = vit(), task_of(vit()), ["edge-scores", "features"]
    few, all_ = (inspect_model(*given, settings=replace(FEW, batch_size=size)) for size in (5, 18))
    assert_close(few.energies, all_.energies, rtol=1e-4, atol=1e-6)
    assert_close(few.spectrum, all_.spectrum, atol=1e-4 * few.spectrum[0])
    assert_close(few.dependency, all_.dependency, rtol=1e-4)


def test_bad_requests_are_refused_before_anything_runs() -> None:
    model = vit()
    task = task_of(model)
    with pytest.raises(UnknownNameError, match="did you mean 'features'"):
        inspect_model(model, task, ["feature"], settings=FEW)
    with pytest.raises(InputError, match=r"'sketch' has 1 image; mean ablation and intervals need 2"):
        inspect_model(model, task.subset([0]), settings=FEW)
    with pytest.raises(InputError, match="have no labels"):
        inspect_model(model, ImageTask(images=task.clean), ["sharpness"], settings=FEW)
    with pytest.raises(InputError, match="reads prompts"):
        inspect_model(assay.load_model("mini"), task, settings=FEW)
    strange = dict.fromkeys("ab", vit(0, classes=4))
    with pytest.raises(InputError, match="hold class 5"):
        rank_models(strange, IMAGES.with_transform(EvalTransform()), metrics=["rankme"], settings=FEW)
    module = copy.deepcopy(model.module)
    with torch.no_grad():
        module.classifier.weight.fill_(3e38)
    with pytest.raises(NonFiniteError, match="NaN or infinite logits for image 0 of 'sketch'"):
        inspect_model(assay.load_model(module), task, settings=FEW)


# ------------------------------------------------------------------------------------------- rankings


def test_models_that_run_are_ranked_by_every_metric(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    options = {"id_data": KNOWN, "metrics": tuple(METRICS), "settings": FEW, "cache": tmp_path}
    models = {"a": vit(0), "b": lambda: vit(1), "c": vit(2)}
    found = rank_models(models, IMAGES, **options, progress=lambda *each: seen.append(each))
    # 18 images have too few eigenvalues for alpha-ReQ.
    assert [each["key"] for each in found.absent] == ["alpha-req"]
    assert found.known["domain"] == "flat"
    assert seen == [("inspect models", done, 3) for done in range(4)]
    again = rank_models(models, task_of(vit()), **options)  # images with a transform of their own
    assert again.to_dict() == found.to_dict()
    assert len(list(tmp_path.iterdir())) == 6

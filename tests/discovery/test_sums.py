"""Sums of scores under a bootstrap, fed batch by batch, against scores of single examples."""

import math
from typing import Any

import pytest
import torch
import vit_goldens

from assay.core.errors import InputError
from assay.discovery.edges import METHODS, OutputSums, ScoreSums, discover, output_scores
from assay.execution import Mean, MeanSums, get_ablation
from assay.models import Model, load_model
from assay.stats import poisson_weights
from assay.tasks import ImageTask, load_task


FED = [
    key for key, each in METHODS.items() if each.keeps_examples and key not in ("clean-corrupted", "random")
]


def model_and_images() -> tuple[Model, ImageTask]:
    return vit_goldens.model("vit_edges_a"), vit_goldens.task("vit_edges_a")


def literal(per_example: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted means, example by example; their departure over that of the weights."""
    means, mean, n = [], per_example.double().mean(0), len(per_example)
    for row in weights.double():
        total = sum(w * scores for w, scores in zip(row.tolist(), per_example.double(), strict=True))
        weighted = total / row.sum()
        spread = math.sqrt(n * sum((w - float(row.mean())) ** 2 for w in row.tolist())) / float(row.sum())
        means.append(mean + (weighted - mean) / spread)
    return torch.stack(means).float()


@pytest.mark.parametrize("method", FED)
def test_resamples_are_weighted_means_of_the_examples(method: str) -> None:
    model, task = model_and_images()
    settings: dict[str, Any] = {"ablation": "zero", "objective": "pseudo_margin", "steps": 2, "seed": 3}
    apart = discover(model, task, method, per_example=True, **settings)
    drawn = discover(model, task, method, resamples=5, batch_size=3, **settings)
    assert drawn.per_example is None
    torch.testing.assert_close(drawn.values, apart.values, rtol=1e-10, atol=1e-14)
    weights = torch.from_numpy(poisson_weights(task.ids.numpy(), 5, seed=3))
    expected = literal(apart.per_example[:, model.graph.valid], weights)
    torch.testing.assert_close(drawn.resampled, expected, rtol=1e-5, atol=1e-12)


def test_scores_into_the_logits_resample_the_same_way() -> None:
    model, task = model_and_images()
    drawn = output_scores(model, task, resamples=6, batch_size=4, per_example=False)
    full = discover(model, task, resamples=6)
    column = torch.zeros(6, *model.graph.valid.shape)
    column[:, model.graph.valid] = full.resampled
    torch.testing.assert_close(drawn.resampled, column[:, :, -1], rtol=1e-5, atol=1e-10)
    assert drawn.details["n"] == full.details["n"] == task.n


@pytest.mark.parametrize("key", ["mean-positional", "mean"])
def test_fed_batches_give_the_scores_of_discover(key: str) -> None:
    model, task = model_and_images()
    means = MeanSums(model, Mean(per_position=key == "mean-positional"))
    whole = list(model.bind(task).batches(3))
    for batch in whole:
        means.add(batch)
    settings = METHODS["eap-ig-inputs"].choices(task, ablation=key, resamples=4)
    edges = ScoreSums(model, METHODS["eap-ig-inputs"], settings, means.prepared())
    output = OutputSums(model, settings, means.prepared())
    for batch in whole:
        edges.add(batch)
        output.add(batch)
    expected = discover(model, task, ablation=key, resamples=4, batch_size=3)
    found = edges.scores()
    torch.testing.assert_close(found.values, expected.values, rtol=0, atol=0)
    torch.testing.assert_close(found.resampled, expected.resampled, rtol=0, atol=0)
    assert found.details["completeness_gap"] == expected.details["completeness_gap"]
    torch.testing.assert_close(output.scores().values, found.values[:, -1], rtol=1e-10, atol=1e-14)


def test_prompts_are_weighed_by_their_rows() -> None:
    model = load_model("mini")
    task = load_task("ioi", model, n=6)
    apart = discover(model, task, "eap", per_example=True)
    drawn = discover(model, task, "eap", resamples=3, batch_size=4)
    weights = torch.from_numpy(poisson_weights(torch.arange(6).numpy(), 3))
    expected = literal(apart.per_example[:, model.graph.valid], weights)
    torch.testing.assert_close(drawn.resampled, expected, rtol=1e-4, atol=1e-5)


def test_an_image_that_comes_twice_is_refused() -> None:
    model, task = model_and_images()
    twice = task.subset([0, 1, 2, 1])
    with pytest.raises(InputError, match="image id 1 came twice"):
        discover(model, twice, ablation="zero", resamples=3, batch_size=2)
    with pytest.raises(InputError, match="image id 1 came twice"):
        output_scores(model, twice, ablation="zero", resamples=3)
    assert discover(model, twice, ablation="zero").resampled is None


def test_settings_that_cannot_be_served() -> None:
    model, task = model_and_images()
    with pytest.raises(InputError, match="resamples is 1; give at least 2"):
        discover(model, task, resamples=1)
    with pytest.raises(InputError, match="acdc decides on all examples together.*remove resamples"):
        discover(model, task, "acdc", resamples=3)
    method = METHODS["eap-ig-inputs"]
    prepared = get_ablation("zero").prepare(model, task, batch_size=3, seed=0)
    with pytest.raises(InputError, match="'acdc' does not score each batch by itself"):
        ScoreSums(model, METHODS["acdc"], METHODS["acdc"].choices(task), prepared)
    with pytest.raises(InputError, match="no batch has been added"):
        ScoreSums(model, method, method.choices(task), prepared).scores()
    with pytest.raises(InputError, match="give at least 2 examples"):
        MeanSums(model, Mean()).prepared()

"""The reference of a monitor: a mean over batches of known images."""

import pytest
import torch
from small_vits import untrained_vit

from assay.analyses.generalization import discover_reference
from assay.core.errors import InputError
from assay.discovery.edges import discover
from assay.models import Model, load_model
from assay.tasks import EvalTransform, ImageTask, draw_shapes


N = 8


def images(domain: str, start: int, n: int = N) -> ImageTask:
    return draw_shapes(domain, n, start=start).with_transform(EvalTransform())


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(untrained_vit(seed=1))


def test_it_is_the_mean_of_the_circuits_of_its_batches(model: Model) -> None:
    reference = discover_reference(model, images("flat", 0, 4 * N + 3), batch=N, steps=2)
    alone = [discover(model, images("flat", N * place), steps=2).values.double() for place in range(4)]
    torch.testing.assert_close(reference.values.double(), torch.stack(alone).mean(0), atol=1e-6, rtol=1e-5)
    record = reference.provenance
    assert (record["batches"], record["batch"], record["task"]["n"]) == (4, N, 4 * N)
    assert record["steps"] == 2


def test_one_batch_is_what_discover_gives(model: Model) -> None:
    single = discover_reference(model, images("flat", 0, N), batch=N, steps=2)
    literal = discover(model, images("flat", 0, N), steps=2)
    assert torch.equal(single.values, literal.values)
    assert single.provenance == literal.provenance


def test_too_few_images_are_refused(model: Model) -> None:
    with pytest.raises(InputError, match="fewer than the 8 of a batch"):
        discover_reference(model, images("flat", 0, 5), batch=8)

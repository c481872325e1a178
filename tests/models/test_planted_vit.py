"""`patch-marker`: the planted vision transformer does what it says, by the edges it says."""

import numpy as np
import pytest
import torch
from planted_truth import read_truth, truth_document
from torch import Tensor

from assay import discover, load_model
from assay.circuits import Circuit
from assay.core.errors import InputError, UnknownNameError
from assay.execution import run_circuit
from assay.models.planted import Planted, planted_model
from assay.models.planted.patches import GRID, PATCH
from assay.tasks import ImageTask


NAMES = tuple(f"patch-marker/vit/{extras}" for extras in ("bare", "inert", "interfering"))


def task_of(planted: Planted, n: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> ImageTask:
    drawn = planted.examples(n, seed)
    assert drawn.labels is not None
    return ImageTask(
        images=drawn.clean.to(dtype),
        corrupted=drawn.corrupted.to(dtype),
        labels=drawn.labels,
        foils=1 - drawn.labels[:, None],
        objective="logit_diff",
        ablation="resample",
    )


def parts(planted: Planted, values: Tensor) -> tuple[Tensor, Tensor]:
    """Magnitudes of the scores on the true edges, and on all others."""
    truth = torch.zeros_like(planted.model.graph.valid)
    for name in planted.edges:
        truth[planted.model.graph.edge_index(name)] = True
    return values[truth].abs(), values[planted.model.graph.valid & ~truth].abs()


def auroc(true: Tensor, other: Tensor) -> float:
    """Share of pairs in which the true edge has the larger score, ties half."""
    difference = true[:, None] - other[None]
    return float(((difference > 0).double() + (difference == 0).double() / 2).mean())


def answer_of(image: Tensor) -> int:
    """The program, in plain Python: the colour of the patch that lights the quadrant of the green one."""
    half = PATCH // 2
    lit: dict[tuple[int, int], list[tuple[int, int]]] = {}
    marked = None
    for row in range(GRID):
        for column in range(GRID):
            patch = image[:, PATCH * row : PATCH * (row + 1), PATCH * column : PATCH * (column + 1)]
            quadrants = [
                (down, across, colour)
                for down in (0, 1)
                for across in (0, 1)
                for colour, channel in ((0, 0), (1, 2))
                if bool(
                    (
                        patch[channel, half * down : half * (down + 1), half * across : half * (across + 1)]
                        == 1
                    ).all()
                )
            ]
            assert len(quadrants) == 1
            down, across, colour = quadrants[0]
            if bool((patch[1] == 1).all()):
                assert marked is None
                marked = (down, across)
            else:
                lit.setdefault((down, across), []).append((colour, 0))
    assert marked is not None
    assert len(lit[marked]) == 1
    return lit[marked][0][0]


def test_examples_are_labelled_by_the_program() -> None:
    drawn = planted_model(NAMES[0]).examples(6, seed=4)
    assert drawn.labels is not None
    for clean, corrupted, label in zip(drawn.clean, drawn.corrupted, drawn.labels.tolist(), strict=True):
        assert answer_of(clean) == label
        assert answer_of(corrupted) == 1 - label
    assert drawn.labels.tolist() == [0, 1] * 3


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    planted = planted_model(NAMES[0])
    long, short = planted.examples(7, seed=2), planted.examples(3, seed=2)
    torch.testing.assert_close(long.clean[:3], short.clean)
    torch.testing.assert_close(long.corrupted[:3], short.corrupted)
    assert not torch.equal(planted.examples(3, seed=3).clean, short.clean)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_it_answers_every_image_with_a_margin(name: str, seed: int) -> None:
    planted = planted_model(name, seed=seed)
    drawn = planted.examples(300, seed=9)
    assert drawn.labels is not None
    with torch.no_grad():
        logits = planted.model.module(drawn.clean).logits
    margin = logits.gather(1, drawn.labels[:, None]) - logits.gather(1, 1 - drawn.labels[:, None])
    assert float(margin.min()) > 2


@pytest.mark.parametrize("name", NAMES)
def test_cutting_an_edge_matters_exactly_where_the_truth_says(name: str) -> None:
    planted = planted_model(name, dtype=torch.float64)
    task = task_of(planted, 8, dtype=torch.float64)
    true, other = parts(planted, discover(planted.model, task, "exact").values)
    assert float(true.min()) > 1
    assert float(other.max()) < 2e-3


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_integrated_gradients_find_the_circuit(name: str, seed: int) -> None:
    planted = planted_model(name, seed=seed)
    true, other = parts(planted, discover(planted.model, task_of(planted, 24), "eap-ig-inputs").values)
    assert auroc(true, other) == 1.0


def test_the_plain_gradient_is_small_where_attention_is_sure() -> None:
    """A saturated softmax: the edges that decide where to look get a hundredth of what cutting them costs."""
    planted = planted_model(NAMES[0], dtype=torch.float64)
    task = task_of(planted, 16, dtype=torch.float64)
    exact, plain = (discover(planted.model, task, method).values for method in ("exact", "eap"))
    row, column = planted.model.graph.edge_index("input->a0.h0.k")
    assert float(exact[row, column]) > 1
    assert abs(float(plain[row, column])) < 0.05 * float(exact[row, column])


def test_equal_arguments_give_equal_weights_and_the_seed_moves_only_the_extras() -> None:
    for name in NAMES:
        first, again, other = (planted_model(name, seed=seed).model for seed in (0, 0, 1))
        assert first.weight_hash == again.weight_hash
        assert (first.weight_hash == other.weight_hash) == name.endswith("bare")
    assert len({planted_model(name, seed=1).edges for name in NAMES[1:]}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_truth_is_what_the_builder_derives(name: str) -> None:
    planted = planted_model(name)
    assert read_truth(name) == truth_document(planted)
    assert list(planted.edges) == sorted(planted.edges, key=planted.model.graph.edge_index)


@pytest.mark.parametrize("name", NAMES)
def test_the_true_edges_alone_answer_right(name: str) -> None:
    planted = planted_model(name)
    task = task_of(planted, 64)
    assert task.labels is not None
    logits = run_circuit(planted.model, task, Circuit.from_edges(planted.model.graph, planted.edges))
    assert bool((logits.argmax(1) == task.labels).all())


def test_every_node_of_an_edge_has_a_role() -> None:
    for name in NAMES:
        planted = planted_model(name)
        nodes = {end.removesuffix(".q").removesuffix(".k").removesuffix(".v") for edge in planted.edges
                 for end in edge.split("->")}  # fmt: skip
        assert nodes == set(planted.roles)


def test_it_is_loaded_by_name() -> None:
    model = load_model(f"planted:{NAMES[0]}")
    assert model.id == f"planted:{NAMES[0]}"
    assert model.weight_hash == planted_model(NAMES[0]).model.weight_hash
    assert load_model(f"planted:{NAMES[0]}", dtype=torch.float64).dtype == torch.float64


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown extras .* 'inerd'; did you mean 'inert'"):
        planted_model("patch-marker/vit/inerd")
    with pytest.raises(UnknownNameError, match="unknown layout of 'patch-marker' 'gpt2'; known: vit"):
        load_model("planted:patch-marker/gpt2/bare")
    with pytest.raises(InputError, match="at least 1"):
        planted_model(NAMES[0]).examples(0)


def test_images_are_rgb_in_the_range_of_their_transform() -> None:
    clean = planted_model(NAMES[0]).examples(4).clean
    assert clean.shape == (4, 3, GRID * PATCH, GRID * PATCH)
    assert set(np.unique(clean.numpy()).tolist()) == {-1.0, 1.0}

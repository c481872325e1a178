"""The built-in demonstration: what was planted is there, and the same seed gives the same matrix."""

from collections import Counter

import numpy as np
import pytest

from assay.analyses.subsets import digits
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.digits import FAMILIES, digits_data
from assay.analyses.subsets.line import line_correlation
from assay.core.errors import InputError


N_MODELS = 2 * len(FAMILIES)


@pytest.fixture(scope="module")
def data() -> CorrectnessData:
    return digits_data(n_models=N_MODELS)


def correlation(data: CorrectnessData, cue: str) -> float:
    chosen = np.flatnonzero(data.meta["cue"] == cue)
    return line_correlation(data.id_accuracy, data.accuracy(chosen))


def test_every_family_has_as_many_runs_as_the_others(data: CorrectnessData) -> None:
    assert set(Counter(data.families).values()) == {2}
    assert len(FAMILIES) >= 10
    assert data.groups.tolist() == data.model_ids.tolist()
    assert len(set(data.model_ids)) == N_MODELS


def test_marks_agree_in_distribution_and_mislead_on_a_part_of_four_digits(data: CorrectnessData) -> None:
    made = digits._Images.draw(0)
    places = [made.train, made.within, made.outside]  # every image has one role
    assert np.sort(np.concatenate(places)).tolist() == list(range(1797))
    assert [len(part) for part in places] == [500, 500, 797]
    for part in (made.train, made.within):
        assert 0.95 < (made.marks[part] == made.digits[part]).mean() < 1
    cue, mark, labels = data.meta["cue"], data.meta["mark"], data.labels
    assert set(cue) == {"agrees", "absent", "misleads"}
    assert (mark[cue == "absent"] == "none").all()
    assert (mark[cue == "agrees"] == labels[cue == "agrees"].astype(str)).all()
    assert (mark[cue == "misleads"] != labels[cue == "misleads"].astype(str)).all()
    misled = data.source["misled_digits"]
    assert len(misled) == 4
    assert set(labels[cue == "misleads"].tolist()) == set(misled)
    assert 0.45 < (cue[np.isin(labels, misled)] == "misleads").mean() < 0.65


def test_a_mark_brightens_its_stroke_and_nothing_else() -> None:
    made = digits._Images.draw(0)
    assert len(np.unique(digits.strokes())) == 10 * digits.STROKE, "strokes do not overlap"
    bare = made._replace(bare=np.full_like(made.bare, 3.0))
    shown = bare.pixels(np.array([5, 9]), np.array([-1, 4]))
    assert (bare.bare == 3).all()
    assert (shown[0] == 3 / 16).all()
    lit = np.flatnonzero(shown[1] != 3 / 16)
    assert sorted(lit.tolist()) == sorted(digits.strokes()[4].tolist())
    assert (shown[1, lit] == (3 + digits.MARK) / 16).all()


def test_all_examples_are_on_the_line_and_the_misleading_on_the_inverse(data: CorrectnessData) -> None:
    assert line_correlation(data.id_accuracy, data.accuracy()) > 0.3
    assert correlation(data, "agrees") > 0.8
    assert correlation(data, "misleads") < -0.3


def test_reading_the_mark_helps_in_distribution(data: CorrectnessData) -> None:
    """Of two runs of a family, the first saw more marks: it is better there, and worse where they mislead."""
    misled = data.accuracy(np.flatnonzero(data.meta["cue"] == "misleads"))
    first, second = np.split(data.id_accuracy, 2)
    assert (first > second).mean() > 0.8
    first, second = np.split(misled, 2)
    assert (first < second).mean() > 0.8


def test_ids_images_and_counts_come_along(data: CorrectnessData) -> None:
    made = digits._Images.draw(0)
    assert data.example_ids[0] == f"digit-{made.outside[0]:04d}"
    assert data.images.shape == (797, 10, 10)
    np.testing.assert_allclose(data.images.reshape(797, -1) / 255, data.embedding, atol=1 / 255)
    assert data.id_embedding.shape == (500, 100)


def test_the_same_seed_gives_the_same_matrix_and_another_seed_others(data: CorrectnessData) -> None:
    assert digits_data(n_models=N_MODELS).hash == data.hash
    assert digits_data(n_models=N_MODELS, seed=1).hash != data.hash


def test_too_few_models_are_refused() -> None:
    with pytest.raises(InputError, match="n_models is 10; expected two of each family, at least 32"):
        digits_data(n_models=10)

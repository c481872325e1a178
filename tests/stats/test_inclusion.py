"""Certified inclusion against worked cases, enumeration, and actual edits of the sample."""

import itertools
import json
import math

import numpy as np
import pytest

from assay.core.errors import InputError, NonFiniteError
from assay.core.random import stream
from assay.stats import certified_inclusion, clopper_pearson, edit_radius


def share_positive(effects: np.ndarray, deletion: float) -> float:
    """Probability that a random part has a positive sum, by enumeration."""
    total = 0.0
    for kept in itertools.product((False, True), repeat=len(effects)):
        n_kept = sum(kept)
        weight = (1 - deletion) ** n_kept * deletion ** (len(effects) - n_kept)
        total += weight * (effects[list(kept)].sum() > 1e-9)
    return total


@pytest.mark.parametrize(("deletion", "largest"), [(0.2, 0), (0.5, 1), (0.9, 6)])
def test_the_largest_radius_of_a_deletion_rate(deletion: float, largest: int) -> None:
    assert edit_radius(1.0, deletion) == largest
    assert edit_radius(0.5, deletion) is None
    assert edit_radius(0.0, deletion) is None
    assert edit_radius(0.500001, deletion) == 0


def test_no_sample_of_draws_reaches_the_limit_of_one_half() -> None:
    # R = 1 at deletion 1/2 would need a lower bound of exactly 1.
    (found,) = certified_inclusion(np.ones((400, 1)), deletion=0.5, rng=stream(0, "half"))
    assert found.share.value == 1.0
    assert found.radius == found.largest_radius == 0


def test_the_share_is_the_enumerated_one_and_its_bound_is_clopper_pearsons() -> None:
    effects = np.array([[0.4, 1.0], [-0.3, -1.0], [1.0, 0.5], [-0.5, -0.5], [0.2, 0.0]])
    found = certified_inclusion(effects, deletion=0.6, rng=stream(0, "share"), n_draws=4000)
    for column, each in zip(effects.T, found, strict=True):
        exact = share_positive(column, 0.6)
        assert each.share.value == pytest.approx(exact, abs=3.5 * math.sqrt(exact * (1 - exact) / 4000))
        bound = clopper_pearson(round(each.share.value * 4000), 4000, level=1 - 2 * 0.05 / 2).low
        assert each.lower == bound < each.share.value
        assert each.radius == edit_radius(bound, 0.6)


@pytest.mark.parametrize("seed", range(5))
def test_no_edit_within_the_radius_changes_the_majority(seed: int) -> None:
    rng, deletion = np.random.default_rng(seed), 0.7
    effects = rng.normal(2, 0.5, size=8)
    share = share_positive(effects, deletion)
    radius = edit_radius(share, deletion)
    assert radius == 1
    for chosen in itertools.combinations(range(8), radius):
        edited = effects.copy()
        edited[list(chosen)] = -1e6
        assert share_positive(edited, deletion) > 0.5
        assert share_positive(np.delete(effects, chosen), deletion) > 0.5
        assert share_positive(np.append(effects, [-1e6] * radius), deletion) > 0.5


def test_heads_without_a_positive_effect_abstain() -> None:
    effects = np.stack([np.zeros(30), -np.ones(30), np.ones(30), np.tile([0.1, -0.1], 15)], axis=1)
    zero, negative, positive, cancelling = certified_inclusion(effects, deletion=0.8, rng=stream(0, "signs"))
    assert zero.share.value == negative.share.value == 0.0
    assert not zero.certified
    assert not negative.certified
    assert zero.radius is None
    assert positive.certified
    assert positive.radius == positive.largest_radius == 3
    assert not cancelling.certified
    json.dumps(positive.to_dict(), allow_nan=False)


def test_empty_parts_count_against_a_head() -> None:
    (found,) = certified_inclusion(np.ones((2, 1)), deletion=0.9, rng=stream(0, "empty"))
    assert found.share.value == pytest.approx(0.19, abs=0.05)
    assert not found.certified


def test_more_heads_need_more_certainty_and_streams_decide() -> None:
    effects = np.repeat(stream(0, "effects").normal(1, 1, size=(40, 1)), 5, axis=1)
    many = certified_inclusion(effects, deletion=0.9, rng=stream(0, "same"))
    (one,) = certified_inclusion(effects[:, :1], deletion=0.9, rng=stream(0, "same"))
    assert many[0].share == one.share
    assert many[0].lower < one.lower
    assert len({each.lower for each in many}) == 1  # equal heads see equal deletions
    again = certified_inclusion(effects, deletion=0.9, rng=stream(0, "same"))
    assert again == many


def test_no_examples_or_no_heads() -> None:
    first, second = certified_inclusion(np.empty((0, 2)), deletion=0.5, rng=stream(0, "none"))
    for each in (first, second):
        assert math.isnan(each.lower)
        assert (each.share.reason, each.radius, each.certified) == ("too_few", None, False)
    assert certified_inclusion(np.empty((3, 0)), deletion=0.5, rng=stream(0, "none")) == ()


def test_bad_input_is_named() -> None:
    rng = stream(0, "bad")
    for deletion in (0.0, 1.0):
        with pytest.raises(
            InputError, match=f"deletion is {deletion}; expected a number strictly between 0 and 1"
        ):
            certified_inclusion(np.ones((3, 1)), deletion=deletion, rng=rng)
    with pytest.raises(InputError, match=r"failure is 1\.0; expected a number strictly"):
        certified_inclusion(np.ones((3, 1)), deletion=0.5, failure=1.0, rng=rng)
    with pytest.raises(InputError, match="n_draws is 0; expected at least 1"):
        certified_inclusion(np.ones((3, 1)), deletion=0.5, n_draws=0, rng=rng)
    with pytest.raises(InputError, match=r"lower is 1\.5; expected a fraction"):
        edit_radius(1.5, 0.5)
    with pytest.raises(NonFiniteError, match="effects hold nan"):
        certified_inclusion(np.full((3, 1), math.nan), deletion=0.5, rng=rng)

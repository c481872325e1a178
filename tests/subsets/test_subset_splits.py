"""Parts of the models: sizes, units that stay whole, the authors' indices."""

import numpy as np
import pytest
from goldens import SMALL, arrays, values
from hypothesis import given
from hypothesis import strategies as st

from assay.analyses.subsets.splits import PARTS, ModelSplit, folds, halves, split_models, unit_codes
from assay.core.errors import AssayWarning, InputError, ShapeError
from assay.core.random import stream


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("seed", [0, 42])
def test_compat_repeats_the_authors_indices(name, seed):
    expected = values(name)["split42"]
    found = split_models(40, split="random", seed=seed, compat=True)
    for part, key in (("train", "train"), ("validation", "val"), ("test", "test")):
        np.testing.assert_array_equal(found.part(part), expected[key])


def test_family_parts_of_independent_scripts():
    # Not those of planted_301, whose test part stops at 95 of 480 models, below the fifth it should reach.
    families = arrays("null_302")["family"]
    expected = values("null_302")["splits"]["family"]
    found = split_models(len(families), split="family", seed=302, families=families)
    for part, key in (("train", "train"), ("validation", "val"), ("test", "test")):
        np.testing.assert_array_equal(found.part(part), expected[key])
    assert found.straddling(unit_codes(families)) == 0


@given(st.data())
def test_parts_cover_every_model_and_keep_units_whole(data):
    n_units = data.draw(st.integers(8, 20))
    counts = data.draw(st.lists(st.integers(2, 9), min_size=n_units, max_size=n_units))
    groups = np.repeat([f"run {unit}" for unit in range(n_units)], counts)
    seed = data.draw(st.integers(0, 1000))
    groups = np.random.default_rng(seed).permutation(groups)
    try:
        found = split_models(len(groups), groups=groups, seed=seed) if len(groups) >= 20 else None
    except InputError as error:
        if "too few groups" in str(error) or "at least 4" in str(error):
            return
        raise
    if found is None:
        return
    every = np.concatenate([found.part(part) for part in PARTS])
    np.testing.assert_array_equal(np.sort(every), np.arange(len(groups)))
    codes = unit_codes(groups)
    assert found.kind == "group"
    assert found.straddling(codes) == 0
    assert sum(found.n_units(part, codes) for part in PARTS) == len(np.unique(codes))
    # A part is filled until it holds a fifth: less its last unit it would hold less.
    for part in ("test", "validation"):
        assert len(found.part(part)) >= 0.2 * len(groups) > len(found.part(part)) - max(counts)
    again = ModelSplit.from_dict(found.to_dict())
    np.testing.assert_array_equal(again.train, found.train)


def test_the_default_follows_what_is_known():
    names = np.repeat(np.arange(12), 5)
    assert split_models(60).kind == "group"
    assert len(split_models(60).test) == 12  # every model a run of its own
    assert split_models(60, families=names).kind == "family"
    assert split_models(60, families=names, groups=np.arange(60)).kind == "group"
    assert split_models(60, compat=True).kind == "random"


def test_given_parts():
    parts = {"train": range(20), "val": range(20, 30), "test": range(30, 40)}
    found = split_models(40, split=parts)
    assert found.kind == "given"
    assert found.validation.tolist() == list(range(20, 30))
    assert split_models(40, split=found) is found
    masks = [np.isin(np.arange(40), list(part)) for part in parts.values()]
    np.testing.assert_array_equal(split_models(40, split=masks).test, found.test)
    assert found.straddling(np.arange(40) // 15) == 1


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"train": range(20), "val": range(19, 30), "test": range(30, 40)}, "model 19 more than once"),
        ({"train": range(20), "val": range(20, 30), "test": range(30, 41)}, "names model 40"),
        ({"train": range(20), "test": range(30, 40)}, "has the parts"),
        ((range(20), range(20, 40)), "holds 2 parts"),
        ({"train": range(20), "val": range(20, 30), "test": range(30, 33)}, "test part holds 3 models"),
        ({"train": [0.5], "val": range(20, 30), "test": range(30, 33)}, "expected a list of model positions"),
        ("half", "unknown split"),
        ("family", "needs families="),
    ],
)
def test_a_bad_split_is_refused(split, message):
    with pytest.raises(InputError, match=message):
        split_models(40, split=split)


def test_too_few_units_or_models_are_refused():
    with pytest.raises(InputError, match=r"too few families in a part \(train 3, validation 1"):
        split_models(40, split="family", families=np.repeat([0, 1, 2, 3, 4], 8))
    with pytest.raises(ShapeError, match="names 39 models"):
        split_models(40, groups=np.arange(39))
    with pytest.raises(InputError, match="compat=True"):
        split_models(40, split="group", compat=True)
    with pytest.warns(AssayWarning, match="19 models"), pytest.raises(InputError, match="at least 4"):
        split_models(19, groups=np.r_[np.zeros(10), np.arange(1, 10)], seed=1)


@given(st.lists(st.integers(1, 30), min_size=5, max_size=20), st.integers(3, 5))
def test_folds_test_every_model_once(counts, k):
    units = np.repeat(np.arange(len(counts)), counts)
    try:
        found = folds(units, k)
    except InputError as error:
        if "at least 4" in str(error):
            return
        raise
    tested = np.concatenate([split.test for split in found])
    np.testing.assert_array_equal(np.sort(tested), np.arange(len(units)))
    for place, split in enumerate(found):
        assert split.straddling(units) == 0
        np.testing.assert_array_equal(split.validation, found[(place + 1) % k].test)


def test_folds_by_hand():
    # Units of 6, 5, 4, 4, 4, 4 models in 3 folds: 6 | 5 | 4, then 4 joins the third, the second, the first;
    # the seed draws which of the equal ones comes when.
    units = np.repeat(np.arange(6), [6, 5, 4, 4, 4, 4])
    drawn = [each for each in stream(1, "model-folds").permutation(6).tolist() if each > 1]
    found = folds(units, 3, seed=1)
    wanted = [[0, drawn[3]], [1, drawn[2]], sorted(drawn[:2])]
    assert [sorted(set(units[split.test].tolist())) for split in found] == wanted


def test_halves_share_no_unit():
    units = np.repeat(np.arange(10), 6)
    models = np.arange(30, 60)
    first, second = halves(models, units, seed=1)
    assert not set(units[first]) & set(units[second])
    np.testing.assert_array_equal(np.sort(np.r_[first, second]), models)
    assert abs(len(first) - len(second)) <= 6
    with pytest.raises(InputError, match="at least 4"):
        halves(np.arange(6), units)

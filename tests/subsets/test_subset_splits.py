"""Parts and folds of the models: sizes, units that stay whole, copies, the authors' indices."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from goldens import SMALL, arrays, values
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from assay.analyses.subsets.copies import unit_codes
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.selection import oodselect
from assay.analyses.subsets.splits import PARTS, ModelSplit, folds, split_models
from assay.core.errors import AssayWarning, InputError
from assay.core.random import stream


PACS = Path(__file__).resolve().parents[2] / "experiments" / "pacs64_subsets" / "results" / "correctness.npz"


def models(n, *, n_examples=40, seed=0, **facts):
    """Unrelated models."""
    generator = np.random.default_rng(seed)
    skill = generator.uniform(0.5, 0.9, n)
    correct = (generator.random((n, n_examples)) < skill[:, None]).astype(np.uint8)
    return CorrectnessData.of(correct, skill, **facts)


def of_sizes(counts):
    """Models in training runs of some sizes."""
    return models(sum(counts), groups=np.repeat(np.arange(len(counts)), counts))


def parts_of(split):
    return [split.part(name).tolist() for name in PARTS]


def same_partition(units, wanted):
    """Whether two vectors of codes group the models alike."""
    pairs = np.unique(np.stack([units, wanted]), axis=1)
    return len(np.unique(units)) == len(np.unique(wanted)) == pairs.shape[1]


# --------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("seed", [0, 42])
def test_compat_repeats_the_authors_indices(name, seed):
    expected = values(name)["split42"]
    found = split_models(models(40), seed=seed, compat=True)
    assert parts_of(found) == [expected[key] for key in ("train", "val", "test")]
    assert found.kind == "random"


def test_family_parts_of_independent_scripts():
    # Not those of planted_301, whose test part stops at 95 of 480 models, below the fifth it should reach.
    golden = arrays("null_302")
    data = CorrectnessData.of(golden["X"], golden["y"], families=golden["family"])
    found = split_models(data, "family", seed=302)
    expected = values("null_302")["splits"]["family"]
    assert parts_of(found) == [expected[key] for key in ("train", "val", "test")]
    assert found.straddling(unit_codes(golden["family"])) == 0


@given(st.lists(st.integers(1, 9), min_size=12, max_size=20), st.integers(0, 1000))
def test_parts_cover_every_model_and_keep_units_whole(counts, seed):
    data = of_sizes([2 * each for each in counts])
    found = split_models(data, seed=seed)
    assert sorted(itertools.chain(*parts_of(found))) == list(range(data.n_models))
    assert found.kind == "group"
    assert found.straddling(unit_codes(data.groups)) == 0
    # A part holds a fifth of the models, up to a unit.
    for part in ("test", "validation"):
        assert abs(len(found.part(part)) - 0.2 * data.n_models) < 2 * max(counts)
    again = ModelSplit.from_dict(found.to_dict())
    assert parts_of(again) == parts_of(found)


def test_a_family_with_half_of_the_models_is_split_whatever_the_seed():
    """Some seeds deal it to test or validation, alone; then units are dealt again, largest first."""
    data = models(60, families=np.repeat(np.arange(11), [30] + [3] * 10))
    orders = [np.random.default_rng(seed).permutation(11).tolist() for seed in range(40)]
    # Four units of three fill a part; the large one is alone in it as the first.
    seeds = [seed for seed, order in enumerate(orders) if order.index(0) in (0, 4)]
    assert len(seeds) == 5
    again = [split_models(data, seed=seed) for seed in seeds]
    assert {tuple(map(len, parts_of(split))) for split in again} == {(36, 12, 12)}
    assert all(set(range(30)) <= set(split.train.tolist()) for split in again)
    assert len({tuple(split.test) for split in again}) > 1  # the seed still decides among equal ones
    for seed in set(range(40)) - set(seeds):
        assert len(split_models(data, seed=seed).test) in (12, 33, 36, 39)


@pytest.mark.filterwarnings("ignore:.* models. with fewer than 20:assay.core.errors.AssayWarning")
@given(st.lists(st.integers(1, 8), min_size=4, max_size=8), st.integers(0, 5))
def test_units_are_split_where_any_deal_gives_each_part_two_units_with_four_models(counts, seed):
    def filled(deal):
        of_part = [[n for n, part in zip(counts, deal, strict=True) if part == each] for each in range(3)]
        return all(len(each) >= 2 and sum(each) >= 4 for each in of_part)

    units = np.repeat(np.arange(len(counts)), counts)
    data = models(len(units), groups=units)
    if any(filled(deal) for deal in itertools.product(range(3), repeat=len(counts))):
        split = split_models(data, seed=seed)
        part_of = {unit: part for part, name in enumerate(PARTS) for unit in units[split.part(name)].tolist()}
        assert filled([part_of[unit] for unit in range(len(counts))])
    else:
        with pytest.raises(InputError, match="too few groups or models in a part"):
            split_models(data, seed=seed)


def test_the_default_follows_what_is_known():
    names = np.repeat(np.arange(12), 5)
    assert split_models(models(60)).kind == "group"
    assert len(split_models(models(60)).test) == 12  # every model a run of its own
    assert split_models(models(60, families=names)).kind == "family"
    assert split_models(models(60, families=names, groups=np.arange(60))).kind == "group"
    given_ = ModelSplit(train=np.arange(40), validation=np.arange(40, 50), test=np.arange(50, 60))
    assert split_models(models(60), given_) is given_
    assert given_.straddling(np.arange(60) // 40) == 1


@pytest.mark.parametrize(
    ("split", "options", "message"),
    [
        ((range(20), range(19, 30), range(30, 40)), {}, "model 19 twice"),
        ((range(20), range(20, 30), range(30, 41)), {}, "names model 40 twice or beyond the 40"),
        ((range(20), range(20, 30), range(30, 33)), {}, "test part holds 3 models"),
        ("half", {}, "unknown split"),
        ("family", {}, "needs families="),
        ("group", {"compat": True}, "compat=True"),
    ],
)
def test_a_bad_split_is_refused(split, options, message):
    if not isinstance(split, str):
        split = ModelSplit(**dict(zip(PARTS, map(np.array, split), strict=True)))
    with pytest.raises(InputError, match=message):
        split_models(models(40), split, **options)
    with pytest.warns(AssayWarning, match="19 models"):
        split_models(models(19))


# --------------------------------------------------------------------------------------------- folds


@given(st.lists(st.integers(4, 30), min_size=5, max_size=20), st.integers(3, 5))
def test_folds_test_every_model_once(counts, k):
    units = np.repeat(np.arange(len(counts)), counts)
    found = folds(units, k)
    tested = np.concatenate([split.test for split in found])
    np.testing.assert_array_equal(np.sort(tested), np.arange(len(units)))
    for place, split in enumerate(found):
        assert split.straddling(units) == 0
        np.testing.assert_array_equal(split.validation, found[(place + 1) % k].test)


def test_folds_of_fewer_than_4_models_are_refused():
    with pytest.raises(InputError, match="holds 3 models; each part needs at least 4"):
        folds(np.repeat(np.arange(5), 3))
    with pytest.raises(InputError, match="holds 3 models"):  # copies count once
        folds(np.repeat(np.arange(5), 9), copies=np.repeat(np.arange(5), 9))


def test_folds_by_hand():
    # Units of 6, 5, 4, 4, 4, 4 models in 3 folds: 6 | 5 | 4, then 4 joins the third, the second, the first;
    # the seed draws which of the equal ones comes when.
    units = np.repeat(np.arange(6), [6, 5, 4, 4, 4, 4])
    drawn = [each for each in stream(1, "model-folds").permutation(6).tolist() if each > 1]
    found = folds(units, 3, seed=1)
    wanted = [[0, drawn[3]], [1, drawn[2]], sorted(drawn[:2])]
    assert [sorted(set(units[split.test].tolist())) for split in found] == wanted
    dealt = [[split.test.tolist() for split in folds(np.arange(40), seed=seed)] for seed in (0, 0, 1)]
    assert dealt[0] == dealt[1] != dealt[2]


# -------------------------------------------------------------------------------------------- copies


def altered(answers, share, seed=0):
    """Answers of which a share is another one."""
    chosen = np.random.default_rng(seed).random(answers.shape) < share
    return np.where(chosen, 1 - answers, answers).astype(answers.dtype)


def copied(n_originals=6, n_each=8, share=0.0, *, seed=0, n_examples=600, accuracy=0.7):
    """Unrelated answers of a few models, each under several names, with the accuracy of the original."""
    rng = np.random.default_rng(seed)
    original = rng.permutation(np.repeat(np.arange(n_originals), n_each))
    correct = (rng.random((n_originals, n_examples)) < accuracy).astype(np.uint8)
    y = rng.uniform(0.6, 0.95, n_originals)[original]
    names = [f"run-{place}" for place in range(len(original))]
    return CorrectnessData.of(altered(correct[original], share), y, groups=names), original


@pytest.mark.parametrize("share", [0.0, 0.02])
class TestCopies:
    def test_six_models_under_48_names_are_six_units_and_no_finding(self, share):
        data, original = copied(share=share)
        assert same_partition(data.units("group"), original)
        assert "48 models are copies of 6" in data.describe()["notes"]
        subset = oodselect(data, size=60)
        assert subset.split.straddling(original) == 0
        verdict = subset.judge(n_permutations=19, workers=1)
        assert (verdict.status, verdict.n_units) == ("inconclusive", 6)
        assert "6 training runs of 48 models are too few" in verdict.reasons[-1]
        assert "48 models are copies of 6: 6 units" in verdict.notes[0]

    def test_folds_keep_copies_together_across_groups(self, share):
        data, original = copied(20, 3, share)
        for split in folds(data.units("group"), copies=data.copies):
            assert split.straddling(original) == 0

    def test_scores_are_compared_too(self, share):
        rng = np.random.default_rng(1)
        scores = np.clip(rng.normal(0.6, 0.25, (30, 800)), 0, 1)
        again = np.where(rng.random((5, 800)) < share, rng.random((5, 800)), scores[:5])
        data = CorrectnessData.of(np.concatenate([scores, again]), np.linspace(0.5, 0.9, 35), scores=True)
        assert same_partition(data.copies, np.r_[np.arange(30), np.arange(5)])

    def test_copies_among_models_that_were_trained_are_found_and_no_others(self, share):
        data = CorrectnessData.load(PACS)
        assert len(np.unique(data.copies)) == data.n_models
        # Models that give most sketches one class differ in too few answers to tell.
        by_class = [data.accuracy(np.flatnonzero(data.labels == label)) for label in range(7)]
        varied = np.flatnonzero(np.ptp(by_class, 0) < 0.8)
        chosen = np.random.default_rng(0).choice(varied, 20, replace=False)
        both = np.concatenate([data.correct, altered(data.correct[chosen], share)])
        y = np.append(data.id_accuracy, data.id_accuracy[chosen])
        units = CorrectnessData.of(both, y, labels=data.labels).copies
        assert (units[data.n_models :] == units[chosen]).all()


@pytest.mark.parametrize(("n_examples", "accuracy"), [(60, 0.85), (100, 0.9)])
def test_exact_copies_are_found_in_small_tables_too(n_examples, accuracy):
    for seed in range(4):
        data, original = copied(n_examples=n_examples, accuracy=accuracy, seed=seed)
        assert same_partition(data.copies, original)


def test_accurate_models_are_not_copies_though_they_agree_on_most_answers():
    rng = np.random.default_rng(0)
    hard, ability = rng.normal(0, 2, 3000), rng.uniform(7.0, 9.0, 300)
    correct = (rng.random((300, 3000)) < expit(ability[:, None] - hard)).astype(np.uint8)
    assert 0.97 < correct.mean() < 0.999
    assert len(np.unique(CorrectnessData.of(correct, rng.uniform(0.9, 0.99, 300)).copies)) == 300


@pytest.mark.parametrize("name", ["planted_301", "null_302", "small_101", "small_102"])
def test_models_of_the_golden_values_are_not_copies(name):
    golden = arrays(name)
    data = CorrectnessData.of(golden["X"], golden["y"])
    assert len(np.unique(data.copies)) == data.n_models


def test_what_models_are_called_changes_nothing():
    rng = np.random.default_rng(3)
    skill = rng.uniform(0.6, 0.95, 60)
    chance = np.where(np.arange(300) < 60, 1.45 - skill[:, None], skill[:, None])
    correct = (rng.uniform(size=(60, 300)) < chance).astype(np.uint8)
    found = []
    for order in (np.arange(60), rng.permutation(60)):
        names = [f"m{place:02d}" for place in order]
        data = CorrectnessData.of(correct, skill, model_ids=names, groups=names)
        subset = oodselect(data, size=40, seed=1)
        tested = [split.test.tolist() for split in folds(data.units("group"), seed=1)]
        verdict = subset.judge(n_permutations=19, workers=1).to_dict()
        found.append((data.hash, subset.id, parts_of(subset.split), tested, subset.example_ids, verdict))
    assert found[0] == found[1]

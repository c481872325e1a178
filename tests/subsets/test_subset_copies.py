"""Copies of models under other names are one unit; models trained apart are not; names decide nothing."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from assay.analyses.subsets.crossfit import plan_folds
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.selection import oodselect


PACS = Path(__file__).resolve().parents[2] / "experiments" / "pacs64_subsets" / "results" / "correctness.npz"
GOLDEN = Path(os.environ.get("ASSAY_SHARED", "../shared")) / "golden" / "oodselect"


def altered(answers, share, seed=0):
    """Answers of which a share is another one."""
    chosen = np.random.default_rng(seed).random(answers.shape) < share
    return np.where(chosen, 1 - answers, answers).astype(answers.dtype)


def copied(n_originals=6, n_each=8, share=0.0, *, seed=0, n_examples=600, accuracy=0.7):
    """Unrelated answers of a few models, each under several names, with the accuracy of the original."""
    rng = np.random.default_rng(seed)
    original = rng.permutation(np.repeat(np.arange(n_originals), n_each))
    correct = (rng.random((n_originals, n_examples)) < accuracy).astype(np.uint8)
    y = rng.uniform(0.6, 0.95, n_originals)
    data = CorrectnessData.of(
        altered(correct[original], share),
        y[original],
        groups=[f"run-{place}" for place in range(len(original))],
    )
    return data, original


def same_partition(units, wanted):
    return (
        len(np.unique(units)) == len(np.unique(wanted)) == len(np.unique(np.stack([units, wanted]), axis=1).T)
    )


@pytest.mark.parametrize("share", [0.0, 0.02])
class TestCopies:
    def test_six_models_under_48_names_are_six_units_and_no_finding(self, share):
        data, original = copied(share=share)
        assert same_partition(data.unit_codes("group"), original)
        subset = oodselect(data, size=60)
        assert subset.split.straddling(original) == 0
        verdict = subset.judge(n_permutations=19, workers=1)
        assert verdict.status == "inconclusive"
        assert verdict.n_units == 6
        assert "6 training runs of 48 models are too few" in verdict.reasons[-1]
        assert "48 models are copies of 6: 6 units" in verdict.notes[0]
        assert ("48 models are copies of 6: 6 units") in dict(data.understood().rows())["notes"]

    def test_folds_keep_copies_together_across_groups(self, share):
        data, original = copied(20, 3, share)
        plan = plan_folds(data)
        assert len(plan.splits) >= 3
        assert all(split.straddling(original) == 0 for split in plan.splits)

    def test_scores_are_compared_too(self, share):
        rng = np.random.default_rng(1)
        scores = np.clip(rng.normal(0.6, 0.25, (30, 800)), 0, 1)
        again = np.where(rng.random((5, 800)) < share, rng.random((5, 800)), scores[:5])
        data = CorrectnessData.of(np.concatenate([scores, again]), np.linspace(0.5, 0.9, 35), scores=True)
        assert same_partition(data.copies, np.r_[np.arange(30), np.arange(5)])

    def test_copies_among_models_that_were_trained_are_found_and_no_others(self, share):
        data = CorrectnessData.load(PACS)
        # Models that give most sketches one class differ in too few answers to tell.
        varied = np.flatnonzero(
            np.ptp([data.accuracy_on(np.flatnonzero(data.labels == c)) for c in range(7)], 0) < 0.8
        )
        assert len(np.unique(data.copies)) == data.n_models
        chosen = np.random.default_rng(0).choice(varied, 20, replace=False)
        answers = data.columns(np.arange(data.n_examples))
        both = np.concatenate([answers, altered(answers[chosen], share)])
        y = np.append(data.id_accuracy, data.id_accuracy[chosen])
        units = CorrectnessData.of(both, y, labels=data.labels).copies
        assert (units[data.n_models :] == units[chosen]).all()


@pytest.mark.parametrize(("n_examples", "accuracy"), [(60, 0.85), (100, 0.9)])
def test_exact_copies_are_found_in_small_tables_too(n_examples, accuracy):
    for seed in range(4):
        data, original = copied(n_examples=n_examples, accuracy=accuracy, seed=seed)
        assert same_partition(data.copies, original)
        assert oodselect(data, size=20).judge(n_permutations=19, workers=1).status == "inconclusive"


def test_accurate_models_are_not_copies_though_they_agree_on_most_answers():
    rng = np.random.default_rng(0)
    hard = rng.normal(0, 2, 3000)
    ability = rng.uniform(7.0, 9.0, 300)
    correct = (rng.random((300, 3000)) < expit(ability[:, None] - hard)).astype(np.uint8)
    assert 0.97 < correct.mean() < 0.999
    y = rng.uniform(0.9, 0.99, 300)
    assert len(np.unique(CorrectnessData.of(correct, y).copies)) == 300


@pytest.mark.parametrize("name", ["planted_301", "null_302", "small_101", "small_102"])
def test_models_of_the_golden_values_are_not_copies(name):
    with np.load(GOLDEN / f"{name}.npz") as held:
        data = CorrectnessData.of(held["X"], held["y"])
    assert len(np.unique(data.copies)) == data.n_models


def test_what_models_are_called_changes_nothing():
    rng = np.random.default_rng(3)
    skill = rng.uniform(0.6, 0.95, 60)
    chance = np.where(np.arange(300) < 60, 1.45 - skill[:, None], skill[:, None])
    correct = rng.uniform(size=(60, 300)) < chance
    found = []
    for names in (
        [f"m{place:02d}" for place in range(60)],
        [f"m{place:02d}" for place in rng.permutation(60)],
    ):
        data = CorrectnessData.of(correct, skill, model_ids=names, groups=names)
        subset = oodselect(data, size=40, seed=1)
        verdict = subset.judge(n_permutations=19, workers=1)
        split = [subset.split.part(part).tolist() for part in ("train", "validation", "test")]
        tested = [each.test.tolist() for each in plan_folds(data, seed=1).splits]
        found.append((data.hash, subset.id, split, tested, subset.example_ids, verdict))
    assert found[0][:-1] == found[1][:-1]
    assert found[0][-1].to_dict() == found[1][-1].to_dict()


def test_the_seed_deals_the_folds():
    data, _ = copied(40, 1)
    dealt = [[each.test.tolist() for each in plan_folds(data, seed=seed).splits] for seed in (0, 0, 1)]
    assert dealt[0] == dealt[1] != dealt[2]

"""What other subsets of the same size give."""

import math

import numpy as np
import pytest
from goldens import SMALL, arrays, values
from hypothesis import given
from hypothesis import strategies as st

from assay.analyses.subsets.baselines import baselines, distance_scores
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import correlate, line_correlation
from assay.analyses.subsets.selection import Problem, Settings
from assay.analyses.subsets.splits import ModelSplit, split_models
from assay.core.errors import InputError, ShapeError
from assay.core.random import stream


SIZES = (5, 20, 60)


def problem(name="small_101", *, correct=None, split=None, settings=None, **facts):
    inputs = arrays(name)
    data = CorrectnessData.of(inputs["X"] if correct is None else correct, inputs["y"], **facts)
    return Problem(data, split or split_models(data, seed=1), Settings.of(data, **(settings or {})))


def parts(golden):
    """A split of the golden values."""
    sides = {"train": golden["train"], "validation": golden["val"], "test": golden["test"]}
    return ModelSplit(**{name: np.array(each) for name, each in sides.items()})


def rows_of(table, kind):
    """The rows of one kind, by size."""
    return {row["size"]: row for _, row in table[table["kind"] == kind].iterrows()}


def correlation_on(case, examples):
    test = case.split.test
    accuracy = case.data.accuracy(np.array(examples))[test]
    return correlate(case.data.id_accuracy[test], accuracy, case.data.units("model")[test])


# ------------------------------------------------------------------------------------------------ table


@pytest.mark.parametrize("name", SMALL)
def test_golden_hardest_furthest_and_screened_examples(name):
    inputs, golden = arrays(name), values(name)
    embeddings = {"embedding": inputs["emb_ood"], "id_embedding": inputs["emb_id"]}
    case = problem(name, split=parts(golden["split42"]), **embeddings)
    table = baselines(case, [10, 20, 50], draws=4)
    assert table["kind"].unique().tolist() == ["random", "hard", "marginal", "distance", "all"]
    chosen = {("hard", int(size)): members for size, members in golden["hard_train"].items()}
    chosen["marginal", 20] = golden["marginal_train"]["top20"]
    chosen["distance", 10] = golden["embedding"]["top10_nearest"]
    for (kind, size), members in chosen.items():
        row, expected = rows_of(table, kind)[size], correlation_on(case, members)
        for column in ("r", "low", "high", "spearman", "spearman_low", "spearman_high"):
            np.testing.assert_equal(row[column], getattr(expected, column))
        assert (row["n_draws"], row["n_degenerate"]) == (1, int(expected.degenerate))


@pytest.mark.parametrize("name", ["planted_301", "null_302"])
@pytest.mark.parametrize("kind", ["split42", "family"])
def test_one_pass_screening_gives_the_golden_correlations(name, kind):
    golden = values(name)["splits"][kind]
    case = problem(name, split=parts(golden), families=arrays(name)["family"])
    table = baselines(case, [int(size) for size in golden["sizes"]], draws=2)
    for size, row in rows_of(table, "marginal").items():
        assert row["r"] == pytest.approx(golden["sizes"][str(size)]["marginal"]["test"], abs=1e-6)
    (whole,) = rows_of(table, "all").values()
    assert whole["r"] == pytest.approx(golden["full_test_pearson"], abs=1e-9)


def test_random_subsets_equal_the_literal_ones():
    case = problem(settings={"seed": 4})
    correct, y, test = case.data.correct, case.data.id_accuracy, case.split.test
    found = rows_of(baselines(case, [17, 200], draws=6), "random")
    literal = []
    for draw in range(6):
        chosen = stream(4, f"random-subset/{draw}").permutation(200)[:17]
        literal.append(line_correlation(y[test], correct[test][:, chosen].mean(axis=1)))
    assert found[17]["r"] == pytest.approx(np.mean(literal))
    ends = np.quantile(literal, [0.025, 0.975]).tolist()
    assert [found[17]["low"], found[17]["high"]] == pytest.approx(ends)
    assert found[17]["n_draws"] == 6
    whole = line_correlation(y[test], correct[test].mean(axis=1))
    assert found[200][["r", "low", "high"]].tolist() == pytest.approx([whole] * 3)


def test_what_is_allowed_and_strata_bind_every_baseline():
    strata = (np.arange(200) % 4 == 0).astype(np.int64)  # three quarters and a quarter
    allowed = np.arange(200) < 160
    case = problem(settings={"strata": strata, "allowed": allowed, "seed": 5})
    table = baselines(case, [8, 160], draws=2)
    for kind in ("random", "hard", "marginal"):
        assert rows_of(table, kind)[160]["r"] == pytest.approx(rows_of(table, "all")[160]["r"])
    right = case.data.example_accuracy(case.split.train)
    hardest = []
    for code, quota in ((0, 6), (1, 2)):
        places = np.flatnonzero(allowed & (strata == code))
        hardest += sorted(places, key=lambda place: (right[place], place))[:quota]
    np.testing.assert_equal(rows_of(table, "hard")[8]["r"], correlation_on(case, hardest).r)
    drawn = []
    for draw in range(2):  # the first examples of each stratum in one random order
        order = np.flatnonzero(allowed)[stream(5, f"random-subset/{draw}").permutation(160)]
        members = np.concatenate([order[strata[order] == 0][:6], order[strata[order] == 1][:2]])
        drawn.append(correlation_on(case, members).r)
    assert rows_of(table, "random")[8]["r"] == pytest.approx(np.mean(drawn))
    with pytest.raises(InputError, match="size is 161"):
        baselines(case, [161])


def test_draws_without_a_correlation_are_counted():
    allowed = np.arange(200) >= 190  # five columns of ones, five of zeros: models do not differ
    row = rows_of(baselines(problem(settings={"allowed": allowed}), [6], draws=4), "random")[6]
    assert row["n_degenerate"] == 4
    assert math.isnan(row["r"])
    assert math.isnan(row["low"])


def test_test_models_have_no_say_in_what_is_hard_or_marginal():
    case = problem()
    correct = arrays("small_101")["X"].copy()
    correct[case.split.test] = 1 - correct[case.split.test]
    flipped = problem(correct=correct, split=case.split)
    for kind in ("hard", "marginal"):
        row, other = (rows_of(baselines(each, [40], draws=1), kind)[40] for each in (case, flipped))
        # The same examples on inverted models: probit(1 - p) = -probit(p).
        assert other["r"] == pytest.approx(-row["r"], abs=1e-9)


def test_scores_of_0_and_1_have_the_baselines_of_right_and_wrong_answers():
    bits = baselines(problem(), SIZES, draws=3)
    scores = baselines(problem(correct=arrays("small_101")["X"].astype(np.float32)), SIZES, draws=3)
    assert bits.equals(scores)


# --------------------------------------------------------------------------------------------- distance


def test_distances_by_hand():
    known = np.array([[2.0, 0.0], [0.0, 3.0]])
    ood = np.array([[5.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
    np.testing.assert_allclose(distance_scores(ood, known), [0, 1 - math.sqrt(0.5), 1], atol=1e-15)


@pytest.mark.parametrize("name", SMALL)
def test_golden_distances(name):
    inputs = arrays(name)
    found = distance_scores(inputs["emb_ood"], inputs["emb_id"])
    np.testing.assert_allclose(found, values(name)["embedding"]["nearest"], atol=1e-12)


@given(st.integers(0, 2**32 - 1))
def test_distances_equal_the_literal_ones_and_ignore_lengths(seed):
    rng = np.random.default_rng(seed)
    ood, known = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
    cosines = [[one @ other / math.sqrt((one @ one) * (other @ other)) for other in known] for one in ood]
    literal = [1 - max(each) for each in cosines]
    np.testing.assert_allclose(distance_scores(ood, known), literal, atol=1e-12)
    scaled = distance_scores(ood * rng.uniform(0.1, 9, (7, 1)), known)
    np.testing.assert_allclose(scaled, literal, atol=1e-12)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("ood", "known", "error", "message"),
    [
        (np.array([[1.0, 0], [0, 0]]), np.eye(2), InputError, r"embedding\[1\] is zero, so it has no"),
        (np.eye(2), np.zeros((3, 2)), InputError, r"id_embedding\[0\] is zero"),
        (np.eye(2), np.empty((0, 2)), ShapeError, r"id_embedding \(0, 2\)"),
        (np.eye(2), np.eye(3), ShapeError, "give equal widths"),
    ],
)
def test_directions_that_are_none_are_named(ood, known, error, message):
    with pytest.raises(error, match=message):
        distance_scores(ood, known)

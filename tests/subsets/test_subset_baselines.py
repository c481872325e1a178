"""What other subsets of the same size give."""

import functools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from goldens import SMALL, arrays, values
from hypothesis import given
from hypothesis import strategies as st

from assay.analyses.subsets.baselines import (
    BaselineRow,
    baseline_indices,
    baseline_rows,
    distance_scores,
    random_draws,
)
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.layouts import PackedMatrix
from assay.analyses.subsets.line import correlate, line_correlation
from assay.analyses.subsets.problem import Problem
from assay.analyses.subsets.settings import Settings
from assay.analyses.subsets.splits import ModelSplit, split_models
from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.core.random import stream


SIZES = (5, 20, 60, 200)


def small(name: str = "small_101", *, packed: bool = False, **facts: Any) -> CorrectnessData:
    inputs = arrays(name)
    correct = PackedMatrix.pack(inputs["X"]) if packed else inputs["X"]
    return CorrectnessData.of(correct, inputs["y"], **facts)


@functools.cache
def embedded(name: str = "small_101") -> CorrectnessData:
    inputs = arrays(name)
    return small(name, embedding=inputs["emb_ood"], id_embedding=inputs["emb_id"])


def problem(data: CorrectnessData, **settings: Any) -> Problem:
    split = split_models(data.n_models, seed=1, groups=data.groups)
    return Problem(data, split, Settings(**settings))


def parts(models: np.ndarray) -> ModelSplit:
    return ModelSplit(train=models, validation=models, test=models, kind="given")


def chosen(data: CorrectnessData, kind: str, models: np.ndarray, size: int, **options: Any) -> np.ndarray:
    """The examples of a baseline that are chosen on some models."""
    mode = options.pop("mode", "nearest")
    return baseline_indices(Problem(data, parts(models), Settings(**options)), kind, [size], mode=mode)[0]


def drawn_of(
    data: CorrectnessData, models: np.ndarray, size: int, *, draws: int = 100, **options: Any
) -> Any:
    """R and rank correlations of random subsets over some models."""
    return random_draws(Problem(data, parts(models), Settings(**options)), [size], draws=draws)[size]


# ------------------------------------------------------------------------------------------------- hard


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("packed", [False, True])
def test_golden_hardest_examples(name: str, packed: bool) -> None:
    data, golden = small(name, packed=packed), values(name)
    train = np.array(golden["split42"]["train"])
    for key, models in (("hard_train", train), ("hard_all", np.arange(data.n_models))):
        for size, wanted in golden[key].items():
            assert np.sort(chosen(data, "hard", models, int(size))).tolist() == wanted


def test_hardest_first_and_ties_to_the_lower_index() -> None:
    correct = np.array([[1, 0, 1, 0, 1], [1, 0, 0, 1, 1], [1, 0, 1, 0, 0], [1, 0, 0, 1, 1]], dtype=np.uint8)
    data = CorrectnessData.of(correct, [0.5, 0.6, 0.7, 0.8])
    assert chosen(data, "hard", np.arange(4), 5).tolist() == [1, 2, 3, 4, 0]
    assert chosen(data, "hard", np.array([0, 2]), 2).tolist() == [1, 3]
    allowed = np.array([True, False, True, False, True])
    assert chosen(data, "hard", np.arange(4), 2, allowed=allowed).tolist() == [2, 4]


# --------------------------------------------------------------------------------------------- marginal


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("packed", [False, True])
def test_golden_marginal_examples(name: str, packed: bool) -> None:
    data, golden = small(name, packed=packed), values(name)
    train = np.array(golden["split42"]["train"])
    found = chosen(data, "marginal", train, 20)
    assert np.sort(found).tolist() == golden["marginal_train"]["top20"]
    scores = np.array(golden["marginal_train"]["score"])
    assert (np.diff(scores[found]) >= 0).all()


def test_all_examples_are_one_set_by_any_baseline() -> None:
    data = embedded()
    models = np.arange(data.n_models)
    for found in (
        chosen(data, "hard", models, 200),
        chosen(data, "marginal", models, 200),
        chosen(data, "distance", models, 200),
    ):
        assert np.sort(found).tolist() == list(range(200))


@pytest.mark.parametrize("kind", ["hard", "marginal", "nearest", "centroid"])
@given(sizes=st.lists(st.integers(1, 200), min_size=2, max_size=2).map(sorted))
def test_smaller_choices_are_the_starts_of_larger_ones(kind: str, sizes: list[int]) -> None:
    data = embedded()
    models = np.arange(0, 40, 2)

    name, mode = (kind, "nearest") if kind in ("hard", "marginal") else ("distance", kind)
    small, large = (chosen(data, name, models, size, mode=mode).tolist() for size in sizes)
    assert small == large[: sizes[0]]


# --------------------------------------------------------------------------------------------- distance


def literal_distances(ood: np.ndarray, known: np.ndarray, mode: str) -> list[float]:
    """One pair of vectors at a time."""
    unit = [each / math.sqrt(float(each @ each)) for each in known]
    mean = sum(unit) / len(unit)
    found = []
    for row in ood:
        each = row / math.sqrt(float(row @ row))
        if mode == "nearest":
            found.append(1 - max(float(each @ other) for other in unit))
        else:
            found.append(1 - float(each @ mean) / math.sqrt(float(mean @ mean)))
    return found


def test_distances_by_hand() -> None:
    known = np.array([[2.0, 0.0], [0.0, 3.0]])
    ood = np.array([[5.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
    root = math.sqrt(0.5)
    np.testing.assert_allclose(distance_scores(ood, known), [0, 1 - root, 1], atol=1e-15)
    np.testing.assert_allclose(distance_scores(ood, known, "centroid"), [1 - root, 0, 1 + root], atol=1e-15)


@pytest.mark.parametrize("name", SMALL)
def test_golden_distances(name: str) -> None:
    inputs, golden = arrays(name), values(name)["embedding"]
    for mode in ("nearest", "centroid"):
        found = distance_scores(inputs["emb_ood"], inputs["emb_id"], mode)
        np.testing.assert_allclose(found, golden[mode], atol=1e-12)
        top = chosen(embedded(name), "distance", np.arange(4), 10, mode=mode)
        assert np.sort(top).tolist() == golden[f"top10_{mode}"]
        assert (np.diff(found[top]) <= 1e-6).all()  # the data hold float32


@given(st.integers(0, 2**32 - 1), st.sampled_from(["nearest", "centroid"]))
def test_distances_equal_the_literal_ones_and_ignore_lengths(seed: int, mode: str) -> None:
    rng = np.random.default_rng(seed)
    ood, known = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
    found = distance_scores(ood, known, mode)
    np.testing.assert_allclose(found, literal_distances(ood, known, mode), atol=1e-12)
    scaled = distance_scores(ood * rng.uniform(0.1, 9, (7, 1)), known, mode)
    np.testing.assert_allclose(scaled, found, atol=1e-12)
    assert ((found >= 0) & (found <= 2)).all()


def test_distances_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    ood, known = rng.normal(size=(50, 6)), rng.normal(size=(33, 6))
    whole = distance_scores(ood, known)
    monkeypatch.setattr("assay.analyses.subsets.baselines._ROWS", 7)
    monkeypatch.setattr("assay.analyses.subsets.baselines._ENTRIES", 30)
    np.testing.assert_allclose(distance_scores(ood, known), whole, atol=1e-15)


def test_equal_directions_tie_to_the_lower_index() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(5, 16))
    # Each direction nine times, with other lengths: equal up to rounding.
    ood = np.repeat(rows, 9, axis=0) * rng.uniform(0.5, 2, (45, 1))
    data = CorrectnessData.of(
        np.zeros((4, 45), dtype=np.uint8),
        [0.1, 0.2, 0.3, 0.4],
        embedding=ood,
        id_embedding=rng.normal(size=(8, 16)),
    )
    found = chosen(data, "distance", np.arange(4), 45).reshape(5, 9)
    # float32 lengths move the direction by 1e-8, so ties are exact only for rows that are equal.
    assert sorted(found[:, 0] // 9) == list(range(5))
    equal = CorrectnessData.of(
        data.correct,
        data.id_accuracy,
        embedding=np.repeat(rows, 9, axis=0),
        id_embedding=data.id_embedding,
    )
    assert (np.diff(chosen(equal, "distance", np.arange(4), 45).reshape(5, 9), axis=1) == 1).all()


@pytest.mark.parametrize(
    ("ood", "known", "mode", "message"),
    [
        (
            np.array([[1.0, 0], [0, 0]]),
            np.eye(2),
            "nearest",
            r"embedding\[1\] has length 0.0 \(1 such rows\)",
        ),
        (np.eye(2), np.zeros((3, 2)), "nearest", r"id_embedding\[0\] has length 0.0 \(3 such rows\)"),
        (np.array([[math.nan, 1.0]]), np.eye(2), "nearest", r"embedding\[0\] has length nan"),
        (np.eye(2), np.empty((0, 2)), "nearest", "id_embedding is empty"),
        (np.eye(2), np.array([[1.0, 0], [-1, 0]]), "centroid", "directions of id_embedding cancel"),
    ],
)
def test_directions_that_are_none_are_named(
    ood: np.ndarray, known: np.ndarray, mode: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        distance_scores(ood, known, mode)


@pytest.mark.usefixtures("unchecked")
def test_distances_need_one_width_and_a_known_mode() -> None:
    with pytest.raises(ShapeError, match="expected rows of equal width, from one encoder"):
        distance_scores(np.eye(2), np.eye(3))
    with pytest.raises(UnknownNameError, match="did you mean 'nearest'"):
        distance_scores(np.eye(2), np.eye(2), "neares")
    with pytest.raises(InputError, match="the data have no embeddings; give embedding= and id_embedding="):
        chosen(small(), "distance", np.arange(4), 5)


# ----------------------------------------------------------------------------------------------- random


def test_random_subsets_equal_the_literal_ones() -> None:
    data, models = small(), np.arange(3, 31)
    values, ranks = drawn_of(data, models, 17, draws=6, seed=4)
    dense = arrays("small_101")["X"]
    y = arrays("small_101")["y"]
    for draw in range(6):
        chosen = stream(4, f"random-subset/{draw}").permutation(200)[:17]
        literal = line_correlation(y[models], dense[models][:, chosen].mean(axis=1))
        assert values[draw] == pytest.approx(literal, abs=1e-12)
    row = BaselineRow.of_draws(17, values, ranks)
    assert row.r == pytest.approx(values.mean())
    np.testing.assert_allclose([row.low, row.high], np.quantile(values, [0.025, 0.975]))
    assert row.spearman_low <= row.spearman <= row.spearman_high


def test_random_subsets_of_all_examples_are_the_full_set() -> None:
    data, models = small(), np.arange(40)
    drawn, ranks = drawn_of(data, models, 200, draws=5)
    full = values("small_101")["full"]
    np.testing.assert_allclose(drawn, full["pearson"], atol=1e-12)
    np.testing.assert_allclose(ranks, full["spearman"], atol=1e-12)


def test_every_example_is_drawn_equally_often() -> None:
    n, size, draws = 12, 4, 3000
    counts = np.zeros(n)
    for draw in range(draws):
        counts[stream(0, f"random-subset/{draw}").permutation(n)[:size]] += 1
    # Standard error of a share of 1/3 over 3000 draws: 0.009.
    np.testing.assert_allclose(counts / draws, size / n, atol=0.04)


def test_packed_data_give_the_same_numbers() -> None:
    models = np.arange(0, 40, 3)
    dense, packed = (drawn_of(small(packed=each), models, 30, draws=8) for each in (False, True))
    np.testing.assert_array_equal(dense, packed)


def test_only_allowed_examples_are_drawn() -> None:
    allowed = np.zeros(200, dtype=bool)
    allowed[190:] = True  # five columns of ones, five of zeros: no model differs
    values, ranks = drawn_of(small(), np.arange(40), 6, draws=4, allowed=allowed)
    assert np.isnan(values).all()
    row = BaselineRow.of_draws(6, values, ranks)
    assert math.isnan(row.low)
    assert row.n_degenerate == 4
    assert row.to_dict()["r"] is None


def test_half_an_example_clips_accuracies_of_zero_and_one() -> None:
    models = np.arange(40)
    eps, half = (drawn_of(small(), models, 5, draws=10, clip=clip) for clip in ("eps", "half"))
    assert (eps[0] != half[0]).any()
    np.testing.assert_array_equal(eps[1], half[1])


def test_sizes_and_draws_out_of_range_are_named() -> None:
    data, models = small(), np.arange(40)
    with pytest.raises(InputError, match="draws is 0"):
        drawn_of(data, models, 5, draws=0)
    with pytest.raises(InputError, match="size is 201; expected 1 to 200 examples"):
        drawn_of(data, models, 201)
    with pytest.raises(InputError, match="size is 0"):
        chosen(data, "hard", models, 0)
    with pytest.raises(InputError, match="size is 3; expected 1 to 2 examples"):
        chosen(data, "marginal", models, 3, allowed=np.arange(200) < 2)


# ------------------------------------------------------------------------------------------------ table


def test_rows_hold_what_each_baseline_gives() -> None:
    data = embedded()
    case = problem(data, seed=2)
    rows = baseline_rows(case, SIZES, draws=12, n_resamples=50)
    assert list(rows) == ["random", "hard", "marginal", "distance", "all"]
    split, test = case.split, case.split.test
    for place, size in enumerate(SIZES):
        subsets = {
            "hard": chosen(data, "hard", split.train, size),
            "marginal": chosen(data, "marginal", split.train, size),
            "distance": chosen(data, "distance", split.train, size),
        }
        for kind, examples in subsets.items():
            row = rows[kind][place]
            wanted = correlate(
                data.id_accuracy[test], data.accuracy_on(examples, test), n_resamples=50, seed=2
            )
            assert row.correlation is not None
            assert row.correlation.to_dict() == wanted.to_dict()
            assert (row.kind, row.size) == (kind, size)
            np.testing.assert_array_equal([row.r, row.low, row.high], [wanted.r, wanted.low, wanted.high])
        drawn = BaselineRow.of_draws(size, *drawn_of(data, test, size, draws=12, seed=2))
        assert rows["random"][place].to_dict() == drawn.to_dict()
        assert rows["random"][place].n_draws == 12
    (full,) = rows["all"]
    assert full.size == 200
    assert full.r == pytest.approx(line_correlation(data.id_accuracy[test], data.accuracy(test)), abs=1e-12)
    assert rows["hard"][-1].r == pytest.approx(full.r, abs=1e-12)


def test_intervals_are_over_the_units_of_the_models() -> None:
    data = small(groups=np.arange(40) // 2, families=np.arange(40) // 8)
    case = problem(data)
    row = baseline_rows(case, [50], kinds=["hard"], n_resamples=50)["hard"][0]
    assert row.correlation is not None
    assert row.correlation.n_units == len(case.split.test) // 2


def test_a_table_from_packed_data_is_the_same() -> None:
    dense, packed = (
        baseline_rows(problem(small(packed=each), layout=layout), SIZES, draws=5, n_resamples=20)
        for each, layout in ((False, "dense"), (True, "packed"))
    )
    for kind, rows in dense.items():
        for one, other in zip(rows, packed[kind], strict=True):
            assert one.to_dict() == other.to_dict()
    assert "distance" not in dense


def test_a_table_stays_inside_what_is_allowed() -> None:
    allowed = np.arange(200) % 2 == 0
    rows = baseline_rows(problem(small(), allowed=allowed), [10, 100], draws=3, n_resamples=20)
    assert rows["all"][0].size == 100
    assert rows["hard"][1].r == rows["marginal"][1].r == rows["all"][0].r
    assert rows["random"][1].low == pytest.approx(rows["all"][0].r, abs=1e-12)
    with pytest.raises(InputError, match="size is 101; expected 1 to 100"):
        baseline_rows(problem(small(), allowed=allowed), [101])


def test_test_models_have_no_say_in_what_is_hard_or_marginal() -> None:
    data = small()
    case = problem(data)
    dense = arrays("small_101")["X"].copy()
    dense[case.split.test] = 1 - dense[case.split.test]
    changed = CorrectnessData.of(dense, data.id_accuracy)
    for kind in ("hard", "marginal"):
        (row,), (flipped,) = (
            baseline_rows(each, [40], kinds=[kind], n_resamples=20)[kind]
            for each in (case, Problem(changed, case.split, Settings()))
        )
        # The same examples on inverted models: probit(1 - p) = -probit(p).
        assert flipped.r == pytest.approx(-row.r, abs=1e-9)


def test_a_table_of_a_given_split_reports_on_the_part_asked_for() -> None:
    data = small()
    split = ModelSplit(
        train=np.arange(24), validation=np.arange(24, 32), test=np.arange(32, 40), kind="given"
    )
    case = Problem(data, split, Settings())
    row = baseline_rows(case, [30], kinds=["hard"], part="validation", n_resamples=20)["hard"][0]
    assert row.r == line_correlation(
        data.id_accuracy[24:32], data.accuracy_on(chosen(data, "hard", np.arange(24), 30), np.arange(24, 32))
    )


def test_unknown_baselines_are_refused() -> None:
    case = problem(small())
    with pytest.raises(UnknownNameError, match="did you mean 'hard'"):
        baseline_rows(case, [10], kinds=["hardest"])
    with pytest.raises(InputError, match="the data have no embeddings"):
        baseline_rows(case, [10], kinds=["distance"])


def test_records_give_the_values_back() -> None:
    rows: Mapping[str, tuple[BaselineRow, ...]] = baseline_rows(
        problem(embedded()), [10], draws=4, n_resamples=20
    )
    for (row,) in rows.values():
        record = json.loads(json.dumps(row.to_dict(), allow_nan=False))
        assert BaselineRow.from_dict(record).to_dict() == record


@pytest.mark.parametrize("name", ["planted_301", "null_302"])
@pytest.mark.parametrize("kind", ["split42", "family"])
def test_one_pass_screening_gives_the_golden_correlations(name: str, kind: str) -> None:
    inputs, golden = arrays(name), values(name)["splits"][kind]
    split = ModelSplit(
        train=np.array(golden["train"]),
        validation=np.array(golden["val"]),
        test=np.array(golden["test"]),
        kind="given",
    )
    data = CorrectnessData.of(inputs["X"], inputs["y"], families=inputs["family"])
    case = Problem(data, split, Settings())
    sizes = [int(size) for size in golden["sizes"]]
    found = baseline_rows(case, sizes, kinds=["marginal", "all"], n_resamples=20)
    for row, wanted in zip(found["marginal"], golden["sizes"].values(), strict=True):
        assert row.r == pytest.approx(wanted["marginal"]["test"], abs=1e-6)
    assert found["all"][0].r == pytest.approx(golden["full_test_pearson"], abs=1e-9)


# ----------------------------------------------------------------------------------------------- strata


def test_hardest_and_one_pass_choose_inside_the_quotas() -> None:
    """Probits of y: -a, -b, b, a with a = .84, b = .25; a column's score sums them where it is 1."""
    correct = np.array(
        # -a - b, -a, -b, b, a + b, a
        [[1, 1, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]],
        dtype=np.uint8,
    )
    data = CorrectnessData.of(correct, [0.2, 0.4, 0.6, 0.8])
    strata = np.array([0, 0, 0, 0, 1, 1])  # quotas of 3: two and one
    every = np.arange(4)
    assert chosen(data, "marginal", every, 3).tolist() == [0, 1, 2]
    assert chosen(data, "marginal", every, 3, strata=strata).tolist() == [0, 1, 5]
    assert chosen(data, "hard", every, 3).tolist() == [1, 2, 3]
    assert chosen(data, "hard", every, 3, strata=strata).tolist() == [1, 2, 5]


def test_baselines_keep_the_shares_of_strata() -> None:
    data = small()
    strata = (np.arange(data.n_examples) % 4 == 0).astype(np.int64)  # three quarters and a quarter
    allowed = np.arange(data.n_examples) < 160
    found = problem(data, strata=strata, allowed=allowed)
    rows = baseline_rows(found, [8, 20], kinds=["random", "hard", "marginal"], draws=4)
    models = found.split.part("test")
    sums = found.train.column_sums()
    for size, row in zip((8, 20), rows["hard"], strict=True):
        hardest = [
            sorted((int(sums[place]), place) for place in np.flatnonzero(allowed & (strata == code)))[:quota]
            for code, quota in ((0, 3 * size // 4), (1, size // 4))
        ]
        places = np.array([place for part in hardest for _, place in part])
        accuracy = data.accuracy_on(places, models)
        expected = correlate(data.id_accuracy[models], accuracy, size=size, seed=0)
        assert row.r == pytest.approx(expected.r, nan_ok=True)
    free = baseline_rows(problem(data, allowed=allowed), [8, 20], kinds=["random", "marginal"], draws=4)
    for kind in ("random", "marginal"):
        assert [each.r for each in rows[kind]] != [each.r for each in free[kind]]
    # Draw by draw: the first examples of each stratum in one random order.
    drawn, _ = drawn_of(data, models, 8, draws=2, allowed=allowed, strata=strata, seed=5)
    for draw in range(2):
        order = np.flatnonzero(allowed)[stream(5, f"random-subset/{draw}").permutation(160)]
        places = np.concatenate([order[strata[order] == 0][:6], order[strata[order] == 1][:2]])
        r = line_correlation(data.id_accuracy[models], data.accuracy_on(places, models))
        assert drawn[draw] == pytest.approx(r, nan_ok=True)

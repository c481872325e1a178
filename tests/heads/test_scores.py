import math
from pathlib import Path

import numpy as np
import pytest

from assay.core.errors import InputError, ShapeError
from assay.discovery.heads import HeadScores, load_head_scores
from assay.discovery.heads.membership import (
    WeightFeatures,
    predict_from_weights,
    separation,
    set_overlap,
    weight_features,
)
from assay.discovery.heads.scores import mean_over_examples, member_flags
from assay.discovery.heads.weights import weight_scores
from assay.models import Model


def some(values: "list[float] | np.ndarray", **more: object) -> HeadScores:
    return HeadScores.from_flat("test", 3, np.array(values), **more)


def test_heads_are_numbered_layer_by_layer() -> None:
    scores = some([0.0, 1, 2, 3, 4, 5])
    assert scores[1, 0] == 3 == scores.values[1, 0] == scores.flat[3]
    assert (scores.n_layers, scores.n_heads) == (2, 3)
    assert scores.flat_examples is None
    table = np.arange(12.0).reshape(2, 6)
    several = HeadScores.from_flat("x", 3, per_example=table)
    assert several.per_example[1, 1, 2] == 11
    np.testing.assert_array_equal(several.flat_examples, table)
    assert several.values.tolist() == [[3, 4, 5], [6, 7, 8]]
    assert scores.to_frame().query("layer == 1 and head == 2").value.item() == 5
    assert repr(scores) == "HeadScores('test', 2 x 3 heads)"


def test_ties_go_to_the_lower_layer_then_the_lower_head() -> None:
    scores = some([1.0, 2, 2, -3, 2, 0])
    assert scores.top(4) == ((0, 1), (0, 2), (1, 1), (0, 0))
    assert scores.top(1, magnitude=True) == ((1, 0),)
    assert scores.top(0) == ()
    with pytest.raises(InputError, match="k is 7, but 'test' has 6 heads"):
        scores.top(7)


def test_means_skip_excluded_examples_and_do_not_depend_on_their_order() -> None:
    table = np.array([[1e16, 1.0], [np.nan, 5.0], [1.0, 2.0], [-1e16, 3.0]])
    for each in (table, table[::-1].copy()):
        assert mean_over_examples(each).tolist() == [1 / 3, 2.0]
    assert np.isnan(mean_over_examples(np.full((2, 3), np.nan))).all()


def test_saved_scores_come_back_whole(tmp_path: Path) -> None:
    facts = {"sign": "positive = helps", "unit": "logits", "warnings": ("few",)}
    details = {"gap": np.array([1.0, np.nan]), "aggregate": "ratio_of_sums", "parents": [(0, 1)]}
    more = {"details": details, "provenance": {"score": "test", "seed": 3}}
    scores = some([np.nan, 0, 1, 2, 3, 4], per_example=np.arange(12.0).reshape(2, 6), **facts, **more)
    loaded = load_head_scores(str(scores.save(tmp_path / "heads.safetensors")))
    for name in ("values", "per_example", "name", "reason", "provenance", *facts):
        np.testing.assert_equal(getattr(loaded, name), getattr(scores, name))
    np.testing.assert_equal(loaded.details, details | {"parents": [[0, 1]]})
    assert loaded.to_dict() == scores.to_dict()
    assert load_head_scores(some([0.0] * 6).save(tmp_path / "bare")).per_example is None


def test_tables_of_another_size_are_refused(unchecked: None) -> None:
    with pytest.raises(ValueError, match="reshape"):
        some(np.zeros(5))
    for refused in (
        lambda: some(np.zeros(6), per_example=np.zeros((4, 9))),
        lambda: HeadScores(name="test", values=np.zeros(6)),
    ):
        with pytest.raises(ShapeError, match=r"expected \[n_layers, n_heads\]"):
            refused()
    # Members can be heads or flags.
    flags = member_flags(((0, 1), (1, 2)), 2, 3)
    assert flags.tolist() == [False, True, False, False, False, True]
    assert member_flags(flags, 2, 3) is flags
    with pytest.raises(InputError, match="out of range"):
        member_flags(((0, 3),), 2, 3)
    with pytest.raises(ShapeError, match=r"expected \(6,\)"):
        member_flags(flags[:5], 2, 3)


def test_separation_by_hand() -> None:
    found = separation(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, False, True, False]))
    assert (found.auroc, found.average_precision, found.precision_at_k) == (3 / 4, (1 + 2 / 3) / 2, 1 / 2)
    assert (found.k, found.n) == (2, 4)
    for fill, reason in ((False, "no_members"), (True, "no_others")):
        nothing = separation(np.arange(3.0), np.full(3, fill))
        assert (nothing.reason, nothing.to_dict()["auroc"]) == (reason, None)
    none = set_overlap(np.zeros(3, dtype=bool), np.zeros(3, dtype=bool))
    assert (none.false_alarm_rate, math.isnan(none.hit_rate), none.to_dict()["precision"]) == (0, True, None)


def some_features(table: np.ndarray) -> WeightFeatures:
    names = tuple(f"f{i}" for i in range(table.shape[1]))
    return WeightFeatures(names=names, table=table, n_layers=4, n_heads=len(table) // 4, provenance={})


def planted(seed: int = 0) -> tuple[WeightFeatures, dict[str, np.ndarray]]:
    """Forty heads; circuits of three tasks are heads of large first feature, with different cuts."""
    table = np.random.default_rng(seed).standard_normal((40, 3))
    cuts = {"a": 0.8, "b": 1.0, "c": 0.9}
    return some_features(table), {task: table[:, 0] > cut for task, cut in cuts.items()}


def test_circuits_that_follow_the_weights_are_predicted() -> None:
    features, circuits = planted()
    found = predict_from_weights(features, circuits)
    for task, prediction in found.items():
        assert separation(prediction.scores.flat, circuits[task]).auroc > 0.95
        assert set_overlap(prediction.predicted, circuits[task]).hit_rate >= 0.75
        assert prediction.predicted.sum() == circuits[task].sum()
        assert prediction.trained_on == tuple(other for other in circuits if other != task)
    best = found["a"].scores.top(int(circuits["a"].sum()))
    assert {layer * 10 + head for layer, head in best} == set(np.flatnonzero(found["a"].predicted))
    # A task never trains its own classifier.
    changed = predict_from_weights(features, {**circuits, "a": ~circuits["a"]})
    np.testing.assert_array_equal(changed["a"].scores.values, found["a"].scores.values)
    assert not np.array_equal(changed["b"].scores.values, found["b"].scores.values)


def test_circuits_that_teach_nothing_predict_nothing() -> None:
    features, circuits = planted()
    for fill, reason in ((False, "no_members"), (True, "no_others")):
        found = predict_from_weights(features, {"a": circuits["a"], "b": np.full(40, fill)})["a"]
        assert found.reason == reason == found.scores.reason
        assert np.isnan(found.scores.values).all()
        assert not found.predicted.any()


def test_features_of_a_model(golden_model: Model) -> None:
    features, scores = weight_features(golden_model), weight_scores(golden_model)
    assert features.table.shape == (12, len(features.names)) == (12, 10)
    columns = dict(zip(features.names, features.table.T, strict=True))
    np.testing.assert_array_equal(columns["ov-spectral-norm"], scores["ov-spectral-norm"].flat)
    np.testing.assert_allclose(columns["depth"], np.repeat([0, 1 / 3, 2 / 3], 4))
    found = predict_from_weights(features, {"a": [(0, 1), (2, 2)], "b": [(0, 2), (1, 3)]})
    assert found["a"].predicted.sum() == 2

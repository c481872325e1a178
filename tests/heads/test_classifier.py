import numpy as np
import pytest

from assay.discovery.heads.membership import (
    WeightFeatures,
    predict_from_weights,
    separation,
    set_overlap,
    weight_features,
)
from assay.discovery.heads.weights import weight_scores
from assay.models import Model


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


def test_a_task_never_trains_its_own_classifier() -> None:
    features, circuits = planted()
    first = predict_from_weights(features, circuits)["a"].scores.values
    changed = {**circuits, "a": ~circuits["a"]}
    np.testing.assert_array_equal(predict_from_weights(features, changed)["a"].scores.values, first)
    assert not np.array_equal(predict_from_weights(features, changed)["b"].scores.values, first)


def test_circuits_unrelated_to_the_weights_are_not_predicted() -> None:
    draw = np.random.default_rng(1)
    aurocs = []
    for _ in range(30):
        features = some_features(draw.standard_normal((80, 3)))
        circuits = {task: draw.permutation(80) < 16 for task in "abc"}
        found = predict_from_weights(features, circuits)
        aurocs += [separation(each.scores.flat, circuits[task]).auroc for task, each in found.items()]
    # Ninety values of standard deviation about 0.08, not all independent.
    assert np.mean(aurocs) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(("fill", "reason"), [(False, "no_members"), (True, "no_others")])
def test_circuits_that_teach_nothing_predict_nothing(fill: bool, reason: str) -> None:
    features, circuits = planted()
    found = predict_from_weights(features, {"a": circuits["a"], "b": np.full(40, fill)})["a"]
    assert found.reason == reason == found.scores.reason
    assert np.isnan(found.scores.values).all()
    assert not found.predicted.any()


def test_features_of_a_model(golden_model: Model) -> None:
    features, scores = weight_features(golden_model), weight_scores(golden_model)
    assert features.table.shape == (12, len(features.names)) == (12, 10)
    column = features.names.index("ov-spectral-norm")
    np.testing.assert_array_equal(features.table[:, column], scores["ov-spectral-norm"].flat)
    np.testing.assert_allclose(
        features.table[:, features.names.index("depth")], np.repeat([0, 1 / 3, 2 / 3], 4)
    )
    found = predict_from_weights(features, {"a": [(0, 1), (2, 2)], "b": [(0, 2), (1, 3)]})
    assert found["a"].predicted.sum() == 2

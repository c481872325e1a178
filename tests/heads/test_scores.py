import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.core.errors import InputError, ShapeError
from assay.discovery.heads import HeadScores, load_head_scores
from assay.discovery.heads.membership import separation, set_overlap
from assay.discovery.heads.scores import mean_over_examples, member_flags


GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "calibrations"


def some(values: "list[float] | np.ndarray", **more: object) -> HeadScores:
    return HeadScores.from_flat("test", 3, np.array(values), **more)


def test_heads_are_numbered_layer_by_layer() -> None:
    scores = some([0.0, 1, 2, 3, 4, 5])
    assert scores[1, 0] == 3 == scores.values[1, 0] == scores.flat[3]
    assert (scores.n_layers, scores.n_heads) == (2, 3)
    assert scores.flat_examples is None
    table = np.arange(12.0).reshape(2, 6)
    several = HeadScores.from_flat("x", 3, per_example=table)
    assert several.per_example is not None
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
    assert mean_over_examples(table).tolist() == [1 / 3, 2.0]
    assert mean_over_examples(table[::-1].copy()).tolist() == [1 / 3, 2.0]
    assert np.isnan(mean_over_examples(np.full((2, 3), np.nan))).all()


def test_saved_scores_come_back_whole(tmp_path: Path) -> None:
    scores = some(
        [np.nan, 0, 1, 2, 3, 4],
        per_example=np.arange(12.0).reshape(2, 6),
        sign="positive = helps",
        unit="logits",
        warnings=("few",),
        details={"gap": np.array([1.0, np.nan]), "aggregate": "ratio_of_sums", "parents": [(0, 1)]},
        provenance={"score": "test", "seed": 3},
    )
    path = scores.save(tmp_path / "heads.safetensors")
    loaded = load_head_scores(str(path))
    for name in ("values", "per_example"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(scores, name))
    for name in ("name", "sign", "unit", "reason", "warnings", "provenance"):
        assert getattr(loaded, name) == getattr(scores, name)
    np.testing.assert_array_equal(loaded.details["gap"], scores.details["gap"])
    assert (loaded.details["aggregate"], loaded.details["parents"]) == ("ratio_of_sums", [[0, 1]])
    assert loaded.to_dict() == scores.to_dict()
    bare = load_head_scores(some([0.0] * 6).save(tmp_path / "bare"))
    assert bare.per_example is None


def test_tables_of_another_size_are_refused(unchecked: None) -> None:
    for values, per_example in (((5,), None), ((6,), (4, 5)), ((6,), (4, 9))):
        with pytest.raises(ValueError, match=r"reshape|expected \[n_layers, n_heads\]"):
            some(np.zeros(values), per_example=None if per_example is None else np.zeros(per_example))
    for values, per_example in (((6,), None), ((2, 3), (4, 3, 2))):
        table = None if per_example is None else np.zeros(per_example)
        with pytest.raises(ShapeError, match=r"expected \[n_layers, n_heads\]"):
            HeadScores(name="test", values=np.zeros(values), per_example=table)


def test_members_can_be_heads_or_flags() -> None:
    flags = member_flags(((0, 1), (1, 2)), 2, 3)
    assert flags.tolist() == [False, True, False, False, False, True]
    assert member_flags(flags, 2, 3) is flags
    with pytest.raises(InputError, match="out of range"):
        member_flags(((0, 3),), 2, 3)
    with pytest.raises(ShapeError, match=r"expected \(6,\)"):
        member_flags(flags[:5], 2, 3)


# ---- separation -----------------------------------------------------------------------------------


def test_separation_by_hand() -> None:
    found = separation(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, False, True, False]))
    assert found.auroc == 3 / 4
    assert found.average_precision == (1 + 2 / 3) / 2
    assert found.precision_at_k == 1 / 2
    assert (found.k, found.n) == (2, 4)


@pytest.mark.parametrize(("members", "reason"), [([False] * 3, "no_members"), ([True] * 3, "no_others")])
def test_separation_needs_heads_on_both_sides(members: list[bool], reason: str) -> None:
    found = separation(np.arange(3.0), np.array(members))
    assert found.reason == reason
    assert math.isnan(found.auroc)
    assert found.to_dict()["auroc"] is None


# ---- detection ------------------------------------------------------------------------------------


@pytest.mark.parametrize("golden", json.loads((GOLDEN / "hit_false_alarm.json").read_text()))
def test_golden_hits_and_false_alarms(golden: dict[str, Any]) -> None:
    predicted, members = (np.isin(np.arange(golden["n_heads"]), golden[k]) for k in ("predicted", "members"))
    found = set_overlap(predicted, members)
    counts = (found.hits, found.false_alarms, found.misses, found.correct_rejections)
    assert counts == tuple(golden[name] for name in ("tp", "fp", "fn", "tn"))
    for name in ("hit_rate", "false_alarm_rate", "precision", "jaccard", "size_ratio"):
        assert getattr(found, name) == pytest.approx(golden[name], rel=1e-12)
    assert found.f1 == pytest.approx(2 / (1 / found.precision + 1 / found.hit_rate))


def test_rates_without_a_denominator_are_undefined() -> None:
    found = set_overlap(np.zeros(3, dtype=bool), np.zeros(3, dtype=bool))
    assert found.false_alarm_rate == 0
    assert math.isnan(found.hit_rate)
    assert found.to_dict()["precision"] is None

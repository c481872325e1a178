"""Effects of circuits on their own task against others: golden values, worked cases, invariances."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from assay.calibration.discriminant import discriminant_validity
from assay.calibration.planted import TaskEffects, task_effects
from assay.errors import InputError, ShapeError


GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "calibrations" / "discriminant.json").read_text()
)


def world(case: dict) -> TaskEffects:
    effects = {name: np.array(table) for name, table in case["patch_effects_by_test_task"].items()}
    n_heads = next(iter(effects.values())).shape[1]
    return TaskEffects(
        effects=effects,
        circuits={name: np.isin(np.arange(n_heads), case["circuits"][name]) for name in effects},
    )


@pytest.mark.parametrize("case", GOLDEN)
def test_effects_and_ratios_match_golden_values(case: dict) -> None:
    given = world(case)
    found = discriminant_validity(given.effects, given.circuits, n_boot=50)
    names = list(given.effects)
    matrix = [[case["effect_matrix"][a][b] for b in names] for a in names]
    np.testing.assert_allclose(found.details["matrix"], matrix, rtol=1e-9)
    assert found.values["mean_ratio_published"] == pytest.approx(case["matrix_value_mean_ratio"], rel=1e-9)
    for i, name in enumerate(names):
        part, expected = found.sub_results[name], case["ratios"][name]
        assert part.values["own_effect"] == pytest.approx(expected["diagonal"], rel=1e-9)
        assert part.values["off_mean"] == pytest.approx(expected["off_mean"], rel=1e-9)
        assert part.values["ratio_published"] == pytest.approx(expected["ratio_published"], rel=1e-9)
        assert part.values["ratio_mean_abs"] == pytest.approx(expected["ratio_mean_abs"], rel=1e-9)
        assert part.published == ("pass" if expected["ratio_published"] > 3 else "fail")
        baseline = case["random_baseline_exact"][name]
        np.testing.assert_allclose(found.details["random_mean"][:, i], baseline["mean"], rtol=1e-9)
        np.testing.assert_allclose(found.details["random_sd"][:, i], baseline["sd"], rtol=1e-9)


def test_the_random_baseline_is_that_of_all_subsets() -> None:
    given = task_effects(np.random.default_rng(0), own=0.3, other=0.1, n_tasks=2, k=2)
    found = discriminant_validity(given.effects, given.circuits, n_boot=20)
    effect = given.effects["task1"].mean(axis=0)
    every = [np.mean(effect[list(heads)]) for heads in itertools.combinations(range(len(effect)), 2)]
    assert found.details["random_mean"][0, 1] == pytest.approx(np.mean(every))
    assert found.details["random_sd"][0, 1] == pytest.approx(np.std(every))
    expected = (found.details["matrix"][0, 1] - np.mean(every)) / np.std(every)
    assert found.details["z"][0, 1] == pytest.approx(expected)


def test_differences_and_gaps_give_a_ratio_of_sums() -> None:
    given = task_effects(np.random.default_rng(1), own=0.3, other=0.1, n_tasks=2)
    gaps = {name: np.linspace(1, 3, 40) for name in given.effects}
    found = discriminant_validity(given.effects, given.circuits, gaps=gaps, n_boot=20)
    members = given.circuits["task0"]
    expected = given.effects["task1"][:, members].mean(axis=1).sum() / gaps["task1"].sum()
    assert found.details["matrix"][0, 1] == pytest.approx(expected)


def test_circuits_that_share_heads_are_told_and_judged_without_them() -> None:
    """Heads 0, 1 serve both tasks, 2 and 3 one each: alone, each has no effect on the other task."""
    effects = {
        "a": np.tile([0.4, 0.4, 0.4, 0.0, 0.0], (5, 1)),
        "b": np.tile([0.4, 0.4, 0.04, 0.4, 0.0], (5, 1)),
    }
    circuits = {"a": np.array([1, 1, 1, 0, 0], bool), "b": np.array([1, 1, 0, 1, 0], bool)}
    found = discriminant_validity(effects, circuits, n_boot=20)
    assert found.details["jaccard"][0, 1] == pytest.approx(0.5)
    assert found.details["shared_heads"] == [["a", "b"]]
    part = found.sub_results["a"]
    assert part.values["value"] == pytest.approx(1.2 / 0.84)
    assert part.values["ratio_without_shared"] == pytest.approx(10)
    assert (part.status, part.published, part.warnings) == ("fail", "fail", ("shared_heads",))


def test_identical_circuits_are_flagged() -> None:
    given = task_effects(np.random.default_rng(2), own=0.3, other=0.1, n_tasks=2)
    same = dict.fromkeys(given.circuits, given.circuits["task0"])
    found = discriminant_validity(given.effects, same, n_boot=20)
    assert "identical_circuits" in found.warnings
    assert found.sub_results["task0"].values["ratio_without_shared"] is None


def test_a_vanishing_effect_elsewhere_is_capped() -> None:
    given = task_effects(np.random.default_rng(3), own=0.3, other=0.0, n_tasks=2, noise=0.0)
    found = discriminant_validity(given.effects, given.circuits, n_boot=20)
    assert found.sub_results["task0"].values["value"] == 1000
    assert found.sub_results["task0"].warnings == ("ratio_capped",)
    assert (found.status, found.published) == ("pass", "pass")


def test_heads_without_any_effect_fail() -> None:
    """Dead heads: 0 over 0, in every resample too."""
    dead = {name: np.zeros((10, 4)) for name in ("a", "b")}
    found = discriminant_validity(dead, {"a": np.arange(4) < 2, "b": np.arange(4) > 1}, n_boot=20)
    assert (found.status, found.published, found.reason) == ("fail", "fail", "no_own_effect")
    assert found.sub_results["a"].values["value"] == 0.0


def test_a_circuit_without_effect_on_its_own_task_fails() -> None:
    given = task_effects(np.random.default_rng(4), own=-0.3, other=0.1)
    found = discriminant_validity(given.effects, given.circuits, n_boot=50)
    assert (found.status, found.published, found.reason) == ("fail", "fail", "no_own_effect")
    assert found.sub_results["task1"].reason == "no_own_effect"


def test_missing_prompts_and_heads_leave_the_comparison() -> None:
    given = task_effects(np.random.default_rng(5), own=0.3, other=0.05)
    holed = {name: of.copy() for name, of in given.effects.items()}
    holed["task0"][3, 0] = np.nan
    holed["task1"][:, 19] = np.nan
    found = discriminant_validity(holed, given.circuits, n_boot=20)
    assert set(found.warnings) == {"missing_heads", "prompts_dropped"}
    assert found.details["n_prompts"]["task0"] == 39
    kept = {name: np.delete(of, 19, axis=1) for name, of in given.effects.items()}
    kept["task0"] = np.delete(kept["task0"], 3, axis=0)
    smaller = {name: np.delete(of, 19) for name, of in given.circuits.items()}
    expected = discriminant_validity(kept, smaller, n_boot=20)
    np.testing.assert_allclose(found.details["matrix"], expected.details["matrix"], rtol=1e-12)


def test_an_empty_circuit_is_skipped_and_one_task_is_no_comparison() -> None:
    given = task_effects(np.random.default_rng(6), own=0.3, other=0.05, n_tasks=3)
    empty = np.zeros(16, bool)
    found = discriminant_validity(given.effects, {**given.circuits, "task2": empty}, n_boot=20)
    assert (found.details["tasks"], found.details["skipped"]) == (("task0", "task1"), ["task2"])
    assert "empty_circuit" in found.warnings
    only = {**dict.fromkeys(given.circuits, empty), "task0": given.circuits["task0"]}
    assert discriminant_validity(given.effects, only).reason == "not_applicable"


@pytest.mark.parametrize(("n", "reason"), [(0, "no_valid_prompt"), (2, "too_few")])
def test_too_few_prompts_are_no_verdict(n: int, reason: str) -> None:
    given = task_effects(np.random.default_rng(7), own=0.3, other=0.05)
    found = discriminant_validity({name: of[:n] for name, of in given.effects.items()}, given.circuits)
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


def test_relabelling_tasks_changes_nothing() -> None:
    given = task_effects(np.random.default_rng(8), own=0.3, other=0.09)
    first = discriminant_validity(given.effects, given.circuits, n_boot=50)
    renamed = discriminant_validity(
        {f"x{name}": of for name, of in given.effects.items()},
        {f"x{name}": of for name, of in given.circuits.items()},
        n_boot=50,
    )
    assert (first.status, first.values, first.interval) == (renamed.status, renamed.values, renamed.interval)


def test_scaling_all_effects_changes_no_ratio() -> None:
    given = task_effects(np.random.default_rng(9), own=0.3, other=0.09)
    first = discriminant_validity(given.effects, given.circuits, n_boot=50)
    scaled = discriminant_validity({n: 7 * of for n, of in given.effects.items()}, given.circuits, n_boot=50)
    assert scaled.values["value"] == pytest.approx(first.values["value"], rel=1e-12)
    assert scaled.interval is not None
    assert first.interval is not None
    assert scaled.interval.low == pytest.approx(first.interval.low, rel=1e-12)


def test_bad_input_is_named() -> None:
    given = task_effects(np.random.default_rng(9), own=0.3, other=0.09, n_tasks=2)
    with pytest.raises(InputError, match="circuits"):
        discriminant_validity(given.effects, {"task0": given.circuits["task0"]})
    with pytest.raises(ShapeError, match="same H"):
        discriminant_validity(given.effects, {name: of[:-1] for name, of in given.circuits.items()})
    json.dumps(discriminant_validity(given.effects, given.circuits, n_boot=20).to_dict())

"""Effects of circuits on their own task against others: golden values, worked cases, invariances."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from planted import TaskEffects, task_effects
from scipy import stats

from assay.analyses.calibration.discriminant import discriminant_validity
from assay.analyses.calibration.gate import gate_stream


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
    found = discriminant_validity(given.effects, given.circuits, own="task0", n_boot=50)
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
    found = discriminant_validity(given.effects, given.circuits, own="task0", n_boot=20)
    effect = given.effects["task1"].mean(axis=0)
    every = [np.mean(effect[list(heads)]) for heads in itertools.combinations(range(len(effect)), 2)]
    assert found.details["random_mean"][0, 1] == pytest.approx(np.mean(every))
    assert found.details["random_sd"][0, 1] == pytest.approx(np.std(every))
    expected = (found.details["matrix"][0, 1] - np.mean(every)) / np.std(every)
    assert found.details["z"][0, 1] == pytest.approx(expected)


def test_differences_and_gaps_give_a_ratio_of_sums() -> None:
    given = task_effects(np.random.default_rng(1), own=0.3, other=0.1, n_tasks=2)
    gaps = {name: np.linspace(1, 3, 40) for name in given.effects}
    found = discriminant_validity(given.effects, given.circuits, own="task0", gaps=gaps, n_boot=20)
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
    found = discriminant_validity(effects, circuits, own="a", n_boot=20)
    assert found.details["jaccard"][0, 1] == pytest.approx(0.5)
    assert found.details["shared_heads"] == [["a", "b"]]
    part = found.sub_results["a"]
    assert part.values["ratio"] == pytest.approx(1.2 / 0.84)
    assert part.values["value"] == pytest.approx(0.4 - 3 * 0.28)
    assert part.values["ratio_without_shared"] == pytest.approx(10)
    assert (part.status, part.published, part.warnings) == ("fail", "fail", ("shared_heads",))


def test_a_circuit_without_effect_on_its_own_task_fails() -> None:
    given = task_effects(np.random.default_rng(4), own=-0.3, other=0.1)
    found = discriminant_validity(given.effects, given.circuits, own="task0", n_boot=50)
    assert (found.status, found.published, found.reason) == ("fail", "fail", "no_own_effect")
    assert found.sub_results["task1"].reason == "no_own_effect"


def test_the_value_by_hand_and_both_signs_of_the_others() -> None:
    """E = 0.9; the others have 0.2 and -0.6, so m = -0.2 and E - 3 |m| = 0.3."""
    flat = {"own": 0.9, "one": 0.2, "two": -0.6}
    effects = {name: np.tile([value, 0.0], (5, 1)) for name, value in flat.items()}
    circuits = dict.fromkeys(flat, np.array([True, False]))
    found = discriminant_validity(effects, circuits, own="own", n_boot=20)
    assert found.values["value"] == pytest.approx(0.3)
    assert found.values["ratio"] == pytest.approx(4.5)
    assert (found.status, found.sub_results["one"].status) == ("pass", "fail")
    assert (found.interval.low, found.interval.high) == (pytest.approx(0.3), pytest.approx(0.3))


def test_another_tasks_circuit_does_not_fail_the_judged_one() -> None:
    """Task 1 has a circuit that serves all tasks alike: the mean ratio falls, the verdict on task 0 stays."""
    given = task_effects(np.random.default_rng(10), own=0.3, other=0.05, n_tasks=2)
    circuits = {**given.circuits, "task1": ~given.circuits["task1"]}
    for own, status in (("task0", "pass"), ("task1", "fail")):
        found = discriminant_validity(given.effects, circuits, own=own)
        assert (found.status, found.details["own"]) == (status, own)
        assert found.sub_results[own].status == status
    first, second = (discriminant_validity(given.effects, circuits, own=own) for own in circuits)
    assert first.values["mean_ratio_published"] == second.values["mean_ratio_published"]


def literal_bounds(
    effects: dict[str, np.ndarray], members: np.ndarray, own: str, seed: int, n_boot: int
) -> tuple[float, float]:
    """Ends of E - 3 |m|, one resample after the other."""
    rng = gate_stream("C17", seed=seed)
    draws = {name: rng.integers(0, len(of), (n_boot, len(of))) for name, of in effects.items()}
    others = len(effects) - 1
    ends: dict[str, list[float]] = {"low": [], "high": []}
    for sign in (-1, 1):
        weight = {name: 1.0 if name == own else sign * 3 / others for name in effects}

        def combined(rows: dict[str, np.ndarray], weight: dict[str, float] = weight) -> tuple[float, float]:
            means = {name: effects[name][at][:, members].mean(axis=1) for name, at in rows.items()}
            value = sum(weight[name] * x.mean() for name, x in means.items())
            return value, sum(weight[name] ** 2 * x.var(ddof=1) / len(x) for name, x in means.items()) ** 0.5

        point, error = combined({name: np.arange(len(of)) for name, of in effects.items()})
        t = []
        for at in range(n_boot):
            value, its = combined({name: draws[name][at] for name in effects})
            t.append((value - point) / its)
        parts = {
            name: weight[name] ** 2 * of[:, members].mean(axis=1).var(ddof=1) / len(of)
            for name, of in effects.items()
        }
        freedom = sum(parts.values()) ** 2 / sum(
            part**2 / (len(effects[name]) - 1) for name, part in parts.items()
        )
        for end, share in (("low", 0.95), ("high", 0.025)):
            above = np.quantile(t, share, method="higher" if share > 0.5 else "lower")
            student = stats.t.ppf(share, freedom)
            edge = max(above, student) if share > 0.5 else min(above, student)
            ends[end].append(point - edge * error)
    return min(ends["low"]), min(ends["high"])


def test_the_fast_bounds_equal_the_literal_ones() -> None:
    given = task_effects(np.random.default_rng(11), own=0.3, other=0.08, n_tasks=3)
    tables = {name: of[: 40 + 5 * at] for at, (name, of) in enumerate(given.effects.items())}
    found = discriminant_validity(tables, given.circuits, own="task1", n_boot=199, seed=3)
    expected = literal_bounds(tables, given.circuits["task1"], "task1", 3, 199)
    assert (found.interval.low, found.interval.high) == pytest.approx(expected, rel=1e-9)

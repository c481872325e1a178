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
from assay.core.errors import InputError, ShapeError, UnknownNameError


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


def test_identical_circuits_are_flagged() -> None:
    given = task_effects(np.random.default_rng(2), own=0.3, other=0.1, n_tasks=2)
    same = dict.fromkeys(given.circuits, given.circuits["task0"])
    found = discriminant_validity(given.effects, same, own="task0", n_boot=20)
    assert "identical_circuits" in found.warnings
    assert found.sub_results["task0"].values["ratio_without_shared"] is None


def test_a_vanishing_effect_elsewhere_is_capped() -> None:
    given = task_effects(np.random.default_rng(3), own=0.3, other=0.0, n_tasks=2, noise=0.0)
    found = discriminant_validity(given.effects, given.circuits, own="task0", n_boot=20)
    assert found.sub_results["task0"].values["ratio"] == 1000
    assert found.sub_results["task0"].warnings == ("ratio_capped",)
    assert (found.status, found.published) == ("pass", "pass")


def test_heads_without_any_effect_fail() -> None:
    """Dead heads: 0 over 0, in every resample too."""
    dead = {name: np.zeros((10, 4)) for name in ("a", "b")}
    found = discriminant_validity(dead, {"a": np.arange(4) < 2, "b": np.arange(4) > 1}, own="a", n_boot=20)
    assert (found.status, found.published, found.reason) == ("fail", "fail", "no_own_effect")
    assert found.sub_results["a"].values["value"] == found.sub_results["a"].values["ratio"] == 0.0


def test_a_circuit_without_effect_on_its_own_task_fails() -> None:
    given = task_effects(np.random.default_rng(4), own=-0.3, other=0.1)
    found = discriminant_validity(given.effects, given.circuits, own="task0", n_boot=50)
    assert (found.status, found.published, found.reason) == ("fail", "fail", "no_own_effect")
    assert found.sub_results["task1"].reason == "no_own_effect"


def test_missing_prompts_and_heads_leave_the_comparison() -> None:
    given = task_effects(np.random.default_rng(5), own=0.3, other=0.05)
    holed = {name: of.copy() for name, of in given.effects.items()}
    holed["task0"][3, 0] = np.nan
    holed["task1"][:, 19] = np.nan
    found = discriminant_validity(holed, given.circuits, own="task0", n_boot=20)
    assert set(found.warnings) == {"missing_heads", "prompts_dropped"}
    assert found.details["n_prompts"]["task0"] == 39
    kept = {name: np.delete(of, 19, axis=1) for name, of in given.effects.items()}
    kept["task0"] = np.delete(kept["task0"], 3, axis=0)
    smaller = {name: np.delete(of, 19) for name, of in given.circuits.items()}
    expected = discriminant_validity(kept, smaller, own="task0", n_boot=20)
    np.testing.assert_allclose(found.details["matrix"], expected.details["matrix"], rtol=1e-12)


def test_an_empty_circuit_is_skipped_and_one_task_is_no_comparison() -> None:
    given = task_effects(np.random.default_rng(6), own=0.3, other=0.05, n_tasks=3)
    empty = np.zeros(16, bool)
    found = discriminant_validity(given.effects, {**given.circuits, "task2": empty}, own="task0", n_boot=20)
    assert (found.details["tasks"], found.details["skipped"]) == (("task0", "task1"), ["task2"])
    assert "empty_circuit" in found.warnings
    only = {**dict.fromkeys(given.circuits, empty), "task0": given.circuits["task0"]}
    assert discriminant_validity(given.effects, only).reason == "not_applicable"


@pytest.mark.parametrize(("n", "reason"), [(0, "no_valid_prompt"), (2, "too_few")])
def test_too_few_prompts_are_no_verdict(n: int, reason: str) -> None:
    given = task_effects(np.random.default_rng(7), own=0.3, other=0.05)
    found = discriminant_validity(
        {name: of[:n] for name, of in given.effects.items()}, given.circuits, own="task0"
    )
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


def test_relabelling_tasks_changes_nothing() -> None:
    given = task_effects(np.random.default_rng(8), own=0.3, other=0.09)
    first = discriminant_validity(given.effects, given.circuits, own="task0", n_boot=50)
    renamed = discriminant_validity(
        {f"x{name}": of for name, of in given.effects.items()},
        {f"x{name}": of for name, of in given.circuits.items()},
        own="xtask0",
        n_boot=50,
    )
    assert (first.status, first.values, first.interval) == (renamed.status, renamed.values, renamed.interval)


def test_scaling_all_effects_scales_the_value_and_changes_no_verdict() -> None:
    given = task_effects(np.random.default_rng(9), own=0.3, other=0.09)
    first = discriminant_validity(given.effects, given.circuits, own="task0", n_boot=50)
    scaled = discriminant_validity(
        {n: 7 * of for n, of in given.effects.items()}, given.circuits, own="task0", n_boot=50
    )
    assert scaled.values["ratio"] == pytest.approx(first.values["ratio"], rel=1e-12)
    assert scaled.values["value"] == pytest.approx(7 * first.values["value"], rel=1e-12)  # type: ignore[operator]
    assert scaled.status == first.status
    assert scaled.interval is not None
    assert first.interval is not None
    assert scaled.interval.low == pytest.approx(7 * first.interval.low, rel=1e-9)


def test_bad_input_is_named() -> None:
    given = task_effects(np.random.default_rng(9), own=0.3, other=0.09, n_tasks=2)
    with pytest.raises(InputError, match="circuits"):
        discriminant_validity(given.effects, {"task0": given.circuits["task0"]})
    with pytest.raises(InputError, match=r"own= is missing; name the task .* one of \['task0', 'task1'\]"):
        discriminant_validity(given.effects, given.circuits)
    with pytest.raises(UnknownNameError, match="own task"):
        discriminant_validity(given.effects, given.circuits, own="task7")
    shorter = {name: of[:-1] for name, of in given.circuits.items()}
    with pytest.raises(ShapeError, match="same H"):
        discriminant_validity(given.effects, shorter, own="task0")
    json.dumps(discriminant_validity(given.effects, given.circuits, own="task0", n_boot=20).to_dict())


def test_the_value_by_hand_and_both_signs_of_the_others() -> None:
    """E = 0.9; the others have 0.2 and -0.6, so m = -0.2 and E - 3 |m| = 0.3."""
    flat = {"own": 0.9, "one": 0.2, "two": -0.6}
    effects = {name: np.tile([value, 0.0], (5, 1)) for name, value in flat.items()}
    circuits = dict.fromkeys(flat, np.array([True, False]))
    found = discriminant_validity(effects, circuits, own="own", n_boot=20)
    assert found.values["value"] == pytest.approx(0.3)
    assert found.values["ratio"] == pytest.approx(4.5)
    assert (found.status, found.sub_results["one"].status) == ("pass", "fail")
    assert found.interval is not None
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
    assert found.interval is not None
    expected = literal_bounds(tables, given.circuits["task1"], "task1", 3, 199)
    assert (found.interval.low, found.interval.high) == pytest.approx(expected, rel=1e-9)

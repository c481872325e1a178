"""What gates share at the limits of their input: reasons, flags, and refusals by the name of the argument."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from assay.analyses.calibration import (
    GATES,
    PooledResult,
    ablation_invariance,
    bootstrap_stability,
    certified_stability,
    convergent_validity,
    cronbach_items,
    derived_metrics,
    discriminant_validity,
    distributional_characterization,
    distributional_stability,
    incremental_validity,
    inter_rater,
    measurement_invariance,
    method_invariance,
    reliability_suite,
    seed_variance,
    split_half,
)
from assay.analyses.calibration.gate import gate_stream
from assay.analyses.calibration.reliability import retest
from assay.analyses.calibration.samples import sample
from assay.core.errors import ShapeError
from assay.core.measurement import Verdict
from assay.core.random import stream


P, H = 60, 12
MEMBERS = np.arange(H) < 4
NONE, ALL = np.zeros(H, dtype=bool), np.ones(H, dtype=bool)


def drawn(name: str, *shape: int) -> np.ndarray:
    return stream(0, f"limits/{name}").normal(size=shape)


FULL = 3 + 0.5 * drawn("full", P)
KEPT = 0.9 * FULL + 0.2 * drawn("kept", P)
# Of dropping each head: members matter, and prompts differ in how much.
EFFECTS = np.where(MEMBERS, 0.5, 0.02) + np.abs(drawn("strength", P, 1)) * 0.3 * MEMBERS
EFFECTS = EFFECTS + 0.1 * drawn("effects", P, H)
OTHER = np.roll(MEMBERS, 5)


def methods(table: np.ndarray) -> dict[str, np.ndarray]:
    noise = {name: np.resize(0.05 * drawn(name, P, H), table.shape) for name in ("C2", "C5", "drop")}
    return {name: table + each for name, each in noise.items()}


def mean(table: np.ndarray) -> np.ndarray:
    return np.asarray(table.mean(axis=0)) if len(table) else np.full(H, np.nan)


def two_tasks(table: np.ndarray) -> dict[str, np.ndarray]:
    return {"a": table, "b": np.roll(table, 5, axis=1)}


# Gates on margins of the full model and of the circuit, and on a table of heads with the circuit's flags.
ON_MARGINS: Mapping[str, Callable[..., Verdict]] = {
    "C11": bootstrap_stability,
    "C30": lambda full, kept, **more: seed_variance(full, kept, n_prompts=max(1, len(full) // 3), **more),
    "C13": lambda full, kept, **more: measurement_invariance(full, kept, np.arange(len(full)) % 3, **more),
    "M98": lambda full, kept, **more: ablation_invariance(
        full, dict.fromkeys(("zero", "mean", "resample-donor"), kept), **more
    ),
    "E1b": lambda full, kept, **more: method_invariance(
        full, dict.fromkeys(("zero", "mean", "noise-additive"), kept), **more
    ),
    "C16": lambda full, kept: reliability_suite(full, kept, EFFECTS[: len(full)], MEMBERS),
    "C36": lambda full, kept, **more: incremental_validity(full, kept, 0.5 * kept, members=MEMBERS, **more),
}
SIZED = ("C11", "C30", "C13", "M98", "E1b")
ON_HEADS: Mapping[str, Callable[..., Verdict]] = {
    "C12": lambda table, members, **more: convergent_validity(methods(table), members=members, **more),
    "F59": lambda table, members, **more: inter_rater(methods(table), members=members, **more),
    "C14": lambda table, members: derived_metrics(
        members, table.mean(axis=0) if len(table) else np.full(H, np.nan)
    ),
    "C16": lambda table, members: reliability_suite(FULL[: len(table)], KEPT[: len(table)], table, members),
    "C17": lambda table, members: discriminant_validity(
        two_tasks(table), {"a": members, "b": OTHER}, own="a", n_boot=50
    ),
    "S1": distributional_characterization,
    "S3": lambda table, members, **more: distributional_stability(table[:, members], **more),
    "M3b": lambda table, members, **more: certified_stability(table[:, members], **more),
    "halves": lambda table, members, **more: split_half(table, **more),
    "alpha": lambda table, members, **more: cronbach_items(table[:, members], **more),
}


@pytest.mark.parametrize("code", ON_MARGINS)
@pytest.mark.parametrize(("n", "reason"), [(0, "no_valid_prompt"), (1, "too_few"), (2, "too_few")])
def test_below_three_prompts_margins_say_nothing(code: str, n: int, reason: str) -> None:
    found = ON_MARGINS[code](FULL[:n], KEPT[:n])
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


@pytest.mark.parametrize(
    ("judge", "given", "smallest"),
    [
        (bootstrap_stability, (FULL, KEPT), 40),
        (seed_variance, (FULL, KEPT), 100),
        (retest, (FULL, KEPT), 100),
        (certified_stability, (3 + EFFECTS[:, MEMBERS],), 20),
        (distributional_stability, (3 + EFFECTS[:, MEMBERS],), 40),
    ],
)
def test_below_its_smallest_n_a_verdict_stays_open_and_names_it(
    judge: Callable[..., Verdict], given: tuple[np.ndarray, ...], smallest: int
) -> None:
    enough = [np.resize(each, (smallest, *each.shape[1:])) for each in given]
    found = judge(*(each[1:] for each in enough))
    assert (found.status, found.reason, found.n_needed) == ("inconclusive", "too_few", smallest)
    assert judge(*enough).status == "pass"


@pytest.mark.parametrize("code", SIZED)
def test_empty_and_whole_circuits_are_measured_and_flagged(code: str) -> None:
    empty = ON_MARGINS[code](FULL, 0.1 * KEPT, circuit_size=0, n_heads=H)
    assert empty.published != "inconclusive"
    assert "empty_circuit" in empty.warnings
    assert (empty.reason == "near_zero") == (code in ("M98", "E1b"))
    whole = ON_MARGINS[code](FULL, FULL, circuit_size=H, n_heads=H)
    assert (whole.status, whole.published, whole.reason) == ("pass", "pass", None)
    assert "trivial_circuit" in whole.warnings


@pytest.mark.parametrize("code", SIZED)
def test_identical_prompts_and_missing_ones_are_flagged(code: str) -> None:
    alike = ON_MARGINS[code](np.full(P, 3.1), np.full(P, 2.3))
    assert (alike.status, alike.published) == ("pass", "pass")
    assert "zero_variance" in alike.warnings
    for broken in (0, 1):
        runs = [FULL.copy(), KEPT.copy()]
        runs[broken][7] = np.nan
        found = ON_MARGINS[code](*runs)
        assert "prompts_dropped" in found.warnings
        assert (found.details["n_dropped"], found.details["n_prompts"]) == (1, P - 1)


@pytest.mark.parametrize("code", [*SIZED, "C36"])
def test_a_margin_that_is_barely_one_or_none_is_flagged(code: str) -> None:
    """Mean 0.1 with deviation 1: less than three standard errors of 60 prompts above 0."""
    full = np.tile([1.1, -0.9], P // 2)
    assert "unstable_denominator" in ON_MARGINS[code](full, full + 0.1 * drawn("kept", P)).warnings
    assert "unstable_denominator" not in ON_MARGINS[code](full + 1, full + 0.1 * drawn("kept", P)).warnings
    if code in ("C11", "C36"):
        found = ON_MARGINS[code](full - 0.05, drawn("kept", P))
        assert (found.status, found.reason) == ("inconclusive", "unbounded")
    assert ON_MARGINS[code](full - 0.1, drawn("kept", P)).reason == "zero_denominator"


@pytest.mark.parametrize(
    "code", ["C11", "C13", "C36", "M98", "C12", "F59", "S1", "S3", "M3b", "halves", "alpha"]
)
def test_prompts_of_one_unit_count_once(code: str) -> None:
    """Every prompt four times over: the numbers and bounds are those of the sixty prompts."""
    unit, heads = np.tile(np.arange(P), 4), code in ON_HEADS
    judge = ON_HEADS[code] if heads else ON_MARGINS[code]
    given = (EFFECTS, MEMBERS) if heads else (FULL, KEPT)
    again = (np.tile(EFFECTS, (4, 1)), MEMBERS) if heads else (np.tile(FULL, 4), np.tile(KEPT, 4))
    plain, repeated = judge(*given), judge(*again, unit_id=unit)
    assert (repeated.status, repeated.n_needed) == (plain.status, plain.n_needed)
    for name, value in plain.values.items():
        if value is not None and not name.endswith(
            ("mean_variance", "mean_of_abs")
        ):  # these are over prompts
            assert repeated.values[name] == pytest.approx(value, rel=1e-9), name
    if plain.interval is not None and repeated.interval is not None:
        ends = [[each.interval.low, each.interval.high] for each in (plain, repeated)]
        assert ends[1] == pytest.approx(ends[0], rel=1e-9)
        assert judge(*again).interval != plain.interval or code == "M98"  # whose runs are alike here


# Prompts and members of a table of heads -> the reason of each gate; None where it has an answer.
REASONS: list[tuple[str, int, np.ndarray, dict[str, str | None]]] = [
    (
        "no prompt",
        0,
        MEMBERS,
        dict.fromkeys(("C12", "F59", "C14", "C16", "C17", "S1", "S3", "M3b"), "no_valid_prompt"),
    ),
    ("two prompts", 2, MEMBERS, dict.fromkeys(("C12", "F59", "C16", "C17", "S1", "S3", "M3b"), "too_few")),
    (
        "no member",
        P,
        NONE,
        {"C12": None, "C17": "not_applicable", "S1": "no_members", "S3": "no_heads", "M3b": "not_applicable"},
    ),
    ("all members", P, ALL, {"C12": None, "F59": None, "S1": "no_others", "M3b": None}),
]


@pytest.mark.parametrize(
    ("code", "n", "members", "reason"),
    [(code, n, members, why) for _, n, members, reasons in REASONS for code, why in reasons.items()],
    ids=[f"{name}: {code}" for name, _, _, reasons in REASONS for code in reasons],
)
def test_tables_of_heads_at_their_limits_have_a_reason(
    code: str, n: int, members: np.ndarray, reason: str | None
) -> None:
    found = ON_HEADS[code](EFFECTS[:n], members)
    assert found.reason == reason
    if reason is not None:
        assert found.status == "inconclusive"


@pytest.mark.parametrize("code", ["C12", "F59", "C17", "S1", "S3", "M3b"])
def test_a_prompt_without_a_score_is_as_if_it_had_not_been_there(code: str) -> None:
    table = EFFECTS.copy()
    table[P - 1, 2] = np.nan
    found = ON_HEADS[code](table, MEMBERS)
    assert "prompts_dropped" in found.warnings
    if code != "C17":  # whose other task keeps its prompt
        assert found.details["n_dropped"] == 1
        assert found.values == ON_HEADS[code](EFFECTS[: P - 1], MEMBERS).values


@pytest.mark.parametrize("code", ["C12", "C14", "S1", "S3", "halves"])
def test_a_head_without_a_score_is_left_out(code: str) -> None:
    table = EFFECTS.copy()
    table[:, 1] = np.nan
    found = ON_HEADS[code](table, MEMBERS)
    assert {"missing_heads", "head_dropped"} & set(found.warnings)
    if code in ("S1", "S3"):
        left = np.arange(H) != 1
        expected = distributional_characterization(EFFECTS[:, left], MEMBERS[left])
        if code == "S3":
            expected = distributional_stability(EFFECTS[:, MEMBERS & left])
        assert found.values == expected.values
    if code == "halves":
        assert found.values == pytest.approx(split_half(np.delete(EFFECTS, 1, axis=1)).values, rel=1e-12)


def test_identical_prompts_decide_by_size_and_sign() -> None:
    """A ratio without error; spreads of a mean (0) and of a variance (undefined: not stable)."""
    alike = np.repeat(EFFECTS[:1], P, axis=0)
    standing = distributional_characterization(alike, MEMBERS)
    assert (standing.status, standing.published) == ("pass", "pass")
    assert "zero_variance" in standing.warnings
    stable = distributional_stability(alike[:, MEMBERS])
    assert (stable.status, stable.reason, stable.values["share_passing"]) == (
        "inconclusive",
        "zero_variance",
        0,
    )
    certified = certified_stability(np.repeat([[0.3, -0.3, 0.0, 0.7]], P, axis=0))
    assert certified.details["labels"].tolist() == ["certified", "unstable", "unstable", "certified"]
    assert (certified.status, certified.values["share_certified"]) == ("pass", 0.5)
    for kept, verdict in ((2.3, "pass"), (1.1, "fail")):
        found = incremental_validity(np.full(P, 3.1), np.full(P, kept), np.full(P, 1.7), members=MEMBERS)
        assert (found.status, found.published) == (verdict, verdict)
    suite = reliability_suite(np.full(P, 3.1), np.full(P, 2.3), alike, MEMBERS)
    assert {part.reason for part in suite.sub_results.values()} == {suite.reason} == {"zero_variance"}


# ---- what gates share -------------------------------------------------------------------------------


def test_a_prompt_that_is_not_finite_in_one_run_is_dropped_from_all() -> None:
    left = np.array([1.0, np.nan, 3.0, 4.0])
    right = np.array([[1.0, 2.0], [3.0, 4.0], [np.inf, 1.0], [5.0, 6.0]])
    found = sample(y_full=left, y_keep=right)
    np.testing.assert_array_equal(found.vectors[0], [1, 4])
    np.testing.assert_array_equal(found.vectors[1], [[1, 2], [5, 6]])
    assert (found.n, found.n_dropped) == (2, 2)


def test_streams_depend_on_gate_task_and_seed_alone() -> None:
    first = gate_stream("C11", "ioi").integers(0, 100, 5)
    np.testing.assert_array_equal(first, gate_stream("C11", "ioi").integers(0, 100, 5))
    for other in (gate_stream("C13", "ioi"), gate_stream("C11", "sva"), gate_stream("C11", "ioi", seed=1)):
        assert (first != other.integers(0, 100, 5)).any()


def test_criteria_are_those_of_the_frameworks_table() -> None:
    table = "M1 C11 C16 C30 F59, C5 C12 C23 C36, M2 C13, M4 C14, M3 C17, S1 S1, S3 S3, M5 M93, Method M98"
    rows = [row.split() for row in f"{table}, E1b E1b, Head-level M3b".split(", ")]
    expected = {code: criterion for criterion, *codes in rows for code in codes}
    assert {each.code: each.criterion.split()[0] for each in GATES.values()} == expected


SHORT, FEWER, THREE = FULL[1:], MEMBERS[1:], np.arange(3)
SCORES, RUNS = {"a": EFFECTS[0], "b": EFFECTS[1]}, {"zero": KEPT, "mean": KEPT}
TWO, CIRCUITS = two_tasks(EFFECTS), {"a": MEMBERS, "b": OTHER}
WRONG: dict[str, Callable[[], Any]] = {
    "n_boot": lambda: bootstrap_stability(FULL, KEPT, n_boot=0),
    "inner": lambda: seed_variance(FULL, KEPT, inner="fidelity"),
    r"y_circuit .60,., y_full .59,": lambda: bootstrap_stability(SHORT, KEPT),
    "unit_id": lambda: bootstrap_stability(FULL, KEPT, unit_id=THREE),
    "groups": lambda: measurement_invariance(FULL, KEPT, THREE),
    "dependent": lambda: measurement_invariance(FULL, KEPT, np.arange(P) % 3, dependent="x"),
    "n_perm": lambda: convergent_validity(SCORES, n_perm=-1),
    r"a .60, 12., b .60, 11.": lambda: convergent_validity({"a": EFFECTS, "b": EFFECTS[:, 1:]}),
    "H as of the circuit": lambda: inter_rater(SCORES, members=FEWER),
    "llc_direction 'up'": lambda: convergent_validity(SCORES, llc_direction="up"),
    "signed": lambda: inter_rater(SCORES, signed=("c",)),
    r"columns have shapes ..11,.": lambda: derived_metrics(MEMBERS, EFFECTS[0, 1:]),
    r"columns have shapes ..60, 12.": lambda: derived_metrics(MEMBERS, EFFECTS),
    "the same H": lambda: discriminant_validity({"a": EFFECTS, "b": EFFECTS[:, 1:]}, CIRCUITS, own="a"),
    "sample_id": lambda: reliability_suite(FULL, KEPT, EFFECTS, MEMBERS, sample_id=THREE),
    "gaps": lambda: discriminant_validity(TWO, CIRCUITS, gaps={"a": FULL, "b": SHORT}, own="a"),
    "own= is missing": lambda: discriminant_validity(TWO, CIRCUITS),
    "own task 'c'": lambda: discriminant_validity(TWO, CIRCUITS, own="c"),
    "composition needs n_heads": lambda: derived_metrics(
        MEMBERS, composition={"v": np.ones((H, H))}, head_edges=((0, 0, 1, 0),)
    ),
    "n_draws": lambda: certified_stability(EFFECTS, n_draws=0),
    "y_baseline": lambda: incremental_validity(FULL, KEPT, SHORT),
    "others of random": lambda: incremental_validity(FULL, KEPT, KEPT, others={"random": SHORT}),
    "n_heads": lambda: distributional_characterization(EFFECTS, MEMBERS, n_heads=5),
    r"a table of heads has shape .60,.": lambda: distributional_stability(EFFECTS[:, 0]),
    r"x: p is 1.5": lambda: PooledResult(name="x", p=1.5, p_kind="t"),
    "p_kind": lambda: PooledResult(name="x", p=0.5, p_kind="guess"),
    "n_halves": lambda: split_half(EFFECTS, n_halves=0),
    "y_circuit of mean": lambda: ablation_invariance(FULL, {"zero": KEPT, "mean": SHORT}),
    "fraction": lambda: certified_stability(EFFECTS, fraction=0.0),
    "smallest": lambda: certified_stability(EFFECTS, smallest=-1.0),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("named", list(WRONG))
def test_input_that_makes_no_sense_is_refused_by_the_name_of_the_argument(named: str) -> None:
    with pytest.raises((ValueError, ShapeError), match=named):
        WRONG[named]()

"""Every cell of the edge-case grid: what each gate says of circuits, samples and scores at their limits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from assay.analyses.calibration import (
    ablation_invariance,
    bootstrap_stability,
    certified_stability,
    convergent_validity,
    derived_metrics,
    discriminant_validity,
    distributional_characterization,
    distributional_stability,
    incremental_validity,
    inter_rater,
    measurement_invariance,
    method_invariance,
    reliability_suite,
    retest,
    seed_variance,
)
from assay.core.random import stream
from assay.core.verdict import Verdict


P, H, K = 60, 12, 4
MEMBERS = np.arange(H) < K
NONE, ALL = np.zeros(H, dtype=bool), np.ones(H, dtype=bool)
ABLATIONS = ("zero", "mean", "resample-donor")
NOISES = ("zero", "mean", "noise-additive")


def drawn(name: str, *shape: int) -> np.ndarray:
    return stream(0, f"edge grid/{name}").normal(size=shape)


def margins(n: int = P) -> np.ndarray:
    return 3 + 0.5 * drawn("full", n)


def kept(n: int = P) -> np.ndarray:
    return 0.9 * margins(n) + 0.2 * drawn("kept", n)


def effects(n: int = P) -> np.ndarray:
    """Of dropping each head: members matter, and prompts differ in how much."""
    return (
        np.where(MEMBERS, 0.5, 0.02)
        + np.abs(drawn("strength", n, 1)) * 0.3 * MEMBERS
        + 0.1 * drawn("effects", n, H)
    )


def methods(n: int = P) -> dict[str, np.ndarray]:
    return {name: effects(n) + 0.05 * drawn(name, n, H) for name in ("C2", "C5", "drop")}


def thirds(n: int = P) -> np.ndarray:
    return np.arange(n) % 3


# --------------------------------------------------------- the gates on margins: full model and circuit

Margins = Callable[..., Verdict]


def c11(full: np.ndarray, circuit: np.ndarray, **more: Any) -> Verdict:
    return bootstrap_stability(full, circuit, **more)


def c30(full: np.ndarray, circuit: np.ndarray, **more: Any) -> Verdict:
    return seed_variance(full, circuit, n_prompts=max(1, len(full) // 3), **more)


def c13(full: np.ndarray, circuit: np.ndarray, **more: Any) -> Verdict:
    return measurement_invariance(full, circuit, thirds(len(full)), **more)


def m98(full: np.ndarray, circuit: np.ndarray, **more: Any) -> Verdict:
    return ablation_invariance(full, dict.fromkeys(ABLATIONS, circuit), **more)


def e1b(full: np.ndarray, circuit: np.ndarray, **more: Any) -> Verdict:
    return method_invariance(full, dict.fromkeys(NOISES, circuit), **more)


ON_MARGINS = pytest.mark.parametrize("gate", [c11, c30, c13, m98, e1b], ids=lambda gate: gate.__name__)


@ON_MARGINS
def test_an_empty_circuit_is_measured_and_flagged(gate: Margins) -> None:
    found = gate(margins(), 0.1 * kept(), circuit_size=0, n_heads=H)
    assert found.reason in (None, "too_few", "near_zero")  # of these prompts, or of any such score
    assert (found.reason == "near_zero") == (gate in (m98, e1b))
    assert found.published != "inconclusive"
    assert "empty_circuit" in found.warnings


@ON_MARGINS
def test_all_heads_are_the_model_itself(gate: Margins) -> None:
    found = gate(margins(), margins(), circuit_size=H, n_heads=H)
    assert (found.status, found.published, found.reason) == ("pass", "pass", None)
    assert "trivial_circuit" in found.warnings
    assert found.values.get("faithfulness", 1.0) == 1.0


def test_the_spread_of_the_whole_model_is_nil() -> None:
    assert c11(margins(), margins()).values["sigma"] == 0.0
    assert c30(margins(), margins()).values["coefficient_of_variation"] == 0.0
    assert c13(margins(), margins()).values["eta_squared"] == 0.0
    assert m98(margins(), margins()).values["divergence"] == 0.0
    assert e1b(margins(), margins()).values["method_invariance"] == 1.0


@ON_MARGINS
@pytest.mark.parametrize(("n", "reason"), [(0, "no_valid_prompt"), (1, "too_few"), (2, "too_few")])
def test_below_three_prompts_margins_say_nothing(gate: Margins, n: int, reason: str) -> None:
    found = gate(margins(n), kept(n))
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


@ON_MARGINS
def test_identical_prompts_pass_with_a_flag(gate: Margins) -> None:
    found = gate(np.full(P, 3.1), np.full(P, 2.3))
    assert (found.status, found.published) == ("pass", "pass")
    assert "zero_variance" in found.warnings


@ON_MARGINS
@pytest.mark.parametrize("broken", ["full", "circuit"])
def test_a_prompt_without_a_number_leaves_every_run(gate: Margins, broken: str) -> None:
    runs = {"full": margins(), "circuit": kept()}
    runs[broken][7] = np.nan
    found = gate(runs["full"], runs["circuit"])
    assert "prompts_dropped" in found.warnings
    assert (found.details["n_dropped"], found.details["n_prompts"]) == (1, P - 1)


def test_the_dropped_prompt_is_as_if_it_had_not_been_there() -> None:
    full, circuit = margins(), kept()
    circuit[7] = np.inf
    left = np.arange(P) != 7
    with_it, without = c11(full, circuit), c11(full[left], circuit[left])
    assert with_it.values == without.values


@pytest.mark.parametrize("gate", [c11, c30, c13, m98, e1b, retest], ids=lambda gate: gate.__name__)
def test_a_margin_that_is_barely_one_is_flagged(gate: Margins) -> None:
    """Mean 0.1 with deviation 1: less than three standard errors of 60 prompts above 0."""
    full = np.tile([1.1, -0.9], P // 2)
    assert "unstable_denominator" in gate(full, full + 0.1 * drawn("kept", P)).warnings
    assert "unstable_denominator" not in gate(full + 1, full + 0.1 * drawn("kept", P)).warnings


def test_one_template_or_one_method_leaves_nothing_to_compare() -> None:
    one = measurement_invariance(margins(), kept(), np.zeros(P, dtype=int))
    assert (one.status, one.reason) == ("inconclusive", "not_applicable")
    for gate in (ablation_invariance, method_invariance):
        alone = gate(margins(), {"mean": kept()})
        assert (alone.status, alone.reason) == ("inconclusive", "not_applicable")


# --------------------------------------------------------------------- C12 and F59: rankings of all heads


AGREEMENT = pytest.mark.parametrize("gate", [convergent_validity, inter_rater], ids=["c12", "f59"])


@AGREEMENT
@pytest.mark.parametrize("members", [NONE, ALL], ids=["k = 0", "k = H"])
def test_rankings_do_not_ask_which_heads_are_members(
    gate: Callable[..., Verdict], members: np.ndarray
) -> None:
    found, usual = gate(methods(), members=members), gate(methods(), members=MEMBERS)
    for name in {"mean_rho", "w"} & set(usual.values):
        assert found.values[name] == usual.values[name]
    assert found.status == usual.status == "pass"


@pytest.mark.parametrize("members", [NONE, ALL], ids=["k = 0", "k = H"])
def test_kappa_needs_heads_on_both_sides(members: np.ndarray) -> None:
    found = inter_rater(methods(), members=members)
    assert found.sub_results["mean_kappa"].reason == "one_category"
    assert found.values["mean_kappa"] is None
    assert "kappa_undefined" in found.warnings


@AGREEMENT
def test_no_prompt_no_ranking(gate: Callable[..., Verdict]) -> None:
    assert gate(methods(0), members=MEMBERS).reason == "no_valid_prompt"


@AGREEMENT
@pytest.mark.parametrize("n", [1, 2])
def test_few_prompts_rank_the_heads_and_decide_nothing(gate: Callable[..., Verdict], n: int) -> None:
    found = gate(methods(n), members=MEMBERS)
    assert (found.status, found.reason, found.n_needed) == ("inconclusive", "too_few", 20)
    assert found.values["mean_rho"] is not None


@AGREEMENT
def test_rankings_of_identical_prompts_are_those_of_one(gate: Callable[..., Verdict]) -> None:
    alike = {name: np.repeat(table[:1], 5, axis=0) for name, table in methods().items()}
    found = gate(alike, members=MEMBERS)
    one = gate({name: table[0] for name, table in methods().items()}, members=MEMBERS)
    assert found.values["mean_rho"] == one.values["mean_rho"]


@AGREEMENT
def test_a_prompt_without_a_score_leaves_all_methods(gate: Callable[..., Verdict]) -> None:
    tables = methods()
    tables["C5"][3, 2] = np.nan
    found = gate(tables, members=MEMBERS)
    left = np.arange(P) != 3
    assert (
        found.values == gate({name: table[left] for name, table in methods().items()}, members=MEMBERS).values
    )
    assert "prompts_dropped" in found.warnings
    assert found.details["n_dropped"] == 1


@AGREEMENT
def test_a_head_that_one_method_lacks_leaves_all_methods(gate: Callable[..., Verdict]) -> None:
    tables = methods()
    tables["C5"][:, 9] = np.nan
    found = gate(tables, members=MEMBERS)
    left = np.arange(H) != 9
    others = {name: table[:, left] for name, table in methods().items()}
    assert found.values["mean_rho"] == gate(others, members=MEMBERS[left]).values["mean_rho"]
    assert "missing_heads" in found.warnings


@AGREEMENT
def test_one_method_has_nobody_to_agree_with(gate: Callable[..., Verdict]) -> None:
    assert gate({"C2": effects()}).reason == "not_applicable"


# ------------------------------------------------------------------------------------- C14: tables alone


def every_row(members: np.ndarray, scores: np.ndarray | None = None) -> Verdict:
    column = effects().mean(axis=0) if scores is None else scores
    return derived_metrics(
        members,
        column,
        llc=-column,
        attribution=np.abs(column),
        predicted=MEMBERS,
        published_members=MEMBERS,
        spectral_norm=np.abs(column),
        sv_entropy=np.abs(column),
        pc_ratio=column,
    )


SIDES = (
    "spectral_norm_ratio",
    "sv_entropy_ratio",
    "d_prime",
    "llc_d_prime",
    "pc_ratio_d_prime",
    "attribution_auroc",
)


def test_of_an_empty_circuit_only_the_sparsity_is_known() -> None:
    found = every_row(NONE)
    assert found.sub_results["sparsity"].values["value"] == 0.0
    for row in (*SIDES, "pc_ratio_circuit_mean", "hit_rate", "false_alarm_rate", "node_overlap_jaccard"):
        assert found.sub_results[row].status == "inconclusive", row
        assert found.sub_results[row].published == "inconclusive", row
        assert found.sub_results[row].values["value"] is None, row
    assert (found.status, found.published) == ("inconclusive", "inconclusive")
    assert found.reason is not None


def test_with_all_heads_there_is_nothing_to_tell_them_from() -> None:
    found = every_row(ALL)
    assert found.sub_results["sparsity"].values["value"] == 1.0
    for row in (*SIDES, "pc_ratio_noncircuit_mean", "false_alarm_rate"):
        assert found.sub_results[row].status == "inconclusive", row
        assert found.sub_results[row].values["value"] is None, row
    assert (found.status, found.published) == ("inconclusive", "inconclusive")
    assert found.reason is not None


def test_without_a_valid_prompt_no_head_has_a_score() -> None:
    found = derived_metrics(MEMBERS, np.full(H, np.nan))
    assert (found.status, found.published, found.reason) == (
        "inconclusive",
        "inconclusive",
        "no_valid_prompt",
    )


@pytest.mark.parametrize("n", [1, 2])
def test_separation_asks_for_heads_and_not_for_prompts(n: int) -> None:
    found = every_row(MEMBERS, effects(n).mean(axis=0))
    assert found.reason == "too_few_heads"
    assert found.sub_results["d_prime"].values["value"] is not None


def test_a_head_without_a_score_leaves_the_row() -> None:
    column = effects().mean(axis=0)
    column[9] = np.nan
    found = derived_metrics(MEMBERS, column)
    left = np.arange(H) != 9
    alone = derived_metrics(MEMBERS[left], column[left])
    assert found.sub_results["d_prime"].values == alone.sub_results["d_prime"].values
    assert "missing_heads" in found.warnings


# ---------------------------------------------------------------------------------------------------- C16


def test_an_empty_circuit_has_no_alpha() -> None:
    found = reliability_suite(margins(), kept(), effects(), NONE)
    assert found.sub_results["cronbach_alpha"].reason == "too_few"
    assert found.sub_results["test_retest"].values["relative_standard_error"] is not None
    assert found.sub_results["split_half"].reason is None
    assert "empty_circuit" in found.warnings


def test_all_heads_have_a_reliability() -> None:
    found = reliability_suite(margins(), margins(), effects(), ALL)
    for name in ("test_retest", "split_half", "cronbach_alpha"):
        assert found.sub_results[name].reason is None, name
    assert "trivial_circuit" in found.warnings


@pytest.mark.parametrize(("n", "reason"), [(0, "no_valid_prompt"), (1, "too_few"), (2, "too_few")])
def test_below_three_prompts_nothing_repeats(n: int, reason: str) -> None:
    found = reliability_suite(margins(n), kept(n), effects(n), MEMBERS)
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)
    assert {part.reason for part in found.sub_results.values()} == {reason}


def test_identical_prompts_have_no_variance_to_be_reliable_about() -> None:
    found = reliability_suite(np.full(P, 3.1), np.full(P, 2.3), np.repeat(effects()[:1], P, axis=0), MEMBERS)
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", "zero_variance")
    assert {part.reason for part in found.sub_results.values()} == {"zero_variance"}


def test_reliability_counts_a_prompt_without_a_number() -> None:
    full, table = margins(), effects()
    full[7], table[8, 1] = np.nan, np.nan
    parts = reliability_suite(full, kept(), table, MEMBERS).sub_results
    assert {name: part.details["n_dropped"] for name, part in parts.items()} == dict.fromkeys(parts, 1)


def test_reliability_leaves_out_a_head_without_a_score() -> None:
    table = effects()
    table[:, 1] = np.nan
    parts = reliability_suite(margins(), kept(), table, MEMBERS).sub_results
    for name, n in (("split_half", H - 1), ("cronbach_alpha", K - 1)):
        assert "head_dropped" in parts[name].warnings
        assert n in (parts[name].details.get("n_heads"), parts[name].details.get("n_items"))


# ---------------------------------------------------------------------------------------------------- C17


def two_tasks(n: int = P) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Two tasks with circuits of their own."""
    other = np.roll(MEMBERS, 5)
    tables = {
        "a": np.where(MEMBERS, 0.4, 0.02) + 0.05 * drawn("a", n, H),
        "b": np.where(other, 0.4, 0.02) + 0.05 * drawn("b", n, H),
    }
    return tables, {"a": MEMBERS, "b": other}


def test_a_task_without_a_circuit_is_skipped() -> None:
    tables, circuits = two_tasks()
    found = discriminant_validity({**tables, "c": drawn("c", P, H)}, {**circuits, "c": NONE}, own="a")
    assert found.details["skipped"] == ["c"]
    assert "empty_circuit" in found.warnings
    assert set(found.sub_results) == {"a", "b"}
    assert found.values["value"] == discriminant_validity(tables, circuits, own="a").values["value"]


def test_a_circuit_of_all_heads_has_effects_too() -> None:
    tables, circuits = two_tasks()
    found = discriminant_validity(tables, {**circuits, "b": ALL}, own="a")
    assert found.reason is None
    assert found.sub_results["b"].values["own_effect"] == pytest.approx(float(tables["b"].mean()))


@pytest.mark.parametrize(("n", "reason"), [(0, "no_valid_prompt"), (1, "too_few"), (2, "too_few")])
def test_below_three_prompts_no_effect_is_compared(n: int, reason: str) -> None:
    found = discriminant_validity(*two_tasks(n), own="a")
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


def test_effects_of_identical_prompts_are_compared() -> None:
    tables, circuits = two_tasks()
    alike = {name: np.repeat(table[:1], P, axis=0) for name, table in tables.items()}
    found = discriminant_validity(alike, circuits, own="a")
    assert found.reason is None
    assert found.published != "inconclusive"


def test_effects_count_a_prompt_without_a_number() -> None:
    tables, circuits = two_tasks()
    tables["a"][5, 0] = np.nan
    found = discriminant_validity(tables, circuits, own="a")
    assert "prompts_dropped" in found.warnings
    assert found.details["n_prompts"] == {"a": P - 1, "b": P}


def test_a_head_without_an_effect_on_one_task_leaves_all() -> None:
    tables, circuits = two_tasks()
    tables["a"][:, 2] = np.nan
    found = discriminant_validity(tables, circuits, own="a")
    left = np.arange(H) != 2
    alone = discriminant_validity(
        {name: table[:, left] for name, table in tables.items()},
        {name: members[left] for name, members in circuits.items()},
        own="a",
    )
    assert "missing_heads" in found.warnings
    assert found.values == alone.values


def test_one_task_cannot_be_told_from_others() -> None:
    tables, circuits = two_tasks()
    found = discriminant_validity({"a": tables["a"]}, {"a": circuits["a"]})
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", "not_applicable")


# ---------------------------------------------------------------------------------------------------- C36


@pytest.mark.parametrize(
    ("members", "reason"), [(NONE, "no_members"), (ALL, "no_others")], ids=["k = 0", "k = H"]
)
def test_no_other_set_has_the_size_of_nothing_or_all(members: np.ndarray, reason: str) -> None:
    found = incremental_validity(margins(), kept(), 0.5 * kept(), members=members)
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


@pytest.mark.parametrize(("n", "reason"), [(0, "no_valid_prompt"), (1, "too_few"), (2, "too_few")])
def test_below_three_prompts_no_set_is_better(n: int, reason: str) -> None:
    found = incremental_validity(margins(n), kept(n), 0.5 * kept(n), members=MEMBERS)
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


@pytest.mark.parametrize(("circuit", "verdict"), [(2.3, "pass"), (1.1, "fail")])
def test_identical_prompts_are_judged_by_the_sign(circuit: float, verdict: str) -> None:
    found = incremental_validity(np.full(P, 3.1), np.full(P, circuit), np.full(P, 1.7), members=MEMBERS)
    assert (found.status, found.published) == (verdict, verdict)
    assert "zero_variance" in found.warnings
    assert found.values["standard_error"] == pytest.approx(0.0, abs=1e-12)


def test_increments_count_a_prompt_without_a_number() -> None:
    base = 0.5 * kept()
    base[7] = np.nan
    found = incremental_validity(margins(), kept(), base, members=MEMBERS)
    assert "prompts_dropped" in found.warnings
    assert (found.details["n"], found.details["n_dropped"]) == (P - 1, 1)


# ---------------------------------------------------------------------------------------------- S1 and S3


@pytest.mark.parametrize(
    ("members", "reason"), [(NONE, "no_members"), (ALL, "no_others")], ids=["k = 0", "k = H"]
)
def test_standing_out_takes_heads_on_both_sides(members: np.ndarray, reason: str) -> None:
    found = distributional_characterization(effects(), members)
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


def test_no_heads_no_stability() -> None:
    found = distributional_stability(effects()[:, NONE])
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", "no_heads")


@pytest.mark.parametrize(("n", "reason"), [(0, "no_valid_prompt"), (1, "too_few"), (2, "too_few")])
def test_below_three_prompts_attributions_have_no_distribution(n: int, reason: str) -> None:
    for found in (
        distributional_characterization(effects(n), MEMBERS),
        distributional_stability(effects(n)[:, MEMBERS]),
    ):
        assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


def test_attributions_of_identical_prompts() -> None:
    """A ratio without error, and spreads of a mean (0) and of a variance (undefined: not stable)."""
    alike = np.repeat(effects()[:1], P, axis=0)
    standing = distributional_characterization(alike, MEMBERS)
    assert (standing.status, standing.published) == ("pass", "pass")
    assert "zero_variance" in standing.warnings
    stable = distributional_stability(alike[:, MEMBERS])
    assert (stable.status, stable.reason) == ("inconclusive", "zero_variance")
    assert (stable.details["cv_mean"] == 0).all()
    assert np.isnan(stable.details["cv_variance"]).all()
    assert stable.values["share_passing"] == 0.0


def test_distributions_count_a_prompt_without_a_number() -> None:
    table = effects()
    table[7, 1] = np.nan
    standing, stable = (
        distributional_characterization(table, MEMBERS),
        distributional_stability(table[:, MEMBERS]),
    )
    for found in (standing, stable):
        assert "prompts_dropped" in found.warnings
        assert found.details["n_dropped"] == 1


def test_distributions_leave_out_a_head_without_a_score() -> None:
    table = effects()
    table[:, 1] = np.nan
    left = np.arange(H) != 1
    standing = distributional_characterization(table, MEMBERS)
    assert (
        standing.values["value"]
        == distributional_characterization(table[:, left], MEMBERS[left]).values["value"]
    )
    assert "missing_heads" in standing.warnings
    stable = distributional_stability(table[:, MEMBERS])
    assert stable.values == distributional_stability(table[:, MEMBERS & left]).values
    assert "head_dropped" in stable.warnings


# ---------------------------------------------------------------------------------------------------- M3b


def test_no_heads_to_certify() -> None:
    found = certified_stability(effects()[:, NONE])
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", "not_applicable")


def test_all_heads_may_be_certified() -> None:
    found = certified_stability(effects())
    assert found.reason is None
    assert (found.details["labels"][MEMBERS] == "certified").all()


@pytest.mark.parametrize(
    ("n", "reason"), [(0, "no_valid_prompt"), (1, "too_few"), (2, "too_few"), (4, "too_few")]
)
def test_below_five_prompts_nothing_is_certified(n: int, reason: str) -> None:
    found = certified_stability(effects(n)[:, MEMBERS])
    assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


def test_identical_prompts_certify_by_the_sign() -> None:
    found = certified_stability(np.repeat([[0.3, -0.3, 0.0, 0.7]], P, axis=0))
    assert found.details["labels"].tolist() == ["certified", "unstable", "unstable", "certified"]
    assert "zero_variance" in found.warnings
    assert found.values["share_certified"] == 0.5
    assert found.status == "pass"


def test_certificates_count_a_prompt_without_a_number() -> None:
    table = effects()[:, MEMBERS]
    table[7, 1] = np.nan
    found = certified_stability(table)
    assert "prompts_dropped" in found.warnings
    assert found.details["n_dropped"] == 1


def test_a_head_without_an_effect_is_unstable() -> None:
    table = effects()[:, MEMBERS]
    table[:, 1] = np.nan
    found = certified_stability(table)
    assert "head_not_finite" in found.warnings
    assert found.details["labels"][1] == found.details["published_labels"][1] == "unstable"

"""Convergent validity and agreement of raters against golden values, worked cases and invariances."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from assay.analyses.calibration.agreement import convergent_validity, inter_rater
from assay.analyses.calibration.correlations import mean_correlation
from assay.stats import spearman


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"
CONVERGENT = json.loads((GOLDEN / "convergent.json").read_text())
CONCORDANCE = json.loads((GOLDEN / "kendall_w.json").read_text())
KAPPA = json.loads((GOLDEN / "cohen_kappa.json").read_text())
RNG = np.random.default_rng(5)


def table(case: dict) -> dict[str, np.ndarray]:
    heads = sorted({head for scores in case["scores"].values() for head in scores})
    return {name: np.array([of.get(head, np.nan) for head in heads]) for name, of in case["scores"].items()}


@pytest.mark.parametrize("case", CONVERGENT)
def test_convergent_validity_matches_golden_values(case: dict) -> None:
    found = convergent_validity(table(case), n_boot=50, n_perm=10)
    assert found.values["mean_rho"] == pytest.approx(case["mean_rho"], rel=1e-9)
    assert found.values["mean_rho_zero_filled"] == pytest.approx(case["mean_rho_zero_filled_union"], rel=1e-9)
    assert found.values["icc_2_1"] == pytest.approx(case["icc_zscored"]["icc2_1"], rel=1e-9)
    assert found.values["icc_2_k"] == pytest.approx(case["icc_zscored"]["icc2_k"], rel=1e-9)
    pairs = [pair["rho"] for pair in case["pairs"].values()]
    np.testing.assert_allclose(list(found.details["pairs"].values()), pairs, rtol=1e-9)
    assert found.details["n_heads_common"] == len(case["common_heads"])
    assert found.published == ("pass" if case["mean_rho_zero_filled_union"] > 0.5 else "fail")


def test_the_dissenting_pair_and_the_corrected_correlation_are_named() -> None:
    scores = {"a": np.arange(8.0), "b": np.arange(8.0), "c": -np.arange(8.0)}
    found = convergent_validity(scores, members=np.arange(8) < 2, n_boot=50, n_perm=20)
    assert found.details["pairs"] == {"a/b": 1.0, "a/c": -1.0, "b/c": -1.0}
    assert found.details["lowest_pair"] == ["a", "c"]
    assert found.details["jaccard"] == {"a/b": 1.0, "a/c": 0.0, "b/c": 0.0}
    assert found.details["p_values"]["a/b"] == pytest.approx(2 / 40320)  # exact: identity and reversal
    assert (found.status, found.published) == ("fail", "fail")


def test_rho_among_the_best_heads_sees_what_the_many_small_ones_hide() -> None:
    """Twenty heads in the same order below, four heads in opposite order on top."""
    a = np.concatenate([np.arange(20.0), [100, 101, 102, 103]])
    b = np.concatenate([np.arange(20.0), [103, 102, 101, 100]])
    found = convergent_validity({"a": a, "b": b}, members=np.arange(24) < 2, n_boot=50, n_perm=5)
    assert found.values["mean_rho"] > 0.98
    assert found.values["rho_top"] == -1.0


def test_signs_turn_round_and_count_only_where_asked() -> None:
    scores = {"C2": np.arange(10.0), "C10": -np.arange(10.0)}
    raw = convergent_validity(scores, n_boot=20, n_perm=5)
    turned = convergent_validity(scores, llc_direction="specialised", n_boot=20, n_perm=5)
    assert (raw.values["mean_rho"], turned.values["mean_rho"]) == (pytest.approx(-1), pytest.approx(1))
    assert "note" in raw.details
    assert "note" not in turned.details
    magnitudes = convergent_validity(scores, use="abs", n_boot=20, n_perm=5)
    assert magnitudes.values["mean_rho"] == pytest.approx(1)
    # Of raters, signs count only for those that keep them.
    raters = {"drop": np.array([-5.0, -3, 0.5, 2, 4]), "norm": np.array([5.0, 3, 0.5, 2, 4])}
    for signed, rho in (((), 1.0), (("drop",), -0.3)):
        found = inter_rater(raters, signed=signed, n_boot=20, n_perm=5)
        assert found.values["mean_rho"] == pytest.approx(rho)


def test_prompts_are_resampled_where_every_method_has_them() -> None:
    heads = np.arange(12.0)
    noisy = {name: heads + RNG.normal(size=(30, 12)) for name in ("a", "b")}
    found = convergent_validity(noisy, n_boot=50, n_perm=5)
    assert (found.details["resampled"], found.details["n"], found.status) == ("prompts", 30, "pass")
    clustered = convergent_validity(noisy, unit_id=np.arange(30) // 3, n_boot=50, n_perm=5)
    assert clustered.details["n"] == 10
    assert clustered.values["mean_rho"] == found.values["mean_rho"]
    mixed = convergent_validity({"a": noisy["a"], "b": heads}, n_boot=50, n_perm=5)
    assert mixed.details["resampled"] == "prompts"
    plain = convergent_validity({name: of.mean(axis=0) for name, of in noisy.items()}, n_boot=50, n_perm=5)
    assert (plain.details["resampled"], plain.details["n"], plain.n_needed) == ("heads", 12, None)
    few = convergent_validity({name: of[:2] for name, of in noisy.items()}, n_boot=50, n_perm=5)
    assert (few.status, few.reason, few.n_needed) == ("inconclusive", "too_few", 20)


@pytest.mark.parametrize("case", CONCORDANCE)
def test_kendalls_w_matches_golden_values(case: dict) -> None:
    scores = {str(i): np.array(row) for i, row in enumerate(case["scores"])}
    found = inter_rater(scores, signed=tuple(scores), n_boot=20, n_perm=20)
    if case["mode"] == "constant_rater":  # who does not count
        assert found.values["mean_rho"] == pytest.approx(case["pairwise_spearman"][2], rel=1e-9)
        assert found.details["n_raters"] == 2
        assert found.warnings[0] == "constant_method"
        return
    w = found.sub_results["kendalls_w"]
    assert w.values["w"] == pytest.approx(case["W_tie_corrected"], rel=1e-9, abs=1e-12)
    assert w.values["chance"] == 1 / len(scores)
    assert found.values["mean_rho"] == pytest.approx(case["mean_spearman"], rel=1e-9)
    if "friedman_p" in case:
        assert w.values["p_chi_square"] == pytest.approx(case["friedman_p"], rel=1e-9)
    assert w.published == ("pass" if case["W_tie_corrected"] > 0.5 else "fail")


@pytest.mark.parametrize(
    ("scores", "reasons"),
    [
        ({"a": np.arange(8.0)}, ("not_applicable", "not_applicable")),
        ({"a": np.arange(4.0), "b": np.arange(4.0)}, ("not_applicable", "undefined_replicates")),
        # Scores that differ by rounding do not tell heads apart.
        ({"a": np.arange(8.0), "b": np.resize([0.3, np.nextafter(0.3, 1)], 8)}, ("not_applicable",) * 2),
    ],
)
def test_too_little_to_compare_is_no_verdict(scores: dict, reasons: tuple[str, str | None]) -> None:
    for gate, reason in zip((convergent_validity, inter_rater), reasons, strict=True):
        found = gate(scores)
        assert (found.status, found.published, found.reason) == ("inconclusive", "inconclusive", reason)


@pytest.mark.parametrize("case", KAPPA)
def test_kappa_matches_golden_values(case: dict) -> None:
    scores = {str(i): np.array(row, dtype=float) for i, row in enumerate(case["scores"])}
    members = np.arange(case["n"]) < case["k"]
    found = inter_rater(scores, members=members, signed=tuple(scores), n_boot=20, n_perm=5)
    kappa = found.sub_results["mean_kappa"]
    if 0 < case["k"] < case["n"]:
        assert kappa.values["value"] == pytest.approx(case["mean_kappa"], rel=1e-9, abs=1e-12)
        pairs = list(case["pairwise_kappa"].values())
        np.testing.assert_allclose(list(found.details["kappa_pairs"].values()), pairs, rtol=1e-9, atol=1e-12)
    else:
        assert (kappa.reason, kappa.values["value"]) == ("one_category", None)
        assert found.published == "inconclusive"
        assert "kappa_undefined" in found.warnings
    assert found.values["w"] is not None


def test_w_and_kappa_pass_together_or_alone() -> None:
    """All three agree: both hold. Best heads swapped among ten others: W holds, kappa does not."""
    few = {"members": np.arange(40) < 5, "n_boot": 50, "n_perm": 20}
    alike = {name: np.arange(1.0, 41) for name in "abc"}
    assert inter_rater(alike, **few).published == "pass"
    swapped = dict(alike) | {"c": np.concatenate([np.arange(1.0, 31), np.arange(40.0, 30, -1)])}
    swapped["b"] = np.concatenate([np.arange(1.0, 31), np.roll(np.arange(31.0, 41), 5)])
    found = inter_rater(swapped, **few)
    assert (found.sub_results["kendalls_w"].published, found.published) == ("pass", "moderate")
    assert found.values["mean_kappa"] < 0.4
    opposed = {"a": np.arange(1.0, 41), "b": np.arange(40.0, 0, -1)}
    assert inter_rater(opposed, **few).published == "fail"


def test_bounds_over_heads_come_from_the_influence_of_each_head() -> None:
    """Three heads with z = (-1, 0, 1) root 1.5 twice: r = 1, and z_a z_b - r (z_a^2 + z_b^2) / 2 = 0."""
    mean, error = mean_correlation(np.array([[[1.0, 2, 3], [5.0, 6, 7]]]), False)
    assert (mean[0], error[0]) == (pytest.approx(1), pytest.approx(0, abs=1e-12))
    rows = RNG.normal(size=(3, 12))
    mean, error = mean_correlation(rows[None], False)
    z = (rows - rows.mean(axis=1, keepdims=True)) / rows.std(axis=1, keepdims=True)
    pairs = list(itertools.combinations(z, 2))
    literal = sum(a * b - (a * b).mean() * (a**2 + b**2) / 2 for a, b in pairs) / 3
    assert mean[0] == pytest.approx(np.mean([(a * b).mean() for a, b in pairs]))
    assert error[0] == pytest.approx(literal.std(ddof=1) / np.sqrt(12))


def test_a_reliability_is_the_stepped_up_correlation_of_halves() -> None:
    rng = np.random.default_rng(3)
    heads = np.arange(12.0)
    tables = {"a": heads + 6 * rng.normal(size=(40, 12)), "b": heads[::-1] + 6 * rng.normal(size=(40, 12))}
    found = convergent_validity({**tables, "c": heads}, n_boot=50, n_perm=5)
    reliabilities = found.details["reliabilities"]
    assert reliabilities["c"] == 1
    for name, table in tables.items():
        half = np.mean(
            [
                spearman(table[order[:20]].mean(axis=0), table[order[20:]].mean(axis=0))
                for order in (rng.permutation(40) for _ in range(300))
            ]
        )
        assert reliabilities[name] == pytest.approx(2 * half / (1 + half), abs=0.03)
    root = np.sqrt(reliabilities["a"] * reliabilities["b"])
    assert found.details["disattenuated"]["a/b"] == pytest.approx(found.details["pairs"]["a/b"] / root)


def test_methods_that_are_mostly_noise_leave_it_open() -> None:
    rng = np.random.default_rng(4)
    scores = {name: np.arange(12.0) / 12 + 9 * rng.normal(size=(30, 12)) for name in ("a", "b")}
    for gate in (convergent_validity, inter_rater):
        found = gate(scores, n_boot=50, n_perm=5)
        assert (found.status, found.reason, found.n_needed) == ("inconclusive", "unreliable_scores", None)


def test_errors_that_methods_share_do_not_pass_for_agreement() -> None:
    """Unrelated expectations, but every prompt moves both methods alike."""
    rng = np.random.default_rng(5)
    first, second = rng.normal(size=(2, 40))
    errors = 4 * rng.normal(size=(40, 40))
    found = convergent_validity({"a": first + errors, "b": second + errors}, n_boot=200, n_perm=5)
    expected = spearman(first, second)
    assert found.values["mean_rho"] > expected + 0.1
    assert found.interval.low < expected
    assert found.status != "pass"

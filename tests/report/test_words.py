import math
from typing import Any

import pytest
from synthetic import audit_of

from assay.page.text import estimate, interval, number, percent, precision
from assay.pipeline.audit_words import caveats, solved, strongest_heads, verdict


Document = dict[str, Any]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.923, "0.92"),
        (-0.5, "\N{MINUS SIGN}0.50"),
        (0.0034, "0.0034"),
        (0.0123, "0.01"),
        (3.2e-7, "3.2e\N{MINUS SIGN}07"),
        (1893, "1,893"),
        (12345.6, "12,346"),
        (0.0, "0.00"),
        (None, "n/a"),
        (math.nan, "n/a"),
        (math.inf, "n/a"),
    ],
)
def test_numbers_read_well(value: float | int | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.0787, "7.9"),
        (1.0, "100"),
        (0.5, "50"),
        (0.0004, "0.04"),
        (0.9999, "100"),
        (0.125, "12.5"),
        (0.0, "0"),
    ],
)
def test_shares_are_percentages(fraction: float, text: str) -> None:
    assert percent(fraction) == f"{text}\N{NARROW NO-BREAK SPACE}%"


def test_undefined_shares_and_intervals_are_named_or_empty() -> None:
    assert percent(None) == percent(math.nan) == "n/a"
    assert interval(None, 1.0) == interval(math.nan, 1.0) == ""
    assert interval(0.1, 0.2) == "[0.10, 0.20]"


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        (-0.3, -0.69, 0.01, ("−0.30", "[−0.69, 0.01]")),
        (0.0004, -0.001, 0.002, ("0.000", "[−0.001, 0.002]")),
        (0.005, 0.0012, 0.01, ("0.005", "[0.001, 0.010]")),
        (1200.4, 998.2, 1500.0, ("1,200", "[998, 1,500]")),
        (0.0, -0.0, 3e-4, ("0.0000", "[0.0000, 0.0003]")),
        (2e-7, 1e-7, 3e-7, ("2.0e−07", "[1.0e−07, 3.0e−07]")),
        (0.123, None, None, ("0.12", "")),
        (None, 0.1, 0.2, ("n/a", "[0.10, 0.20]")),
    ],
)
def test_a_number_and_its_interval_have_equal_decimals(
    value: float | None, low: float | None, high: float | None, shown: tuple[str, str]
) -> None:
    assert estimate(value, low, high) == shown


@pytest.mark.parametrize(
    ("low", "high", "digits"),
    [(0.1, 0.4, 2), (0.101, 0.103, 3), (0.5, 0.5, 2), (None, 1.0, 2), (0.0, 1e-9, 6)],
)
def test_narrow_intervals_get_more_decimals(low: float | None, high: float | None, digits: int) -> None:
    assert precision(low, high) == digits


def test_the_verdict_is_one_sentence_that_names_both_faithfulnesses(document: Document) -> None:
    document["circuit"] |= {"n_edges": 149, "fraction": 149 / 1893}
    document["graph"]["n_edges"] = 1893
    plain = next(each for each in document["measurements"] if each["id"] == "D02.faithfulness")
    plain["value"], plain["interval"] = 0.82, {"low": 0.79, "high": 0.85, "level": 0.95}
    assert verdict(audit_of(document)) == (
        "149 of 1,893 edges (7.9\N{NARROW NO-BREAK SPACE}%) reach a normalised faithfulness of 0.92 "
        "[0.90, 0.94] (0: empty circuit, 1: model) and a plain faithfulness of 0.82 [0.79, 0.85] (share of "
        "the model’s margin); random circuits of that size reach 0.03 normalised."
    )


@pytest.mark.parametrize("value", [0.9211, None])
def test_one_number_is_enough_where_the_faithfulnesses_agree_or_one_is_undefined(
    document: Document, value: float | None
) -> None:
    plain = next(each for each in document["measurements"] if each["id"] == "D02.faithfulness")
    document["circuit"]["faithfulness"]["value"] = 0.92
    plain["value"] = value
    assert "normalised faithfulness of 0.92" in verdict(audit_of(document))
    assert "plain" not in verdict(audit_of(document))


def test_a_verdict_without_random_circuits_claims_nothing_of_them(document: Document) -> None:
    document["random"] = None
    assert "random" not in verdict(audit_of(document))
    document["random"] = {"mean": 0.03, "n_circuits": 1}
    assert verdict(audit_of(document)).endswith("a random circuit of that size reaches 0.03 normalised.")


def test_the_whole_model_is_no_finding(document: Document) -> None:
    document["circuit"] |= {"n_edges": document["graph"]["n_edges"], "fraction": 1.0}
    assert verdict(audit_of(document)).startswith("No circuit smaller than the model reaches 0.90: ")


@pytest.mark.parametrize("code", ["task_not_solved", "unstable_denominator"])
def test_an_unsolved_task_has_no_faithful_circuit(document: Document, code: str) -> None:
    assert solved(audit_of(document))
    document["measurements"][0]["warnings"] = [code]
    assert not solved(audit_of(document))
    assert "does not solve ioi" in verdict(audit_of(document))
    assert "divides by the model’s gain over its corrupted run" in caveats(audit_of(document))[0]


def test_the_strongest_heads_are_those_of_the_circuit(document: Document) -> None:
    document["per_head"] = [[0.5, -2.0], [None, 1.25]]
    document["circuit"]["nodes"] = ["input", "a0.h1", "a1.h0", "a1.h1", "m1", "logits"]
    assert strongest_heads(audit_of(document)) == (
        "Strongest heads of the circuit, by summed outgoing attribution: "
        "a0.h1 (\N{MINUS SIGN}2.000) and a1.h1 (+1.250)."
    )
    document["circuit"]["nodes"] = ["input", "m1", "logits"]
    assert strongest_heads(audit_of(document)) == "The circuit contains no head."


def test_caveats_name_what_weakens_the_verdict(document: Document) -> None:
    assert caveats(audit_of(document)) == []
    document["circuit"]["faithfulness"] |= {"value": 0.88, "low": 0.85, "high": 0.91}
    assert caveats(audit_of(document))[0].endswith("is 0.88, with the target inside the interval.")
    document["circuit"]["faithfulness"] |= {"value": 0.7, "low": 0.6, "high": 0.8}
    assert caveats(audit_of(document))[0].endswith("is 0.70.")
    document["discovery"]["held_out"] = False
    document["method"]["completeness_gap"] = 0.2
    same, gap = caveats(audit_of(document))[1:]
    assert "the same prompts" in same
    assert "completeness gap of the attribution is 20" in gap
    document["method"]["routing"] = {"choices": 1200, "changed": 34}
    assert caveats(audit_of(document))[2].startswith("34 of 1,200 choices of experts")


def test_a_number_that_other_ablations_do_not_give_is_no_number_by_itself(document: Document) -> None:
    document["other_ablations"] = [
        {"value": value, "provenance": {"ablation": key}} for key, value in (("zero", -0.02), ("mean", 0.8))
    ]
    assert caveats(audit_of(document)) == [
        "Normalised faithfulness is 0.92 under resample ablation, but −0.02 under zero and 0.80 under "
        "mean: name the ablation with the number."
    ]
    document["other_ablations"][0]["value"] = 0.73  # 0.19 less
    assert caveats(audit_of(document)) == []

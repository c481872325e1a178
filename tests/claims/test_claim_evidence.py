"""Which evidence is present, and which tier that licenses."""

import itertools
import math

import pytest
from claim_text import CONTENT, changed

from assay.analyses.calibration import GATES
from assay.analyses.claims import TIERS, Claim, Evidence, Outcome, parse_claim
from assay.analyses.claims.evidence import (
    GATE_EVIDENCE,
    KINDS,
    NO_CONTRADICTION,
    REPLICATION,
    at_least,
    checklist,
    kind_of,
    licensed,
    state_of,
)
from assay.core.errors import UnknownNameError
from assay.core.verdict import Interval, Verdict


def line(kind: str, state: str, *, required: bool = True) -> Evidence:
    return Evidence(kind=kind, source="x", state=state, required=required, finding="")


def outcome(kind: str, of: int, state: str, **facts: object) -> Outcome:
    given = {"n": 20, "n_dropped": 0, "value": 0.5, "size": 0.3, "p": 0.01, "task": "ioi"} | facts
    bounds = Interval(low=0.4, high=0.6, level=0.9, method="fieller")
    return Outcome(kind=kind, name=f"{kind} {of}", of=of, interval=bounds, state=state, **given)


def all_held(claim: Claim) -> list[Outcome]:
    return [
        *(outcome("prediction", number, "held") for number in range(len(claim.predictions))),
        *(outcome("control", number, "held") for number in range(len(claim.controls))),
        *(outcome("rival", number, "held") for number in range(len(claim.rivals))),
    ]


PASSING = dict.fromkeys(GATE_EVIDENCE, Verdict(status="pass", published="pass"))
FRESH = line(REPLICATION, "present")


def full_claim() -> Claim:
    keeping = {"what": "keeping", "retains_at_least": 0.5}
    return parse_claim(changed("predicts", to=[*CONTENT["predicts"], keeping]))


def test_the_tiers_are_a_ladder() -> None:
    assert list(TIERS) == [
        "proposed",
        "causally suggestive",
        "mechanistically supported",
        "triangulated",
        "validated",
    ]
    for lower, higher in itertools.pairwise(TIERS.values()):
        assert set(lower) < set(higher)
    assert set(TIERS["validated"]) == {*KINDS, REPLICATION}


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_is_licensed_by_its_kinds_alone(tier: str) -> None:
    kinds = TIERS[tier]
    evidence = [line(kind, "present") for kind in kinds]
    found, lacking = licensed(evidence, contradicted=False, registered_before=True)
    assert found == tier
    order = list(TIERS)
    following = order[order.index(tier) + 1 :][:1]
    assert set(lacking) == {kind for each in following for kind in TIERS[each]} - set(kinds)
    for missing in kinds:
        fewer = [each for each in evidence if each.kind != missing]
        below, lacks = licensed(fewer, contradicted=False, registered_before=True)
        assert order.index(below) < order.index(tier)
        assert missing in lacks


def test_a_contradiction_or_a_late_registration_leaves_it_proposed() -> None:
    evidence = [line(kind, "present") for kind in TIERS["validated"]]
    tier, lacking = licensed(evidence, contradicted=True, registered_before=True)
    assert (tier, lacking) == ("proposed", (NO_CONTRADICTION,))
    tier, lacking = licensed(evidence, contradicted=False, registered_before=False)
    assert (tier, lacking) == ("proposed", ("registration",))


def test_the_state_of_a_kind() -> None:
    beside = line("necessity", "against", required=False)
    for states, expected in (
        (["present", "present"], "present"),
        (["present", "undecided"], "undecided"),
        (["undecided", "missing"], "missing"),
        (["missing", "against", "present"], "against"),
        ([], "missing"),
    ):
        assert state_of("necessity", [beside, *(line("necessity", state) for state in states)]) == expected


def test_kinds_of_predictions() -> None:
    claim = full_claim()
    assert [kind_of(each, claim.task) for each in claim.predictions] == [
        "necessity",
        "necessity",
        "consistency",
        "specificity",
        "sufficiency",
    ]
    more = [
        {"what": "keeping", "of": "movers", "retains_at_most": 0.5},
        {"what": "dropping", "of": "brakes", "changes_at_most": 0.1},
        {"what": "dropping", "of": "brakes", "raises_by_at_least": 0.1},
    ]
    predictions = parse_claim(changed("predicts", to=[*CONTENT["predicts"], *more])).predictions[4:]
    assert [kind_of(each, "ioi") for each in predictions] == ["necessity", "specificity", "necessity"]


def test_with_everything_in_place_a_claim_is_validated() -> None:
    claim = full_claim()
    evidence = checklist(claim, all_held(claim), PASSING, replication=FRESH)
    assert licensed(evidence, contradicted=False, registered_before=True) == ("validated", ())
    assert [each.kind for each in evidence] == sorted(
        (each.kind for each in evidence), key=[*KINDS, REPLICATION].index
    )
    assert not any(each.supply for each in evidence)


@pytest.mark.parametrize(
    ("code", "tier"),
    [
        ("M98.faithfulness", "causally suggestive"),
        ("M3b", "mechanistically supported"),
        ("C12", "mechanistically supported"),
        ("C11.completeness", "triangulated"),
        ("C30.faithfulness", "triangulated"),
        ("C16.test_retest.completeness", "triangulated"),
        ("E1b.faithfulness", "validated"),
        ("C17", "validated"),
        ("F59", "validated"),
        ("C16.split_half", "validated"),
        ("S3", "validated"),
        ("M98.completeness", "validated"),
    ],
)
@pytest.mark.parametrize("status", ["fail", "inconclusive", "moderate"])
def test_what_a_gate_that_does_not_pass_costs(code: str, tier: str, status: str) -> None:
    claim = full_claim()
    gates = {
        **PASSING,
        code: Verdict(status=status, published="pass", n_needed=77 if status != "fail" else None),
    }
    evidence = checklist(claim, all_held(claim), gates, replication=FRESH)
    assert licensed(evidence, contradicted=False, registered_before=True)[0] == tier
    (changed_line,) = [each for each in evidence if each.state != "present"]
    assert changed_line.state == ("against" if status == "fail" else "undecided")
    assert changed_line.supply == (
        GATES_ON_FAIL[code.partition(".")[0]] if status == "fail" else "about 77 prompts"
    )


GATES_ON_FAIL = {gate.code: gate.on_fail.rstrip(".") for gate in GATES.values()}


def test_a_test_that_does_not_hold_says_what_would_settle_it() -> None:
    claim = full_claim()

    def lines(**facts: object) -> tuple[str, str]:
        state = str(facts.pop("state"))
        tests = [each for each in all_held(claim) if (each.kind, each.of) != ("control", 0)]
        tests.append(outcome("control", 0, state, **facts))
        evidence = checklist(claim, tests, PASSING, replication=FRESH)
        (found,) = [each for each in evidence if each.source == "control 1"]
        assert found.kind == "specificity"
        return found.state, found.supply

    assert lines(state="open", n_needed=90) == ("undecided", "about 90 prompts")
    assert lines(state="open")[1] == "a larger size predicted, or other controls: these reach it so far"
    assert lines(state="lost")[1].startswith("more prompts, or fewer predictions")
    assert lines(state="contradicted")[0] == "against"
    assert lines(state="open", reason="no_behaviour", value=math.nan)[1].startswith("a task that the model")


@pytest.mark.parametrize(
    ("what", "relation", "value", "supply"),
    [
        ("dropping", "lowers_by_at_least", 0.2, "a smaller size: this one is not reached so far"),
        ("dropping", "lowers_by_at_least", -0.2, "another claim: the margin goes the other way so far"),
        ("dropping", "raises_by_at_least", -0.2, "another claim: the margin goes the other way so far"),
        ("dropping", "changes_at_most", -0.42, "a larger size: this one is exceeded so far"),
        ("keeping", "changes_at_most", 0.42, "a larger size: this one is exceeded so far"),
        ("keeping", "retains_at_most", 0.42, "a larger size: this one is exceeded so far"),
        ("keeping", "retains_at_least", 0.2, "a smaller size: this one is not reached so far"),
        ("keeping", "retains_at_least", -0.2, "another claim: nothing is retained so far"),
    ],
)
def test_a_prediction_on_the_wrong_side_of_its_size_says_which_way_to_go(
    what: str, relation: str, value: float, supply: str
) -> None:
    said = {"what": what, relation: 0.3}
    claim = parse_claim({**{key: CONTENT[key] for key in ("schema", "claim", "heads")}, "predicts": [said]})
    found = outcome("prediction", 0, "open", value=value, p=0.9)
    (line_of_it,) = [
        each for each in checklist(claim, [found], {}, replication=FRESH) if each.source == "prediction 1"
    ]
    assert (line_of_it.state, line_of_it.supply) == ("undecided", supply)


def test_a_rival_has_no_size_and_tests_lost_beside_open_ones_ask_for_no_other() -> None:
    claim = full_claim()
    rest = [each for each in all_held(claim) if (each.kind, each.of) not in (("rival", 0), ("prediction", 2))]
    mixed = [outcome("prediction", 2, "lost"), outcome("prediction", 2, "open", p=0.2, n_needed=90)]
    evidence = checklist(
        claim, [*rest, outcome("rival", 0, "open", p=0.9), *mixed], PASSING, replication=FRESH
    )
    by_source = {each.source: each.supply for each in evidence}
    assert by_source["rival 1"] == "other heads: the rival is nearer to the model so far"
    assert by_source["prediction 3"] == "about 90 prompts"


def test_what_no_prediction_speaks_of_is_missing_with_what_to_write() -> None:
    only = parse_claim(
        {
            **{key: CONTENT[key] for key in ("schema", "claim", "heads")},
            "predicts": [{"what": "dropping", "of": "movers", "lowers_by_at_least": 0.3}],
        }
    )
    evidence = checklist(only, all_held(only), {}, replication=FRESH)
    missing = {each.kind: each.supply for each in evidence if each.state == "missing"}
    assert set(missing) == {"necessity", "sufficiency", "specificity", "consistency"}
    assert "lowers_by_at_least" in missing["necessity"]
    assert licensed(evidence, contradicted=False, registered_before=True)[0] == "proposed"


def test_tiers_compare() -> None:
    assert at_least("triangulated", "causally suggestive")
    assert at_least("proposed", "proposed")
    assert not at_least("proposed", "causally suggestive")
    with pytest.raises(UnknownNameError, match="unknown tier 'valid'; did you mean 'validated'"):
        at_least("proposed", "valid")

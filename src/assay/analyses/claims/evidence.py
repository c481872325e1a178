"""Which evidence a claim has, which is missing, and the tier that this licenses. Never a score.

| tier | what must be present |
|---|---|
| proposed | nothing |
| causally suggestive | necessity |
| mechanistically supported | also sufficiency and specificity |
| triangulated | also consistency |
| validated | also reliability, and a replication on fresh prompts |

A claim with a contradicted prediction stays proposed, and so does one that was registered after its prompts
had been measured.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from assay.analyses.calibration import find_gate
from assay.analyses.claims.claim import CIRCUIT, EACH_HEAD, Claim, Prediction
from assay.analyses.claims.outcomes import CONTRADICTED, HELD, LOST, Outcome, joint_state
from assay.core.errors import check_name
from assay.core.record import Record
from assay.core.verdict import Verdict


KINDS = ("necessity", "sufficiency", "specificity", "consistency", "reliability")
REPLICATION = "replication"
REGISTRATION = "registration"
TIERS: Mapping[str, tuple[str, ...]] = {
    "proposed": (),
    "causally suggestive": ("necessity",),
    "mechanistically supported": ("necessity", "sufficiency", "specificity"),
    "triangulated": ("necessity", "sufficiency", "specificity", "consistency"),
    "validated": (*KINDS, REPLICATION),
}

PRESENT, AGAINST, UNDECIDED, MISSING = "present", "against", "undecided", "missing"

# Gate, or part of one -> kind of evidence it belongs to, whether the kind needs it, its most telling value.
GATE_EVIDENCE: Mapping[str, tuple[str, bool, str]] = {
    "M98.completeness": ("necessity", False, "divergence"),
    "M98.faithfulness": ("sufficiency", True, "divergence"),
    "E1b.faithfulness": ("sufficiency", False, "method_invariance"),
    "C17": ("specificity", False, "value"),
    "M3b": ("consistency", True, "share_certified"),
    "C12": ("consistency", True, "mean_rho"),
    "F59": ("consistency", False, "w"),
    "C11.completeness": ("reliability", True, "standard_error"),
    "C11.faithfulness": ("reliability", True, "standard_error"),
    "C30.completeness": ("reliability", True, "relative_standard_error"),
    "C30.faithfulness": ("reliability", True, "relative_standard_error"),
    "C16.test_retest.completeness": ("reliability", True, "test_retest"),
    "C16.test_retest.faithfulness": ("reliability", True, "test_retest"),
    "C16.split_half": ("reliability", False, "split_half"),
    "S3": ("reliability", False, "share_stable"),
}
NO_CONTRADICTION = "that no prediction is contradicted"  # what a tier needs beside kinds of evidence

# What to do about a test whose opposite holds.
_CONTRADICTED: Mapping[str, str] = {
    "prediction": "another claim: this prediction is contradicted",
    "control": "another claim: the control also reaches the size",
    "rival": "another claim: the rival is nearer to the model",
}

# What would supply a gate's verdict, by the reason why it is undefined; more prompts otherwise.
_UNDEFINED: Mapping[str | None, str] = {
    "too_few_heads": "a claim about more heads",
    "not_applicable": "nothing: it does not apply to this claim",
    "pool_too_small": "a task file with more prompts",
    "identical_samples": "a task file with more different prompts",
    "zero_mean": "a task that the model solves",
    "zero_denominator": "a task that the model does",
}


@dataclass(frozen=True, kw_only=True)
class Evidence(Record):
    """One line of the checklist.

    Attributes:
        kind: One of `KINDS`, or `replication`.
        source: Where it comes from: `prediction 1`, `control 2`, `rival 1`, a gate's code.
        state: `present`, `against`, `undecided` (looked at, not settled) or `missing` (not looked at).
        required: Whether the kind counts as present only with it; the others are listed beside it.
        finding: What was found.
        supply: What would supply it, where it is not present.
    """

    kind: str
    source: str
    state: str
    required: bool
    finding: str
    supply: str = ""


def kind_of(prediction: Prediction, task: str) -> str:
    """The kind of evidence a prediction is."""
    if prediction.on != task:
        return "specificity"
    if prediction.of == EACH_HEAD:
        return "consistency"
    if prediction.what == "keeping":
        # That some of the heads do not do it alone speaks for the need of the others.
        return "necessity" if prediction.relation == "retains_at_most" else "sufficiency"
    return "specificity" if prediction.relation == "changes_at_most" else "necessity"


def checklist(
    claim: Claim,
    outcomes: Sequence[Outcome],
    gates: Mapping[str, Verdict],
    *,
    replication: Evidence,
) -> tuple[Evidence, ...]:
    """Every line of evidence that a claim has, has against it, or lacks, in the order of `KINDS`.

    Args:
        claim: The claim.
        outcomes: Its settled tests. A rival without one has the heads of the claim.
        gates: Verdicts by code, keys of `GATE_EVIDENCE`.
        replication: What the fresh prompts said.
    """
    evidence = [
        *_of_tests(claim, outcomes),
        *_of_gates(gates),
        *_absent(claim),
    ]
    order = {kind: place for place, kind in enumerate(KINDS)}
    return (*sorted(evidence, key=lambda each: order[each.kind]), replication)


def _of_tests(claim: Claim, outcomes: Sequence[Outcome]) -> Iterable[Evidence]:
    """Predictions, controls and rivals."""
    for number, prediction in enumerate(claim.predictions):
        kind, relation = kind_of(prediction, claim.task), prediction.relation
        yield _tested(outcomes, "prediction", number, kind, prediction.text, relation)
    for number, control in enumerate(claim.controls):
        finding = f"the size predicted is not reached by {control.text}"
        yield _tested(outcomes, "control", number, "specificity", finding)
    tested = {each.of for each in outcomes if each.kind == "rival"}
    for number, rival in enumerate(claim.rivals):
        if number in tested:
            finding = f"{rival.name} departs further from the model"
            yield _tested(outcomes, "rival", number, "consistency", finding)
            continue
        yield Evidence(
            kind="consistency",
            source=f"rival {number + 1}",
            state=MISSING,
            required=not tested,  # beside another rival this one takes nothing away
            finding=f"{rival.name} is not a rival: it has the heads of the claim itself",
            supply="[[rivals]] heads = a list of other heads",
        )


def _tested(
    outcomes: Sequence[Outcome], what: str, number: int, kind: str, finding: str, relation: str = ""
) -> Evidence:
    """A line that rests on tests, of a prediction's `relation` if it is one."""
    parts = [each for each in outcomes if (each.kind, each.of) == (what, number)]
    state, supply = _standing(parts, relation)
    return Evidence(
        kind=kind,
        source=f"{what} {number + 1}",
        state=state,
        required=True,
        finding=f"{finding}: {_said(parts)}",
        supply=supply,
    )


def _standing(parts: Sequence[Outcome], relation: str) -> tuple[str, str]:
    """State of a line, and what would supply it."""
    state = joint_state(parts)
    if state == HELD:
        return PRESENT, ""
    if state == CONTRADICTED:
        return AGAINST, _CONTRADICTED[parts[0].kind]
    if any(each.reason == "no_behaviour" for each in parts):
        return UNDECIDED, "a task that the model solves: its mean margin is not clearly above 0"
    if any(each.reason for each in parts):
        return UNDECIDED, "more prompts without undefined runs"
    if state == LOST:
        return (
            UNDECIDED,
            "more prompts, or fewer predictions: the result does not survive the correction for their number",
        )
    pending = [each for each in parts if each.state not in (HELD, LOST)]
    if astray := [each for each in pending if each.n_needed is None]:
        return UNDECIDED, _other_claim(astray, relation)
    return UNDECIDED, f"about {max(each.n_needed or 0 for each in pending):,} prompts"


def _other_claim(astray: Sequence[Outcome], relation: str) -> str:
    """What to do about tests that no number of prompts settles: so far they are on the wrong side."""
    kind = astray[0].kind
    if kind == "rival":
        return "other heads: the rival is nearer to the model so far"
    if kind == "control":
        return "a larger size predicted, or other controls: these reach it so far"
    if relation in ("changes_at_most", "retains_at_most"):
        return "a larger size: this one is exceeded so far"
    if min(each.value for each in astray) > 0:
        return "a smaller size: this one is not reached so far"
    if relation == "retains_at_least":
        return "another claim: nothing is retained so far"
    return "another claim: the margin goes the other way so far"


def _said(parts: Sequence[Outcome]) -> str:
    """Numbers of the tests behind a line."""
    if len(parts) == 1:
        (only,) = parts
        if only.reason:
            return only.reason
        low, high = only.interval.low, only.interval.high
        bounds = f" [{low:.2f}, {high:.2f}]" if only.interval.defined else ""
        return f"{only.value:.2f}{bounds}"
    n_held = sum(each.state == HELD for each in parts)
    return f"{n_held} of {len(parts)} tests hold"


def _of_gates(gates: Mapping[str, Verdict]) -> Iterable[Evidence]:
    for code, (kind, required, key) in GATE_EVIDENCE.items():
        if code not in gates:
            continue
        published, _, part = code.partition(".")
        verdict, gate = gates[code], find_gate(published)
        state = {"pass": PRESENT, "fail": AGAINST}.get(verdict.status, UNDECIDED)
        value = verdict.values.get(key)
        name = ", ".join([gate.name, *(_words(each) for each in part.split(".") if each)])
        said = verdict.reason or ("" if value is None else f"{_words(key)} {value:.2f}")
        finding = f"{name}: {verdict.status}" + (f", {_words(said)}" if said else "")
        supply = (
            gate.on_fail.rstrip(".") if state == AGAINST else _UNDEFINED.get(verdict.reason, "more prompts")
        )
        if verdict.n_needed:
            supply = f"about {verdict.n_needed:,} prompts"
        yield Evidence(
            kind=kind,
            source=published,
            state=state,
            required=required,
            finding=finding,
            supply="" if state == PRESENT else supply,
        )


def _words(key: str) -> str:
    """A value's key for reading."""
    return key.replace("_", " ")


def _absent(claim: Claim) -> Iterable[Evidence]:
    """What no part of the claim speaks of."""

    def predicts(what: str, relation: str) -> bool:
        return any(
            (each.what, each.of, each.on, each.relation) == (what, CIRCUIT, claim.task, relation)
            for each in claim.predictions
        )

    wanted = (
        (
            "necessity",
            predicts("dropping", "lowers_by_at_least"),
            "a prediction of what dropping the circuit does",
            "[[predicts]] what = 'dropping', of = 'circuit', lowers_by_at_least = SHARE",
        ),
        (
            "sufficiency",
            predicts("keeping", "retains_at_least"),
            "a prediction of what the circuit does alone",
            "[[predicts]] what = 'keeping', of = 'circuit', retains_at_least = SHARE",
        ),
        (
            "specificity",
            len(claim.tasks) > 1,
            "a prediction about another task",
            "[[predicts]] what = 'dropping', on = 'TASK', changes_at_most = SHARE",
        ),
        ("specificity", bool(claim.controls), "a negative control", "[[controls]] heads = 'layer-matched'"),
        ("consistency", bool(claim.rivals), "a rival circuit", "[[rivals]] heads = 'magnitude'"),
    )
    for kind, there, what, supply in wanted:
        if not there:
            yield Evidence(
                kind=kind, source="none", state=MISSING, required=True, finding=what, supply=supply
            )


def state_of(kind: str, evidence: Sequence[Evidence]) -> str:
    """State of a kind of evidence: present with every line it needs, against with one of them against it."""
    states = {each.state for each in evidence if each.kind == kind and each.required}
    for state in (AGAINST, MISSING, UNDECIDED):
        if state in states:
            return state
    return PRESENT if states else MISSING


def licensed(
    evidence: Sequence[Evidence], *, contradicted: bool, registered_before: bool
) -> tuple[str, tuple[str, ...]]:
    """The tier, and what the next one needs: kinds of evidence, `registration`, `NO_CONTRADICTION`.

    Args:
        evidence: The checklist.
        contradicted: Whether a prediction is.
        registered_before: Whether the claim was registered before its prompts were measured.
    """
    present = {kind for kind in (*KINDS, REPLICATION) if state_of(kind, evidence) == PRESENT}
    reached = "proposed"
    for tier, kinds in TIERS.items():
        lacking = [kind for kind in kinds if kind not in present]
        if tier != "proposed":
            lacking = [REGISTRATION] * (not registered_before) + lacking + [NO_CONTRADICTION] * contradicted
        if lacking:
            return reached, tuple(lacking)
        reached = tier
    return reached, ()


def at_least(tier: str, asked: str) -> bool:
    """Whether a tier is the one asked for or above it.

    Raises:
        UnknownNameError: For a tier that there is not.
    """
    order = list(TIERS)
    for name in (tier, asked):
        check_name("tier", name, order)
    return order.index(tier) >= order.index(asked)

"""The page of calibrations: what it says of the gates in words and pictures, and that nothing breaks it."""

import ast
import copy
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from synthetic import synthetic_document, synthetic_worst_case
from synthetic_calibration import MIXED, SOUND, UNSOUND, synthetic_calibration
from test_html import Page

import assay
from assay.analyses.calibration import (
    GATES,
    Gate,
    bootstrap_stability,
    find_gate,
    page_summary,
    page_words,
)
from assay.analyses.calibration.judges import JUDGES
from assay.analyses.calibration.page import calibration_figure
from assay.analyses.calibration.page_words import judged_of
from assay.analyses.calibration.plots import COLOURS, gate_lines, plot_gates
from assay.analyses.calibration.reasons import REASONS, WARNINGS
from assay.analyses.calibration.strips import WIDTH, _stretches, strip_places
from assay.core.errors import InputError
from assay.core.verdict import Interval, Judged, Rule, Verdict
from assay.report import save_report
from assay.report.save import render


Document = dict[str, Any]
CODES = tuple(gate.code for gate in GATES.values())
ORDER = [GATES[key].code for key in JUDGES]


@pytest.fixture(scope="module")
def page_text() -> str:
    return render(synthetic_calibration(world=MIXED))


@pytest.fixture
def mixed() -> Document:
    return synthetic_calibration(world=MIXED)


def gate_of(document: Document, code: str) -> Document:
    (found,) = [gate for gate in document["gates"] if gate["code"] == code]
    return dict(found)


def reworded(gate: Document) -> Document:
    """A gate whose verdict was changed by a test, with what its gate says of the verdict as it is now."""
    verdict = Verdict.from_dict(_without_words(gate["verdict"]))
    gate["verdict"].update(find_gate(gate["code"]).worded(verdict).to_dict())
    return gate


def _without_words(verdict: Document) -> Document:
    parts = {name: _without_words(part) for name, part in verdict.get("sub_results", {}).items()}
    return {name: value for name, value in verdict.items() if name != "judged"} | {"sub_results": parts}


def row_of(text: str, code: str) -> str:
    """The row of a gate, as HTML."""
    found = re.search(rf'<li class="gate [^"]*" id="[^"]*-{code}">.*?</details>\s*</li>', text, re.DOTALL)
    assert found is not None
    return found[0]


def said(text: str) -> str:
    """Text without tags, white space pressed together."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text)).strip()


# ------------------------------------------------------------------------------------------------ the page


def test_rows_stand_in_the_order_of_the_specification(page_text: str, mixed: Document) -> None:
    found = re.findall(r'<li class="gate [^"]*" id="r1-(\w+)">', page_text)
    assert found == ORDER
    assert sorted(found) == sorted(CODES)
    mixed["gates"].append(copy.deepcopy(mixed["gates"][0]) | {"code": "Z9", "name": "A later gate"})
    assert re.findall(r'<li class="gate [^"]*" id="r1-(\w+)">', render(mixed)) == [*ORDER, "Z9"]


def test_the_effects_of_circuits_on_tasks_are_cells(page_text: str) -> None:
    found = re.search(r'<table class="heat effects">.*?</table>', row_of(page_text, "C17"), re.DOTALL)
    assert found is not None
    cells = re.findall(r'<td class="([^"]*)" style="--ink-share:(\d+)%"', found[0])
    assert len(cells) == 9
    own = [int(ink) for kind, ink in cells if "found" in kind]
    assert len(own) == 3
    assert min(own) > 60 > max(int(ink) for kind, ink in cells if "found" not in kind)


def test_a_large_circuit_on_many_tasks_keeps_the_page_small(mixed: Document) -> None:
    for code in ("M3b", "S3", "C16"):
        details = gate_of(mixed, code)["verdict"].get("details") or {}
        details |= {name: each * 30 for name, each in details.items() if isinstance(each, list)}
    gate_of(mixed, "M93")["verdict"]["details"]["results"] *= 100
    tasks = gate_of(mixed, "C17")["verdict"]
    tasks["sub_results"] = {f"task {at}": tasks["sub_results"]["task0"] for at in range(80)}
    tasks["details"] |= {"tasks": [f"task {at}" for at in range(80)], "matrix": [[0.1] * 80] * 80, "z": []}
    text = render(mixed)
    assert len(text.encode()) < 400_000
    row = said(row_of(text, "C17"))
    assert "task 11" in row
    assert row.count("68 more are in the result.") == 2, "of the matrix and of the parts"


def test_an_audit_shows_its_calibration_as_an_article_of_its_own(mixed: Document) -> None:
    audit = synthetic_document() | {"worst_case": synthetic_worst_case(), "calibration": mixed}
    text = render(audit)
    page = Page(text)
    assert re.findall(r'<article class="page[^"]*" id="([^"]+)"', text) == ["r1", "r2", "r3"]
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert 'id="r3-C11"' in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gates": []}, "has no gates"),
        ({"gates": [{"code": "C11"}]}, "gate C11 of the calibration document lacks key, name"),
    ],
)
def test_other_documents_are_refused(mixed: Document, changes: Document, message: str) -> None:
    with pytest.raises(InputError, match=message):
        render(mixed | changes)


def test_a_document_may_hold_the_required_parts_only(mixed: Document) -> None:
    for name in ("against", "seed", "summary", "seconds", "provenance"):
        del mixed[name]
    mixed |= {"model": {}, "task": {}, "circuit": {}, "table": {}}
    assert 'id="r1-C11"' in render(mixed)


# ---------------------------------------------------------------------------------------------- the overview


def test_the_overview_names_every_check_once_for_each_verdict_and_gives_no_score() -> None:
    unsound = synthetic_calibration(world=UNSOUND)
    confident, published = page_summary.overview(unsound).split(". By the published rules")
    for gate in unsound["gates"]:
        assert confident.count(f"{gate['code']} {gate['name'].lower()}") == 1
        assert len(re.findall(rf"\b{gate['code']}\b", published)) == 1
    assert published.endswith(" fail.")


def test_a_score_that_may_be_nothing_is_said_first(mixed: Document) -> None:
    def grave() -> list[str]:
        return [note for note in page_summary.caveats(mixed) if note.startswith("The score")]

    assert grave() == []
    gate_of(mixed, "C30")["verdict"]["warnings"] = ["score_near_zero"]
    (note,) = grave()
    assert note.startswith("The score lies within three standard errors of 0: the circuit may keep none")
    gate_of(mixed, "C11")["verdict"]["details"]["interval"] |= {"low": -0.1}
    (note,) = grave()
    assert note.startswith("The score cannot be distinguished from 0: ")
    assert page_summary.caveats(mixed)[0] == note
    gate_of(mixed, "C30")["verdict"]["warnings"] = []
    assert grave() == [note]


# -------------------------------------------------------------------------------------------- the headlines


DECISIVE = {gate.code: gate.decisive for gate in GATES.values() if gate.decisive}
EXPECTED = {
    "C11": ("standard_error", "sigma", (0.1,), False),
    "C12": ("mean_rho", "mean_rho_zero_filled", (0.5,), True),
    "C13": ("eta_squared", "eta_squared", (0.06,), False),
    "C17": ("value", None, (0.0,), True),
    "C23": ("role_level_p", None, (0.05,), False),
    "C30": ("relative_standard_error", "coefficient_of_variation", (0.1, 0.2), False),
    "C36": ("value", "value", (0.0,), True),
    "F59": ("w", "w", (0.5,), True),
    "S1": ("value", "value", (2.0,), True),
    "S3": ("share_stable", "share_passing", (0.5,), True),
    "M93": ("share_proven", "published_value", (0.5,), True),
    "M98": ("divergence", "divergence", (0.2,), False),
    "E1b": ("method_invariance", "method_invariance", (0.8,), True),
    "M3b": ("share_positive", "published_share_certified", (0.5,), True),
}


@pytest.mark.parametrize("code", sorted(EXPECTED))
def test_what_a_gate_judged_is_the_number_that_its_limits_judge(code: str, mixed: Document) -> None:
    verdict = gate_of(mixed, code)["verdict"]
    value, published, limits, higher = EXPECTED[code]
    judged = judged_of(verdict)
    assert judged.value == verdict["values"][value]
    assert judged.published_value == (None if published is None else verdict["values"][published])
    assert judged.limits == limits
    assert judged.rule is not None
    assert judged.rule.higher is higher
    assert (judged.interval is not None) is bool(verdict["interval"])
    if judged.interval is not None:
        assert judged.interval.to_dict() == verdict["interval"]
        assert judged.value in judged.interval


@pytest.mark.parametrize("world", [SOUND, MIXED, UNSOUND], ids=["sound", "mixed", "unsound"])
def test_pictures_agree_with_the_verdicts(world: Any) -> None:
    judged = 0
    for gate in synthetic_calibration(world=world)["gates"]:
        shown, status = judged_of(gate["verdict"]), gate["verdict"]["status"]
        ends = (shown.value, shown.value)
        if shown.interval is not None:
            ends = (shown.interval.low, shown.interval.high)
        if status not in ("pass", "fail"):
            continue
        assert shown.rule is not None
        low, high = _stretches(shown.rule)[status]
        assert low <= ends[0] <= ends[1] <= high, gate["code"]
        judged += 1
    assert judged >= 9


@pytest.mark.parametrize("code", sorted(DECISIVE))
def test_of_several_parts_the_one_that_decides_is_shown(code: str) -> None:
    for world in (SOUND, MIXED, UNSOUND):
        gate = gate_of(synthetic_calibration(world=world), code)
        parts, judged = gate["verdict"]["sub_results"], judged_of(gate["verdict"])
        assert judged.part in DECISIVE[code]
        statuses = [parts[name]["status"] for name in DECISIVE[code]]
        worst = next(each for each in ("fail", "inconclusive", "moderate", "pass") if each in statuses)
        assert parts[judged.part]["status"] == worst
        bounds = parts[judged.part]["interval"]
        assert (judged.interval is None) is (bounds["low"] is None)
        assert judged.interval is None or judged.interval.to_dict() == bounds
        assert judged.status == gate["verdict"]["status"]


def test_the_opposite_order_is_where_the_functional_order_fails(mixed: Document) -> None:
    rule = judged_of(gate_of(mixed, "C23")["verdict"]).rule
    assert rule is not None
    assert _stretches(rule) == {"pass": (-math.inf, 0.05), "fail": (0.95, math.inf)}
    assert rule.limits == (0.05,)


def test_a_gate_of_another_package_appears_like_ours() -> None:
    def shorter(y_full: Any) -> Verdict:
        return Verdict(status="inconclusive", published="pass", values={"value": 1.0}, reason="too_short")

    gate = Gate(
        key="shelf",
        code="X2",
        name="Length",
        criterion="",
        needs=("y_full",),
        function=shorter,
        question="Is it long?",
        on_pass="it is",
        on_fail="it is not",
        reasons={"too_short": ("It is too short.", "Make it longer.")},
    )
    judged = gate(np.ones(3)).judged
    assert judged is not None
    assert (judged.label, judged.value, judged.rule) == ("Length", 1.0, None)
    assert judged.sentence == "If it passed: It is. If it failed: It is not."
    assert (judged.because, judged.remedy) == ("It is too short.", "Make it longer.")


# ------------------------------------------------------------------------------------------------- in words


def test_the_prompts_that_would_settle_it_are_said(mixed: Document) -> None:
    gate = gate_of(mixed, "C11")
    gate["verdict"] |= {"status": "inconclusive", "n_needed": 178}
    reworded(gate)
    steps = page_words.advice(gate, mixed)
    assert steps == ["About 180 prompts would settle it (here: 40), if the spread stays the same."]
    gate["verdict"]["n_needed"] = 12_301
    assert "About 13,000 prompts" in page_words.advice(gate, mixed)[0]
    gate["verdict"]["n_needed"] = 10**9
    assert "no feasible number" in page_words.advice(gate, mixed)[0]
    pool = gate_of(mixed, "C30")
    pool["verdict"] |= {"status": "inconclusive", "n_needed": 500}
    reworded(pool)
    assert page_words.advice(pool, mixed) == ["A pool of about 500 prompts would settle it (here: 120)."]


def test_a_verdict_alone_is_refused_with_what_to_give_instead(tmp_path: Path) -> None:
    verdict = bootstrap_stability(np.ones(10), np.ones(10))
    for given in (verdict, verdict.to_dict()):
        with pytest.raises(InputError, match=r"one verdict alone \(status 'pass'\).*`assay\.calibrate_all`"):
            save_report(tmp_path / "a.html", given)
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize(
    ("low", "value", "high", "text"),
    [
        (0.0235, 0.026, 0.0291, "0.0260 [0.0235, 0.0291]"),
        (0.0, 0.0063, 0.035, "0.006 [0.000, 0.035]"),
        (1.0233, 2.483, 41.1, "2.48 [1.02, 41.10]"),
        (29.65, 33.57, 40.61, "34 [30, 41]"),
        (-0.3, -0.00001, 0.4, "0.00 [\N{MINUS SIGN}0.30, 0.40]"),
        (1.0004, 1.4, 1.9, "1.4000 [1.0004, 1.9000]"),
        (0.9961, 1.4, 1.9, "1.400 [0.996, 1.900]"),
        (1 + 1e-9, 1.4, 1.9, "1.40 [1.00, 1.90]"),
        (0.5, 0.5, 0.5, "0.50"),
        (None, 0.0056, None, "0.0056"),
    ],
)
def test_numbers_have_the_digits_that_their_interval_tells_apart(
    low: float | None, value: float, high: float | None, text: str
) -> None:
    judged = blank(low=low, value=value, high=high, rule=Rule(pass_at=1.0))
    assert page_words.number_line(judged)[0] == text


def blank(*, low: float | None = 0.4, high: float | None = 0.8, **changes: Any) -> Judged:
    """A number with an interval and a limit at 0.5."""
    bounds = None
    if low is not None and high is not None:
        bounds = Interval(low=low, high=high, level=0.9, method="delta")
    facts: dict[str, Any] = {
        "label": "a number",
        "value": 0.6,
        "published_value": None,
        "rule": Rule(pass_at=0.5),
        "status": "inconclusive",
        "published": "none",
        "reason": None,
        "unit": 0.5,
    }
    return Judged(interval=bounds, **(facts | changes))


# -------------------------------------------------------------------------- every code of the gates has words

CODE = re.compile(r"[a-z]+(_[a-z]+)*\Z")
# Which argument of these is a reason.
MAKERS = {
    "undefined": 0,
    "none": 0,
    "undefined_estimate": 0,
    "undefined_test": 0,
    "undefined_interval": -1,
    "left_open": 1,
    "_report": 1,
    "_no_correlation": 0,
}


def strings(node: ast.AST) -> set[str]:
    """Codes that an expression can be, conditions and look-ups apart."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) and CODE.match(node.value) else set()
    if isinstance(node, ast.IfExp):
        return strings(node.body) | strings(node.orelse)
    if isinstance(node, ast.Compare | ast.Subscript | ast.Call):
        return set()
    return {code for child in ast.iter_child_nodes(node) for code in strings(child)}


def codes_of(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Reasons and warnings that a module gives by name."""
    codes: dict[str, set[str]] = {"reason": set(), "warnings": set()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            maker = ast.unparse(node.func)
            place = MAKERS.get(maker.rpartition(".")[2])
            if place is not None and place < len(node.args):
                codes["reason"] |= strings(node.args[place])
            if maker == "draft.warn":
                codes["warnings"] |= strings(node.args[0])
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.keyword):
            pairs = [(str(node.arg), node.value)]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            pairs = [(ast.unparse(node.target), node.value)]
        elif isinstance(node, ast.Assign):
            pairs = [(ast.unparse(target), node.value) for target in node.targets]
        for name, value in pairs:
            if name in codes and value is not None:
                codes[name] |= strings(value)
    return codes["reason"], codes["warnings"]


SOURCES = sorted(
    path
    for part in ("analyses/calibration", "stats")
    for path in (Path(assay.__file__).parent / part).glob("*.py")
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_reason_and_warning_of_the_gates_has_a_sentence(path: Path) -> None:
    reasons, warned = codes_of(ast.parse(path.read_text(encoding="utf-8")))
    assert reasons - set(REASONS) == set()
    assert warned - set(WARNINGS) == set()


def test_the_codes_are_found_in_the_source() -> None:
    """The search above would pass if it found nothing."""
    found = [codes_of(ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES]
    reasons, warned = (set().union(*(each[part] for each in found)) for part in (0, 1))
    assert {"not_applicable", "pool_too_small", "too_few", "unbounded"} <= reasons
    assert {"prompts_dropped", "circular_bands", "ratio_capped"} <= warned


def test_sentences_are_sentences() -> None:
    explanations = [*REASONS.values(), *(pair for gate in GATES.values() for pair in gate.reasons.values())]
    texts = [
        *(part for pair in explanations for part in pair if part),
        *WARNINGS.values(),
        *(gate.when_open for gate in GATES.values()),
    ]
    assert [text for text in texts if not re.fullmatch(r"[A-Z].*\.", text)] == []


# ------------------------------------------------------------------------------------------------- pictures


def drawn(**changes: Any) -> Any:
    found = strip_places(blank(**changes))
    assert found is not None
    return found


def test_a_strip_places_its_number_between_its_ends_and_its_zones_side_by_side() -> None:
    found = drawn()
    ((limit, text),) = found.ticks
    assert text == "0.5"
    assert 0 <= found.low < limit < found.value < found.high <= WIDTH
    zones = {kind: (x, x + width) for kind, x, width, _ in found.zones}
    assert zones["fail"] == (0.0, limit)
    assert zones["pass"] == (limit, WIDTH)
    assert not found.cut_low
    assert not found.cut_high


def test_an_end_far_away_is_cut_and_marked() -> None:
    found = drawn(value=2.5, low=1.02, high=400.0, rule=Rule(pass_at=1.0))
    assert found.cut_high
    assert not found.cut_low
    assert found.high == WIDTH
    assert found.value > 0.15 * WIDTH


def test_nothing_is_drawn_without_a_number_or_a_limit() -> None:
    assert strip_places(blank(value=None)) is None
    assert strip_places(blank(rule=None)) is None


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_drawn_lies_on_the_axis(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(60):
        scale = float(10.0 ** rng.uniform(-6, 6))
        limit = scale * float(rng.normal())
        low, value, high = np.sort(rng.normal(limit, scale * 10.0 ** rng.uniform(-3, 3), 3)).tolist()
        found = drawn(
            value=value,
            low=low,
            high=high,
            rule=Rule(pass_at=limit),
            unit=abs(limit) or 1.0,
            ratio=bool(rng.random() < 0.5),
        )
        assert 0 <= found.low <= found.value <= found.high <= WIDTH
        assert all(0 <= x <= WIDTH for x, _ in found.ticks)
        assert sum(width for _, _, width, _ in found.zones) == pytest.approx(WIDTH, abs=0.2)


def test_the_figure_of_all_gates_has_a_row_each_in_the_colour_of_the_verdict() -> None:
    gates = [gate_of(synthetic_calibration(world=UNSOUND), code) for code in ORDER]
    figure = plot_gates(gate_lines(gates)).get_figure()
    assert isinstance(figure, Figure)
    (ax,) = figure.axes
    assert [label.get_text().split()[-1] for label in ax.get_yticklabels()] == ORDER
    places = dict(zip(ORDER, gate_lines(gates), strict=True))
    assert places["C11"].state == "fail"
    assert places["C11"].value is not None
    assert places["C11"].value < 0
    line = next(
        line
        for line in ax.get_lines()
        if line.get_marker() == "o" and line.get_ydata()[0] == 0 and len(line.get_xdata()) == 1
    )
    assert to_hex(line.get_color()) == COLOURS["fail"]
    words = [text.get_text() for text in ax.texts]
    assert words.count("fail") == 12 + 16
    assert words.count("inconclusive") == 3


@pytest.mark.parametrize("ending", ["png", "svg", "SVG"])
def test_the_figure_is_written_the_same_every_time(tmp_path: Path, mixed: Document, ending: str) -> None:
    first, second = (tmp_path / f"{name}.{ending}" for name in "ab")
    assert calibration_figure(mixed, first) == first
    calibration_figure(mixed, second)
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) > 5_000

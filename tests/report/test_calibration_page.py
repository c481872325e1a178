"""The page of calibrations: what it says of the gates in words and pictures."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pages import document

from assay.analyses.calibration import GATES, find_gate, page
from assay.analyses.calibration.columns import JUDGES
from assay.analyses.calibration.gate import Judged
from assay.analyses.calibration.plots import COLOURS, WIDTH, judged_of, plot_gates, relative, strip, zones
from assay.core.verdict import JUDGED, Interval, Rule, Verdict
from assay.report.save import render


Document = dict[str, Any]
ORDER = [GATES[key].code for key in JUDGES]


@pytest.fixture
def made() -> Document:
    calibration: Document = document("calibration")
    return calibration


def gate_of(made: Document, code: str) -> Document:
    (gate,) = [gate for gate in made["gates"] if gate["code"] == code]
    return dict(gate)


def reworded(gate: Document) -> Document:
    """A gate whose verdict was changed by a test, with what its gate says of the verdict as it is now."""
    verdict = Verdict.from_dict(_without_words(gate["verdict"]))
    gate["verdict"].update(find_gate(gate["code"]).worded(verdict).to_dict())
    return gate


def _without_words(verdict: Document) -> Document:
    parts = {name: _without_words(part) for name, part in verdict.get("sub_results", {}).items()}
    return {name: value for name, value in verdict.items() if name != "judged"} | {"sub_results": parts}


# ---- the page -----------------------------------------------------------------------------------


def test_rows_stand_in_the_order_of_the_specification(made: Document) -> None:
    later = copy.deepcopy(made["gates"][0]) | {"code": "Z9", "name": "A later gate"}
    made["gates"] = [later, *made["gates"][::-1]]
    assert re.findall(r'<li class="gate [^"]*" id="r1-(\w+)">', render(made)) == [*ORDER, "Z9"]


def test_a_large_circuit_on_many_tasks_keeps_the_page_small(made: Document) -> None:
    for code in ("M3b", "S3", "C16"):
        details = gate_of(made, code)["verdict"].get("details") or {}
        details |= {name: each * 30 for name, each in details.items() if isinstance(each, list)}
    tasks = gate_of(made, "C17")["verdict"]
    part = next(iter(tasks["sub_results"].values()))
    names = [f"task {at}" for at in range(80)]
    tasks["sub_results"] = dict.fromkeys(names, part)
    tasks["details"] |= {"tasks": names, "matrix": [[0.1] * 80] * 80, "z": [[1.0] * 80] * 80}
    text = render(made)
    assert len(text.encode()) < 400_000
    row = text.partition('id="r1-C17"')[2].partition("</li>")[0]
    assert '<table class="heat effects">' in row
    assert "task 11" in row
    assert row.count("68 more are in the result.") == 1, "of the matrix"
    assert row.count("56 more are in the result.") == 1, "of the parts"


def test_the_overview_names_every_check_once_for_each_verdict_and_gives_no_score(made: Document) -> None:
    confident, published = page.overview(made).split(". By the published rules")
    for gate in made["gates"]:
        assert confident.count(f"{gate['code']} {gate['name'].lower()}") == 1
        decides = gate["verdict"]["published"] in JUDGED
        assert len(re.findall(rf"\b{gate['code']}\b", published)) == decides


def test_a_score_that_may_be_nothing_is_said_first(made: Document) -> None:
    def grave() -> list[str]:
        return [note for note in page.caveats(made) if note.startswith("The score")]

    assert grave() == []
    gate_of(made, "C30")["verdict"]["warnings"] = ["score_near_zero"]
    (note,) = grave()
    assert note.startswith("The score lies within three standard errors of 0: the circuit may keep none")
    made["score"]["low"] = -0.1
    (note,) = grave()
    assert note.startswith("The score cannot be distinguished from 0: ")
    assert page.caveats(made)[0] == note
    gate_of(made, "C30")["verdict"]["warnings"] = []
    assert grave() == [note]


def test_the_prompts_that_would_settle_it_are_said(made: Document) -> None:
    gate = gate_of(made, "C11")
    gate["verdict"] |= {"status": "inconclusive", "n_needed": 178}
    reworded(gate)
    steps = page.advice(gate, made)
    assert steps == ["About 180 prompts would settle it (here: 40), if the spread stays the same."]
    gate["verdict"]["n_needed"] = 12_301
    assert "About 13,000 prompts" in page.advice(gate, made)[0]
    gate["verdict"]["n_needed"] = 10**9
    assert "no feasible number" in page.advice(gate, made)[0]
    pool = gate_of(made, "C30")
    pool["verdict"] |= {"status": "inconclusive", "n_needed": 500}
    reworded(pool)
    assert page.advice(pool, made) == [
        "About 500 prompts in the pool would settle it (here: 120), if the spread stays the same."
    ]


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


# ---- pictures


def drawn(**changes: Any) -> dict[str, list[float]]:
    """Places along a strip of everything in it, by its class."""
    svg = strip(blank(**changes))
    places: dict[str, list[float]] = {}
    for tag in re.findall(r"<(?:rect|line|circle|path|text)[^>]*>", svg):
        kind = re.search(r'class="([\w-]+)"', tag)
        x = re.findall(r' (?:x|x1|x2|cx)="([\d.-]+)"', tag)
        places.setdefault(kind[1] if kind else "dot", []).extend(map(float, x))
    return places


def test_a_strip_places_its_number_between_its_ends_and_its_zones_side_by_side() -> None:
    found = drawn()
    (limit,) = set(found["threshold"])
    low, high = found["range"]
    assert 0 <= low < limit < found["dot"][0] < high <= WIDTH
    assert (found["fail"], found["pass"]) == ([0.0], [limit])
    assert "cut" not in found


def test_an_end_far_away_is_cut_and_nothing_is_drawn_without_a_number_or_a_limit() -> None:
    found = drawn(value=2.5, low=1.02, high=400.0, rule=Rule(pass_at=1.0))
    assert "cut" in found
    assert len(found["range-end"]) == 2  # both ends of one upright
    assert found["range"][1] == WIDTH
    assert found["dot"][0] > 0.15 * WIDTH
    assert strip(blank(value=None)) == strip(blank(rule=None)) == ""


def test_pictures_and_words_agree_with_the_verdicts(made: Document) -> None:
    judged = 0
    for gate in made["gates"]:
        shown, status = judged_of(gate["verdict"]), gate["verdict"]["status"]
        assert shown.status == status
        if not shown.part and shown.interval is not None:
            assert shown.interval.to_dict() == gate["verdict"]["interval"]
            assert shown.value in gate["verdict"]["values"].values()
        if status in ("pass", "fail"):
            assert shown.rule is not None
            ends = (shown.value, shown.value)
            if shown.interval is not None:
                ends = (shown.interval.low, shown.interval.high)
            ((low, high),) = [(low, high) for kind, low, high in zones(shown) if kind == status]
            assert low <= ends[0] <= ends[1] <= high, gate["code"]
            judged += 1
    assert judged >= 9


def test_the_figure_of_all_gates_has_a_row_each_in_the_colour_of_the_verdict(
    made: Document, tmp_path: Path
) -> None:
    gates = [gate_of(made, code) for code in ORDER]
    figure = plot_gates(gates).get_figure()
    assert isinstance(figure, Figure)
    (ax,) = figure.axes
    assert [label.get_text().split()[-1] for label in ax.get_yticklabels()] == ORDER
    failed, passed = (judged_of(gate_of(made, code)["verdict"]) for code in ("C12", "C11"))
    assert (failed.state, passed.state) == ("fail", "pass")
    assert relative(failed, failed.value) < 0 < relative(passed, passed.value)  # type: ignore[operator]
    (dot,) = [
        line
        for line in ax.get_lines()
        if line.get_marker() == "o" and list(line.get_ydata()) == [ORDER.index("C12")]
    ]
    assert to_hex(dot.get_color()) == COLOURS["fail"]
    words = [text.get_text() for text in ax.texts]
    both = [gate["verdict"][key] for gate in gates for key in ("status", "published")]
    assert words.count("fail") == both.count("fail")

"""The page of calibrations: what it says of the gates in words and pictures."""

import re
from typing import Any

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pages import document

from assay.analyses.calibration import calibrate_all, find_gate, page
from assay.analyses.calibration.battery import ORDER
from assay.analyses.calibration.gate import Judged
from assay.analyses.calibration.page import COLOURS, judged_of, plot_gates, relative, strip
from assay.circuits import Circuit
from assay.core.measurement import JUDGED, Interval, Rule, Verdict
from assay.models import load_model
from assay.report.save import render
from assay.tasks import load_task


Document = dict[str, Any]


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
    row = text.partition('id="r1-C17"')[2].partition('id="r1-C23"')[0]
    assert '<table class="heat effects">' in row
    assert "task 11" in row
    assert row.count("68 more are in the result.") == 1, "of the matrix"
    assert row.count("56 more are in the result.") == 1, "of the parts"


def test_a_circuit_of_nodes_is_counted_in_nodes() -> None:
    model = load_model("mini")
    n = model.graph.n_sources
    circuit = Circuit.from_cells(model.graph, torch.arange(n) < n - 3)
    calibration = calibrate_all(circuit, model, load_task("ioi", model, n=6), gates=["C11"]).to_dict()
    worst = document("worst_case")
    worst["circuit"] |= circuit.level_facts
    for made, places in ((calibration, 2), (worst, 2)):
        text = render(made)
        assert text.count(f"{n - 3} of {n} nodes") == places
        assert not re.search(r"\d edges", text)
    assert "Nodes outside the circuit carried" in text


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


def blank(**changes: Any) -> Judged:
    """A number with an interval and a limit at 0.5."""
    facts: dict[str, Any] = {
        "label": "a number",
        "value": 0.6,
        "published_value": None,
        "interval": Interval(low=0.4, high=0.8, level=0.9, method="delta"),
        "rule": Rule(pass_at=0.5),
        "status": "inconclusive",
        "published": "none",
        "reason": None,
        "unit": 0.5,
    }
    return Judged(**(facts | changes))


def test_a_strip_places_its_number_around_its_limit_and_is_empty_without_either() -> None:
    svg = strip(blank())
    ends = re.search(r'class="range" x1="([\d.]+)" x2="([\d.]+)"', svg)
    dot = re.search(r'cx="([\d.]+)"', svg)
    low, high = map(float, ends.groups())
    assert 0 < low < 130 < float(dot[1]) < high < 260
    assert strip(blank(value=None)) == strip(blank(rule=None)) == ""


def test_pictures_and_words_agree_with_the_verdicts(made: Document) -> None:
    decided = 0
    for gate in made["gates"]:
        shown, status = judged_of(gate["verdict"]), gate["verdict"]["status"]
        assert shown.status == status
        if not shown.part and shown.interval is not None:
            assert shown.interval.to_dict() == gate["verdict"]["interval"]
            assert shown.value in gate["verdict"]["values"].values()
        if status in ("pass", "fail"):
            ends = [shown.value] if shown.interval is None else [shown.interval.low, shown.interval.high]
            assert {shown.rule.published(end) for end in ends} == {status}, gate["code"]
            decided += 1
    assert decided >= 9


def test_the_figure_of_all_gates_has_a_row_each_in_the_colour_of_the_verdict(made: Document) -> None:
    gates = [gate_of(made, code) for code in ORDER]
    figure = plot_gates(gates).get_figure()
    assert isinstance(figure, Figure)
    (ax,) = figure.axes
    assert [label.get_text().split()[-1] for label in ax.get_yticklabels()] == [*ORDER]
    failed, passed = (judged_of(gate_of(made, code)["verdict"]) for code in ("C12", "C11"))
    assert (failed.state, passed.state) == ("fail", "pass")
    assert relative(failed, failed.value) < 0 < relative(passed, passed.value)
    dots = [line for line in ax.get_lines() if line.get_marker() == "o"]
    (dot,) = [line for line in dots if list(line.get_ydata()) == [ORDER.index("C12")]]
    assert to_hex(dot.get_color()) == COLOURS["fail"]

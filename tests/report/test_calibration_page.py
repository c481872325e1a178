"""The page of calibrations: what it says of the gates in words and pictures, and that nothing breaks it."""

import ast
import copy
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from planted import runs
from synthetic import synthetic_document, synthetic_worst_case
from synthetic_calibration import MIXED, SOUND, UNSOUND, calibration_document, synthetic_calibration
from test_html import HOSTILE, Page

import assay
from assay.analyses.calibration import (
    GATES,
    Gate,
    ablation_invariance,
    bootstrap_stability,
    find_gate,
    page_summary,
    page_tables,
    page_words,
)
from assay.analyses.calibration.judges import JUDGES
from assay.analyses.calibration.names import claim_name, method_name, named, sentence
from assay.analyses.calibration.page import calibration_figure, calibration_page
from assay.analyses.calibration.page_words import judged_of
from assay.analyses.calibration.plots import COLOURS, gate_lines, plot_gates, relative
from assay.analyses.calibration.reasons import REASONS, WARNINGS, explained, warning
from assay.analyses.calibration.strips import WIDTH, _stretches, strip_places
from assay.core.errors import InputError, OutputError
from assay.core.verdict import Interval, Judged, Rule, Verdict
from assay.report import save_report
from assay.report.save import render


Document = dict[str, Any]
CODES = tuple(gate.code for gate in GATES.values())
ORDER = [GATES[key].code for key in JUDGES]


@pytest.fixture(scope="module")
def page_text() -> str:
    return render(synthetic_calibration(world=MIXED))


@pytest.fixture(scope="module")
def bare_text() -> str:
    return render(synthetic_calibration(bare=True))


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


def said(html: str) -> str:
    """Text without tags, white space pressed together."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).strip()


# ------------------------------------------------------------------------------------------------ the page


def test_the_page_is_well_formed_small_and_asks_for_nothing(page_text: str, bare_text: str) -> None:
    for text in (page_text, bare_text):
        page = Page(text)
        assert len(text.encode()) < 400_000
        assert [name for name, count in Counter(page.ids).items() if count > 1] == []
        assert page.tags["h1"] == page.tags["article"] == 1
        assert [link for link in page.links if not link.startswith("#")] == []
        assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|WebSocket|sendBeacon", text)
        assert page.tags["img"] == page.tags["link"] == page.tags["iframe"] == 0


@pytest.mark.parametrize("code", CODES)
def test_every_gate_has_a_row_with_both_verdicts_and_what_they_mean(
    code: str, page_text: str, mixed: Document
) -> None:
    gate = gate_of(mixed, code)
    row = said(row_of(page_text, code))
    judged = judged_of(gate["verdict"])
    assert f"{gate['name']} {code}" in row
    assert re.search(rf"with confidence \S+ {page_words.KINDS[judged.state][1]} ", row)
    assert re.search(rf"published rule \S+ {gate['verdict']['published']} ", row)
    assert judged.sentence.split(".")[0].replace("'", "&#39;") in row


def test_rows_stand_in_the_order_of_the_specification(page_text: str, mixed: Document) -> None:
    found = re.findall(r'<li class="gate [^"]*" id="r1-(\w+)">', page_text)
    assert found == ORDER
    assert sorted(found) == sorted(CODES)
    mixed["gates"].append(copy.deepcopy(mixed["gates"][0]) | {"code": "Z9", "name": "A later gate"})
    assert re.findall(r'<li class="gate [^"]*" id="r1-(\w+)">', render(mixed)) == [*ORDER, "Z9"]


def test_undefined_rows_say_why_instead_of_drawing(bare_text: str) -> None:
    row = row_of(bare_text, "C17")
    assert "not applicable" in row
    assert "It needs a second task with its own circuit." in row
    assert "--against greater-than" in row
    assert "<svg" not in row
    assert "says nothing" in row  # the published rule has no second task either
    assert "none of the prompts gave a finite number" in said(row_of(bare_text, "C11")).lower()
    assert row_of(bare_text, "C11").count("no number") == 1


def test_every_picture_has_a_text(page_text: str) -> None:
    pictures = re.findall(r"<svg[^>]*>", page_text)
    labelled = [each for each in pictures if "aria-label=" in each]
    assert all('role="img"' in each for each in labelled)
    assert all('aria-hidden="true"' in each for each in pictures if each not in labelled)
    label = re.search(r'aria-label="([^"]*)"', row_of(page_text, "C11"))
    assert label is not None
    assert re.fullmatch(
        r"standard error of the score: 0\.089 \[0\.071, 0\.127\]; passes at 0\.1 or below; the published "
        r"rule judges 0\.08\d; inconclusive with confidence",
        label[1],
    )


def test_what_unfolds_is_named_and_needs_no_script(page_text: str) -> None:
    folds = re.findall(r"<details>\s*<summary>(.*?)</summary>", page_text, re.DOTALL)
    assert len(folds) == len(CODES) + 1  # and the provenance
    for gate in GATES.values():
        assert any(gate.name in fold for fold in folds)


def test_parts_claims_and_heads_unfold(page_text: str) -> None:
    derived = said(row_of(page_text, "C14"))
    for words in ("d′ of the scores", "members found by the prediction", "OV composition on the edges, p"):
        assert words in derived
    assert "Not measured here: pc_ratio, mean of members" in derived
    for part in (
        "test-retest",
        "split halves: reliability",
        "Cronbach’s α",
        "signs of opposing heads reversed",
    ):
        assert part in said(row_of(page_text, "C16"))
    assert said(row_of(page_text, "C17")).count("task1") >= 3  # a part, a row and a column
    assert "Benjamini-Yekutieli" in said(row_of(page_text, "M93"))
    assert said(row_of(page_text, "M3b")).count("head 3 of the circuit") == 1


def test_the_heads_of_the_circuit_are_named_where_the_document_lists_them(mixed: Document) -> None:
    mixed["circuit"]["heads"] = [[layer, 7] for layer in range(6)]
    row = said(row_of(render(mixed), "M3b"))
    assert "head 3 of the circuit" not in row
    assert " a2.h7 " in row


def test_the_effects_of_circuits_on_tasks_are_cells(page_text: str) -> None:
    found = re.search(r'<table class="heat effects">.*?</table>', row_of(page_text, "C17"), re.DOTALL)
    assert found is not None
    cells = re.findall(r'<td class="([^"]*)" style="--ink-share:(\d+)%"', found[0])
    assert len(cells) == 9
    own = [int(ink) for kind, ink in cells if "found" in kind]
    assert len(own) == 3
    assert min(own) > 60 > max(int(ink) for kind, ink in cells if "found" not in kind)


def test_long_lists_are_cut_and_say_so(mixed: Document) -> None:
    results = gate_of(mixed, "M93")["verdict"]["details"]["results"]
    results *= 20
    row = said(row_of(render(mixed), "M93"))
    left = len(results) - page_tables.LISTED_CLAIMS
    assert f"{left} more are in the result." in row


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


def test_hostile_text_stays_text(page_text: str, mixed: Document) -> None:
    bad = copy.deepcopy(mixed)
    bad["model"] |= {"id": HOSTILE, "weight_hash": HOSTILE}
    bad["task"] |= {"name": HOSTILE, "data_hash": HOSTILE}
    bad["circuit"] |= {"name": HOSTILE, "hash": HOSTILE}
    bad["against"] = [HOSTILE]
    bad["missing"] = {HOSTILE: HOSTILE}
    bad["provenance"] = {HOSTILE: HOSTILE}
    for gate in bad["gates"]:
        texts = ("key", "code", "name", "criterion", "question", "on_pass", "on_fail", "weakness", "source")
        gate |= {name: gate[name] + HOSTILE for name in texts if name != "code"}
        verdict = gate["verdict"]
        verdict["values"][HOSTILE] = 1.0
        verdict["warnings"] = [HOSTILE]
        if verdict.get("sub_results"):
            verdict["sub_results"][HOSTILE] = {
                "status": "inconclusive",
                "published": HOSTILE,
                "values": {},
                "thresholds": {},
                "interval": None,
                "n_needed": None,
                "reason": HOSTILE,
                "judged": verdict["judged"] | {"label": HOSTILE, "published": HOSTILE, "because": HOSTILE},
            }
    gate_of(bad, "C12")["verdict"]["details"]["lowest_pair"] = [HOSTILE, HOSTILE]
    gate_of(bad, "C17")["verdict"]["details"]["tasks"] = [HOSTILE, HOSTILE, HOSTILE]
    gate_of(bad, "M93")["verdict"]["details"]["results"][0]["name"] = HOSTILE
    gate_of(bad, "C23")["verdict"]["judged"] |= {"status": HOSTILE, "reason": HOSTILE, "sentence": HOSTILE}
    bad["gates"].append(gate_of(bad, "C36") | {"code": HOSTILE, "name": "$x_{1$"})
    page, harmless = Page(render(bad)), Page(page_text)
    assert page.tags["script"] == harmless.tags["script"]
    assert page.tags["img"] == 0
    assert {name for name, _ in page.attributes if name.startswith("on")} == set()
    assert any("alert(2)" in text and "{{ 7 * 7 }}" in text for text in page.data["h1"])


def test_an_audit_shows_its_calibration_as_an_article_of_its_own(mixed: Document) -> None:
    audit = synthetic_document() | {"worst_case": synthetic_worst_case(), "calibration": mixed}
    text = render(audit)
    page = Page(text)
    assert re.findall(r'<article class="page[^"]*" id="([^"]+)"', text) == [
        "r1",
        "r2",
        "r3",
    ]
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert 'id="r3-C11"' in text


def test_without_a_calibration_an_audit_is_as_it_was() -> None:
    audit = synthetic_document()
    assert render(audit | {"calibration": None}) == render(audit)


def test_a_report_of_calibrations_is_saved(tmp_path: Path, mixed: Document) -> None:
    class Report:
        def to_dict(self) -> Document:
            return mixed

    by_document, by_object = (tmp_path / name for name in ("a.html", "b.html"))
    save_report(by_document, mixed)
    save_report(by_object, Report())
    assert by_document.read_text(encoding="utf-8") == by_object.read_text(encoding="utf-8")
    assert "What can be trusted" in by_document.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "assay-calibration/9"}, "schema 'assay-calibration/9'; this version reads"),
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


def test_an_incomplete_document_is_refused(mixed: Document) -> None:
    del mixed["table"]
    with pytest.raises(InputError, match="lacks table; it is incomplete"):
        render(mixed)
    with pytest.raises(InputError, match="got kind None"):
        calibration_page({})


# ---------------------------------------------------------------------------------------------- the overview


def test_the_overview_names_every_check_once_for_each_verdict_and_gives_no_score() -> None:
    unsound = synthetic_calibration(world=UNSOUND)
    confident, published = page_summary.overview(unsound).split(". By the published rules")
    for gate in unsound["gates"]:
        assert confident.count(f"{gate['code']} {gate['name'].lower()}") == 1
        assert len(re.findall(rf"\b{gate['code']}\b", published)) == 1
    assert published.endswith(" fail.")


def test_the_overview_says_why_a_check_does_not_apply() -> None:
    bare = page_summary.overview(synthetic_calibration(bare=True))
    assert "C17 discriminant validity (it needs a second task with its own circuit)" in bare
    assert re.search(r"; M98 .* do not apply; ", bare)
    assert bare.endswith("; the others decide nothing.")


def test_the_overview_of_one_gate() -> None:
    document = calibration_document({"C11": bootstrap_stability(np.ones(10), np.ones(10))})
    assert page_summary.overview(document) == (
        "With confidence, C11 bootstrap stability passes. By the published rules, which take numbers at face "
        "value, C11 passes."
    )
    document = calibration_document({"C11": bootstrap_stability(np.zeros(0), np.zeros(0))})
    assert re.fullmatch(
        r"With confidence, C11 bootstrap stability \(.+\) is undefined on these data. The published rules "
        "decide nothing.",
        page_summary.overview(document),
    )


def test_the_score_that_is_judged_and_of_what_is_said_first(mixed: Document, page_text: str) -> None:
    verdict = gate_of(mixed, "C11")["verdict"]
    value, bounds = verdict["values"]["faithfulness"], verdict["details"]["interval"]
    low, high = (f"{bounds[name]:.2f}" for name in ("low", "high"))
    mixed["table"]["ablation"] = "mean"
    assert page_summary.subject_words(mixed) == (
        f"Faithfulness {value:.2f} [{low}, {high}] (95\N{NARROW NO-BREAK SPACE}% interval) of 6 of 32 heads, "
        "the rest under mean ablation. Measured on 40 prompts of ioi, and on a pool of 120 to "
        "estimate the variation over prompts."
    )
    header = said(page_text.partition("All checks at a glance")[0].rpartition("<header>")[2])
    assert header.index(f"Faithfulness {value:.2f} [{low}, {high}]") < header.index("With confidence, ")


def test_without_c11_the_score_is_not_said(mixed: Document) -> None:
    mixed["gates"] = [gate for gate in mixed["gates"] if gate["code"] != "C11"]
    mixed["table"] |= {"ablation": "zero", "n_pool": 40}
    assert page_summary.subject_words(mixed) == (
        "The circuit is 6 of 32 heads, the rest under zero ablation. Measured on 40 prompts of ioi."
    )
    bare = synthetic_calibration(bare=True)
    assert page_summary.subject_words(bare).startswith("The circuit is 6 of 32 heads. Measured on 3 ")
    assert page_summary.subject_words(mixed | {"table": {}, "circuit": {}, "task": {}}) == ""


@pytest.mark.parametrize(
    ("kind", "n_edges", "text"),
    [
        ("heads", 78, "6 of 32 heads (78 edges)"),
        ("edges", 78, "78 edges on 6 of 32 heads"),
        ("edges", 1, "1 edge on 6 of 32 heads"),
    ],
)
def test_edges_of_the_circuit_are_counted(mixed: Document, kind: str, n_edges: int, text: str) -> None:
    mixed["circuit"] |= {"kind": kind, "n_edges": n_edges}
    assert f"interval) of {text}. " in page_summary.subject_words(mixed)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"k": 0}, "The circuit is empty"),
        ({"k": 0, "kind": "edges", "n_edges": 0}, "The circuit is empty"),
        ({"k": 0, "kind": "edges", "n_edges": 3}, "The circuit contains no head"),
        ({"k": 32}, "The circuit holds every head"),
        ({"k": 32, "kind": "edges", "n_edges": 90}, "The circuit touches every head"),
    ],
)
def test_odd_circuits_are_said_before_all_else(mixed: Document, changes: Document, text: str) -> None:
    assert not any(note.startswith("The circuit") for note in page_summary.caveats(mixed))
    mixed["circuit"] |= changes
    assert page_summary.caveats(mixed)[0].startswith(text)
    assert f'<p class="caveat">{text}' in render(mixed)


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


def test_every_gate_names_its_number() -> None:
    assert set(EXPECTED) | set(DECISIVE) == set(CODES) == set(ORDER)
    assert all(gate.number is not None and gate.number.label for gate in GATES.values())


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
    names = {"test_retest": "relative_standard_error", "split_half": "icc", "cronbach_alpha": "alpha"}
    suite = gate_of(synthetic_calibration(world=SOUND), "C16")["verdict"]["sub_results"]
    for name, value in names.items():
        judged = judged_of(suite[name])
        assert judged.value == suite[name]["values"][value]
        assert judged.rule is not None
        assert judged.rule.higher is (name != "test_retest")


@pytest.mark.parametrize("sign", [1, -1])
def test_gaps_of_ablations_are_drawn_positive_with_their_interval(sign: int) -> None:
    rng = np.random.default_rng(0)
    full = rng.normal(3, 0.5, 60)
    circuits = {"a": full * 0.9, "b": full * 0.9 - 1.5 * sign + rng.normal(0, 0.3, 60)}
    verdict = ablation_invariance(full, circuits)
    assert verdict.interval is not None
    judged = verdict.judged
    assert judged is not None
    assert judged.value is not None
    assert 0.3 < verdict.interval.low < judged.value < verdict.interval.high
    assert judged.interval == verdict.interval


def test_the_opposite_order_is_where_the_functional_order_fails(mixed: Document) -> None:
    rule = judged_of(gate_of(mixed, "C23")["verdict"]).rule
    assert rule is not None
    assert _stretches(rule) == {"pass": (-math.inf, 0.05), "fail": (0.95, math.inf)}
    assert rule.limits == (0.05,)


def test_parts_that_a_gate_does_not_list_are_called_what_they_are() -> None:
    part = Verdict(status="none", published="none", values={"value": 4.0}, thresholds={"pass": 3.0})
    errors = {"sigma": 0.1, "standard_error": 0.2}
    variant = Verdict(status="none", published="none", values=errors, thresholds={"pass": 0.1})

    def judged(code: str, name: str, verdict: Verdict) -> Judged:
        whole = Verdict(status="none", published="none", sub_results={name: verdict})
        found = find_gate(code).worded(whole).sub_results[name].judged
        assert found is not None
        return found

    assert judged("C17", "greater-than", part).label == "greater-than"
    assert judged("C14", "new_row", part).label == "new row"
    assert judged("M93", "", part).label == "no task"
    found = judged("C11", "sufficiency", variant)
    assert (found.label, found.value) == ("sufficiency", 0.2)
    assert found.rule == Rule(pass_at=0.1, higher=False, strict=False)


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
    gate["verdict"]["n_needed"] = 30
    assert "a few more" in page_words.advice(gate, mixed)[0]
    del gate["verdict"]["details"]["n_prompts"]
    gate["verdict"]["n_needed"] = 178
    assert "(here: 77)" in page_words.advice(gate, {"table": {"n_prompts": 77}})[0]
    pool = gate_of(mixed, "C30")
    pool["verdict"] |= {"status": "inconclusive", "n_needed": 500}
    reworded(pool)
    assert page_words.advice(pool, mixed) == ["A pool of about 500 prompts would settle it (here: 120)."]


def test_a_fail_for_a_reason_says_so(mixed: Document) -> None:
    gate = gate_of(mixed, "C17")
    gate["verdict"] |= {"status": "fail", "reason": "no_own_effect"}
    assert page_words.advice(reworded(gate), mixed)[0] == REASONS["no_own_effect"][0]


def test_a_pass_asks_for_nothing() -> None:
    sound = synthetic_calibration(world=SOUND)
    assert gate_of(sound, "C11")["verdict"]["status"] == "pass"
    assert page_words.advice(gate_of(sound, "C11"), sound) == []


def test_findings_point_at_what_stands_out() -> None:
    unsound = synthetic_calibration(world=UNSOUND)
    found = {code: page_words.findings(gate_of(unsound, code)) for code in CODES}
    assert re.fullmatch(
        r"The methods that agree least: patching and mediation \(rank correlation .0\.\d\d\)\.", found["C12"]
    )
    assert found["C13"].startswith("Furthest apart: template 0 and template 2, with scores")
    assert found["C14"] == "Also not established: hits 0.00."  # d' is the number shown
    assert found["C16"].startswith("Failing: split halves and consistency. Open: test-retest.")
    assert "Not moving with the others: head 1 of the circuit, head 2 of the circuit" in found["C16"]
    heads = [[0, at] for at in range(6)]
    certified = gate_of(unsound, "M3b")["verdict"]["details"]["labels"]
    unstable = [f"a0.h{at}" for at, label in enumerate(certified) if label == "unstable"]
    assert f"unstable {named(unstable)}." in page_words.findings(gate_of(unsound, "M3b"), heads)
    assert page_words.findings(gate_of(unsound, "C16"), heads).endswith("a0.h3 and 2 more.")
    assert re.fullmatch(
        r"The heads matter \S+ times as much for task0 as for the other tasks; a pass requires 3\. "
        r"Not specific either: the circuits of task1 and task2\.",
        found["C17"],
    )
    assert found["M93"].startswith("Lost: result")
    assert found["M98"].startswith("Furthest apart: zero and resample-donor ablation, with scores 1.45 and")
    assert found["M98"].endswith("lies beyond the limit at 98.3 %, the level of a fail among all pairs.")
    assert found["C11"] == ""


@pytest.mark.parametrize(
    ("code", "published", "value", "bounds", "where"),
    [
        ("C14", "pass", 1.37, (0.4, 2.7), "where the check passes"),
        ("C36", "fail", -0.006, (-0.02, 0.007), "where it fails"),
        ("C30", "moderate", 0.15, (0.08, 0.19), "between its limits"),
    ],
)
def test_an_open_verdict_beside_a_published_one_is_explained(
    mixed: Document, code: str, published: str, value: float, bounds: tuple[float, float], where: str
) -> None:
    gate = gate_of(mixed, code)
    if code == "C14":
        gate["verdict"]["sub_results"] = {"d_prime": gate["verdict"]["sub_results"]["d_prime"]}
    verdict = gate["verdict"]["sub_results"]["d_prime"] if code == "C14" else gate["verdict"]
    name = {"C30": "relative_standard_error"}.get(code, "value")
    verdict |= {
        "values": verdict["values"] | {name: value},
        "interval": {"low": bounds[0], "high": bounds[1], "level": 0.9, "method": "delta"},
    }
    gate["verdict"] |= {"status": "inconclusive", "published": published}
    assert f"the number itself lies {where}." in page_words.disagreement(reworded(gate))
    gate["verdict"]["published"] = "pass" if published == "fail" else "fail"
    other = page_words.disagreement(reworded(gate))
    assert "the number itself" not in other
    assert "Here the interval reaches across the limit" in other
    assert other.endswith(sentence(gate["weakness"]))
    gate["verdict"]["published"] = published
    # An interval on one side of the limit does not explain why the verdict is open.
    narrow = gate["verdict"]["sub_results"]["d_prime"] if code == "C14" else gate["verdict"]
    narrow["interval"] |= {"low": value, "high": value}
    assert "the number itself" not in page_words.disagreement(reworded(gate))


BAND = Rule(pass_at=0.1, fail_at=0.2, higher=False)


def test_where_a_number_lies_follows_its_limits() -> None:
    assert [blank().side(value) for value in (0.4, 0.5, 0.6, None)] == ["fail", "fail", "pass", ""]
    assert Rule(pass_at=0.5, strict=False).side(0.5) == "pass"
    assert [BAND.side(value) for value in (0.05, 0.1, 0.15, 0.2, 0.3)] == [
        "pass",
        "moderate",
        "moderate",
        "moderate",
        "fail",
    ]
    assert Rule(pass_at=0.5, open_ended=True).side(0.4) == ""
    assert blank(rule=None).side(0.4) == ""


def test_methods_and_raters_go_by_words(mixed: Document) -> None:
    rated = gate_of(mixed, "F59")
    names = {"drop effect": "drop-effect", "direct effect": "dla", "OV norm": "ov-norm"}
    details = rated["verdict"]["details"]
    for name in ("pairs", "kappa_pairs"):
        details[name] = {
            "/".join(names[each] for each in pair.split("/")): value for pair, value in details[name].items()
        }
    details["worst_pair"] = ["dla", "ov-norm"]
    rated["verdict"]["status"] = "pass"
    gate_of(mixed, "C12")["verdict"]["status"] = "fail"
    for gate in mixed["gates"]:
        reworded(gate)
    rated = gate_of(mixed, "F59")
    assert judged_of(rated["verdict"]).sentence == (
        "These raters order the heads alike. The raters: drop effect, direct effect and weights."
    )
    assert judged_of(gate_of(mixed, "C12")["verdict"]).sentence.endswith(
        " The methods: patching, mediation and learning coefficients."
    )
    claims = gate_of(mixed, "M93")["verdict"]["details"]
    claims["results"][0]["name"], claims["lost"] = "C12: C2/C10 order the heads alike", ["C12: C5/C7 differ"]
    gate_of(mixed, "M93")["verdict"]["status"] = "fail"
    reworded(gate_of(mixed, "M93"))
    text = render(mixed)
    assert "direct effect and weights" in said(row_of(text, "F59"))
    assert "dla" not in row_of(text, "F59")
    assert "patching and learning coefficients" in said(row_of(text, "C12"))
    assert "C12: patching and learning coefficients order the heads alike" in said(row_of(text, "M93"))
    assert "Lost: C12: mediation and causation entropy differ." in said(row_of(text, "M93"))
    for code in ("C12", "M93"):
        assert not re.search(r"\bC(2|5|7|10)\b", said(row_of(text, code).replace("C5 Convergent", "")))
    assert method_name("my-scores") == "my-scores"
    assert claim_name("C11/C13: C2 alone") == "C11/C13: C2 alone"


def test_advice_names_the_heads_of_the_document(mixed: Document) -> None:
    mixed["circuit"]["heads"] = [[layer, 7] for layer in range(6)]
    gate = gate_of(mixed, "M3b")
    gate["verdict"]["status"] = "fail"
    gate["verdict"]["details"]["labels"] = ["unstable", "contingent", *["certified"] * 4]
    assert page_words.advice(reworded(gate), mixed) == ["Contingent a1.h7; unstable a0.h7."]


@pytest.mark.parametrize(
    ("task", "other"), [("ioi", "greater-than"), ("greater-than", "ioi"), ("docstring", "greater-than")]
)
def test_another_task_is_named_to_compare_with(task: str, other: str) -> None:
    bare = synthetic_calibration(bare=True)
    bare["task"]["name"] = task
    assert f"--against {other} " in " ".join(page_words.advice(gate_of(bare, "C17"), bare))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            ["place", "object"],
            "Group them by a field of the task: --groups place or --groups object (groups=",
        ),
        ([], "No field of the task repeats often enough to group by;"),
        (
            None,
            "Use a task with several templates, or group the prompts by one of its fields: --groups FIELD",
        ),
    ],
)
def test_the_fields_to_group_by_are_named(fields: list[str] | None, text: str) -> None:
    bare = synthetic_calibration(bare=True)
    gate = gate_of(bare, "C13")
    gate["verdict"] |= {"reason": "not_applicable", "details": {} if fields is None else {"fields": fields}}
    assert page_words.advice(reworded(gate), bare)[1].startswith(text)


@pytest.mark.parametrize(("by", "words"), [("object", "(by object)"), ("given", "(as given)")])
def test_the_grouping_is_named_and_no_template_is_spoken_of(mixed: Document, by: str, words: str) -> None:
    gate = gate_of(mixed, "C13")
    gate["verdict"]["details"] |= {"groups_from": by}
    for each in mixed["gates"]:
        reworded(each)
    gate = gate_of(mixed, "C13")
    assert judged_of(gate["verdict"]).label == f"share of the spread that lies between groups {words}"
    assert f"between groups {words}" in said(row_of(render(mixed), "C13"))
    assert not re.search("template", " ".join(str(gate[name]) for name in ("question", "on_pass", "on_fail")))
    del gate["verdict"]["details"]["groups_from"]
    assert judged_of(reworded(gate)["verdict"]).label == "share of the spread that lies between groups"


def test_the_seed_of_the_prompts_is_told_from_that_of_resampling(mixed: Document) -> None:
    footer = said(render(mixed).partition("<footer>")[2])
    assert "resampling seed 42" in footer
    assert "drawn with seed" not in footer
    mixed["task"]["config"] = {"seed": 7}
    assert "task ioi drawn with seed 7, hash of the data " in said(render(mixed).partition("<footer>")[2])


def test_a_verdict_alone_is_refused_with_what_to_give_instead(tmp_path: Path) -> None:
    verdict = bootstrap_stability(np.ones(10), np.ones(10))
    for given in (verdict, verdict.to_dict()):
        with pytest.raises(InputError, match=r"one verdict alone \(status 'pass'\).*`assay\.calibrate_all`"):
            save_report(tmp_path / "a.html", given)
    assert not (tmp_path / "a.html").exists()


def test_a_part_that_fails_alone_does_not_make_the_suite_fail() -> None:
    gate = gate_of(synthetic_calibration(world=UNSOUND), "C16")
    gate["verdict"]["status"] = "inconclusive"
    assert "though not with enough confidence for one of several tests" in page_words.findings(gate)


def test_where_the_verdicts_differ_the_page_says_why(mixed: Document) -> None:
    gate = gate_of(mixed, "C11")
    assert gate["verdict"]["published"] == "pass"
    assert page_words.disagreement(gate) == (
        "The published rule says pass, because the number itself lies where the check passes. Its interval "
        "is not entirely there, so with confidence the check stays open."
    )
    gate["verdict"] |= {"interval": None}
    text = page_words.disagreement(reworded(gate))
    assert text.startswith("The published rule says pass. Percentile intervals under-cover")
    gate["verdict"] |= {"status": "fail", "values": gate["verdict"]["values"] | {"standard_error": 0.2}}
    text = page_words.disagreement(reworded(gate))
    assert re.match(r"The published rule says pass, because it judges another number, 0\.09\. Perc", text)
    gate["verdict"]["status"] = "pass"
    assert page_words.disagreement(reworded(gate)) == ""
    bare = gate_of(synthetic_calibration(bare=True), "M93")
    assert page_words.disagreement(bare).startswith(
        "The published rule says pass all the same. A pass flag turned into"
    )
    none = gate_of(synthetic_calibration(bare=True), "C11")
    assert page_words.disagreement(none) == ""


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


def test_limits_are_worded_as_they_judge() -> None:
    assert page_words.passes_words(blank()) == "passes above 0.5"
    assert page_words.passes_words(blank(rule=Rule(pass_at=0.5, strict=False))) == "passes at 0.5 or above"
    assert page_words.passes_words(blank(rule=Rule(pass_at=0.5, higher=False))) == "passes below 0.5"
    assert page_words.passes_words(blank(rule=BAND)) == "passes below 0.1, fails above 0.2"
    assert page_words.passes_words(blank(rule=None)) == ""
    judged = bootstrap_stability(np.ones(4), np.full(4, 0.8)).judged
    assert judged is not None
    assert page_words.number_line(judged) == ("0.00", "passes at 0.1 or below")


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


def branches(node: ast.expr) -> Iterator[str]:
    """String constants that an expression can be, both sides of a choice."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and CODE.match(node.value):
            yield node.value
    elif isinstance(node, ast.IfExp):
        yield from branches(node.body)
        yield from branches(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from branches(value)


def strings(node: ast.AST) -> Iterator[str]:
    """String constants anywhere in an expression, conditions and look-ups apart."""
    if isinstance(node, ast.Constant):
        yield from branches(node)
    elif isinstance(node, ast.IfExp):
        yield from strings(node.body)
        yield from strings(node.orelse)
    elif not isinstance(node, ast.Compare | ast.Subscript):
        for child in ast.iter_child_nodes(node):
            yield from strings(child)


def assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names and what they get."""
    if isinstance(node, ast.keyword) and node.arg:
        yield node.arg, node.value
    elif isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
        yield ast.unparse(node.target), node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
                yield from ((ast.unparse(name), value) for name, value in pairs)
            elif isinstance(target, ast.Tuple):
                yield from ((ast.unparse(name), node.value) for name in target.elts)
            else:
                yield ast.unparse(target), node.value
    elif isinstance(node, ast.BinOp) and ast.unparse(node.left).endswith("warnings"):
        yield "warnings", node.right
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "draft.warn":
        yield "warnings", node.args[0]
    elif isinstance(node, ast.FunctionDef) and node.returns is not None:
        kind = {"str | None": "reason", "tuple[str, ...]": "warnings"}.get(ast.unparse(node.returns))
        if kind == "reason" and not (ast.get_docstring(node) or "").startswith("Why"):
            kind = None
        for inner in ast.walk(node) if kind else ():
            if isinstance(inner, ast.Return) and inner.value is not None:
                yield str(kind), inner.value


def codes_of(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Reasons and warnings that a module can give."""
    reasons: set[str] = set()
    warned: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            place = MAKERS.get(ast.unparse(node.func).rpartition(".")[2])
            if place is not None and place < len(node.args):
                reasons |= set(branches(node.args[place]))
        for name, value in assigned(node):
            if name == "reason":
                reasons |= set(branches(value))
            elif name == "warnings":
                warned |= set(strings(value))
    return reasons, warned


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
    assert {"not_applicable", "pool_too_small", "order_means_nothing", "too_few", "unbounded"} <= reasons
    assert {"prompts_dropped", "trivial_circuit", "circular_bands", "ratio_capped", "proxy"} <= warned
    assert len(reasons) >= 25
    assert len(warned) >= 20
    tree = ast.parse("def f():\n    warnings = ()\n    warnings += ('new_one',)\n    return none('odd_case')")
    assert codes_of(tree) == ({"odd_case"}, {"new_one"})


def test_own_sentences_of_gates_are_of_known_reasons() -> None:
    for gate in GATES.values():
        assert set(gate.reasons) <= set(REASONS)


def test_sentences_are_sentences() -> None:
    explanations = [*REASONS.values(), *(pair for gate in GATES.values() for pair in gate.reasons.values())]
    texts = [
        *(part for pair in explanations for part in pair if part),
        *WARNINGS.values(),
        *(gate.when_open for gate in GATES.values()),
    ]
    assert [text for text in texts if not re.fullmatch(r"[A-Z].*\.", text)] == []


def test_an_unknown_code_is_shown_as_it_stands() -> None:
    assert explained("some_new_code", {}) == ("Some new code.", "")
    assert warning("some_new_code") == "Some new code."


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


def test_a_band_between_pass_and_fail_is_left_blank() -> None:
    found = drawn(
        rule=BAND,
        value=0.15,
        low=0.12,
        high=0.18,
        least=0.0,
        unit=0.1,
    )
    (low, _), (high, _) = found.ticks
    zones = {kind: (x, x + width) for kind, x, width, _ in found.zones}
    assert zones["pass"] == (0.0, low)
    assert zones["fail"][0] == pytest.approx(high)
    assert low < found.low < found.high < high


def test_limits_that_would_run_together_are_drawn_with_one_number() -> None:
    found = drawn(
        rule=BAND,
        value=3.0,
        low=2.0,
        high=4.0,
        least=0.0,
        unit=0.1,
    )
    assert [text for _, text in found.ticks] == ["0.1", ""]


def test_an_end_far_away_is_cut_and_marked() -> None:
    found = drawn(value=2.5, low=1.02, high=400.0, rule=Rule(pass_at=1.0))
    assert found.cut_high
    assert not found.cut_low
    assert found.high == WIDTH
    assert found.value > 0.15 * WIDTH


def test_ratios_that_span_much_get_a_logarithmic_axis() -> None:
    wide = {"rule": Rule(pass_at=3.0), "unit": 3.0}
    found = drawn(value=30.0, low=15.0, high=60.0, ratio=True, **wide)
    assert found.value - found.low == pytest.approx(found.high - found.value, abs=0.2)
    linear = drawn(value=30.0, low=-15.0, high=60.0, ratio=True, **wide)  # a ratio below 0 has no logarithm
    assert linear.value - linear.low == pytest.approx(1.5 * (linear.high - linear.value), abs=0.3)


def test_the_axis_ends_where_the_number_does() -> None:
    found = drawn(value=1.0, low=0.6, high=1.0, least=0.0, most=1.0)
    assert found.high == found.value == WIDTH
    assert (WIDTH, "1", "last") in found.ends


def test_what_the_published_rule_judges_is_drawn_where_it_is_another_number() -> None:
    assert drawn(published_value=0.6).published is None
    assert drawn(published_value=0.45).published is not None


def test_nothing_is_drawn_without_a_number_or_a_limit() -> None:
    assert strip_places(blank(value=None)) is None
    assert strip_places(blank(rule=None)) is None


@pytest.mark.parametrize("value", [0.5, 0.0, -0.5])
def test_a_strip_of_one_point_has_an_axis(value: float) -> None:
    found = drawn(value=value, low=value, high=value, rule=Rule(pass_at=value), unit=0.1)
    assert 0 < found.value < WIDTH


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


def test_the_limit_is_the_middle_and_passing_is_to_the_right() -> None:
    assert relative(blank(), 0.5) == 0
    assert relative(blank(), 1.0) == 0.5
    assert relative(blank(rule=Rule(pass_at=0.5, higher=False)), 1.0) == -0.5
    assert relative(blank(), -math.inf) is None or abs(relative(blank(), -1e12) or 0) < 1
    assert relative(blank(), None) is None


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


def test_the_figure_says_what_has_no_number() -> None:
    document = synthetic_calibration(bare=True)
    ax = plot_gates(gate_lines(document["gates"]))
    words = [text.get_text() for text in ax.texts]
    assert words.count("not applicable") == 2 * 8  # at the row, and in the column
    assert words.count("says nothing") == 14


@pytest.mark.parametrize("ending", ["png", "svg", "SVG"])
def test_the_figure_is_written_the_same_every_time(tmp_path: Path, mixed: Document, ending: str) -> None:
    first, second = (tmp_path / f"{name}.{ending}" for name in "ab")
    assert calibration_figure(mixed, first) == first
    calibration_figure(mixed, second)
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) > 5_000


def test_other_kinds_of_picture_are_refused(tmp_path: Path, mixed: Document) -> None:
    with pytest.raises(InputError, match=r"cannot write 'a\.pdf': give a name ending in"):
        calibration_figure(mixed, tmp_path / "a.pdf")
    with pytest.raises(OutputError, match="choose another place"):
        calibration_figure(mixed, tmp_path / "nowhere" / "a.png")


# ---------------------------------------------------------------------------------- documents of other shapes


def test_a_verdict_without_anything_but_its_words_is_shown() -> None:
    document = calibration_document({code: Verdict(status="none", published="none") for code in CODES})
    text = render(document)
    assert text.count("no number") == len(CODES)
    assert "no verdict" in row_of(text, "C11")


def test_what_could_not_be_measured_is_listed(mixed: Document) -> None:
    mixed["missing"] = {"y_cross": "the task has no corrupted prompts"}
    mixed["table"]["passes"] = {"forward": 3153.3, "backward": 60.0}
    text = said(render(mixed))
    assert "1 column could not be measured" in text
    assert "y_cross the task has no corrupted prompts" in text
    assert "3,153 passes to fill it" in text


def test_one_gate_alone_makes_a_page() -> None:
    made = runs(np.random.default_rng(1), 50, sd=0.3)
    document = calibration_document({"C11": bootstrap_stability(made.y_full, made.y_circuit)})
    text = render(document)
    Page(text)
    assert text.count('<li class="gate') == 1

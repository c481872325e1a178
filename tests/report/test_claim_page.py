"""The page of a claim, from a made-up document."""

import re
from typing import Any

import pytest

from assay.analyses.claims.page import claim_page
from assay.core.errors import InputError
from assay.page.blocks import Cell, Table
from assay.report import save_report
from assay.report.save import render


def document(**changes: Any) -> dict[str, Any]:
    """A result with one line of every state; the text tries to break out of the page."""

    def test(name: str, state: str, **facts: Any) -> dict[str, Any]:
        given = {
            "value": -0.25,
            "p": 0.0001,
            "q": 0.04,
            "reason": None,
            "interval": {"low": -0.3, "high": 0.2},
        }
        return {"name": name, "state": state, **given, **facts}

    def line(kind: str, source: str, state: str, required: bool = True) -> dict[str, Any]:
        texts = {"finding": f"finding of {source}", "supply": f"supply of {source}"}
        return {"kind": kind, "source": source, "state": state, "required": required, **texts}

    facts = {
        "name": "x",
        "statement": "Heads <script>move</script> it.",
        "model": "mini",
        "task": "ioi",
        "n": 60,
        "seed": 4,
        "ablation": "mean",
    }
    undefined = {"value": None, "p": None, "q": None, "interval": {"low": None, "high": None}}
    return {
        "schema": "assay-claim-result/1",
        "kind": "claim",
        "claim": {"claim": facts},
        "hash": "0123456789abcdef0123",
        "registration": {"registered": "2026-01-02T03:04:05.678901+00:00", "earlier": 0},
        "registered_before": True,
        "tests": [
            test("dropping <b>", "held"),
            test("keeping", "contradicted", p=0.9996),
            test("on another task", "open", reason="no_behaviour", **undefined),
        ],
        "replication": [test("again", "lost")],
        "evidence": [
            line("necessity", "prediction 1", "present"),
            line("sufficiency", "prediction 2", "against"),
            line("specificity", "C17", "undecided", required=False),
        ],
        "checklist": {"necessity": "present", "sufficiency": "against", "specificity": "missing"},
        "contradicted": [1],
        "tier": "proposed",
        "lacking": ["sufficiency"],
        "tables": {"ioi": "feedface"},
        **changes,
    }


def test_the_page_shows_tier_evidence_and_tests() -> None:
    page = render(document())
    for piece in (
        "licenses the tier “proposed”. The next tier needs sufficiency.",
        "Contradicted: prediction 2.",
        "finding of prediction 2",
        "supply of C17",
        'C17 <span class="quiet">beside</span>',
        "2026-01-02 03:04:05 UTC, before its prompts were measured",
        "&lt;0.001",
        "no_behaviour",
        "0123456789abcdef",
        "feedface",
        "The predictions on fresh prompts",
    ):
        assert piece in page, piece
    assert "<script>move" not in page
    assert "dropping <b>" not in page
    assert not re.search(r"""(?:src|href)=["']?https?:""", page)


def test_states_have_marks_and_classes() -> None:
    checklist, tests = (section.blocks[0] for section in claim_page(document()).sections)
    assert isinstance(checklist, Table)
    assert isinstance(tests, Table)
    states = [row[2] for row in checklist.rows if isinstance(row, list)][::2]
    assert [each.status for each in states if isinstance(each, Cell)] == ["present", "against", "missing"]
    assert len({each.mark for each in states if isinstance(each, Cell)}) == 3
    assert [row[1] for row in tests.rows if isinstance(row, list)] == ["−0.25", "−0.25", "n/a"]
    page = render(document())
    assert '<td class="status is-present"><span aria-hidden="true">✔</span> present</td>' in page
    assert '<td class="status is-contradicted">contradicted</td>' in page


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"registration": None}, "The claim was not registered."),
        ({"registered_before": False}, "Registered after its prompts had been measured"),
    ],
)
def test_registration_is_a_caveat_where_it_is_missing_or_late(changes: dict[str, Any], note: str) -> None:
    assert note in render(document(**changes))


def test_other_documents_are_refused() -> None:
    with pytest.raises(InputError, match="has schema 'assay-claim-result/9'; this version reads"):
        render(document(schema="assay-claim-result/9"))
    incomplete = document()
    del incomplete["evidence"]
    with pytest.raises(InputError, match="lacks evidence; it is incomplete"):
        render(incomplete)


def test_it_is_saved_as_other_reports_are(tmp_path: Any) -> None:
    path = save_report(tmp_path / "deep" / "claim.html", document())
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")

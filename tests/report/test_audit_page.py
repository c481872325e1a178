"""The page of an audit: what its sentences claim, and that figures and drawing hold its numbers."""

import base64
import json
import re
import zlib
from typing import Any

import numpy as np
import pytest
from pages import document, large_document

from assay.core.errors import InputError
from assay.page.graph import UNSCRIPTED
from assay.pipeline.audit_page import caveats, head_data, solved, strongest_heads, verdict
from assay.pipeline.audit_result import Audit
from assay.report.save import render


Document = dict[str, Any]
NORMALISED, PLAIN = 0, 1  # places of both faithfulnesses among the measurements


@pytest.fixture
def own() -> Document:
    """An audit that nothing speaks against, yours to change."""
    made: Document = document("audit")
    measure(made, NORMALISED, 0.92, 0.9, 0.94)
    return made | {"other_ablations": []}


def audit_of(own: Document) -> Audit:
    return Audit.from_dict(own)


def measure(own: Document, place: int, value: float | None, low: float = 0.9, high: float = 0.94) -> None:
    own["measurements"][place] |= {"value": value, "interval": {"low": low, "high": high, "level": 0.95}}


# ---- sentences ----------------------------------------------------------------------------------


def test_the_verdict_names_both_faithfulnesses_where_they_differ(own: Document) -> None:
    own["circuit"]["n_edges"], own["graph"]["n_edges"] = 149, 1893
    own["measurements"][NORMALISED]["baseline"]["random"]["value"] = 0.031
    measure(own, PLAIN, 0.82, 0.79, 0.85)
    assert verdict(audit_of(own)) == (
        "149 of 1,893 edges (7.9\N{NARROW NO-BREAK SPACE}%) reach a normalised faithfulness of 0.92 "
        "[0.90, 0.94] (0: empty circuit, 1: model), a plain faithfulness of 0.82 [0.79, 0.85] (share of "
        "the model’s margin) and 1.00 [1.00, 1.00] of the output distribution; random circuits of that size "
        "reach 0.03 normalised."
    )
    for value in (0.9211, None):
        measure(own, PLAIN, value)
        assert "plain" not in verdict(audit_of(own))
    own["measurements"][NORMALISED]["baseline"] = {}
    assert "random" not in verdict(audit_of(own))
    own["circuit"]["n_edges"] = 1893
    assert verdict(audit_of(own)).startswith("No smaller circuit of the sweep reaches what was asked for")


@pytest.mark.parametrize(
    ("margin", "distribution", "words"),
    [
        (True, True, "reach a normalised faithfulness of"),
        (True, False, "reach the target of faithfulness alone, with a normalised faithfulness of"),
        (False, True, "reach the target of the distribution alone, with a normalised faithfulness of"),
        (False, False, "reach neither target, with a normalised faithfulness of"),
    ],
)
def test_the_verdict_says_which_targets_are_reached(
    own: Document, margin: bool, distribution: bool, words: str
) -> None:
    own["circuit"]["reached"] = {"faithfulness": margin, "distribution": distribution}
    assert words in verdict(audit_of(own))
    chosen = (
        "The size was chosen to keep the margin (the interval of faithfulness between 0.90 and 1.10) and 90"
    )
    assert (chosen in " ".join(caveats(audit_of(own)))) is not (margin and distribution)
    own["circuit"] |= {"target_kl": 0.0, "reached": {"faithfulness": margin, "distribution": True}}
    assert ("do not reach the target, with a normalised" in verdict(audit_of(own))) is not margin


def test_an_unsolved_task_has_no_faithful_circuit(own: Document) -> None:
    assert solved(audit_of(own))
    own["measurements"][NORMALISED]["warnings"] = ["task_not_solved"]
    assert "does not solve ioi" in verdict(audit_of(own))
    assert "the model’s arithmetic, not a behaviour" in caveats(audit_of(own))[0]


def test_the_strongest_heads_are_those_of_the_circuit(own: Document) -> None:
    own["per_head"] = [[0.5, -2.0], [None, 1.25]]
    own["circuit"]["nodes"] = ["input", "a0.h1", "a1.h0", "a1.h1", "m1", "logits"]
    assert strongest_heads(audit_of(own)) == (
        "Strongest heads of the circuit, by summed outgoing attribution: "
        "a0.h1 (\N{MINUS SIGN}2.000) and a1.h1 (+1.250)."
    )
    own["circuit"]["nodes"] = ["input", "m1", "logits"]
    assert strongest_heads(audit_of(own)) == "The circuit contains no head."


FAILING = "Not everything is kept: top-5 agreement (0.78) fails its limit."


def test_caveats_name_what_weakens_the_verdict(own: Document) -> None:
    assert caveats(audit_of(own)) == [FAILING]
    own["circuit"]["reached"]["distribution"] = False
    own["discovery"]["held_out"] = False
    own["method"]["completeness_gap"] = 0.2
    same, gap = caveats(audit_of(own))[2:]
    assert "the same prompts" in same
    assert "completeness gap of the attribution is 20" in gap


def test_a_number_that_other_ablations_do_not_give_is_no_number_by_itself(own: Document) -> None:
    values = (("zero", -0.02), ("mean", 0.8))
    own["other_ablations"] = [{"value": value, "provenance": {"ablation": key}} for key, value in values]
    assert caveats(audit_of(own)) == [
        "Normalised faithfulness is 0.92 under resample ablation, but −0.02 under zero and 0.80 under "
        "mean: name the ablation with the number.",
        FAILING,
    ]
    own["other_ablations"][0]["value"] = 0.73  # 0.19 less
    assert caveats(audit_of(own)) == [FAILING]


# ---- figures ------------------------------------------------------------------------------------


def test_figures_hold_the_numbers_of_the_audit(own: Document) -> None:
    own["curve"]["values"][0] = None
    lines = {len(line.get_xdata()): line for line in audit_of(own).plot().lines}
    values = np.array(own["curve"]["values"], dtype=float)
    np.testing.assert_array_equal(lines[len(values)].get_ydata(), values)
    heads = head_data(audit_of(own))
    assert heads.values.shape == (8, 4)
    assert heads.values[3, 1] == own["per_head"][1][3]
    with pytest.raises(InputError, match="made without the curve"):
        audit_of(own | {"curve": None}).plot()


# ---- the drawing of the circuit -----------------------------------------------------------------


def test_the_script_gets_the_edges_it_draws(own: Document) -> None:
    del own["excerpt"]  # as an audit of a small circuit has none
    for edge in own["edges"]:
        edge.pop("shown", None)
    text = render(own)
    (packed,) = re.findall('<script type="text/plain" class="data">(.*?)</script>', text)
    data = json.loads(zlib.decompress(base64.b64decode(packed)))
    columns = data["edges"]
    assert columns["score"] == pytest.approx([edge["score"] for edge in own["edges"]], rel=1e-4)
    ends = zip(columns["source"], columns["target"], strict=True)
    names = [(data["nodes"][row], data["targets"][column]) for row, column in ends]
    assert names == [(edge["source"], edge["target"]) for edge in own["edges"]]
    assert data["size"] == own["circuit"]["size"]
    assert (data["nodes"][0], data["nodes"][-1]) == ("input", "logits")
    # Without a script, the edges of the circuit.
    drawing = text.partition('<g class="edges"')[2].partition("</g>")[0]
    kept = [edge for edge in own["edges"] if edge["kept"]][:UNSCRIPTED]
    assert drawing.count("<path") == len(kept)
    assert drawing.count("minus") == sum(edge["score"] < 0 for edge in kept)
    own["edges"][0]["source"] = "<b>"
    with pytest.raises(InputError, match="unknown source"):
        render(own)


def test_the_drawing_of_a_large_circuit_opens_on_its_strongest_edges() -> None:
    large = large_document()
    text = render(large)
    n = large["excerpt"]["n_edges"]
    assert n > 5
    drawn = text.partition('<g class="edges"')[2].partition("</g>")[0]
    assert drawn.count("<path") == n
    opened = f"opens on the first {n} edges that are connected. They carry 25 % of the circuit’s"
    assert opened in text.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "a normalised faithfulness of 0.20 [0.10, 0.30]." in text
    assert 'value="60"' in text

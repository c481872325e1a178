"""The page of a worst case: what it says, what it leaves out, and that its document cannot break it."""

import copy
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure as Picture
from synthetic import synthetic_document, synthetic_worst_case
from test_html import HOSTILE, Page

import assay
from assay.analyses.worst_case import page_words, plots
from assay.analyses.worst_case.page_fields import LARGEST_SIDE, LISTED_TESTS, field_blocks
from assay.analyses.worst_case.page_pairs import LISTED_PAIRS
from assay.core.errors import InputError, OutputError
from assay.page.blocks import Figure, Section, Table
from assay.page.text import plain_text
from assay.report import save_histogram, save_report, tail_verdict
from assay.report.save import render
from assay.stats import certificate


Document = dict[str, Any]


@pytest.fixture(scope="module")
def page_text() -> str:
    return render(synthetic_worst_case())


@pytest.fixture
def worst() -> Document:
    return synthetic_worst_case()


def rows_of(text: str, name: str) -> list[list[str]]:
    """Cells of the table of a class, tags taken out."""
    table = re.search(rf'<table class="[^"]*{name}[^"]*">(.*?)</table>', text, re.DOTALL)
    assert table is not None
    rows = re.findall(r"<tr.*?</tr>", table[1], re.DOTALL)
    return [
        [
            re.sub(r"<[^>]+>|\xa0", "", cell).strip()
            for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)
        ]
        for row in rows
    ]


def heat_maps(worst: Document) -> list[Table]:
    """The panels that are open, of all pairs of fields."""
    figures = [block for block in field_blocks(worst["fields"], "nats") if isinstance(block, Figure)]
    panels = [block for figure in figures for block in figure.blocks if isinstance(block, Section)]
    return [block for pair in panels for block in pair.blocks if isinstance(block, Table)]


# ----------------------------------------------------------------------------------------------- what it says


def test_the_page_is_well_formed_and_small(page_text: str) -> None:
    page = Page(page_text)
    assert len(page_text.encode()) < 400_000
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert page.tags["h1"] == page.tags["article"] == 1
    assert [link for link in page.links if not link.startswith("#")] == []
    assert page.tags["img"] == page.tags["link"] == 0


def test_the_verdict_holds_worst_mean_empty_circuit_and_certificate(worst: Document) -> None:
    worst["summary"]["absolute"] |= {"max": 9.654, "mean": 0.34}
    worst["anchor"]["absolute"] |= {"max": 13.2, "mean": 7.2}
    worst["certificates"] = [
        certificate(np.arange(1000.0), p).to_dict() | {"method": "ustat"} for p in (0.95, 0.99, 0.999)
    ]
    assert tail_verdict(worst) == (
        "Worst divergence over 25,600 distinct pairs: 9.65 nats (28.4 times the mean of 0.340). "
        "Empty circuit: mean 7.20, worst 13.2. With confidence 0.971, at least "
        "99\N{NARROW NO-BREAK SPACE}% of all pairs of this kind stay at or below 995 nats. "
        "Percentile 99.9 cannot be bounded: it needs 2,995 independent inputs; this sample has 1,000."
    )


def test_a_verdict_never_rounds_up_to_all_pairs_or_to_certainty(worst: Document) -> None:
    worst["certificates"] = [certificate(np.arange(150_000.0), 0.9999, delta=0.9999).to_dict()]
    space = "\N{NARROW NO-BREAK SPACE}"
    assert f"With confidence above 0.999, at least 99.99{space}% of all pairs" in tail_verdict(worst)


def test_the_verdict_needs_no_anchor_and_no_spread(worst: Document) -> None:
    worst["anchor"] = None
    worst["summary"]["absolute"] |= {"max": 0.0, "mean": 0.0}
    sentence = tail_verdict(worst)
    assert sentence.startswith("Worst divergence over 25,600 distinct pairs: 0 nats. With")
    assert "times" not in sentence


@pytest.mark.parametrize(("unit", "words"), [("fraction", "0.500 of 1 ("), ("user", "0.500 units (")])
def test_divergences_without_a_unit_of_their_own_are_sayable(worst: Document, unit: str, words: str) -> None:
    worst["unit"] = unit
    worst["summary"]["absolute"]["max"] = 0.5
    assert f"distinct pairs: {words}" in render(worst)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reuse_clean": True}, "made from the clean ones"),
        ({"independent": False}, "the inputs are not independent draws"),
        ({"independent": False, "protocol": "file"}, "were not declared independent draws"),
        ({}, "no percentile was requested"),
    ],
)
def test_without_a_certificate_the_page_says_why(worst: Document, changes: Document, reason: str) -> None:
    worst |= {"certificates": [], **changes}
    assert f"No bound is certified: {page_words.no_certificate(worst)}." in tail_verdict(worst)
    assert reason in render(worst)


def test_an_enumerated_population_is_exact(worst: Document) -> None:
    worst["enumerated"] = True
    assert tail_verdict(worst).endswith("These are all possible pairs, so the percentiles are exact.")
    assert (
        "All 25,600 pairs that the task’s grammar allows were run, each weighted by its probability."
        in render(worst)
    )


def test_an_unsound_certificate_never_makes_the_verdict(worst: Document) -> None:
    worst["certificates"] = [certificate(np.ones((400, 400)), 0.99, method="published").to_dict()]
    assert worst["certificates"][0]["bound"] == 1.0
    assert page_words.sound_certificate(worst, 0.99) is None
    assert "stay at or below" not in tail_verdict(worst)
    assert "no theorem" in render(worst)


def test_percentiles_stand_beside_those_of_the_empty_circuit(worst: Document, page_text: str) -> None:
    rows = {row[0]: row[1:] for row in rows_of(page_text, "percentiles")}
    absolute, anchor = worst["summary"]["absolute"], worst["anchor"]["absolute"]
    for name, key in (("mean", "mean"), ("percentile 99.9", "p99.9"), ("median", "p50"), ("worst", "max")):
        assert rows[name][0] == page_words.significant(absolute[key])
        assert rows[name][3] == page_words.significant(anchor[key])
    bound = worst["certificates"][0]["bound"]
    assert rows["percentile 95"][2] == f"≤{page_words.significant(bound)}"
    assert rows["percentile 99"][2] == "none"
    assert rows["first token differs"][0] == "3.1\N{NARROW NO-BREAK SPACE}%"
    assert rows["above 1.00"][0].startswith("55.")


def test_the_sound_certificate_stands_beside_the_published_one(worst: Document, page_text: str) -> None:
    rows = rows_of(page_text, "certificates")[1:]
    assert len(rows) == len(worst["certificates"]) == 6
    assert [row[1] for row in rows[:2]] == ["all pairs, as a U-statistic theorem", "as published"]
    assert rows[0][6] == ""
    assert "no theorem" in rows[1][6]
    assert rows[4][6] == "none: needs 2,995 independent inputs; there are 160"
    assert rows[4][2] == rows[4][3] == "\N{EN DASH}"


def test_a_certificate_short_of_its_confidence_says_what_it_takes() -> None:
    made = certificate(np.arange(1000.0), 0.95, epsilon=0.01).to_dict()
    assert page_words.certificate_note(made, "pairs") == (
        "less than the requested 95\N{NARROW NO-BREAK SPACE}%; 1,326 pairs would be enough"
    )


def test_field_values_that_are_worse_are_named(worst: Document, page_text: str) -> None:
    bad = [each for each in worst["fields"]["tests"] if each["significant"]]
    assert [(each["field"], each["value"]) for each in bad] == [("object", "ring")]
    assert (
        "Object “ring” (6.0\N{NARROW NO-BREAK SPACE}% of its pairs) lies above the pooled 99th percentile"
        in page_text
    )
    rows = rows_of(page_text, "field-tests")
    assert (rows[1][:2], rows[1][-1]) == (["object", "ring"], "worse")
    assert sum("worse" in row[-1] for row in rows) == 1
    assert "corrupted object" in page_text


def test_no_bad_value_is_said_in_words(worst: Document) -> None:
    for each in worst["fields"]["tests"]:
        each["significant"] = False
    assert "None of 32 field values lies above the pooled 99th percentile more often than chance" in render(
        worst
    )


def test_cells_are_inked_greyed_and_outlined(worst: Document, page_text: str) -> None:
    found = worst["fields"]["heatmaps"][1]
    cells = re.findall(
        r'<td(?: class="([^"]*)")? style="--ink-share:(\d+)%" title="([^"]*)">([^<]*)</td>', page_text
    )
    by_title = {
        title.split(";")[0]: (kind.split(), int(ink), text)
        for kind, ink, title, text in cells[-64 * 3 : -64 * 2]
    }
    assert len(cells) == 64 * 3 * 2
    for row, name in enumerate(found["rows"]):
        for column, other in enumerate(found["columns"]):
            kind, ink, text = by_title[f"{name}, {other}"]
            assert ("sparse" in kind) == (found["n_inputs"][row][column] < 20)
            assert ("found" in kind) == found["significant"][row][column]
            assert text == f"{found['max'][row][column]:.1f}"
            assert 6 <= ink <= 90
    inks = [ink for _, ink, _ in by_title.values()]
    assert (min(inks), max(inks)) == (6, 90)


def test_empty_cells_stay_empty(worst: Document) -> None:
    for name in ("max", "p99.9", "p99.99", "q_value"):
        worst["fields"]["heatmaps"][0][name][0][0] = None
    cell = heat_maps(worst)[0].rows[0][1]
    assert (cell.text, cell.style) == ("", "none sparse")
    assert cell.title.endswith("no pairs")
    Page(render(worst))


def test_small_divergences_are_printed_in_a_unit_that_shows_them(worst: Document) -> None:
    found = worst["fields"]["heatmaps"][0]
    for name in ("max", "p99.9", "p99.99"):
        found[name] = [[None if each is None else each / 1000 for each in row] for row in found[name]]
    text = render(worst)
    assert "in units of 10<sup>\N{MINUS SIGN}3</sup> nats" in text
    assert ">12.9</td>" in text


def test_large_tables_show_the_lines_with_the_largest_entries(worst: Document) -> None:
    n = 97
    table = [[float((7 * row + column) % 89) for column in range(n)] for row in range(n)]
    table[50][60] = 1000.0
    worst["fields"]["heatmaps"] = [
        {
            "rows_field": "noun",
            "columns_field": "yy",
            "rows": [f"noun{place}" for place in range(n)],
            "columns": list(range(n)),
            **{name: [[3] * n for _ in range(n)] for name in ("n", "n_inputs")},
            **dict.fromkeys(("max", "p99.9", "p99.99"), table),
            "q_value": [[1.0] * n for _ in range(n)],
            "significant": [[False] * n for _ in range(n)],
        }
    ]
    worst["fields"]["heatmaps"] *= 2
    text = render(worst)
    heat_map = heat_maps(worst)[0]
    # One panel open, two folded, for either table.
    assert text.count('<table class="heat fine">') == 6
    assert len(re.findall(r'<figure>\s*<div class="panels">\s*<div class="scroll">', text)) == 2
    assert len(heat_map.columns) - 1 == len(heat_map.rows) == LARGEST_SIDE
    assert (heat_map.rows[0][0], plain_text(heat_map.columns[1].name)) == ("noun50", "60")
    assert (
        f"the {LARGEST_SIDE} of 97 values of noun and {LARGEST_SIDE} of 97 values of yy with the largest"
        in text
    )
    assert "The same for percentile 99.9 and percentile 99.99" in text
    assert len(text.encode()) < 900_000


# ------------------------------------------------------------------------------------------------ worst pairs


def test_prompts_are_aligned_and_differing_tokens_marked(worst: Document, page_text: str) -> None:
    pair = worst["worst"][0]
    block = page_text[page_text.index('<div class="aligned"') :]
    block = block[: block.index("</div>")]
    columns = re.findall(
        r'<span class="column">(?:<mark>([^<]*)</mark><mark>([^<]*)</mark>|<span>([^<]*)</span>'
        r'<span class="quiet">([^<]*)</span>)</span>',
        block,
    )
    assert [bool(marked) for marked, *_ in columns] == pair["differs"]
    assert "".join(first or same for first, _, same, _ in columns) == pair["clean"]["text"]
    assert "".join(second or same for _, second, _, same in columns) == pair["corrupted"]["text"]


def test_the_three_runs_stand_side_by_side(worst: Document, page_text: str) -> None:
    rows = rows_of(page_text, "tokens")
    top, answer = worst["worst"][0]["top"], worst["worst"][0]["answer"]
    assert rows[0][1:] == ["model", "circuit", "model, corrupted prompt"]
    assert rows[1][1:] == [f"&#39;{top[name][0]['token']}&#39; {top[name][0]['logit']:.2f}" for name in top]
    assert rows[4][1:] == ["rank 1 17.20", "rank 2 12.10", "rank 40 3.30"]
    assert f'<span class="right"><code>&#39;{answer["text"]}&#39;</code></span>' in page_text
    assert "The circuit follows the corrupted prompt." in page_text
    assert "drawn 2 times" in page_text


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (("a", "a", "b"), "First token as the model’s."),
        (("a", "b", "b"), "The circuit follows the corrupted prompt."),
        (("a", "c", "b"), "First token neither the model’s nor the corrupted prompt’s."),
    ],
)
def test_whom_the_circuit_follows(tokens: tuple[str, str, str], words: str) -> None:
    top = {
        name: [{"token": token, "id": ord(token), "logit": 1.0}]
        for name, token in zip(("model", "circuit", "corrupted"), tokens, strict=True)
    }
    assert page_words.following(top)[0] == words


def test_white_space_tokens_can_be_seen(worst: Document) -> None:
    worst["worst"][0]["clean"]["tokens"][0] = "\n"
    text = render(worst)
    assert "<mark>\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}</mark>" in text
    assert "&#39;\\n&#39;" in text


def test_prompts_of_unequal_length_are_padded(worst: Document) -> None:
    worst["worst"][0]["corrupted"]["tokens"] = worst["worst"][0]["corrupted"]["tokens"][:-1]
    assert "<mark> to</mark><mark></mark>" in render(worst)


def test_single_prompts_that_do_harm_are_listed(worst: Document, page_text: str) -> None:
    for side in ("clean", "corrupted"):
        for each in worst[f"worst_{side}"]:
            assert f"<td>{each['text']}</td>" in page_text


def test_long_lists_are_cut_and_say_so(worst: Document) -> None:
    worst["worst"] = [worst["worst"][0] | {"rank": rank} for rank in range(1, 301)]
    worst["fields"]["tests"] = worst["fields"]["tests"] * 100
    text = render(worst)
    assert text.count('class="worst-pair"') == LISTED_PAIRS
    assert f"{300 - LISTED_PAIRS} more are in the result." in text
    assert text.count('data-value="') < LISTED_TESTS * 8
    assert len(text.encode()) < 600_000


# --------------------------------------------------------------------------------------------- optional parts


def test_parts_that_are_not_there_are_left_out(worst: Document, page_text: str) -> None:
    for title in ("Worst pairs found by search", "Inputs from outside the grammar", "What the circuit lacks"):
        assert title not in page_text
    bare = {
        key: value
        for key, value in worst.items()
        if key
        not in (
            "fields",
            "search",
            "outside",
            "explanation",
            "worst_clean",
            "worst_corrupted",
            "seconds",
            "warnings",
            "provenance",
            "anchor",
            "maximum_exceedance",
            "population",
            "id",
        )
    } | {"worst": []}
    text = render(bare)
    Page(text)
    assert "The prompts of this task have no fields to compare." in text
    assert "None were kept." in text


def test_search_outside_and_explanation_are_shown_apart(worst: Document) -> None:
    worst["search"] = {
        "maximum": 14.2,
        "evaluations": 4896,
        "pairs": [{"clean": "a b", "corrupted": "c d", "divergence": 14.2, "path": [1, 2]}],
    }
    worst["outside"] = [{"name": "animals", "n": 20, "mean": 3.5, "max": 11.0}]
    worst["explanation"] = {
        "n_pairs": 10,
        "mean": 2.5,
        "missing": {
            "difference": 2.5,
            "completeness_gap": 0.018,
            "top": [{"source": "m0", "target": "logits", "score": 0.7, "share": 0.28, "kept": False}],
            "by_layer": {"block 1": 0.6},
        },
        "kept": None,
    }
    text = render(worst)
    Page(text)
    for words in (
        "bound the maximum from below",
        "the numbers above do not cover them",
        "4,896",
        "14.2",
        "animals",
        "Missing edges by score",
        "Missing edges by layer",
        "account for 28",
        "m0",
    ):
        assert words in text


def test_pairs_that_search_found_look_like_the_worst_ones(worst: Document, page_text: str) -> None:
    worst["search"] = {"max": 12.9, "n_evaluations": 4896, "pairs": worst["worst"][:3]}
    text = render(worst)
    Page(text)
    assert text.count('class="worst-pair"') == page_text.count('class="worst-pair"') + 3
    found = text[text.index("Worst pairs found by search") :]
    assert found.count('class="aligned"') == 3
    assert "4,896" in found


def test_deep_and_long_extras_stay_bounded(worst: Document) -> None:
    deep: Any = {"end": 1}
    for _ in range(50):
        deep = {"inner": deep}
    worst["search"] = {
        "deep": deep,
        "long": [{"at": place} for place in range(5000)],
        "flat": list(range(5000)),
        "wide": {f"m{place}": place for place in range(5000)},
        "text": "x" * 100_000,
    }
    text = render(worst)
    assert len(text.encode()) < 400_000
    assert text.count("4,988 more are in the result.") == 2
    assert "11, and 4,988 more" in text


def test_warnings_and_a_useless_circuit_are_pointed_out(worst: Document, page_text: str) -> None:
    assert "p99.99 of this many pairs rests on less than one value." in page_text
    worst["anchor"]["ratio_of_means"] = 0.97
    assert "hardly closer to the model than the empty circuit (ratio of means 0.97)" in render(worst)


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("matched", "3,200 distinct pairs were run, each a clean prompt with a corrupted version of itself."),
        ("iid", "drawn independently for"),
        ("file", "The 3,200 distinct pairs of the task were run unchanged."),
        ("other", "3,200 pairs were run (protocol other)."),
    ],
)
def test_the_protocol_is_said_in_words(protocol: str, words: str) -> None:
    document = synthetic_worst_case("iid") | {"protocol": protocol}
    text = render(document)
    Page(text)
    assert words in text
    assert "independent pairs" in text


# ----------------------------------------------------------------------------------------------- hostile text


def hostile(value: Any) -> Any:
    """Every string of a document replaced, but those that choose what is drawn."""
    if isinstance(value, dict):
        kept = ("kind", "schema", "protocol", "method", "rows_field", "columns_field", "reason")
        return {key: each if key in kept else hostile(each) for key, each in value.items()}
    if isinstance(value, list):
        return [hostile(each) for each in value]
    return HOSTILE if isinstance(value, str) else value


def test_hostile_text_stays_text(worst: Document, page_text: str) -> None:
    worst["search"] = {"note": "x", "pairs": [{"clean": "y", "corrupted": "z"}], "names": ["a"]}
    bad = hostile(worst)
    bad["fields"]["heatmaps"][0]["rows_field"] = HOSTILE
    bad["provenance"] = {HOSTILE: HOSTILE}
    bad["search"][HOSTILE] = {HOSTILE: HOSTILE}
    bad["protocol"] = HOSTILE
    page = Page(render(bad))
    harmless = Page(page_text)
    assert page.tags["script"] == harmless.tags["script"]
    assert page.tags["img"] == 0
    assert {name for name, _ in page.attributes if name.startswith("on")} == set()
    assert any("{{ 7 * 7 }}" in text for text in page.data["h1"])


# ---------------------------------------------------------------------------------------------------- figures


def test_marks_hold_percentiles_bounds_and_what_is_missing(worst: Document) -> None:
    marks = {mark.key: mark for mark in plots.marks(worst)}
    assert list(marks) == ["p50", "p95", "p99", "p99.9", "p99.99", "max"]
    assert marks["p95"].bound == worst["certificates"][0]["bound"]
    assert (marks["p99"].bound, marks["p99"].n_needed) == (None, 299)
    assert (marks["max"].bound, marks["max"].n_needed) == (None, None)
    assert marks["p99"].anchor == worst["anchor"]["absolute"]["p99"]


def test_both_plots_draw_on_given_axes(worst: Document) -> None:
    for plot in (plots.plot_histogram, plots.plot_percentiles):
        ax = Picture().subplots()
        assert plot(worst, ax) is ax
        assert "nats" in ax.get_xlabel()
    assert plots.plot_histogram(worst).get_yscale() == "log"


def test_percentiles_far_below_the_empty_circuit_get_a_logarithmic_axis(worst: Document) -> None:
    assert plots.plot_percentiles(worst).get_xscale() == "linear"
    for name, value in worst["summary"]["absolute"].items():
        worst["summary"]["absolute"][name] = value / 1000
    assert plots.plot_percentiles(worst).get_xscale() == "log"


def test_divergences_that_are_all_zero_are_drawn(worst: Document) -> None:
    for absolute in (worst["summary"]["absolute"], worst["anchor"]["absolute"]):
        absolute.update(dict.fromkeys(absolute, 0.0))
    worst["histogram"] = {"edges": [0.0, 0.0], "counts": [25600], "anchor_counts": [25600]}
    worst["certificates"] = []
    Page(render(worst))


def test_undefined_numbers_are_drawn_and_said(worst: Document) -> None:
    worst["summary"]["absolute"]["std"] = None
    worst["summary"]["z"] = dict.fromkeys(worst["summary"]["z"])
    worst["anchor"] |= {"ratio_of_means": None, "spearman": None, "share_above": None}
    text = render(worst)
    assert rows_of(text, "percentiles")[2][:2] == ["standard deviation", "n/a"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.000558, "0.000558"),
        (9.654, "9.65"),
        (28.4, "28.4"),
        (230.3, "230"),
        (12345.6, "12,346"),
        (None, "n/a"),
        (math.nan, "n/a"),
        (-1.5, "\N{MINUS SIGN}1.50"),
    ],
)
def test_three_digits_count(value: float | None, text: str) -> None:
    assert page_words.significant(value) == text


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_histogram_is_written_as_a_picture(worst: Document, tmp_path: Path, ending: str) -> None:
    first = save_histogram(tmp_path / f"a.{ending}", worst)
    second = save_histogram(tmp_path / f"b.{ending}", worst)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    if ending == "svg":
        assert "percentile 99.9" in first.read_text()


def test_pictures_have_two_endings(worst: Document, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write 'a\.pdf': give a name ending in \.png or \.svg"):
        save_histogram(tmp_path / "a.pdf", worst)
    with pytest.raises(OutputError, match="cannot write"):
        save_histogram(tmp_path / "missing" / "a.png", worst)


# -------------------------------------------------------------------------------------------------- documents


def test_a_result_and_its_document_give_the_same_page(worst: Document, tmp_path: Path) -> None:
    class Result:
        document = None  # a result read back may hold the document it was saved with

        def to_dict(self) -> Document:
            return worst

    first = save_report(tmp_path / "a.html", Result())
    second = save_report(tmp_path / "b.html", worst)
    assert first.read_bytes() == second.read_bytes()


def test_the_document_is_left_alone(worst: Document) -> None:
    before = copy.deepcopy(worst)
    assert render(worst) == render(worst)
    assert worst == before


def test_an_audit_and_a_worst_case_share_a_page(worst: Document) -> None:
    page = Page(render(synthetic_document(), worst, synthetic_worst_case("iid")))
    assert page.tags["article"] == 3
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []


def test_other_documents_are_refused(worst: Document, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got kind None"):
        save_histogram(tmp_path / "a.png", worst | {"kind": None})
    with pytest.raises(
        InputError, match=r"schema 'assay-worst-case/9'; this version reads 'assay-worst-case/1'"
    ):
        render(worst | {"schema": "assay-worst-case/9"})
    with pytest.raises(InputError, match="the document of the worst case lacks summary; it is incomplete"):
        render({key: value for key, value in worst.items() if key not in ("summary", "worst")})


def test_a_real_worst_case_of_mini_makes_a_page(tmp_path: Path) -> None:
    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=8, seed=0)
    circuit = assay.discover(model, task, "eap").top(100).connected()
    for protocol in ("all", "matched"):
        found = assay.worst_case(circuit, model, task, protocol, n_clean=24, n_corrupted=24)
        page = Page(save_report(tmp_path / "worst.html", found).read_text())
        (worst,) = found.worst(1)
        text = "".join(text for texts in page.data.values() for text in texts)
        assert page_words.significant(worst.divergence) in text
        assert "mini" in text
        assert page.tags["mark"] > 0

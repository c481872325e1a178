"""The page of a worst case: what it says, what it leaves out, and that its document cannot break it."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import synthetic_worst_case
from test_html import Page

import assay
from assay.analyses.worst_case import page_words, plots
from assay.analyses.worst_case.page_fields import LARGEST_SIDE, LISTED_TESTS, field_blocks
from assay.analyses.worst_case.page_pairs import LISTED_PAIRS
from assay.core.errors import InputError
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


def test_a_verdict_never_rounds_up_to_all_pairs_or_to_certainty(worst: Document) -> None:
    worst["certificates"] = [certificate(np.arange(150_000.0), 0.9999, delta=0.9999).to_dict()]
    space = "\N{NARROW NO-BREAK SPACE}"
    assert f"With confidence above 0.999, at least 99.99{space}% of all pairs" in tail_verdict(worst)


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
    optional = {"fields", "search", "outside", "explanation", "worst_clean", "worst_corrupted", "seconds"}
    optional |= {"warnings", "provenance", "anchor", "maximum_exceedance", "population", "id"}
    bare = {key: value for key, value in worst.items() if key not in optional} | {"worst": []}
    text = render(bare)
    Page(text)
    assert "The prompts of this task have no fields to compare." in text
    assert "None were kept." in text


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


# ---------------------------------------------------------------------------------------------------- figures


def test_marks_hold_percentiles_bounds_and_what_is_missing(worst: Document) -> None:
    marks = {mark.key: mark for mark in plots.marks(worst)}
    assert list(marks) == ["p50", "p95", "p99", "p99.9", "p99.99", "max"]
    assert marks["p95"].bound == worst["certificates"][0]["bound"]
    assert (marks["p99"].bound, marks["p99"].n_needed) == (None, 299)
    assert (marks["max"].bound, marks["max"].n_needed) == (None, None)
    assert marks["p99"].anchor == worst["anchor"]["absolute"]["p99"]


def test_divergences_that_are_all_zero_are_drawn(worst: Document) -> None:
    for absolute in (worst["summary"]["absolute"], worst["anchor"]["absolute"]):
        absolute.update(dict.fromkeys(absolute, 0.0))
    worst["histogram"] = {"edges": [0.0, 0.0], "counts": [25600], "anchor_counts": [25600]}
    worst["certificates"] = []
    Page(render(worst))


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


# -------------------------------------------------------------------------------------------------- documents


def test_a_histogram_of_something_else_is_refused(worst: Document, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got kind None"):
        save_histogram(tmp_path / "a.png", worst | {"kind": None})


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

"""The page of a worst case: what it claims, what it leaves out, and that tables stay bounded."""

import re
from typing import Any

import numpy as np
import pytest
from pages import document

from assay.analyses.worst_case.page import heading
from assay.analyses.worst_case.page_parts import (
    LARGEST_SIDE,
    LISTED_PAIRS,
    LISTED_TESTS,
    Words,
    certified,
    field_blocks,
    significant,
)
from assay.analyses.worst_case.result import NOT_CERTIFIED
from assay.page.blocks import Figure, Section, Table
from assay.page.text import plain_text
from assay.report.save import pages_of, render
from assay.stats import certificate


Document = dict[str, Any]


@pytest.fixture
def worst() -> Document:
    made: Document = document("worst_case")
    return made


def heat_maps(worst: Document) -> list[Table]:
    """The panels that are open, of all pairs of fields."""
    figures = [block for block in field_blocks(worst["fields"], Words(worst)) if isinstance(block, Figure)]
    panels = [block for figure in figures for block in figure.blocks if isinstance(block, Section)]
    return [block for pair in panels for block in pair.blocks if isinstance(block, Table)]


def test_a_verdict_never_rounds_up_and_says_why_there_is_no_certificate(worst: Document) -> None:
    worst["certificates"] = [certificate(np.arange(150_000.0), 0.9999, delta=0.9999).to_dict()]
    space = "\N{NARROW NO-BREAK SPACE}"
    assert f"With confidence above 0.999, at least 99.99{space}% of all pairs" in heading(worst)["verdict"]
    worst |= {"certificates": []}
    assert "No bound is certified: no percentile was requested." in heading(worst)["verdict"]
    worst["warnings"].append({"name": "not_certified", "message": NOT_CERTIFIED + "its rows repeat"})
    assert "No bound is certified: its rows repeat." in heading(worst)["verdict"]


def test_an_unsound_certificate_never_makes_the_verdict(worst: Document) -> None:
    worst["certificates"] = [certificate(np.ones((400, 400)), 0.99, method="published").to_dict()]
    assert worst["certificates"][0]["bound"] == 1.0
    assert certified(worst) == {}
    assert "stay at or below" not in heading(worst)["verdict"]
    assert "no theorem" in render(worst)


def test_percentiles_stand_beside_their_bounds_and_those_of_the_empty_circuit(worst: Document) -> None:
    (figure,) = pages_of(worst)[0].sections[0].blocks
    assert isinstance(figure, Figure)
    (table,) = figure.blocks
    assert isinstance(table, Table)
    rows = {row[0]: row[1:] for row in table.texts()}
    absolute, anchor = worst["summary"]["absolute"], worst["anchor"]["absolute"]
    for name, key in (("mean", "mean"), ("percentile 99.9", "p99.9"), ("median", "p50"), ("worst", "max")):
        assert (rows[name][0], rows[name][3]) == (significant(absolute[key]), significant(anchor[key]))
    bound = worst["certificates"][0]["bound"]
    assert rows["percentile 95"][2] == f"≤\N{NO-BREAK SPACE}{significant(bound)}"
    assert rows["percentile 99"][2] == "none"
    ax = figure.draw()
    assert [line.get_xdata()[0] for line in ax.lines] == [bound]
    assert [text.get_text() for text in ax.texts] == [" p95 certified"]


def test_cells_are_inked_greyed_and_outlined(worst: Document) -> None:
    table = worst["fields"]["heatmaps"][1]
    table["significant"][0][0] = True
    table["n_inputs"][0][:2] = [19, 20]
    for name in ("max", "p99.9", "p99.99", "q_value"):
        table[name][1][0] = None
    worst["fields"]["heatmaps"] = [table]
    heat_map = heat_maps(worst)[0]
    cells = [[cell for cell in row[1:] if not isinstance(cell, str)] for row in heat_map.rows]
    inks = [cell.ink for row in cells for cell in row if cell.ink is not None]
    assert (min(inks), max(inks)) == (6, 90)
    assert {"found", "sparse"} <= {*cells[0][0].style.split()}
    assert not {"found", "sparse"} & {*cells[0][1].style.split()}
    assert (cells[1][0].text, cells[1][0].style.split()[0]) == ("", "none")
    assert cells[1][0].title.endswith("no pairs")


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
    text, heat_map = render(worst), heat_maps(worst)[0]
    assert text.count('<table class="heat fine">') == 1
    assert len(heat_map.columns) - 1 == len(heat_map.rows) == LARGEST_SIDE
    assert (heat_map.rows[0][0], plain_text(heat_map.columns[1].name)) == ("noun50", "60")
    cut = f"the {LARGEST_SIDE} of 97 values of noun and {LARGEST_SIDE} of 97 values of yy with the largest"
    assert cut in text
    assert len(text.encode()) < 900_000


def test_prompts_are_aligned_and_differing_tokens_marked(worst: Document) -> None:
    pair = worst["worst"][0]
    block = render(worst).partition('<div class="aligned"')[2].partition("</div>")[0]
    columns = re.findall(
        r'<span class="column">(?:<mark>([^<]*)</mark><mark>([^<]*)</mark>|<span>([^<]*)</span>'
        r'<span class="quiet">([^<]*)</span>)</span>',
        block,
    )
    clean, corrupted = (pair[side]["tokens"] for side in ("clean", "corrupted"))
    assert [bool(marked) for marked, *_ in columns] == [a != b for a, b in zip(clean, corrupted, strict=True)]
    assert "".join(first or same for first, _, same, _ in columns) == pair["clean"]["text"]
    assert "".join(second or same for _, second, _, same in columns) == pair["corrupted"]["text"]


def test_long_lists_are_cut_and_say_so(worst: Document) -> None:
    worst["worst"] = [worst["worst"][0] | {"rank": rank} for rank in range(1, 301)]
    worst["fields"]["tests"] = worst["fields"]["tests"] * 100
    text = render(worst)
    assert text.count('class="worst-pair"') == LISTED_PAIRS
    assert f"{300 - LISTED_PAIRS} more are in the result." in text
    assert text.count('data-value="') < LISTED_TESTS * 8
    assert len(text.encode()) < 600_000


def test_parts_that_are_not_there_are_left_out(worst: Document) -> None:
    text = render(worst)
    for title in ("Worst pairs found by search", "What the circuit lacks"):
        assert title not in text
    optional = {"fields", "search", "explanation", "worst_clean", "worst_corrupted", "seconds"}
    optional |= {"warnings", "provenance", "anchor", "maximum_exceedance", "id"}
    bare = {key: value for key, value in worst.items() if key not in optional} | {"worst": []}
    absolute = bare["summary"]["absolute"]
    absolute.update(dict.fromkeys(absolute, 0.0))
    bare["logarithmic_histogram"] = {"edges": [0.0, 0.0], "counts": [25600], "anchor_counts": [25600]}
    text = render(bare)
    assert "The prompts of this task have no fields to compare." in text
    assert "None were kept." in text

"""The page of a subset: the verdict first, nothing said of R without it, everything of the document shown."""

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import synthetic_subset

from assay.analyses.subsets import page_tables, page_words
from assay.core.errors import InputError
from assay.page import draw
from assay.page.blocks import Cell
from assay.report import save_report
from assay.report.save import render


MINUS = "\N{MINUS SIGN}"


@functools.cache
def kept(**options: bool) -> dict[str, Any]:
    return synthetic_subset.document(**options)


def document(**options: bool) -> dict[str, Any]:
    return copy.deepcopy(kept(**options))


@functools.cache
def page(folder: Path) -> str:
    return save_report(folder / "page.html", kept()).read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages with empty pictures, which take most of the time."""
    monkeypatch.setattr(draw, "to_svg", lambda ax, *, label, key: f'<svg id="{key}" role="img"></svg>')


# ------------------------------------------------------------------------------------------------- words


def test_the_title_claims_nothing_that_the_verdict_does_not() -> None:
    assert page_words.title(document()) == "The 250 of 8,000 examples where better models do worse"
    assert page_words.title(document(supported=False)).startswith("Among 8,000 examples, none were shown")
    unjudged = document() | {"verdict": None}
    assert page_words.title(unjudged) == "The 250 of 8,000 examples chosen against better models"


def test_an_undefined_correlation_is_no_number() -> None:
    found = document(supported=False)
    found["verdict"] |= {"r": None, "low": None, "high": None, "p_value": None}
    text = page_words.verdict(found)
    assert "R is n/a" in text
    assert "(p" not in text


def test_a_p_value_is_never_zero() -> None:
    found = document()
    found["verdict"]["p_value"] = 0.0004
    assert "(p < 0.001" in page_words.verdict(found)


def test_a_class_twice_as_frequent_is_warned_about() -> None:
    assert any("of the subset is of class dog" in note for note in page_words.caveats(document()))
    even = document()
    for row in even["composition"]["rows"]:
        row["shares"] = even["composition"]["pool"]
    assert not any("class dog" in note for note in page_words.caveats(even))


def test_caveats_name_what_makes_r_doubtful() -> None:
    found = document()
    row = next(row for row in found["rows"] if row["size"] == 250)
    row["test"]["frac_clipped"] = 0.25
    found["split"]["straddling"] = 3
    found["data"]["n_models"] = 12
    text = " ".join(page_words.caveats(found))
    assert "25\N{NARROW NO-BREAK SPACE}% of the test models have accuracy 0 or 1" in text
    assert "3 families have models both" in text
    assert "12 models are too few" in text
    assert "Reliability of the in-distribution accuracies is 0.71" in text
    assert "treat each model as independent" in " ".join(page_words.caveats(document(bare=True)))


def test_a_subset_that_carries_other_examples_along_says_so() -> None:
    found = document()
    found["replication"]["selected"]["negative"] = 0.51
    assert any("Only 51" in note and "Choose a smaller one" in note for note in page_words.caveats(found))
    found["verdict"]["status"] = "inconclusive"
    assert not any("Choose a smaller one" in note for note in page_words.caveats(found))


def test_an_undefined_hold_out_is_no_finding() -> None:
    defined = {"r": -0.5, "low": -0.7, "high": -0.3}
    found = {"encoder": "tiny", "strengths": [1.0] * 5, "size": 9, "auroc": 0.6, "describable": False}
    found |= {"random_mean": 0.5, "random_low": 0.3, "random_high": 0.7, "correlation": defined}
    undefined = {"correlation": {"r": None, "low": None, "high": None}}
    for part, where in ((undefined, "the examples that it picks"), ({"random_low": None}, "random subsets")):
        text = page_words.holdout({"holdout": found | part})
        assert text.endswith(f"is undefined on {where}, so this was not tested.")
        assert "n/a" not in text
    assert "in part at most" in page_words.holdout({"holdout": found})


# -------------------------------------------------------------------------------------------------- page


def test_the_verdict_stands_before_every_number(folder: Path) -> None:
    text = page(folder)
    article = text[text.index("<article") :]
    assert article.index("Supported.") < article.index("0.86")
    assert article.index('class="verdict') < article.index("<figure")


@pytest.mark.usefixtures("undrawn")
def test_an_image_that_is_an_address_is_refused(tmp_path: Path) -> None:
    foreign = document()
    foreign["examples"]["selected"][0]["image"] = "https://example.org/pixel.png"
    with pytest.raises(InputError, match="documents hold images as"):
        save_report(tmp_path / "page.html", foreign)
    assert not (tmp_path / "page.html").exists()


def test_the_table_has_a_row_per_size_with_its_own_verdict(folder: Path) -> None:
    text = page(folder)
    body = text[text.index('class="subset-sizes sortable"') :]
    body = body[: body.index("</table>")]
    assert body.count("<tr") == 1 + 10
    assert body.count("supported</td>") == 7
    assert body.count("inconclusive</td>") == 3
    assert 'class="headline"' in body
    assert 'data-value="-0.860000"' in body, "sortable by the number, not by what is shown"


def test_numbers_of_a_column_that_is_missing_are_empty() -> None:
    def shown(found: dict[str, Any], column: str) -> str:
        table = page_tables.judged_sizes_table(found)
        cell = table.rows[0].cells[[each.name for each in table.columns].index(column)]
        assert isinstance(cell, Cell)
        return str(cell.text)

    assert shown(document(), "hardest") == ""
    undefined = document()
    undefined["rows"][0]["test"] |= {"r": None, "low": None, "high": None}
    assert shown(undefined, "R, test models") == "undefined"


@pytest.mark.usefixtures("undrawn")
def test_a_document_without_a_verdict_or_its_null_still_makes_a_page(tmp_path: Path) -> None:
    found = document() | {"verdict": None, "null": None, "halves": {"overlap": None, "reason": "too few"}}
    for row in found["rows"]:
        row["verdict"] = None
    text = save_report(tmp_path / "page.html", found).read_text()
    assert "not judged" in text
    assert "The result of the whole procedure" not in text
    assert "Chosen twice" not in text


def test_a_page_stays_small_whatever_the_numbers(tmp_path: Path) -> None:
    found = document()
    for name, values in found["models"].items():
        found["models"][name] = None if values is None else values * 10
    found["indices"] = list(range(100_000))
    found["example_ids"] = [f"a-rather-long-name/{place}.png" for place in range(100_000)]
    found["provenance"]["data"] = {"source": {"files": [f"{place}" * 10 for place in range(20_000)]}}
    found["prevalence"]["rows"] *= 100
    assert save_report(tmp_path / "page.html", found).stat().st_size < 3_000_000


def test_a_selection_is_refused_with_what_reads_it() -> None:
    with pytest.raises(InputError, match="load_subset"):
        render(document() | {"schema": "assay-selection/1"})

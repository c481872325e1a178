"""The page of a subset: the verdict first, nothing said of R without it, everything of the document shown."""

import copy
import functools
import re
from pathlib import Path
from typing import Any

import pytest
import synthetic_subset
from synthetic_subset import CLASSES

from assay.analyses.subsets import page_tables, page_words
from assay.analyses.subsets.verdict import UNKNOWN_UNITS
from assay.core.errors import InputError
from assay.page import draw
from assay.page.blocks import Cell
from assay.report import save_report


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


def test_a_supported_verdict_has_r_its_interval_and_the_corrected_p() -> None:
    text = page_words.verdict(document())
    assert text.startswith("Supported. ")
    assert f"R is {MINUS}0.86 [{MINUS}0.93, {MINUS}0.77] (p = 0.01, corrected for 10 sizes)" in text
    assert "held-out families" in text
    assert text.endswith("Accuracy is on the inverse line.")


def test_one_size_needs_no_correction() -> None:
    assert "corrected" not in page_words.verdict(document(path=False))


def test_a_weak_tendency_is_called_weak() -> None:
    weak = document()
    weak["verdict"] |= {"aotil": False, "r": -0.2, "low": -0.3, "high": -0.1}
    assert f"The effect is weak: R is above {MINUS}0.3" in page_words.verdict(weak)


def test_an_inconclusive_verdict_gives_its_reasons_as_sentences() -> None:
    found = document(supported=False)
    text = page_words.verdict(found)
    assert text.startswith("Inconclusive. ")
    assert "is not established" in text
    reasons = page_words.sentences(found, "reasons")
    assert reasons[0].startswith("p = 0.43, corrected")
    assert reasons[1].startswith("Models of 3 families")
    assert all(reason.endswith(".") for reason in reasons)


def test_a_subset_that_leaves_nothing_out_is_all_of_the_examples() -> None:
    found = document()
    n = found["data"]["n_examples"]
    assert page_words.title(found).startswith(f"The {found['size']} of {n:,} examples")
    found["size"] = n
    assert page_words.title(found) == f"All {n:,} examples where better models do worse"


def test_a_page_names_options_as_the_command_line_does() -> None:
    judged = {"reasons": [UNKNOWN_UNITS]}
    (reason,) = page_words.sentences({"verdict": judged}, "reasons")
    assert "Give --groups or --families, or --groups model if every model is an independent run." in reason
    (notice,) = page_words._class_notice(
        {"size": 2, "composition": {"names": ["a", "b"], "pool": [0.1, 0.9],
                                    "rows": [{"size": 2, "shares": [0.9, 0.1]}]}}
    )  # fmt: skip
    assert "select with --strata label to see" in notice


def test_an_undefined_correlation_is_no_number() -> None:
    found = document(supported=False)
    found["verdict"] |= {"r": None, "low": None, "high": None, "p_value": None}
    text = page_words.verdict(found)
    assert "R is n/a" in text
    assert "(p" not in text


def test_without_a_verdict_no_r_is_told() -> None:
    text = page_words.verdict(document() | {"verdict": None})
    assert text.startswith("Not judged.")
    assert "R is" not in text


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


def test_reliable_data_of_known_families_have_no_caveat_but_of_the_class() -> None:
    found = document()
    found["data"]["quality"]["reliability"] = 0.95
    assert len(page_words.caveats(found)) == 1


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


def test_the_page_fetches_nothing(folder: Path) -> None:
    assert not re.search(r'(src|href)="https?:', page(folder))


@pytest.mark.usefixtures("undrawn")
def test_what_the_document_says_is_escaped(tmp_path: Path) -> None:
    text = save_report(tmp_path / "page.html", document(supported=False)).read_text()
    assert "&lt;selections&gt;" in text
    assert "<selections>" not in text
    assert "<b>&lt;sketch&gt;</b>" in text
    assert "selected/&lt;0&gt;" in text


@pytest.mark.usefixtures("undrawn")
def test_an_image_that_is_an_address_is_refused(tmp_path: Path) -> None:
    foreign = document()
    foreign["examples"]["selected"][0]["image"] = "https://example.org/pixel.png"
    with pytest.raises(InputError, match="documents hold images as"):
        save_report(tmp_path / "page.html", foreign)
    assert not (tmp_path / "page.html").exists()


def test_every_picture_has_a_text_alternative_and_every_figure_its_number(folder: Path) -> None:
    text = page(folder)
    assert text.count('role="img"') == 11
    captions = [int(number) for number in re.findall(r"<b>Figure (\d+)\.</b>", text)]
    assert captions == list(range(1, 12))
    tables = [int(number) for number in re.findall(r"<b>Table (\d+)\.</b>", text)]
    assert tables == [1, 2, 3]


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


def test_undefined_numbers_of_the_prevalence_are_empty_cells() -> None:
    prevalence = document()["prevalence"]
    prevalence["rows"][0] |= {"q_value": None, "ratio": None, "low": None, "high": None}
    row = page_tables.prevalence_table(prevalence).rows[-1]
    assert [getattr(cell, "text", cell) for cell in row[-3:]] == ["", "", ""]


def test_examples_are_shown_with_class_and_share_of_right_models(folder: Path) -> None:
    text = page(folder)
    assert text.count('<img src="data:image/png;base64,') == 48
    assert "loading=" not in text  # a picture that waits for a scroll is blank in print
    assert "Not chosen, at random" in text
    for name in CLASSES:
        assert f'<span class="what">{name}</span>' in text


@pytest.mark.usefixtures("undrawn")
def test_texts_without_a_common_word_give_the_reason(tmp_path: Path) -> None:
    found = document() | {"ngrams": {"rows": [], "reason": "none of 40 texts gives an n-gram"}}
    text = save_report(tmp_path / "page.html", found).read_text()
    assert "were not compared: none of 40 texts gives an n-gram." in text
    assert "words and phrases of the texts differ" not in text


@pytest.mark.usefixtures("undrawn")
def test_what_the_data_do_not_tell_leaves_no_hole(tmp_path: Path) -> None:
    text = save_report(tmp_path / "page.html", document(bare=True, supported=False)).read_text()
    assert "<img" not in text
    assert "Class composition" not in text
    captions = [int(number) for number in re.findall(r"<b>Figure (\d+)\.</b>", text)]
    assert captions == list(range(1, len(captions) + 1))


@pytest.mark.usefixtures("undrawn")
def test_one_size_is_compared_with_others_of_its_size(tmp_path: Path) -> None:
    text = save_report(tmp_path / "page.html", document(path=False)).read_text()
    assert "Against other subsets of its size" in text
    assert "largest subset" not in text
    assert "Overlap of the subsets of every two sizes" not in text


@pytest.mark.usefixtures("undrawn")
def test_a_document_without_a_verdict_or_its_null_still_makes_a_page(tmp_path: Path) -> None:
    found = document() | {"verdict": None, "null": None, "halves": {"overlap": None, "reason": "too few"}}
    for row in found["rows"]:
        row["verdict"] = None
    text = save_report(tmp_path / "page.html", found).read_text()
    assert "not judged" in text
    assert "The result of the whole procedure" not in text
    assert "Chosen twice" not in text


@pytest.mark.usefixtures("undrawn")
def test_every_example_chosen_leaves_no_others(tmp_path: Path) -> None:
    found = document(path=False)
    found["models"]["rest"] = found["lines"]["rest"] = None
    found["examples"]["others"] = []
    text = save_report(tmp_path / "page.html", found).read_text()
    assert "on all, on the chosen and on the other examples" not in text


@pytest.mark.usefixtures("undrawn")
def test_two_subsets_share_no_identifier(tmp_path: Path) -> None:
    text = save_report(tmp_path / "page.html", document(), document(path=False)).read_text()
    found = re.findall(r' id="([^"]+)"', text)
    assert len(found) == len(set(found))


def test_a_page_stays_small_whatever_the_numbers(tmp_path: Path) -> None:
    found = document()
    for name, values in found["models"].items():
        found["models"][name] = None if values is None else values * 10
    found["indices"] = list(range(100_000))
    found["example_ids"] = [f"a-rather-long-name/{place}.png" for place in range(100_000)]
    found["provenance"]["data"] = {"source": {"files": [f"{place}" * 10 for place in range(20_000)]}}
    found["prevalence"]["rows"] *= 100
    assert save_report(tmp_path / "page.html", found).stat().st_size < 3_000_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "assay-subset-path/9"}, "schema 'assay-subset-path/9'"),
        ({"schema": "assay-selection/1"}, "load_subset"),
        ({"rows": None}, "lacks rows"),
    ],
)
def test_documents_that_cannot_be_read_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    broken = {
        key: value for key, value in (document() | change).items() if key not in change or value is not None
    }
    with pytest.raises(InputError, match=message):
        save_report(tmp_path / "page.html", broken)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.12, "12"), (0.123, "12.3"), (0.0, "0"), (1.0, "100"), (0.0004, "0.04")]
)
def test_shares_have_one_decimal_at_most_where_that_is_enough(fraction: float, text: str) -> None:
    assert page_words.share(fraction) == f"{text}\N{NARROW NO-BREAK SPACE}%"
    assert page_words.share(None) == "n/a"

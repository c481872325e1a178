"""The page of subsets and its pictures, on one small path: the verdict first, nothing claimed without it."""

import copy
import math
import re
from functools import cache
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from planted_subsets import planted_matrix

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.page import subset_page
from assay.analyses.subsets.path import SelectionPath, selection_path
from assay.core.errors import InputError
from assay.page.blocks import Cell, Figure, Page, Section, Table
from assay.page.html import render_pages


SIZES = (20, 40, 60, 120)
NARROW = "\N{NARROW NO-BREAK SPACE}"


@cache
def path() -> SelectionPath:
    """60 models in 12 families on 120 labelled examples with pictures, of which a third is planted."""
    made = planted_matrix(60, 120, planted=0.3, slope=0.6, n_families=12, seed=5)
    planted = np.isin(np.arange(120), made.planted)
    pixels = np.random.default_rng(0).integers(0, 256, (120, 4, 4, 3), dtype=np.uint8)
    data = CorrectnessData.of(
        made.correct, made.id_accuracy, families=made.families, images=pixels,
        labels=np.where(planted, "dog", "cat"), meta={"light": np.where(planted, "dim", "bright")},
    )  # fmt: skip
    selected = selection_path(data, sizes=SIZES, split="family")
    selected.judge(n_permutations=39, workers=1)
    return selected


@cache
def _record() -> dict[str, Any]:
    return path().to_dict()


def record() -> dict[str, Any]:
    """What the page reads, yours to change."""
    return copy.deepcopy(_record())


def headline(document: dict[str, Any]) -> dict[str, Any]:
    subset: dict[str, Any] = next(each for each in document["subsets"] if each["size"] == document["size"])
    return subset


def caveats(document: dict[str, Any]) -> str:
    return " ".join(map(str, subset_page(document).caveats))


def blocks(page: Page, kind: type) -> list[Any]:
    """All blocks of a kind, in order."""

    def inside(parts: Any) -> Any:
        for block in parts:
            if isinstance(block, kind):
                yield block
            if isinstance(block, Section):
                yield from inside(block.blocks)

    return list(inside(page.sections))


# ---- words --------------------------------------------------------------------------------------------


def test_the_title_claims_nothing_that_the_verdict_does_not() -> None:
    document = record()
    size = document["size"]
    assert headline(document)["verdict"]["status"] == "supported"
    headline(document)["verdict"]["p_value"] = 0.0004
    assert subset_page(document).title == f"The {size} of 120 examples where better models do worse"
    assert "(p <0.001" in str(subset_page(document).verdict)
    headline(document)["verdict"]["status"] = "inconclusive"
    page = subset_page(document)
    assert page.title.startswith("Among 120 examples, none were shown")
    assert "Do not use the subset as evidence" in str(page.verdict)
    headline(document)["verdict"] |= {"r": None, "low": None, "high": None}
    assert "R is n/a" in str(subset_page(document).verdict)
    headline(document)["verdict"] = None
    page = subset_page(document)
    assert page.title == f"The {size} of 120 examples chosen against better models"
    assert str(page.verdict).startswith("Not judged.")


def test_the_lowest_supported_size_leads_and_the_largest_stands_beside_it() -> None:
    supported = [each for each in path() if each.verdict.supported]
    assert len(supported) > 1
    lowest = min(supported, key=lambda each: each.verdict.r)
    assert path().headline is lowest
    assert path().largest_supported is supported[-1] is not lowest
    finding = str(subset_page(record()).verdict)
    assert f"a subset of {lowest.size} examples" in finding
    assert f"the largest supported subset has {supported[-1].size} examples" in finding


def test_a_class_is_warned_about_by_its_share_not_by_the_largest_ratio() -> None:
    found = caveats(record())
    assert "of the subset is of class dog" in found
    # One more class, of one example, which is in the subset: the largest ratio of all.
    data = path().problem.data
    labels = np.array(data.label_names, dtype=object)[data.labels]
    labels[path()[20].indices[0]] = "emu"
    rare = CorrectnessData.of(data, labels=labels.astype(str))
    other = selection_path(rare, sizes=[20], split="family").to_dict()
    assert "of class dog" in caveats(other)
    assert "emu" not in caveats(other)


def test_difficulty_is_named_only_where_r_is_negative() -> None:
    document = record()
    (hard,) = (
        row for row in document["baselines"] if (row["kind"], row["size"]) == ("hard", document["size"])
    )
    hard["r"] = -0.99
    assert "difficulty may explain" in caveats(document)
    headline(document)["correlation"]["test"] |= {"r": 0.1, "frac_clipped": 0.25}
    found = caveats(document)
    assert "difficulty may explain" not in found
    assert f"25{NARROW}% of the test models have accuracy 0 or 1" in found


# ---- tables -------------------------------------------------------------------------------------------


def test_the_table_of_sizes_has_one_interval_per_r_and_a_verdict_per_size() -> None:
    document = record()
    assert set(document["largest"]) == {"val", "ci", "paper"}, "the page shows one of these rules"
    table = next(each for each in blocks(subset_page(document), Table) if each.style == "subset-sizes")
    names = [column.name for column in table.columns]
    assert len(table.rows) == len(SIZES)
    styles = ["headline" if size == document["size"] else "" for size in SIZES]
    assert [row.style for row in table.rows] == styles
    place = names.index("R, cross-fitted")
    for row, subset in zip(table.rows, document["subsets"], strict=True):
        cell = row.cells[place]
        assert isinstance(cell, Cell)
        assert cell.value == subset["verdict"]["r"]
        assert str(cell.text) + str(cell.below)
        assert row.cells[names.index("verdict")].status == subset["verdict"]["status"]


def test_a_record_without_labels_facts_or_pictures_makes_a_page_without_their_parts() -> None:
    made = planted_matrix(24, 60, planted=0.3, slope=0.6, n_families=6, seed=1)
    document = selection_path(made.correct, made.id_accuracy, [10]).to_dict()
    page = render_pages([subset_page(document)])
    assert "<img" not in page
    assert not re.search(r"class dog|>[^<]*\b(nan|None)\b[^<]*<", page[page.index("<article") :])


def test_pictures_are_held_in_the_page_and_an_address_is_refused() -> None:
    document = record()
    page = render_pages([subset_page(document)])
    assert page.count('src="data:image/png;base64,') > 20
    example = document["contents"]["examples"]["chosen"][0]
    assert example["image"]
    example["image"] = "https://example.org/pixel.png"
    with pytest.raises(InputError, match="https://example.org"):
        render_pages([subset_page(document)])


# ---- figures ------------------------------------------------------------------------------------------


def drawn() -> dict[str, Axes]:
    """Each figure of the page by its name."""
    axes = {}
    for figure in blocks(subset_page(record()), Figure):
        plt.close("all")
        if figure.draw is not None:
            axes[figure.name] = figure.draw()
    return axes


def test_figures_show_the_numbers_of_the_record() -> None:
    document, axes = record(), drawn()
    assert {"size", "consistency", "scatter", "models", "null", "prevalence"} == set(axes)

    def heights(name: str) -> list[np.ndarray]:
        return [np.asarray(line.get_ydata(), dtype=float) for line in axes[name].lines]

    r = np.array([each["correlation"]["test"]["r"] for each in document["subsets"]])
    assert any(len(each) == len(r) and np.allclose(each, r) for each in heights("size"))
    mean = np.array(document["contents"]["models_needed"]["mean"], dtype=float)
    assert any(each.shape == mean.shape and np.allclose(each, mean) for each in heights("models"))
    verdict = headline(document)["verdict"]
    bars = sum(patch.get_height() for patch in axes["null"].patches if isinstance(patch, Rectangle))
    assert bars == sum(math.isfinite(each) for each in verdict["null"])
    cells = [text.get_text() for text in axes["consistency"].texts]
    assert len(cells) == len(SIZES) ** 2


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    plt.close("all")

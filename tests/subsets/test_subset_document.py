"""Documents of subsets and of paths over sizes: what they hold, and what they leave out where not known."""

import base64
import dataclasses
import functools
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.stats import pearsonr
from type_checks import no_type_checks

from assay.analyses.subsets import document as subset_document
from assay.analyses.subsets.consistency import selection_consistency
from assay.analyses.subsets.crossfit import cross_fit
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import probit
from assay.analyses.subsets.path import SelectionPath, selection_path
from assay.analyses.subsets.selection import Subset, load_subset, oodselect
from assay.core.errors import InputError
from assay.page import draw
from assay.page.thumbnail import thumbnail
from assay.report import save_report


N_MODELS, N_EXAMPLES, N_PLANTED = 72, 240, 60


@functools.cache
def data(*, bare: bool = False) -> CorrectnessData:
    """72 models of 24 families; on the first 60 of 240 examples better models do worse."""
    rng = np.random.default_rng(3)
    skill = np.repeat(rng.uniform(0.55, 0.9, 24), 3) + rng.uniform(-0.03, 0.03, N_MODELS)
    planted = np.arange(N_EXAMPLES) < N_PLANTED
    chance = np.where(planted, 1.35 - skill[:, None], skill[:, None])
    correct = (rng.uniform(size=(N_MODELS, N_EXAMPLES)) < chance).astype(np.uint8)
    families = [f"family {place // 3}" for place in range(N_MODELS)]
    if bare:
        return CorrectnessData.of(correct, skill, groups=range(N_MODELS))
    return CorrectnessData.of(
        correct,
        skill,
        families=families,
        labels=np.where(planted, 0, np.arange(N_EXAMPLES) % 3),
        label_names=["cat", "dog", "owl"],
        meta={"light": rng.uniform(size=N_EXAMPLES), "place": np.where(planted, "barn", "field")},
        images=rng.integers(0, 255, (N_EXAMPLES, 80, 100, 3), dtype=np.uint8),
        n_id=500,
    )


@functools.cache
def path() -> SelectionPath:
    with no_type_checks():
        found = selection_path(data(), sizes=[20, 60, N_EXAMPLES], split="family")
        found.judge(n_permutations=19, folds=3, workers=1)
    return found


@functools.cache
def of_path() -> dict[str, Any]:
    judged = path()
    with no_type_checks():
        return judged.to_document(n_halves=2)


@functools.cache
def selection(*, bare: bool = False) -> Subset:
    found = oodselect(data(bare=bare), size=40)
    found.judge(n_permutations=3, folds=3, workers=1)
    return found


@functools.cache
def of_selection(*, bare: bool = False) -> dict[str, Any]:
    return selection(bare=bare).to_document(n_halves=0)


def test_documents_are_finite_json() -> None:
    for document in (of_path(), of_selection(), of_selection(bare=True)):
        assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_a_page_is_made_of_a_path(tmp_path: Path) -> None:
    saved = save_report(tmp_path / "page.html", of_path())
    assert saved.stat().st_size < 3_000_000
    assert path().id in saved.read_text()


def test_results_can_be_given_to_a_report_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "to_svg", lambda ax, *, label, key: f'<svg id="{key}"></svg>')
    monkeypatch.setattr(subset_document, "N_HALVES", 0)
    text = save_report(tmp_path / "page.html", path(), selection(bare=True)).read_text()
    assert path().id in text
    assert selection(bare=True).id in text


def test_the_identity_is_that_of_the_result() -> None:
    assert of_path()["id"] == path().id
    assert of_selection()["id"] == selection().id


def test_rows_hold_every_size_with_baselines_and_verdict_and_no_train_r() -> None:
    rows = of_path()["rows"]
    assert [row["size"] for row in rows] == [20, 60, N_EXAMPLES]
    for row, own, verdict in zip(rows, path().selections, path().verdicts, strict=True):
        assert row["test"] == own.correlation["test"].to_dict()
        assert row["validation"]["r"] == own.correlation["validation"].r
        assert row["verdict"]["status"] == verdict.status
        # At the whole pool all draws are one set, and their mean differs from it by rounding.
        assert row["random"]["low"] - 1e-12 <= row["random"]["r"] <= row["random"]["high"] + 1e-12
        assert {"hard", "marginal"} <= row.keys()
        assert "train" not in row
    assert set(of_path()["full"]) == {"validation", "test"}


def test_the_last_row_of_the_whole_pool_is_the_full_correlation() -> None:
    assert of_path()["rows"][-1]["test"]["r"] == pytest.approx(of_path()["full"]["test"]["r"], abs=1e-12)


def test_the_page_is_about_the_headline_size() -> None:
    document = of_path()
    headline = path().headline
    assert document["size"] == headline.size
    assert document["indices"] == headline.indices.tolist()
    assert document["example_ids"] == list(headline.example_ids)
    assert document["verdict"]["size"] == headline.size


def test_the_null_has_the_permutations_of_the_verdict_and_its_r() -> None:
    document = of_path()
    verdict = path().verdicts[path().sizes.index(path().headline.size)]
    assert document["null"]["values"] == list(verdict.null)
    assert document["null"]["observed"] == verdict.r
    assert "null" not in document["rows"][0]["verdict"]


def test_the_largest_subsets_come_with_the_verdict_at_their_size() -> None:
    found = {each["rule"]: each for each in of_path()["largest"]}
    assert set(found) == {"val", "ci", "paper"}
    assert found["val"]["size"] == path().largest_aotil("val", refine=False).size
    assert found["val"]["status"] == path()[found["val"]["size"]].verdict.status


def test_accuracies_of_the_three_sides_add_up() -> None:
    document = of_selection()
    models, size = document["models"], document["size"]
    sides = [np.array(models[name]) for name in ("all", "selected", "rest")]
    np.testing.assert_allclose(
        sides[0] * N_EXAMPLES, sides[1] * size + sides[2] * (N_EXAMPLES - size), atol=1e-9
    )
    np.testing.assert_array_equal(
        np.array(models["rest"]),
        data().accuracy_on(np.setdiff1d(np.arange(N_EXAMPLES), selection().indices)),
    )


def test_lines_are_those_of_the_test_models() -> None:
    document, split = of_selection(), selection().split
    assert document["lines"]["selected"]["slope"] == selection().lines["selected"].slope
    assert [document["models"]["part"][place] for place in split.test] == ["test"] * len(split.test)
    assert document["models"]["part"].count("train") == len(split.train)


def test_the_whole_pool_has_no_rest() -> None:
    whole = path()[N_EXAMPLES]
    document = whole.to_document(n_halves=0)
    assert document["models"]["rest"] is None
    assert document["lines"]["rest"] is None
    assert document["examples"]["others"] == []


def test_composition_is_of_every_size_and_of_the_pool() -> None:
    found = of_path()["composition"]
    assert found["names"] == ["cat", "dog", "owl"]
    assert sum(found["pool"]) == pytest.approx(1)
    assert [row["size"] for row in found["rows"]] == [20, 60, N_EXAMPLES]
    assert found["rows"][-1]["shares"] == pytest.approx(found["pool"])
    assert {each["label"] for each in found["per_class"]} <= set(found["names"])


def test_prevalence_covers_classes_text_and_numbers() -> None:
    rows = of_selection()["prevalence"]["rows"]
    assert {row["attribute"] for row in rows} == {"label", "light", "place"}
    barn = next(row for row in rows if row["value"] == "barn")
    assert barn["difference"] > 0.3
    assert barn["significant"] is True
    assert next(row for row in rows if row["attribute"] == "light")["numeric"] is True


def test_a_fact_named_label_stands_beside_the_labels() -> None:
    named = dataclasses.replace(data(), meta={"label": data().meta["place"]})
    found = dataclasses.replace(selection(), data=named)
    rows = found.to_document(n_halves=0)["prevalence"]["rows"]
    assert {row["attribute"] for row in rows} == {"label", "label (fact)"}


def test_single_examples_have_their_own_correlation_and_share_of_right_models() -> None:
    document, split = of_selection(), selection().split
    y = probit(data().id_accuracy[split.test])
    for each in (*document["examples"]["selected"][:5], *document["examples"]["others"][:5]):
        column = data().correct[split.test, each["index"]]
        assert each["right"] == pytest.approx(column.mean())
        if 0 < column.mean() < 1:
            assert each["r"] == pytest.approx(pearsonr(column, y).statistic)
        assert each["label"] == ("cat", "dog", "owl")[data().labels[each["index"]]]
        assert set(each["meta"]) == {"light", "place"}
    chosen = [each["index"] for each in document["examples"]["selected"]]
    assert chosen == selection().indices[:48].tolist()
    others = {each["index"] for each in document["examples"]["others"]}
    assert len(others) == 48
    assert not others & set(selection().indices.tolist())


def test_pictures_are_small_png_data_uris() -> None:
    found = of_selection()["examples"]["selected"][0]["image"]
    with Image.open(io.BytesIO(base64.b64decode(found.removeprefix("data:image/png;base64,")))) as picture:
        assert (picture.size, picture.mode) == ((64, 51), "RGB")


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (8, 8, 3)])
def test_thumbnails_of_small_images_keep_every_pixel(shape: tuple[int, ...]) -> None:
    image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    with Image.open(io.BytesIO(base64.b64decode(thumbnail(image).partition(",")[2]))) as picture:
        np.testing.assert_array_equal(np.asarray(picture), image.squeeze())


def test_the_histogram_of_examples_has_one_share_per_bin() -> None:
    found = of_selection()["replication"]
    for side, n in (("selected", 40), ("pool", N_EXAMPLES - 40)):
        assert found[side]["n"] == n
        assert len(found[side]["shares"]) == len(found["edges"]) - 1
        assert 0 < sum(found[side]["shares"]) <= 1 + 1e-12
    assert found["selected"]["negative"] > found["pool"]["negative"]


def test_halves_are_compared_with_permutations_or_left_out() -> None:
    assert len(of_path()["halves"]["null"]) <= 2
    assert of_path()["halves"]["reason"] is None
    assert of_selection()["halves"] is None


def test_too_few_training_units_to_halve_give_the_reason() -> None:
    given = {"train": range(4), "validation": range(24, 48), "test": range(48, 72)}
    few = oodselect(data(), size=40, split=given)
    few.keep_verdict(selection().verdict)
    found = few.to_document(n_halves=1)["halves"]
    assert found["overlap"] is None
    assert found["reason"]


def test_what_is_not_known_is_null() -> None:
    document = of_selection(bare=True)
    assert document["composition"] is None
    assert document["prevalence"] is None
    assert document["data"]["labels"] is None
    assert document["models"]["family"] is None
    assert document["data"]["quality"]["reliability"] is None
    assert all(each["image"] is None for each in document["examples"]["selected"])


def test_the_split_counts_its_units() -> None:
    split = of_path()["split"]
    assert split["unit_kind"] == "family"
    assert split["straddling"] == 0
    assert sum(part["n_models"] for part in split["parts"].values()) == N_MODELS
    assert sum(part["n_units"] for part in split["parts"].values()) == 24


def test_a_subset_loaded_without_data_has_no_document(tmp_path: Path) -> None:
    selection().save(tmp_path / "subset.json")
    with pytest.raises(InputError, match="needs the data"):
        _ = load_subset(tmp_path / "subset.json").document


def test_what_was_not_allowed_is_part_of_no_comparison() -> None:
    known = data()
    assert known.labels is not None
    barn = known.meta["place"] == "barn"
    allowed = barn | (np.arange(N_EXAMPLES) >= 180)  # 60 of a barn, 60 others
    chosen = oodselect(known, size=40, allowed=allowed)
    with no_type_checks():
        chosen.judge(n_permutations=19, folds=3, workers=1)
        document = chosen.to_document(n_halves=2)
    # By hand: shares of the pool are those of the 120 examples that could be selected.
    shares = np.bincount(known.labels[allowed], minlength=3) / allowed.sum()
    np.testing.assert_allclose(document["composition"]["pool"], shares)
    np.testing.assert_allclose(chosen.composition().pool_shares, shares)
    rows = {(row["attribute"], row["value"]): row for row in document["prevalence"]["rows"]}
    assert rows["place", "barn"]["pool"] == 0.5
    assert document["prevalence"]["n_pool"] == 120
    assert document["replication"]["pool"]["n"] == 80
    assert all(allowed[each["index"]] for each in document["examples"]["others"])
    others = np.setdiff1d(np.flatnonzero(allowed), chosen.indices)
    assert isinstance(known.correct, np.ndarray)
    np.testing.assert_allclose(document["models"]["rest"], known.correct[:, others].mean(axis=1))


def test_only_those_who_could_be_selected_count_for_chance_overlap() -> None:
    allowed = np.arange(N_EXAMPLES) < 80
    with no_type_checks():
        found = selection_path(data(), sizes=[40, 60], split="family", allowed=allowed)
        found.judge(n_permutations=19, folds=3, workers=1)
    assert found.consistency.n_examples == 80
    sets = [each.indices for each in found.selections]
    chance = found.consistency.expected[0, 1]
    assert chance == selection_consistency(sets, 80).expected[0, 1]
    assert chance > 2 * selection_consistency(sets, N_EXAMPLES).expected[0, 1]
    fit = cross_fit(data(), 60, settings=found.problem.settings, k=3)
    expected = selection_consistency(list(fit.selections[0]), 80).mean
    assert found.verdicts[1].mean_consistency == pytest.approx(expected)

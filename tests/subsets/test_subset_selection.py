"""Subsets of one and several sizes: settings, verdicts, files, other models."""

import dataclasses
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from planted_subsets import planted_matrix

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.path import SelectionPath, selection_path
from assay.analyses.subsets.problem import default_sizes, make_problem
from assay.analyses.subsets.selection import Subset, load_subset, oodselect
from assay.analyses.subsets.verdict import SubsetVerdict
from assay.core.errors import FileFormatError, InputError, ShapeError


@cache
def planted() -> CorrectnessData:
    made = planted_matrix(60, 120, planted=0.3, slope=0.6, n_families=12, seed=5)
    return CorrectnessData.of(
        made.correct, made.id_accuracy, families=made.families, labels=np.arange(120) % 3,
        model_ids=[f"net-{place}" for place in range(60)],
        example_ids=[f"image-{place}" for place in range(120)], meta={"light": ["dim", "bright"] * 60},
    )  # fmt: skip


@cache
def path() -> SelectionPath:
    selected = selection_path(planted(), sizes=[40, 20, 80], split="family")
    selected.judge(n_permutations=19, workers=1)
    return selected


def verdict(r: float, status: str) -> SubsetVerdict:
    return dataclasses.replace(path()[20].verdict, r=r, status=status)


# -------------------------------------------------------------------------------- settings and selection


def test_strata_keep_their_shares_and_others_stay_out() -> None:
    allowed = np.flatnonzero(np.arange(120) % 4)
    subset = oodselect(planted(), size=12, strata="label", allowed=allowed)
    assert np.isin(subset.indices, allowed).all()
    assert np.bincount(planted().labels[subset.indices]).tolist() == [4, 4, 4]
    assert subset.settings.strata_name == "label"
    mask = np.isin(np.arange(120), allowed)
    again = oodselect(planted(), size=12, strata=planted().labels, allowed=mask)
    assert again.indices.tolist() == subset.indices.tolist()
    light = oodselect(planted(), size=12, strata="light")
    assert np.bincount(light.indices % 2).tolist() == [6, 6]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"solver": "greedy"}, InputError, "unknown solver 'greedy'"),
        ({"trials": 3}, InputError, "unknown option of the solver 'swap' 'trials'"),
        ({"strata": "colour"}, InputError, "unknown column to stratify by 'colour'"),
        ({"strata": [1, None] * 60}, ShapeError, "120 values, 60 of them missing"),
        ({"allowed": [120]}, IndexError, "index 120 is out of bounds"),
        ({"seed": -1}, InputError, "seed is -1"),
        ({"size": 121}, InputError, "size is 121"),
        ({"size": None}, InputError, "size is missing"),
        ({"split": "runs"}, InputError, "split of the models"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options: dict[str, Any], kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        oodselect(planted(), **({"size": 10} | options))


def test_the_usual_grid_ends_with_all_and_starts_where_each_stratum_fits() -> None:
    assert default_sizes(make_problem(planted())) == (10, 20, 50, 100, 120)
    strata = np.minimum(np.arange(120), 14)
    assert default_sizes(make_problem(planted(), strata=strata)) == (20, 50, 100, 120)
    with pytest.raises(InputError, match="give at least one, each once"):
        selection_path(planted(), sizes=[20, 20])


# --------------------------------------------------------------------------------------- several sizes


def test_a_path_judges_its_sizes_together() -> None:
    assert path().sizes == (20, 40, 80)
    alone = oodselect(planted(), size=40, split="family")
    assert path()[40].indices.tolist() == alone.indices.tolist()
    assert {each.sizes for each in path().verdicts} == {(20, 40, 80)}
    assert path()[20].id != oodselect(planted(), size=20, split="family").id  # of another sweep
    with pytest.raises(InputError, match="size 30 is not on the path"):
        path()[30]


def test_the_headline_is_the_lowest_r_among_the_supported() -> None:
    def with_verdicts(*verdicts: SubsetVerdict | None) -> SelectionPath:
        subsets = [
            dataclasses.replace(each, known_verdict=v) for each, v in zip(path(), verdicts, strict=True)
        ]
        return dataclasses.replace(path(), subsets=tuple(subsets))

    three = [verdict(-0.5, "supported"), verdict(-0.4, "supported"), verdict(-0.7, "inconclusive")]
    found = with_verdicts(*three)
    assert (found.headline.size, found.largest_supported.size) == (20, 40)
    found = with_verdicts(*(dataclasses.replace(each, status="inconclusive") for each in three))
    assert (found.headline.size, found.largest_supported) == (80, None)
    unjudged = with_verdicts(None, None, None)
    assert unjudged.headline == unjudged.largest_aotil()


def test_the_published_rule_looks_at_the_test_models() -> None:
    by_rule = {rule: path().largest_aotil(rule) for rule in ("val", "ci", "paper")}
    paper = [each for each in path() if each.correlation["test"].r <= -0.3]
    assert by_rule["paper"] is paper[-1]
    assert by_rule["ci"] is None or by_rule["ci"].correlation["test"].high <= -0.3
    with pytest.raises(InputError, match="rule for the largest subset"):
        path().largest_aotil("biggest")


def test_table_and_frame_hold_each_size_with_its_baselines() -> None:
    table, frame = path().table(), path().to_frame()
    assert table["n"].tolist() == [20, 40, 80]
    assert table["pearson_ours"].tolist() == [each.correlation["test"].r for each in path()]
    assert {"pearson_random_hw", "spearman_hard", "cross_fitted", "p_value"} <= set(table)
    assert frame[frame["kind"] == "selection"]["size"].tolist() == [20, 40, 80]
    assert set(frame["kind"]) == {"selection", "random", "hard", "marginal", "all"}


# ----------------------------------------------------------------------------------------------- files


def test_a_file_brings_the_subset_and_its_verdict_back(tmp_path: Path) -> None:
    file = path()[20].save(tmp_path / "new" / "subset.json")
    again = load_subset(file)
    assert again.to_dict() == path()[20].to_dict()
    assert again.verdict.r == path()[20].verdict.r
    fresh = dataclasses.replace(load_subset(file, planted()), known_verdict=None)
    assert fresh.judge(n_permutations=19, workers=1).to_dict() == path()[20].verdict.to_dict()
    with pytest.raises(InputError, match=r"needs the data that the subset was selected on"):
        _ = again.problem
    with pytest.raises(InputError, match="was selected on other data"):
        load_subset(file, planted().take(models=np.arange(50)))
    swapped = dataclasses.replace(again, example_ids=again.example_ids[::-1]).save(tmp_path / "swapped.json")
    with pytest.raises(InputError, match="was selected on other data .* or is altered"):
        load_subset(swapped, planted())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda file: file["correlation"].pop("test"), "not a complete subset: 'test' is missing"),
        (lambda file: file.pop("split"), r"required field missing @ \$\.split"),
        (lambda file: file["indices"].__setitem__(1, file["indices"][0]), "do not describe one set"),
        (lambda file: file.update(schema="assay-selection/9"), "schema is 'assay-selection/9'"),
        (lambda file: file["facts"].pop("n_examples"), "'n_examples' is missing"),
    ],
)
def test_a_damaged_file_is_refused(spoil: Any, message: str, tmp_path: Path) -> None:
    file = path()[20].to_dict()
    spoil(file)
    (tmp_path / "subset.json").write_text(json.dumps(file))
    with pytest.raises(FileFormatError, match=message):
        load_subset(tmp_path / "subset.json")


# ---------------------------------------------------------------------------------------- other models


def others(n: int = 6) -> CorrectnessData:
    return planted().take(models=np.arange(n))


def test_other_models_are_matched_by_the_names_of_the_examples() -> None:
    subset, shuffled = path()[20], np.random.default_rng(0).permutation(120)
    data = others().take(examples=shuffled)
    found = subset.evaluate(data)
    literal = planted().correct[:6][:, subset.indices].mean(axis=1)
    np.testing.assert_allclose(found.accuracy, literal)
    assert found.part[:2] == tuple(part_of(subset, place) for place in (0, 1))
    assert (found.n_matched, found.size) == (20, 20)
    assert ((found.low < found.accuracy) & (found.accuracy < found.high)).all()
    frame = pd.DataFrame(data.correct, index=data.model_ids, columns=data.example_ids).rename_axis("model")
    np.testing.assert_array_equal(subset.evaluate(frame, data.id_accuracy).accuracy, found.accuracy)


def test_models_without_names_or_accuracies_are_evaluated() -> None:
    subset, shuffled = path()[20], np.random.default_rng(1).permutation(120)
    bare = CorrectnessData.of(planted().correct[:6][:, shuffled], planted().id_accuracy[:6])
    found = subset.evaluate(bare, example_ids=planted().example_ids[shuffled])
    np.testing.assert_allclose(found.accuracy, planted().correct[:6][:, subset.indices].mean(axis=1))
    alone = subset.evaluate(planted().correct[3], order="data")
    assert (len(alone.accuracy), math.isnan(alone.correlation.r), alone.part) == (1, True, ("unknown",))


def part_of(subset: Subset, place: int) -> str:
    return next(part for part in ("train", "validation", "test") if place in subset.split.part(part))


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (lambda: planted().correct[:5], {}, "have no names of their own"),
        (lambda: planted().correct[:5, :50], {"order": "data"}, "means the 120 examples"),
        (lambda: others().take(examples=path()[20].indices[:9]), {}, "11 of the 20 examples of the subset"),
        (lambda: planted().correct[:5] / 2, {"order": "data", "scores": True}, "right and wrong answers"),
    ],
)
def test_answers_that_do_not_match_are_refused(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        path()[20].evaluate(data(), **options)

"""Rankings of several targets: means as in the published tables, regret, motifs over tasks."""

import functools
import json
import math

import numpy as np
import pytest
from planted_zoo import SETTINGS, planted

from assay.analyses.generalization import summarize_correlations, universal_motif
from assay.analyses.generalization.comparison import compare_rankings
from assay.analyses.generalization.metrics import METRICS
from assay.analyses.generalization.ranking import rank_inspections
from assay.analyses.generalization.ranking_table import Ranking
from assay.core.errors import InputError


@functools.cache
def ranked(seed: int, *, labelled: bool = True) -> Ranking:
    shown = {f"q{q:g}": planted(q, seed=seed, labelled=labelled) for q in (0.1, 0.5, 0.9, 0.3, 0.7)}
    return rank_inspections(shown, metrics=[key for key in METRICS if key != "cot"], settings=SETTINGS)


def test_cells_are_means_over_targets_and_the_average_is_over_cells() -> None:
    found = compare_rankings({"one": [ranked(0), ranked(1)], "two": [ranked(2)]})
    tasks = {
        name: [each.column("rankme").correlation.point for each in listed]
        for name, listed in {"one": [ranked(0), ranked(1)], "two": [ranked(2)]}.items()
    }
    expected = summarize_correlations(tasks)
    assert found.metrics["rankme"].correlations == expected
    frame = found.table()
    assert frame.loc["rankme", ("all", "average")] == pytest.approx(expected.average)
    assert frame.loc["rankme", ("one", "srcc")] == pytest.approx(expected.per_dataset["one"]["srcc"])
    regrets = [ranked(seed).column("rankme").regret.expected for seed in range(3)]
    assert frame.loc["rankme", ("all", "regret")] == pytest.approx(np.mean(regrets))
    assert found.random == pytest.approx(
        np.mean([ranked(seed).column("rankme").regret.random for seed in range(3)])
    )


def test_signs_may_be_kept() -> None:
    rankings = [ranked(0), ranked(1)]
    absolute = compare_rankings(rankings).metrics["alpha-req"].correlations.per_dataset["targets"]["srcc"]
    signed = compare_rankings(rankings, absolute=False).metrics["alpha-req"].correlations
    assert absolute >= abs(signed.per_dataset["targets"]["srcc"])


def test_targets_without_labels_are_named_as_missing() -> None:
    found = compare_rankings({"one": [ranked(0)], "two": [ranked(0, labelled=False)]})
    assert found.metrics["ddb-output"].missing == ("two: target",)
    assert found.metrics["ddb-output"].correlations is None
    assert math.isnan(found.table().loc["ddb-output", ("one", "r2")])
    assert found.metrics["atc"].missing == ("one: target", "two: target")


def test_the_universal_motif_is_the_mean_of_the_scaled_ones() -> None:
    rankings = [ranked(0), ranked(1)]
    found = compare_rankings(rankings)
    expected = universal_motif([each.motif() for each in rankings])
    np.testing.assert_allclose(found.universal_motif(), expected)
    with pytest.raises(InputError, match="needs a labelled target"):
        compare_rankings([ranked(0, labelled=False)]).motifs()


def test_the_document_holds_the_rankings_and_is_finite_json() -> None:
    document = compare_rankings([ranked(0), ranked(1)]).to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["kind"] == "ranking-comparison"
    assert len(document["rankings"]) == 2
    assert document["motif"]["layers"][0] == "input"
    assert document["motif"]["tasks"] == ["targets: target", "targets: target (2)"]
    assert compare_rankings([ranked(0, labelled=False)]).to_dict()["motif"]["values"] is None


def test_tau_is_ablated_over_all_targets_with_three_measures() -> None:
    found = compare_rankings({"one": [ranked(0), ranked(1)], "two": [ranked(2)]})
    table = found.ratio_summaries()["deep"]
    tasks = {
        name: [each.ratios("deep")[0.2] for each in listed]
        for name, listed in {"one": [ranked(0), ranked(1)], "two": [ranked(2)]}.items()
    }
    assert list(table) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert table[0.2] == summarize_correlations(tasks)
    entry = found.to_dict()["ratios"]["deep"][1]
    assert (entry["ratio"], entry["average"]) == (0.2, table[0.2].average)


def test_no_ranking_is_nothing_to_compare() -> None:
    with pytest.raises(InputError, match="rankings are missing"):
        compare_rankings({"empty": []})

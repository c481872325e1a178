"""Rankings of several targets: means as in the published tables, regret, motifs over tasks and domains."""

import functools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from planted_zoo import SETTINGS, planted

from assay.analyses.generalization import motif, summarize_correlations, universal_motif
from assay.analyses.generalization.comparison import compare_rankings, motif_over_domains
from assay.analyses.generalization.predictors import ORDER
from assay.analyses.generalization.ranking import rank_inspections
from assay.analyses.generalization.ranking_table import Ranking
from assay.core.errors import InputError


@functools.cache
def ranked(seed: int, *, labelled: bool = True) -> Ranking:
    shown = {f"q{q:g}": planted(q, seed=seed, labelled=labelled) for q in (0.1, 0.5, 0.9, 0.3, 0.7)}
    return rank_inspections(shown, metrics=[key for key in ORDER if key != "cot"], settings=SETTINGS)


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


def test_performance_is_told_by_what_models_started_from() -> None:
    families = ("a", "b", "a", "b", "b")
    found = compare_rankings([replace(ranked(seed), families=families) for seed in (0, 1)])
    accuracy = np.stack([ranked(seed).performance.values for seed in (0, 1)])
    first, second = found.by_family().to_dict("records")
    assert (first["family"], first["n"], second["n"]) == ("a", 4, 6)
    assert first["ood"] == pytest.approx(accuracy[:, [0, 2]].mean())
    assert second["ood_std"] == pytest.approx(accuracy[:, [1, 3, 4]].std())
    assert math.isnan(first["id"])
    assert found.to_dict()["families"][0]["id"] is None
    assert compare_rankings([ranked(0)]).to_dict()["families"] == []


def test_no_ranking_is_nothing_to_compare() -> None:
    with pytest.raises(InputError, match="rankings are missing"):
        compare_rankings({"empty": []})


def test_the_motif_over_domains_regresses_the_matrices_of_one_model() -> None:
    shown = {f"domain {q:g}": planted(q, n=80) for q in (0.1, 0.4, 0.6, 0.9)}
    found = motif_over_domains(shown)
    matrices = np.stack([each.dependency for each in shown.values()])
    accuracy = [float((each.predictions == each.labels).mean()) for each in shown.values()]
    np.testing.assert_allclose(found.motif.values, motif(matrices, accuracy).values)
    assert found.performance == pytest.approx(accuracy)
    assert found.domains == tuple(shown)
    assert set(found.correlations) == {"ddb-output", "ddb-deep", "ddb-global"}


@pytest.mark.parametrize(
    ("change", "message"),
    [({"labels": None}, "without labels"), ({"dependency": None}, "without scores of all edges")],
)
def test_domains_that_lack_something_are_named(change: dict, message: str) -> None:
    shown = {f"{q:g}": planted(q) for q in (0.1, 0.4, 0.9)}
    shown["0.4"] = replace(shown["0.4"], **change)
    with pytest.raises(InputError, match=rf"domain '0\.4' was inspected {message}"):
        motif_over_domains(shown)

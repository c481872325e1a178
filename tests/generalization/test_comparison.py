"""Rankings of several targets: means as in the published tables, regret, what is missing."""

import functools
import json
import math

import numpy as np
import pytest
from planted_zoo import SETTINGS, inspected, planted

from assay.analyses.generalization import TaskCorrelation, summarize_correlations
from assay.analyses.generalization.comparison import compare_rankings
from assay.analyses.generalization.metrics import METRICS
from assay.analyses.generalization.ranking import Ranking, rank_inspections
from assay.core.errors import InputError
from assay.report.save import pages_of


@functools.cache
def ranked(seed: int, *, labelled: bool = True) -> Ranking:
    shown = {f"q{q:g}": planted(q, seed=seed, labelled=labelled) for q in (0.1, 0.5, 0.9, 0.3, 0.7)}
    metrics = [key for key in METRICS if key != "cot"]
    return rank_inspections(inspected(shown), metrics=metrics, settings=SETTINGS)


def point(ranking: Ranking, key: str) -> TaskCorrelation:
    found = ranking.column(key).correlation
    return TaskCorrelation(r2=found.r2.value, srcc=found.srcc.value, krcc=found.krcc.value, n=found.n)


def test_correlations_keep_their_signs_and_the_mean_size_is_as_published() -> None:
    given = {"one": [ranked(0), ranked(1)], "two": [ranked(2)]}
    found = {each["key"]: each for each in compare_rankings(given).metrics}
    tasks = {name: [point(each, "alpha-req") for each in listed] for name, listed in given.items()}
    expected, signed = (summarize_correlations(tasks, absolute=absolute) for absolute in (True, False))
    row = found["alpha-req"]
    assert (row["average"], row["sem"]) == (expected.average, expected.sem)
    assert row["per_dataset"] == signed.per_dataset
    assert row["per_dataset"]["two"]["srcc"] < 0
    assert row["regret"] == pytest.approx(
        np.mean([ranked(seed).column("alpha-req").regret.expected for seed in range(3)])
    )
    assert row["n_tasks"] == 3
    frame = compare_rankings(given).to_frame().set_index("metric")
    assert frame.loc["alpha-req", "two srcc"] == row["per_dataset"]["two"]["srcc"]


def test_metrics_are_ordered_by_what_picking_by_them_costs() -> None:
    found = compare_rankings({"one": [ranked(0), ranked(1)]})
    regrets = [each["regret"] for each in found.metrics]
    assert regrets == sorted(regrets)
    blind = np.mean([ranked(seed).column("rankme").regret.random for seed in (0, 1)])
    assert found.random == pytest.approx(blind)
    # The cells of one data set are not repetitions of each other.
    assert all(math.isnan(each["sem"]) for each in found.metrics)
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    page, *others = pages_of(document)
    assert page.verdict.startswith(
        f"Picking by {found.metrics[0]['name']} loses least: its expected regret is"
    )
    assert len(others) == 2


def test_targets_without_labels_are_left_out() -> None:
    found = compare_rankings({"one": [ranked(0)], "two": [ranked(0, labelled=False)]})
    rows = {each["key"]: each for each in found.metrics}
    assert rows["ddb-output"]["n_tasks"] == 1
    assert "atc" not in rows
    unknown = compare_rankings({"two": [ranked(0, labelled=False)]})
    assert pages_of(unknown)[0].verdict == "No target has labels, so metrics cannot be compared."


def test_no_ranking_is_nothing_to_compare() -> None:
    with pytest.raises(InputError, match="rankings are missing"):
        compare_rankings({"empty": []})

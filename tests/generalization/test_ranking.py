"""Rankings of planted models: what leads, what is absent, what is refused, what the page says."""

import functools
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from planted_zoo import SETTINGS, inspected, planted

from assay.analyses.generalization import motif, ranking_page, ratio_ablation
from assay.analyses.generalization.inspection import InspectionSettings, answers_of
from assay.analyses.generalization.metrics import DEFAULT_METRICS, METRICS
from assay.analyses.generalization.ranking import Ranking, rank_inspections
from assay.analyses.generalization.spectra import Spectra
from assay.core.errors import InputError
from assay.graph import build_graph
from assay.page.text import plain_text


QUALITIES = (0.1, 0.5, 0.9, 0.3, 0.7)


def zoo(**more: object) -> dict:
    return {f"q{quality:g}": planted(quality, **more) for quality in QUALITIES}


def ranked_of(targets: dict, known: dict | None = None, **more: object) -> Ranking:
    return rank_inspections(inspected(targets, known), **{"settings": SETTINGS, **more})


@functools.cache
def ranked(**more: object) -> Ranking:
    """All metrics of the planted zoo with labelled known images; made once, for tests that only read it."""
    return ranked_of(zoo(), zoo(n=80, seed=1), **{"metrics": tuple(METRICS), **more})


def test_better_models_lead_by_every_metric_that_sees_the_quality() -> None:
    found = ranked()
    assert list(found.columns) == list(METRICS)
    assert not found.absent
    for key in ("ddb-output", "sharpness", "average-confidence", "atc", "agreement-line"):
        assert found.best(key) == "q0.9", key
        chances = [row["chance"] for row in found.column(key).rows]
        assert chances[2] == max(chances) > 0.5
    assert found.order("ddb-output") == ("q0.9", "q0.7", "q0.5", "q0.3", "q0.1")
    np.testing.assert_array_equal(found.column("ddb-output").ranks, [5, 3, 1, 4, 2])


def test_performance_is_true_accuracy_with_intervals_around_it() -> None:
    truth = [(each.predictions == each.labels).mean() for each in zoo().values()]
    np.testing.assert_allclose(ranked().performance.values, truth)
    for value, row in zip(truth, ranked().performance.rows, strict=True):
        assert row["low"] <= value <= row["high"]
    assert not np.allclose(ranked(measure="macro-f1").performance.values, truth)


def test_regret_is_small_for_what_finds_the_best_and_compared_with_a_blind_pick() -> None:
    regret = ranked().column("ddb-output").regret
    assert regret.observed == 0
    assert 0 <= regret.expected < 0.05 < regret.random
    assert regret.interval.low <= regret.expected <= regret.interval.high


def test_a_metric_without_replicates_picks_the_same_model_throughout() -> None:
    found = ranked_of(zoo(), zoo(n=80, seed=1, n_batches=1), metrics=["sharpness"])
    column = found.column("sharpness")
    assert column.rows[0]["chance"] is None
    truth = found.performance.numbers[1:]
    picked = int(np.nanargmin(column.ranks))
    assert column.regret.expected == pytest.approx((truth.max(1) - truth[:, picked]).mean())


def test_correlations_have_the_sign_of_the_metric() -> None:
    assert ranked().column("ddb-output").correlation.srcc.value == pytest.approx(1.0)
    assert ranked().column("sharpness").correlation.srcc.value < 0
    assert ranked().column("sharpness").ranks[2] == 1  # low is good


def test_copies_of_a_model_count_once_in_correlations_and_are_named() -> None:
    targets, again = zoo(), zoo()["q0.9"]
    targets |= {"other name": again, "other precision": replace(again, energies=again.energies * 1.001)}
    metrics = ["ddb-output", "average-confidence"]
    found, alone = (ranked_of(each, metrics=metrics) for each in (targets, zoo()))
    for key, column in found.columns.items():
        assert column.correlation == alone.columns[key].correlation
    assert found.ratios == alone.ratios
    assert [each.get("copy_of") for each in found.models] == [None] * 5 + ["q0.9"] * 2
    note = "Correlations leave out other name and other precision"
    assert any(note in text for text in ranking_page.caveats(found.to_dict()))
    assert "leave out" not in " ".join(ranking_page.caveats(alone.to_dict()))


def test_a_metric_without_direction_ranks_nothing_and_keeps_its_correlation() -> None:
    energy = ranked().column("energy")
    assert (energy.ranks, energy.rows[0]["chance"], energy.regret) == (None, None, None)
    assert math.isfinite(energy.correlation.srcc.value)
    with pytest.raises(InputError, match="does not give a direction"):
        ranked().best("energy")


def test_without_labels_there_is_neither_performance_nor_regret() -> None:
    found = ranked_of(zoo(labelled=False))
    assert (found.performance, found.ratios) == (None, None)
    assert (found.column("ddb-output").regret, found.column("ddb-output").correlation) == (None, None)
    assert "no labels" in found.motif["reason"]


def test_metrics_without_their_data_are_absent_with_the_reason() -> None:
    found = ranked_of(zoo(), metrics=tuple(METRICS))
    absent = {"id-accuracy", "sharpness", "atc", "doc", "cot", "agreement-line"}
    assert {each["key"] for each in found.absent} == absent
    with pytest.raises(InputError, match=r"atc is not in this ranking: needs labelled images.*id_data"):
        found.column("atc")
    unlabelled = ranked_of(zoo(), zoo(labelled=False), metrics=["atc", "doc"])
    assert [each["reason"] for each in unlabelled.absent] == [
        "the images of the models' own domain have no labels"
    ] * 2
    bare = {name: replace(each, dependency_draws=None, spectra=None) for name, each in zoo().items()}
    left = ranked_of(bare, metrics=["ddb-deep", "rankme", "average-confidence"])
    assert list(left.columns) == ["average-confidence"]
    assert left.absent[1]["reason"] == "the models were inspected without spectra"


def test_motif_and_ratios_are_those_of_the_matrices() -> None:
    matrices, truth = [each.dependency for each in zoo().values()], ranked().performance.values
    np.testing.assert_allclose(ranked().motif["values"], motif(np.stack(matrices), truth).loadings)
    expected = ratio_ablation([torch.from_numpy(each) for each in matrices], truth, targets="deep")
    assert [row["ratio"] for row in ranked().ratios["deep"]] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert [row["srcc"] for row in ranked().ratios["deep"]] == [each.srcc for each in expected.values()]


def test_the_table_is_a_frame_of_models_by_metrics() -> None:
    frame = ranked().table()
    assert frame.index.tolist() == [f"q{quality:g}" for quality in QUALITIES]
    assert frame.columns.tolist() == ["accuracy", *METRICS]
    np.testing.assert_array_equal(frame["rankme"], ranked().column("rankme").values)


def test_the_document_is_finite_json_and_says_what_was_resampled() -> None:
    document = ranked().to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["kind"] == "ranking"
    assert "30 times" in document["resampled"]
    assert [each["name"] for each in document["models"]] == [f"q{quality:g}" for quality in QUALITIES]
    assert document["metrics"][0]["rows"][2]["rank"] == 1
    assert (document["motif"]["n"], len(document["layers"])) == (5, 6)
    assert [each["name"] for each in document["dependency"]] == ["q0.9", "q0.1"]
    assert set(document["ratios"]) == {"output", "deep", "global"}
    assert document["costs"]["inspect"]["seconds"] == pytest.approx(10 * 0.5)


def test_matrices_are_of_the_models_that_the_leading_metric_ranks_first_and_last() -> None:
    # Rank, alpha and energy of the planted logits do not follow the quality that the depth bias does.
    orders = set()
    for key in ("ddb-output", "rankme", "alpha-req", "energy"):
        document = ranked_of(zoo(), metrics=[key, "ddb-deep"]).to_dict()
        ranks = [row["rank"] for row in ranking_page.leading(document)["rows"]]
        ends = [document["models"][ranks.index(each)]["name"] for each in (1, max(ranks))]
        assert [each["name"] for each in document["dependency"]] == ends, key
        orders.add(tuple(ends))
    assert len(orders) > 1


def test_the_same_ranking_has_the_same_identity_and_other_settings_another() -> None:
    assert ranked_of(zoo()).id == ranked_of(zoo()).id
    other = replace(SETTINGS, steps=7)
    shown = {
        name: replace(each, provenance={**each.provenance, "settings": other.to_dict()})
        for name, each in zoo().items()
    }
    assert ranked_of(shown, settings=other).id != ranked_of(zoo()).id
    with pytest.raises(InputError, match=r"measured with {'steps': 7}; measure all as"):
        ranked_of(shown)


def test_models_of_different_depth_are_ranked_at_shares_of_their_depth() -> None:
    shown = zoo()
    matrix, one = np.zeros((10, 10)), shown["q0.5"].dependency
    matrix[1:-1, 1:-1] = np.kron(one[1:-1, 1:-1], np.ones((2, 2))) / 4
    matrix[0, 1:-1], matrix[1:-1, -1] = (np.repeat(each, 2) / 2 for each in (one[0, 1:-1], one[1:-1, -1]))
    matrix[0, -1] = one[0, -1]
    graph = build_graph(8, 2)
    scores = {"output_scores": np.ones(graph.n_sources)}
    scores["output_draws"] = np.ones((30, graph.n_sources), dtype=np.float32)
    shown["q0.5"] = replace(shown["q0.5"], graph=graph, dependency=matrix, dependency_draws=None, **scores)
    document = ranked_of(shown, metrics=["ddb-output"]).to_dict()
    np.testing.assert_allclose(document["motif"]["values"], ranked().motif["values"], atol=1e-9)
    assert document["layers"][1] == "0\N{EN DASH}25 %"
    assert [each["blocks"] for each in document["models"]] == [4, 8, 4, 4, 4]


def test_the_first_metric_that_ranks_leads_and_held_out_labels_come_first_by_default() -> None:
    found = ranked_of(zoo(), metrics=["energy", "average-confidence", "ddb-output"])
    assert list(found.columns) == ["energy", "average-confidence", "ddb-output"]
    assert ranking_page.verdict(found.to_dict()).startswith("AC picks")
    assert list(ranked_of(zoo(), zoo(n=80, seed=1)).columns) == list(DEFAULT_METRICS)
    assert DEFAULT_METRICS[:2] == ("id-accuracy", "ddb-output")


def test_the_first_sentence_leads_with_held_out_labels_and_says_which_metrics_agree() -> None:
    metrics = ["ddb-output", "id-accuracy", "average-confidence", "energy"]
    text = ranking_page.verdict(ranked_of(zoo(), zoo(n=80, seed=5), metrics=metrics).to_dict())
    assert text.startswith("On 80 labelled images of target, q0.9 has the highest accuracy, 0.9")
    assert re.search(
        r"\(best in [\d.]+.% of resamples of these images\); DDB output and AC agree\. It has", text
    )
    alone = ranked_of(zoo(labelled=False), metrics=["ddb-output", "rankme"]).to_dict()
    text = ranking_page.verdict(alone)
    assert text.startswith("DDB output picks q0.9 (best in 100")
    assert text.endswith("of resamples of these images); no other metric agrees.")
    assert ranking_page.caveats(alone)[0].startswith("Metrics disagree on the pick: q0.9 by DDB output; q0")


def test_failed_models_and_degenerate_estimates_come_first_in_the_caveats() -> None:
    targets, known = zoo(), zoo(n=80, seed=1)
    shown = targets["q0.3"]
    flat = np.full_like(shown.spectra.raw, 1e-9)
    flat[:, 0] = 1.0
    spectra = Spectra(raw=flat, centred=shown.spectra.centred)
    targets["q0.3"] = replace(shown, predictions=np.where(np.arange(60) < 57, 2, 0), spectra=spectra)
    sure = replace(known["q0.5"], **answers_of(10 * np.eye(4)[known["q0.5"].labels]))
    targets["q0.5"] = replace(targets["q0.5"], confidence=np.full(60, 0.9))
    found = ranked_of(targets, known | {"q0.5": sure}, metrics=["rankme", "atc"]).to_dict()
    notes = [
        plain_text(each).replace("\N{NARROW NO-BREAK SPACE}", " ") for each in ranking_page.caveats(found)
    ]
    assert notes[:3] == [
        "More than 90 % of the images are given one class by q0.3.",
        "Features have collapsed (RankMe below 2) in q0.3.",
        "ATC is 0 or 1, which is no estimate, for q0.5 and q0.9.",
    ]
    assert not any("one class" in note for note in ranking_page.caveats(ranked().to_dict()))


def test_a_target_that_is_the_labelled_images_is_said_to_be_so() -> None:
    same = ranked_of(zoo(), zoo()).to_dict()
    assert any("The target is the labelled images" in note for note in ranking_page.caveats(same))
    other = {**same, "known": {**same["known"], "data_hash": "1"}}
    assert not any("The target is" in note for note in ranking_page.caveats(other))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ("a", "b", "c", "d")}, r"have different classes"),
        ({"ids": np.arange(1, 61)}, "were given different target images"),
        ({"labels": np.zeros(60, dtype=np.int64)}, "were given different target images"),
    ],
)
def test_models_that_do_not_compare_are_refused(change: dict, message: str) -> None:
    shown = zoo()
    shown["q0.9"] = replace(shown["q0.9"], **change)
    with pytest.raises(InputError, match=message):
        ranked_of(shown)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"metrics": ["ddb-outptu"]}, "did you mean 'ddb-output'"),
        ({"metrics": []}, "metrics is empty"),
        ({"measure": "auc"}, "unknown measure 'auc'"),
        ({"ratio": 0.6}, r"ratio is 0\.6"),
        ({"targets": {"only": planted(0.5)}}, r"got 1 model\(s\)"),
    ],
)
def test_bad_arguments_are_named(more: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ranked_of(more.pop("targets", None) or zoo(), **more)


@pytest.mark.parametrize(("field", "least"), [("steps", 1), ("draws", 20), ("sharpness_batch", 1)])
def test_settings_below_their_least_are_refused(field: str, least: int) -> None:
    assert InspectionSettings(**{field: least})
    with pytest.raises(InputError, match=f"{field} is {least - 1}; expected at least {least}"):
        InspectionSettings(**{field: least - 1})

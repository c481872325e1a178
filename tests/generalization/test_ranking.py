"""Rankings of planted models: what leads, what is absent, what is refused."""

import functools
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from planted_zoo import SETTINGS, planted

from assay.analyses.generalization import motif, output_depth_bias, ranking_page, ranking_plots
from assay.analyses.generalization.inspection import InspectionSettings, answers_of
from assay.analyses.generalization.metrics import METRICS
from assay.analyses.generalization.ranking import rank_inspections
from assay.analyses.generalization.ranking_plots import layer_matrix
from assay.analyses.generalization.ranking_table import Ranking
from assay.analyses.generalization.spectra import Spectra
from assay.core.errors import InputError, UnknownNameError
from assay.graph import build_graph
from assay.page.matrix import plot_matrix
from assay.page.text import plain_text


QUALITIES = (0.1, 0.5, 0.9, 0.3, 0.7)


def zoo(**more: object) -> dict:
    return {f"q{quality:g}": planted(quality, **more) for quality in QUALITIES}


@functools.cache
def ranked(**more: object) -> Ranking:
    """All metrics of the planted zoo with labelled known images; made once, for tests that only read it."""
    given = {"metrics": tuple(METRICS), "settings": SETTINGS, **more}
    return rank_inspections(zoo(), zoo(n=80, seed=1), **given)


def test_better_models_lead_by_every_metric_that_sees_the_quality() -> None:
    found = ranked()
    assert list(found.columns) == list(METRICS)
    assert found.absent == {}
    for key in ("ddb-output", "sharpness", "average-confidence", "atc", "agreement-line"):
        assert found.best(key) == "q0.9", key
        assert found.column(key).chances[2] == found.column(key).chances.max() > 0.5
    assert found.order("ddb-output") == ("q0.9", "q0.7", "q0.5", "q0.3", "q0.1")
    np.testing.assert_array_equal(found.column("ddb-output").ranks, [5, 3, 1, 4, 2])


def test_performance_is_true_accuracy_with_intervals_around_it() -> None:
    found = ranked()
    targets = zoo()
    truth = [(each.predictions == each.labels).mean() for each in targets.values()]
    np.testing.assert_allclose(found.performance.values, truth)
    for value, interval in zip(truth, found.performance.intervals, strict=True):
        assert interval.low <= value <= interval.high


def test_regret_is_small_for_what_finds_the_best_and_compared_with_a_blind_pick() -> None:
    regret = ranked().column("ddb-output").regret
    assert regret.observed == 0
    assert 0 <= regret.expected < 0.05 < regret.random
    assert regret.interval.low <= regret.expected <= regret.interval.high


def test_a_metric_without_replicates_picks_the_same_model_throughout() -> None:
    known = zoo(n=80, seed=1, n_batches=1)
    found = rank_inspections(zoo(), known, metrics=["sharpness"], settings=SETTINGS)
    column = found.column("sharpness")
    assert column.chances is None
    picked = int(np.nanargmin(column.ranks))
    truth = found.performance.numbers[1:]
    assert column.regret.expected == pytest.approx((truth.max(1) - truth[:, picked]).mean())


def test_correlations_have_the_sign_of_the_metric() -> None:
    found = ranked()
    assert found.column("ddb-output").correlation.point.srcc == pytest.approx(1.0)
    assert found.column("sharpness").correlation.point.srcc < 0
    assert found.column("sharpness").ranks[2] == 1  # low is good


def test_copies_of_a_model_count_once_in_correlations_and_are_counted() -> None:
    targets = zoo()
    names = [*targets, "other name", "other precision"]
    again = targets["q0.9"]
    targets |= {names[-2]: again, names[-1]: replace(again, energies=again.energies * 1.001)}
    found = rank_inspections(targets, metrics=["ddb-output", "average-confidence"], settings=SETTINGS)
    alone = rank_inspections(zoo(), metrics=["ddb-output", "average-confidence"], settings=SETTINGS)
    for key, column in found.columns.items():
        assert column.correlation == alone.columns[key].correlation
    assert found.ratios() == alone.ratios()
    assert [each.get("copy_of") for each in found.to_dict()["models"]] == [None] * 5 + ["q0.9"] * 2
    note = "2 of the 7 models are copies, which show the same as an earlier one (other name, other precision)"
    assert any(note in text for text in ranking_page.caveats(found.to_dict()))
    assert "copies" not in " ".join(ranking_page.caveats(alone.to_dict()))


def test_a_metric_without_direction_ranks_nothing_and_keeps_its_correlation() -> None:
    energy = ranked().column("energy")
    assert energy.ranks is None
    assert energy.chances is None
    assert energy.regret is None
    assert math.isfinite(energy.correlation.point.srcc)
    with pytest.raises(InputError, match="does not give a direction"):
        ranked().best("energy")


def test_without_labels_there_is_neither_performance_nor_regret() -> None:
    found = rank_inspections(zoo(labelled=False), settings=SETTINGS)
    assert found.performance is None
    assert found.column("ddb-output").regret is None
    assert found.column("ddb-output").correlation is None
    with pytest.raises(InputError, match="no labels"):
        found.motif()
    with pytest.raises(InputError, match="no labels"):
        found.ratios()


def test_metrics_without_their_data_are_absent_with_the_reason() -> None:
    found = rank_inspections(zoo(), metrics=tuple(METRICS), settings=SETTINGS)
    assert set(found.absent) == {"id-accuracy", "sharpness", "atc", "doc", "cot", "agreement-line"}
    assert "id_data" in found.absent["atc"]
    with pytest.raises(InputError, match="atc is not in this ranking: needs labelled images"):
        found.column("atc")


def test_known_images_without_labels_are_said_to_be_so() -> None:
    found = rank_inspections(zoo(), zoo(labelled=False), metrics=["atc", "doc"], settings=SETTINGS)
    assert found.absent["doc"] == "the images of the models' own domain have no labels"


def test_inspections_without_a_part_leave_its_metrics_absent() -> None:
    bare = {name: replace(each, dependency_draws=None, spectra=None) for name, each in zoo().items()}
    found = rank_inspections(bare, metrics=["ddb-deep", "rankme", "average-confidence"], settings=SETTINGS)
    assert list(found.columns) == ["average-confidence"]
    assert found.absent["rankme"] == "the models were inspected without features"


def test_the_motif_of_a_ranking_is_that_of_its_matrices() -> None:
    found = ranked()
    matrices = np.stack([each.dependency for each in zoo().values()])
    expected = motif(matrices, found.performance.values)
    np.testing.assert_allclose(found.motif().values, expected.values)


def test_ratios_cover_the_published_grid() -> None:
    table = ranked().ratios()
    assert list(table) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert table[0.3].srcc == pytest.approx(1.0)
    assert set(ranked().ratios("global", ratios=[0.5])) == {0.5}
    with pytest.raises(UnknownNameError, match="targets 'outptu'"):
        ranked().ratios("outptu")


def test_the_table_is_a_frame_of_models_by_metrics() -> None:
    frame = ranked().table()
    assert frame.index.tolist() == [f"q{quality:g}" for quality in QUALITIES]
    assert frame.columns.tolist() == ["accuracy", *METRICS]


def test_macro_f1_is_used_for_target_and_known_images() -> None:
    found = ranked(measure="macro-f1")
    assert found.measure == "macro-f1"
    assert not np.allclose(found.performance.values, ranked().performance.values)


def test_the_document_is_finite_json_and_says_what_was_resampled() -> None:
    document = ranked().to_dict()
    text = json.dumps(document, allow_nan=False)
    assert document["kind"] == "ranking"
    assert "held fixed are the models" in document["resampled"]
    assert "30 times" in document["resampled"]
    assert [each["name"] for each in document["models"]] == [f"q{quality:g}" for quality in QUALITIES]
    assert document["metrics"][0]["rows"][2]["rank"] == 1
    assert document["motif"]["n"] == 5
    assert len(document["layers"]) == len(document["motif"]["values"]) == 6
    assert [each["name"] for each in document["dependency"]] == ["q0.9", "q0.1"]
    assert set(document["ratios"]) == {"output", "deep", "global"}
    assert document["costs"]["inspect"]["seconds"] == pytest.approx(10 * 0.5)
    assert json.loads(text) == document


def test_matrices_are_of_the_models_that_the_leading_metric_ranks_first_and_last() -> None:
    # Rank, alpha and energy of the planted logits do not follow the quality that the depth bias does.
    orders = set()
    for key in ("ddb-output", "rankme", "alpha-req", "energy"):
        found = rank_inspections(zoo(), zoo(n=80, seed=1), metrics=[key, "ddb-deep"], settings=SETTINGS)
        leading = ranking_plots.leading(found.to_dict()) or {}
        ranks = [row["rank"] for row in leading["rows"]]
        ends = [found.names[ranks.index(each)] for each in (1, max(ranks))]
        assert [each["name"] for each in found.to_dict()["dependency"]] == ends, key
        orders.add(tuple(ends))
    assert len(orders) > 1


def test_the_same_ranking_has_the_same_identity_and_another_seed_another() -> None:
    one, two = ranked().to_dict(), ranked().to_dict()
    assert one == two
    other = replace(SETTINGS, steps=7)
    shown = {
        name: replace(each, provenance={**each.provenance, "settings": other.to_dict()})
        for name, each in zoo().items()
    }
    assert rank_inspections(shown, settings=other).to_dict()["id"] != one["id"]


def test_models_of_different_depth_are_ranked_at_shares_of_their_depth() -> None:
    shown = zoo()
    graph = build_graph(8, 2)
    deep = np.kron(shown["q0.5"].dependency[1:-1, 1:-1], np.ones((2, 2))) / 4
    matrix = np.zeros((10, 10))
    matrix[1:-1, 1:-1] = deep
    matrix[0, 1:-1] = np.repeat(shown["q0.5"].dependency[0, 1:-1], 2) / 2
    matrix[1:-1, -1] = np.repeat(shown["q0.5"].dependency[1:-1, -1], 2) / 2
    matrix[0, -1] = shown["q0.5"].dependency[0, -1]
    shown["q0.5"] = replace(
        shown["q0.5"],
        graph=graph,
        dependency=matrix,
        dependency_draws=None,
        output_scores=np.ones(graph.n_sources),
        output_draws=np.ones((30, graph.n_sources), dtype=np.float32),
    )
    found = rank_inspections(shown, metrics=["ddb-output"], settings=SETTINGS)
    np.testing.assert_allclose(found.motif().values, ranked().motif().values, atol=1e-9)
    document = found.to_dict()
    assert document["layers"][1] == "0\N{EN DASH}25 %"
    axes = plot_matrix(layer_matrix(found.motif().values.numpy(), document["layers"]))
    assert axes.get_xticklabels()[0].get_text() == "0\N{EN DASH}25 %"
    assert [each["blocks"] for each in document["models"]] == [4, 8, 4, 4, 4]
    assert any("4 to 8 blocks" in note for note in ranking_page.caveats(document))


def test_the_first_metric_asked_for_leads() -> None:
    found = rank_inspections(zoo(), metrics=["average-confidence", "ddb-output"], settings=SETTINGS)
    assert list(found.columns) == ["average-confidence", "ddb-output"]
    assert ranking_page.verdict(found.to_dict()).startswith("AC picks")
    default = rank_inspections(zoo(), zoo(n=80, seed=1), settings=SETTINGS)
    assert list(default.columns)[:2] == ["id-accuracy", "ddb-output"]  # held-out labels first


def test_the_first_sentence_leads_with_held_out_labels_and_says_which_metrics_agree() -> None:
    metrics = ["ddb-output", "id-accuracy", "average-confidence", "energy"]
    found = rank_inspections(zoo(), zoo(n=80, seed=5), metrics=metrics, settings=SETTINGS)
    text = ranking_page.verdict(found.to_dict())
    assert text.startswith("On 80 labelled images of target, q0.9 has the highest accuracy, 0.9")
    assert re.search(
        r"\(best in [\d.]+.% of resamples of these images\); DDB output and AC agree\. It has", text
    )
    alone = rank_inspections(zoo(labelled=False), metrics=["ddb-output", "rankme"], settings=SETTINGS)
    text = ranking_page.verdict(alone.to_dict())
    assert text.startswith("DDB output picks q0.9 (best in 100")
    assert text.endswith("of resamples of these images); no other metric agrees.")
    notes = ranking_page.caveats(alone.to_dict())
    assert notes[0].startswith("Metrics disagree on the pick: DDB output picks q0.9; RankMe picks q0")


def test_failed_models_and_degenerate_estimates_come_first_in_the_caveats() -> None:
    targets, known = zoo(), zoo(n=80, seed=1)
    shown = targets["q0.3"]
    flat = np.full_like(shown.spectra.raw, 1e-9)
    flat[:, 0] = 1.0
    targets["q0.3"] = replace(
        shown,
        predictions=np.where(np.arange(60) < 57, 2, 0),
        spectra=Spectra(raw=flat, centred=shown.spectra.centred),
    )
    sure = replace(known["q0.5"], **answers_of(10 * np.eye(4)[known["q0.5"].labels]))
    targets["q0.5"] = replace(targets["q0.5"], confidence=np.full(60, 0.9))
    metrics = ["rankme", "atc"]
    found = rank_inspections(targets, known | {"q0.5": sure}, metrics=metrics, settings=SETTINGS).to_dict()
    notes = [
        plain_text(each).replace("\N{NARROW NO-BREAK SPACE}", " ") for each in ranking_page.caveats(found)
    ]
    assert notes[0] == "q0.3 gives one class to more than 90 % of the images (2: 95 %)."
    assert notes[1] == "The features of q0.3 have collapsed (RankMe below 2)."
    assert notes[2] == "ATC of q0.5 and q0.9 is 0 or 1, which is no estimate."
    assert not any("one class" in note for note in ranking_page.caveats(ranked().to_dict()))


def test_options_of_the_depth_bias_reach_the_metric_and_the_record() -> None:
    found = rank_inspections(zoo(), metrics=["ddb-output"], include_input=True, settings=SETTINGS)
    plain = rank_inspections(zoo(), metrics=["ddb-output"], settings=SETTINGS)
    expected = [
        output_depth_bias(each.graph, torch.from_numpy(each.output_scores), include_input=True)
        for each in zoo().values()
    ]
    np.testing.assert_allclose(found.column("ddb-output").values, expected)
    assert found.provenance["include_input"] is True
    assert "include_input" not in plain.provenance
    other = rank_inspections(zoo(), sets="reference", metrics=["ddb-output"], settings=SETTINGS)
    assert "reference sets exist for 12 blocks" in other.absent["ddb-output"]


def test_models_of_different_classes_are_refused() -> None:
    shown = zoo()
    shown["q0.9"] = replace(shown["q0.9"], classes=("a", "b", "c", "d"))
    with pytest.raises(InputError, match=r"different classes \(4 unnamed and 4: a, b, c, d\)"):
        rank_inspections(shown, settings=SETTINGS)


@pytest.mark.parametrize("change", [{"ids": np.arange(1, 61)}, {"labels": np.zeros(60, dtype=np.int64)}])
def test_models_that_saw_different_images_are_refused(change: dict) -> None:
    shown = zoo()
    shown["q0.3"] = replace(shown["q0.3"], **change)
    with pytest.raises(InputError, match="were given different target images"):
        rank_inspections(shown, settings=SETTINGS)


def test_inspections_of_other_settings_are_refused() -> None:
    with pytest.raises(InputError, match=r"measured with steps=5, but this ranking uses 3"):
        rank_inspections(zoo(), settings=InspectionSettings(draws=30, steps=3))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"metrics": ["ddb-outptu"]}, "did you mean 'ddb-output'"),
        ({"metrics": []}, "metrics is empty"),
        ({"measure": "auc"}, "unknown measure 'auc'"),
        ({"ratio": 0.6}, r"ratio is 0\.6"),
        ({"ratio": 0.0}, "ratio is 0"),
    ],
)
def test_bad_arguments_are_named(more: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rank_inspections(zoo(), **{"settings": SETTINGS, **more})


def test_one_model_is_no_ranking() -> None:
    with pytest.raises(InputError, match="1 model"):
        rank_inspections({"only": planted(0.5)}, settings=SETTINGS)
    with pytest.raises(InputError, match="only one has a, q0"):
        rank_inspections(zoo(), {"a": planted(0.1)}, settings=SETTINGS)


@pytest.mark.parametrize(("field", "least"), [("steps", 1), ("draws", 20), ("sharpness_batch", 1)])
def test_settings_below_their_least_are_refused(field: str, least: int) -> None:
    assert InspectionSettings(**{field: least})
    with pytest.raises(InputError, match=f"{field} is {least - 1}; expected at least {least}"):
        InspectionSettings(**{field: least - 1})

"""Rankings: metrics against literal versions, what picking is worth, what the page says, many targets."""

import functools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from jaxtyping import Float64
from planted_zoo import GRAPH, SETTINGS, inspected, planted
from small_vits import untrained_vit
from tiny_classifier import draw_files

import assay
from assay.analyses.generalization import (
    baselines,
    correlate,
    inspection,
    motif,
    ranking_page,
    summarize_correlations,
)
from assay.analyses.generalization.dependency import dependency_depth_bias
from assay.analyses.generalization.inspection import (
    DEFAULT_METRICS,
    METRICS,
    Inspection,
    InspectionSettings,
    Weights,
    answers_of,
    estimate,
)
from assay.analyses.generalization.ranking import (
    Ranking,
    compare_rankings,
    comparison_document,
    rank_inspections,
    rank_models,
    ranks,
    regret_of_picking,
    shares_of_best,
)
from assay.circuits import EdgeScores
from assay.core.errors import InputError
from assay.graph import build_graph
from assay.models import Model
from assay.page.text import listed, plain_text
from assay.report.save import pages_of
from assay.stats import poisson_weights
from assay.tasks import load_images
from assay.tasks.image_reading import Files


DRAWS = 30


def rows_of(counts: Float64[np.ndarray, " n"]) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), counts.astype(int))


class Case(NamedTuple):
    """What one model showed, and how often each image counts."""

    target: Inspection
    known: Inspection
    weights: Weights

    @property
    def drawn(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows of the target and of the known images in each resample."""
        pairs = zip(self.weights.target[1:], self.weights.known[1:], strict=True)
        return [(rows_of(counts), rows_of(known)) for counts, known in pairs]


def case(target: Inspection, known: Inspection, **more: object) -> Case:
    w, v = (
        np.concatenate([baselines.once(each.n), poisson_weights(each.ids, DRAWS, seed=seed)])
        for seed, each in ((1, target), (2, known))
    )
    return Case(target, known, Weights(target=w, known=v, **more))


@pytest.fixture
def shown() -> Case:
    return case(planted(0.4), planted(0.7, n=80))


def one(key: str, given: Case) -> np.ndarray:
    rows, _ = estimate(METRICS[key], [given[:2]], given.weights)
    return rows[:, 0]


def value_and_draws(key: str, given: Case) -> tuple[float, np.ndarray]:
    value, *draws = one(key, given)
    return value, np.array(draws)


def test_metrics_are_resampled_by_rows_of_both_sides(shown: Case) -> None:
    logits, known, labels = shown.target.logits, shown.known.logits, shown.known.labels
    size = np.array([len(rows) for rows, _ in shown.drawn])
    for key, of in {
        "average-confidence": lambda rows, kept: baselines.average_confidence(logits[rows]),
        "negative-entropy": lambda rows, kept: baselines.average_negative_entropy(logits[rows]),
        "energy": lambda rows, kept: baselines.energy(logits[rows]),
        "atc": lambda rows, kept: baselines.atc(known[kept], labels[kept], logits[rows]),
        "doc": lambda rows, kept: baselines.doc(known[kept], labels[kept], logits[rows]),
    }.items():
        value, draws = value_and_draws(key, shown)
        assert value == pytest.approx(of(np.arange(60), np.arange(80)))
        literal = np.array([of(*rows) for rows in shown.drawn])
        if key == "energy":  # a set of N images has an inner value above log N: as of the images themselves
            literal = np.log(np.exp(literal) - np.log(size / 60))
        np.testing.assert_allclose(draws, literal, rtol=1e-10, err_msg=key)


def test_output_bias_is_the_bias_of_the_resampled_mean(shown: Case) -> None:
    def bias(column: np.ndarray) -> float:
        values = torch.zeros(GRAPH.valid.shape, dtype=torch.float64)
        values[:, -1] = torch.from_numpy(column)
        return dependency_depth_bias(EdgeScores(GRAPH, values))

    value, draws = value_and_draws("ddb-output", shown)
    assert value == pytest.approx(bias(shown.target.output_scores))
    literal = [bias(row) for row in shown.target.output_draws]
    np.testing.assert_allclose(draws, literal, rtol=1e-9)
    rows = np.concatenate([shown.target.dependency[None], shown.target.dependency_draws.astype(np.float64)])
    for targets in ("deep", "global"):
        found = one(f"ddb-{targets}", shown)
        matrices = map(torch.from_numpy, rows)
        literal = [dependency_depth_bias(each, targets=targets) for each in matrices]
        np.testing.assert_allclose(found, literal, rtol=1e-9)


@pytest.mark.parametrize("measure", ["accuracy", "macro-f1"])
def test_performance_is_resampled_by_rows(measure: str) -> None:
    known = planted(0.3, n=30)
    labels = np.where(known.labels == 3, 2, known.labels)  # class 3 never occurs
    given = case(known, replace(known, labels=labels), measure=measure)
    value, draws = value_and_draws("id-accuracy", given)
    literal = [
        baselines.id_accuracy(known.logits[rows], labels[rows], measure=measure) for _, rows in given.drawn
    ]
    np.testing.assert_allclose(draws, literal, rtol=1e-12)
    assert value == pytest.approx(baselines.id_accuracy(known.logits, labels, measure=measure))


def test_the_prices_of_cot_give_its_value_and_the_spread_of_resampled_matches(shown: Case) -> None:
    labels, logits = shown.known.labels, shown.target.logits
    value, draws = value_and_draws("cot", shown)
    assert value == pytest.approx(baselines.cot(labels, logits))
    match = baselines.matched(labels, logits)
    assert match.of_examples.mean() + match.of_classes[labels].mean() == pytest.approx(match.gain)
    literal = np.array([baselines.cot(labels[kept], logits[rows]) for rows, kept in shown.drawn])
    # The programme is the least of its prices' sums, so prices of other weights never give less.
    assert (draws >= literal - 1e-9).all()
    assert np.std(draws) == pytest.approx(np.std(literal), rel=0.3)


def test_agreement_line_looks_at_all_models_together() -> None:
    everyone = [case(planted(q, seed=1), planted(q + 0.2, n=80, seed=1)) for q in (0.1, 0.3, 0.5, 0.8)]
    labels = everyone[0].known.labels
    known, new = (np.stack([each[place].predictions for each in everyone]) for place in (1, 0))
    found, _ = estimate(METRICS["agreement-line"], [each[:2] for each in everyone], everyone[0].weights)
    np.testing.assert_allclose(found[0], baselines.agreement_line(known, labels, new)[0])
    rows, kept = everyone[0].drawn[7]
    again = baselines.agreement_line(known[:, kept], labels[kept], new[:, rows])[0]
    np.testing.assert_allclose(found[8], again)


# ------------------------------------------------------------------------------- what picking is worth


def test_ranks_start_at_the_best_and_leave_out_what_is_undefined() -> None:
    np.testing.assert_array_equal(ranks(np.array([0.1, 0.9, math.nan, 0.9])), [3, 1, math.nan, 1])
    draws = np.array([[1.0, 2.0, 2.0], [5.0, 1.0, math.nan], [math.nan, math.nan, 1.0]])
    np.testing.assert_allclose(shares_of_best(draws).mean(0), [1 / 3, 1 / 6, 1 / 2])


def test_regret_of_a_hand_made_case() -> None:
    performance = np.array([[0.9, 0.6], [0.9, 0.6], [0.8, 0.7]])
    oriented = np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]])  # the worse model; the better one in the second
    found = regret_of_picking(oriented, performance)
    assert found.observed == pytest.approx(0.3)
    assert found.expected == pytest.approx(0.15)
    assert found.random == pytest.approx((0.15 + 0.05) / 2)
    # A model without a value is never picked, and a metric without replicates picks the same one throughout.
    undefined = np.vstack([[math.nan, 1.0], np.full((3, 2), math.nan)])
    assert regret_of_picking(undefined, np.tile([0.9, 0.6], (4, 1))).expected == pytest.approx(0.3)


# ---------------------------------------------------------------------------------------- the ranking


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
    assert (list(found.columns), found.absent) == (list(METRICS), [])
    for key in ("ddb-output", "sharpness", "average-confidence", "atc", "agreement-line"):
        assert found.best(key) == "q0.9", key
        chances = [row["chance"] for row in found.column(key).rows]
        assert key == "sharpness" or chances[2] == max(chances) > 0.5
    assert found.order("ddb-output") == ("q0.9", "q0.7", "q0.5", "q0.3", "q0.1")
    np.testing.assert_array_equal(found.column("ddb-output").ranks, [5, 3, 1, 4, 2])
    assert found.column("ddb-output").correlation.srcc == pytest.approx(1.0)
    assert found.column("sharpness").correlation.srcc < 0
    truth = [(each.predictions == each.labels).mean() for each in zoo().values()]
    np.testing.assert_allclose(found.performance.values, truth)
    assert not np.allclose(ranked(measure="macro-f1").performance.values, truth)
    frame = found.table()
    assert (frame.index.tolist(), frame.columns.tolist()) == (list(found.names), ["accuracy", *METRICS])
    matrices = np.stack([each.dependency for each in zoo().values()])
    np.testing.assert_allclose(found.motif["values"], motif(matrices, truth).loadings)


def test_a_metric_without_direction_ranks_nothing_and_keeps_its_correlation() -> None:
    energy = ranked().column("energy")
    assert (energy.ranks, energy.rows[0]["chance"], energy.regret) == (None, None, None)
    truth, values = ranked().performance.values, energy.values
    assert energy.correlation == correlate(values, truth)
    with pytest.raises(InputError, match="does not give a direction"):
        ranked().best("energy")


def test_metrics_without_their_data_are_absent_with_the_reason() -> None:
    blind = ranked_of(zoo(labelled=False))
    assert (blind.performance, blind.column("ddb-output").regret) == (None, None)
    assert "no labels" in blind.motif["reason"]
    deeper = zoo()
    deeper["q0.5"] = replace(deeper["q0.5"], graph=build_graph(8, 2))
    assert ranked_of(deeper, metrics=["rankme"]).motif["reason"] == "a motif needs models of one depth"
    found = ranked_of(zoo(), metrics=tuple(METRICS))
    absent = {"id-accuracy", "sharpness", "atc", "doc", "cot", "agreement-line"}
    assert {each["key"] for each in found.absent} == absent
    with pytest.raises(InputError, match=r"atc is not in this ranking: needs labelled images.*id_data"):
        found.column("atc")
    bare = {name: replace(each, dependency_draws=None, spectrum=None) for name, each in zoo().items()}
    left = ranked_of(bare, metrics=["ddb-deep", "rankme", "average-confidence"])
    assert list(left.columns) == ["average-confidence"]
    assert left.absent[1]["reason"] == "the models were inspected without spectrum; name the metric"


def test_matrices_are_of_the_models_that_the_leading_metric_ranks_first_and_last() -> None:
    # Rank, alpha and energy of the planted logits do not follow the quality that the depth bias does.
    first, second = (ranked_of(zoo(), metrics=[key, "ddb-deep"]) for key in ("ddb-output", "rankme"))
    assert first.order("ddb-output") != second.order("rankme")
    for found, key in ((first, "ddb-output"), (second, "rankme")):
        names, order = [each["name"] for each in found.dependency], found.order(key)
        assert names == [order[0], order[-1]]


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
    # The first metric that ranks leads; one that picks several does not agree with one that picks one.
    several = ranked_of(zoo(), metrics=["energy", "ddb-output", "average-confidence"]).to_dict()
    assert ranking_page.verdict(several).startswith("DDB output picks q0.9")
    for row in several["metrics"][2]["rows"]:
        row["rank"] = 1
    assert "; no other metric agrees." in ranking_page.verdict(several)
    assert list(ranked_of(zoo(), zoo(n=80, seed=1)).columns) == list(DEFAULT_METRICS)
    assert DEFAULT_METRICS[:2] == ("id-accuracy", "ddb-output")


def test_failed_models_and_degenerate_estimates_come_first_in_the_caveats() -> None:
    targets, known = zoo(), zoo(n=80, seed=1)
    shown = targets["q0.3"]
    flat = np.full_like(shown.spectrum, 1e-9)
    flat[0] = 1.0
    targets["q0.3"] = replace(shown, predictions=np.where(np.arange(60) < 57, 2, 0), spectrum=flat)
    sure = replace(known["q0.5"], **answers_of(10 * np.eye(4)[known["q0.5"].labels]))
    targets["q0.5"] = replace(targets["q0.5"], confidence=np.full(60, 0.9))
    found = ranked_of(targets, known | {"q0.5": sure}, metrics=["rankme", "atc"]).to_dict()
    notes = [
        plain_text(each).replace("\N{NARROW NO-BREAK SPACE}", " ") for each in ranking_page.caveats(found)
    ]
    assert notes[:3] == [
        "More than 90 % of the images are given one class by q0.3.",
        "Features have collapsed (RankMe below 2) in q0.3.",
        "ATC is 0 or 1, which is not an estimate, for q0.5 and q0.9.",
    ]
    others = ranking_page.caveats(ranked().to_dict())
    assert not any("one class" in note for note in others)
    assert "of −0.88 to 0.88 in" in others[-1]
    same = ranked_of(zoo(), zoo()).to_dict()
    assert any("The target is the labelled images" in note for note in ranking_page.caveats(same))


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        ({"classes": ("a", "b", "c", "d")}, {}, "have different classes"),
        ({"ids": np.arange(1, 61)}, {}, "were given different {what} images"),
        ({"labels": np.zeros(60, dtype=np.int64)}, {}, "were given different {what} images"),
        ({}, {"metrics": ["ddb-outptu"]}, "did you mean 'ddb-output'"),
        ({}, {"measure": "auc"}, "unknown measure 'auc'"),
        ({}, {"metrics": []}, "metrics is empty"),
    ],
)
def test_what_cannot_be_ranked_is_named(change: dict, more: dict, message: str) -> None:
    changed = zoo()
    changed["q0.9"] = replace(changed["q0.9"], **change)
    for what, both in (("target", (changed, zoo())), ("own-domain", (zoo(), changed))):
        with pytest.raises(InputError, match=message.format(what=what)):
            ranked_of(*both, **more)
    with pytest.raises(InputError, match=r"got 1 model\(s\)"):
        ranked_of({"only": planted(0.5)})


# ------------------------------------------------------------------------------------------ its images


STORED = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
OTHER = {**STORED, "image_mean": [0.4] * 3, "image_std": [0.2] * 3}
FEW = InspectionSettings(draws=20, steps=2)
FOUR = ["ddb-output", "average-confidence", "rankme", "cot"]


def model(seed: int, preprocessing: dict[str, object]) -> Model:
    found = assay.load_model(untrained_vit(seed))
    return Model(found.module, found.family, name=f"vit-{seed}", preprocessing=preprocessing)


def test_a_folder_is_decoded_once_for_all_models_and_cot_is_left_out_where_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sketch"
    draw_files(folder, "sketch", 18, by_class=True)
    models = {"a": model(0, STORED), "b": model(1, STORED), "c": model(2, OTHER)}
    decoded: list[int] = []
    content = Files.content
    monkeypatch.setattr(Files, "content", lambda files, row: decoded.append(row) or content(files, row))
    found = rank_models(models, folder, id_data=folder, metrics=FOUR, settings=FEW)
    assert sorted(decoded) == sorted([*range(18)] * 2)  # the target, and the own domain
    monkeypatch.setattr(inspection, "COT_LIMIT", 100)  # of 18 * 6
    usual = rank_models(models, folder, id_data=folder, settings=FEW)
    assert [each["key"] for each in usual.absent] == ["alpha-req", "cot"]
    monkeypatch.undo()
    for name, each in models.items():  # alone, on images that it loads itself
        task = load_images(folder, each)
        shown = inspection.inspect_model(each, task, ["logits", "features", "output-scores"], settings=FEW)
        known = inspection.inspect_model(each, task, ["labels"], settings=FEW)
        literal = rank_inspections([("a", shown, known)] * 2, FOUR, settings=FEW)
        for key in FOUR:
            place = found.names.index(name)
            assert found.column(key).values[place] == pytest.approx(literal.column(key).values[0], rel=1e-5)


# ------------------------------------------------------------------------------------- several targets


@functools.cache
def of_seed(seed: int, *, labelled: bool = True) -> Ranking:
    return ranked_of(zoo(seed=seed, labelled=labelled), metrics=[key for key in METRICS if key != "cot"])


def test_correlations_keep_their_signs_and_the_mean_size_is_as_published() -> None:
    given = {"one": [of_seed(0), of_seed(1)], "two": [of_seed(2)]}
    row = compare_rankings(given).loc["alpha-req"]
    tasks = {
        name: [each.column("alpha-req").correlation for each in listed] for name, listed in given.items()
    }
    expected, signed = (summarize_correlations(tasks, absolute=absolute) for absolute in (True, False))
    means = [expected["average"], expected["sem"]]
    assert row[["average", "sem"]].tolist() == pytest.approx(means, rel=1e-12)
    cells = [name for name in signed if name not in ("average", "sem")]
    assert row[cells].tolist() == pytest.approx([signed[name] for name in cells], rel=1e-12)
    assert row["two srcc"] < 0
    regrets = [of_seed(seed).column("alpha-req").regret.expected for seed in range(3)]
    assert (row["regret"], row["targets"]) == (pytest.approx(np.mean(regrets)), 3)


def test_metrics_are_ordered_by_what_picking_by_them_costs() -> None:
    rankings = {"one": [of_seed(0), of_seed(1)]}
    found = compare_rankings(rankings)
    assert found["regret"].dropna().is_monotonic_increasing
    blind = np.mean([of_seed(seed).column("rankme").regret.random for seed in (0, 1)])
    assert found.loc["blind pick", "regret"] == pytest.approx(blind)
    assert found["sem"].isna().all()  # the cells of one data set are not repetitions of each other
    page, *others = pages_of(json.loads(json.dumps(comparison_document(rankings), allow_nan=False)))
    regrets = found["regret"].drop("blind pick").round(3)
    least = [METRICS[key].name for key in found.index.drop("blind pick") if regrets[key] == regrets.min()]
    assert len(least) > 1  # metrics that lose equally little are all named
    assert page.verdict.startswith(f"Picking by {listed(least)} loses least: its expected regret is 0.0")
    assert len(others) == 2
    unknown = comparison_document({"two": [of_seed(0, labelled=False)]})
    assert pages_of(unknown)[0].verdict == "No target has labels, so metrics cannot be compared."
    with_one = compare_rankings({"one": [of_seed(0)], "two": [of_seed(0, labelled=False)]})
    assert (with_one.loc["ddb-output", "targets"], "atc" in with_one.index) == (1, False)

"""A model over labelled domains: numbers as by hand, correlations, curves, motif, records."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from small_vits import untrained_vit

from assay.analyses.generalization import baselines, circuit_shifts, rank_shift_map
from assay.analyses.generalization.batches import labelled_inspection
from assay.analyses.generalization.dependency import dependency_depth_bias, dependency_matrix
from assay.analyses.generalization.domain_evaluation import DomainEvaluation
from assay.analyses.generalization.domains import Domain, DomainProbe, EvaluationSettings
from assay.analyses.generalization.evaluation_page import evaluation_page
from assay.analyses.generalization.shift import ShiftView
from assay.circuits import EdgeScores
from assay.core.errors import InputError, UnknownNameError
from assay.core.random import stream
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import Model, load_model
from assay.tasks import EvalTransform, draw_shapes


TRANSFORM = EvalTransform()


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(untrained_vit())


@pytest.fixture(scope="module")
def reference(model: Model) -> EdgeScores:
    return discover(model, draw_shapes("flat", 12).with_transform(EvalTransform()), steps=2)


def probe(model: Model, reference: EdgeScores, **settings: object) -> DomainProbe:
    labelled = labelled_inspection(model, draw_shapes("flat", 18, start=100).with_transform(TRANSFORM))
    how = replace(EvaluationSettings(n=12), **settings)  # type: ignore[arg-type]
    return DomainProbe(model=model, reference=reference, labelled=labelled, settings=how, transform=TRANSFORM)


def test_performance_rests_on_all_images_and_everything_else_on_a_sample(
    model: Model, reference: EdgeScores
) -> None:
    images = draw_shapes("neon", 30, start=200)
    found = probe(model, reference).measure(images)
    rows = np.sort(stream(0, "domains/neon").permutation(30)[:12])
    sample = images.subset(rows).with_transform(TRANSFORM)
    scores = discover(model, sample, steps=2)
    logits, everything = run_model(model, sample), run_model(model, images.with_transform(TRANSFORM))
    assert images.labels is not None
    assert (found.n, found.n_labelled, found.group) == (12, 30, "neon")
    assert found.accuracy == baselines.id_accuracy(everything, images.labels)
    assert found.macro_f1 == baselines.id_accuracy(everything, images.labels, measure="macro-f1")
    assert found.performance == found.accuracy
    assert found.shifts == pytest.approx(circuit_shifts(reference, scores))
    assert found.baselines["mde"] == pytest.approx(baselines.energy(logits))
    known = draw_shapes("flat", 18, start=100)
    assert known.labels is not None
    assert found.baselines["cot"] == pytest.approx(baselines.cot(known.labels, logits))
    assert {"ac", "ane", "atc", "doc", "mde", "rankme", "cot"} <= found.baselines.keys()
    # Twelve images have too few eigenvalues: the metric is left out, with the reason.
    assert "needs 20" in found.absent["alpha-req"]
    np.testing.assert_allclose(found.dependency, dependency_matrix(scores).numpy(), rtol=1e-6)
    np.testing.assert_allclose(found.layers, rank_shift_map(reference, scores).numpy(), atol=1e-12)


def test_published_options_change_what_is_measured(model: Model, reference: EdgeScores) -> None:
    images = draw_shapes("neon", 12, start=200)
    scores = discover(model, images.with_transform(TRANSFORM), steps=2)
    signed = probe(model, reference, view=ShiftView(weights="signed", top_k=9)).measure(images)
    assert signed.shifts == pytest.approx(circuit_shifts(reference, scores, weights="signed", top_k=9))
    plain = probe(model, reference).measure(images)
    assert signed.shifts["spearman"] != plain.shifts["spearman"]
    fine = probe(model, reference, granularity="sublayer", include_input=True).measure(images)
    assert len(fine.dependency) == len(fine.layers) == 2 * model.graph.n_layers + 2
    assert np.sum(fine.dependency) == pytest.approx(np.sum(plain.dependency))
    assert fine.depth_bias["global"] == pytest.approx(
        dependency_depth_bias(scores, targets="global", include_input=True)
    )
    assert fine.depth_bias["global"] < plain.depth_bias["global"]  # the input counts as shallow


def test_a_view_that_does_not_fit_is_refused(model: Model) -> None:
    with pytest.raises(InputError, match="top_k is 100000; expected 1 to"):
        ShiftView(top_k=100_000).check(model.graph)
    with pytest.raises(UnknownNameError, match="signed"):
        ShiftView(weights="sign").check(model.graph)


def domain(name: str, performance: float, shift: float, *, group: str = "", mde: float = 0.0) -> Domain:
    """A domain with one dependency, the performance itself, and a shift."""
    rows = ((0.0, performance, 0.0), (0.0, 0.0, 1.0 - performance), (0.0, 0.0, 0.0))
    return Domain(
        domain=name,
        group=group or name,
        n=10,
        n_labelled=20,
        performance=performance,
        accuracy=performance,
        macro_f1=performance,
        shifts={"spearman": shift},
        baselines={"ac": performance**2, "mde": mde},
        depth_bias={"output": -performance, "deep": 0.0, "global": math.nan},
        dependency=rows,
        layers=rows,
    )


def evaluation(*, parts: int = 1, groups: int = 6) -> DomainEvaluation:
    """Six domains whose shift falls with performance, and a calibration that knows it exactly."""
    rates = np.linspace(0.3, 0.9, groups * parts)
    test = [
        domain(f"d{place}", float(rate), 1 - float(rate), group=f"g{place // parts}", mde=-float(rate))
        for place, rate in enumerate(rates)
    ]
    known = [domain(f"k{place}", rate, 1 - rate, mde=-rate) for place, rate in enumerate((0.4, 0.6, 0.8))]
    return DomainEvaluation(
        model={"id": "small"},
        graph={"n_layers": 1},
        reference={},
        settings=EvaluationSettings(deltas=(0.2, 0.6, 0.95), n_subsets=5, subset_size=20),
        own=None,
        known=tuple(known),
        test=tuple(test),
        provenance={"model": "small"},
    )


def test_correlations_are_signed_and_their_intervals_resample_domains() -> None:
    found = evaluation().correlations
    assert found["spearman"]["srcc"] == pytest.approx(-1)
    assert found["spearman"]["r2"] == pytest.approx(1)
    assert found["ac"]["krcc"] == pytest.approx(1)
    assert found["ac"]["known_srcc"] == pytest.approx(1)
    assert found["ddb-output"]["srcc"] == pytest.approx(-1)
    assert "ddb-global" not in found  # undefined on every domain
    assert (found["ac"]["low"], found["ac"]["high"]) == pytest.approx((1, 1))
    # Six parts of three domains are three domains: too few to resample.
    few = evaluation(parts=2, groups=3).correlations
    assert few["ac"]["low"] is None


def test_the_best_metric_is_the_best_in_the_direction_it_states() -> None:
    made = evaluation().to_dict()
    assert evaluation_page(made).verdict.startswith("Over 6 test domains")
    for key, srcc in {"spearman": 0.99, "ac": 0.6, "mde": -0.5, "ddb-output": -1.0, "ddb-deep": None}.items():
        made["correlations"][key] |= {"srcc": srcc}  # a shift that rises with accuracy is no alarm
    found = str(evaluation_page(made).verdict)
    assert "AC goes with accuracy best (rank correlation 0.60" in found
    assert "the spearman shift has 0.99" in found
    made["correlations"] = {key: made["correlations"][key] for key in ("spearman", "ddb-output")}
    assert "No metric goes with accuracy in the direction" in str(evaluation_page(made).verdict)


def test_the_direction_of_the_energy_is_learned_from_calibration_domains() -> None:
    domains = evaluation().domains
    assert domains.higher_is_shift("spearman")
    assert not domains.higher_is_shift("ac")
    assert domains.higher_is_shift("mde")  # it falls with performance over the calibration domains
    assert domains.curves(deltas=(0.6,), n_subsets=2, subset_size=3)["mde"].mean[0] == pytest.approx(1)


def test_curves_are_summed_up_where_some_alarms_are_due_and_some_are_not() -> None:
    curves = evaluation().curves
    assert curves is not None
    # At 0.6 three of six domains are due: the shift finds them, an alarm that is always on has 3 of 6 right.
    assert curves["spearman"]["summary"] == pytest.approx(1)
    assert curves["always"]["mean"] == [None, pytest.approx(2 * 3 / (6 + 3)), pytest.approx(1)]
    assert curves["always"]["summary"] == pytest.approx(2 / 3)
    assert replace(evaluation(), known=()).curves is None


def test_the_motif_over_domains_is_that_of_their_matrices() -> None:
    found = evaluation().motif
    assert found["correlation"] == pytest.approx(1)
    assert found["values"][0][1] == pytest.approx(1)  # this dependency is the performance
    assert found["values"][1][2] == pytest.approx(-1)
    two = replace(evaluation(), test=evaluation().test[:2])
    assert two.motif["values"] is None
    assert "3" in two.motif["reason"]


def test_a_record_is_finite_json_and_domains_come_back() -> None:
    record = json.loads(json.dumps(evaluation().to_dict(), allow_nan=False))
    assert record["schema"] == "assay-domain-evaluation/1"
    assert record["metrics"] == ["spearman", "ac", "mde"]
    again = Domain.from_dict(record["test"][0])
    assert math.isnan(again.depth_bias["global"])
    assert again.dependency == evaluation().test[0].dependency
    assert again.shifts == evaluation().test[0].shifts

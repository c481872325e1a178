"""Published options of the shift in a monitor: what is compared, its identity."""

import pytest
from small_vits import untrained_vit

from assay.analyses.generalization import circuit_shift
from assay.analyses.generalization.domains import measure_domains
from assay.analyses.generalization.monitor import Monitor
from assay.analyses.generalization.shift import ShiftView
from assay.circuits import EdgeScores
from assay.core.errors import InputError
from assay.discovery.edges import discover
from assay.models import Model, load_model
from assay.tasks import EvalTransform, draw_shapes


VIEWS = (
    (ShiftView(weights="signed"), "spearman"),
    (ShiftView(top_k=9), "jaccard"),
    (ShiftView(normalized=False), "laplacian"),
    (ShiftView(top_k=90, prune=True), "netlsd"),
)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(untrained_vit())


@pytest.fixture(scope="module")
def reference(model: Model) -> EdgeScores:
    return discover(model, draw_shapes("flat", 8).with_transform(EvalTransform()), steps=1)


@pytest.mark.parametrize(("view", "distance"), VIEWS)
def test_a_monitor_compares_what_the_options_say(
    model: Model, reference: EdgeScores, view: ShiftView, distance: str
) -> None:
    batch = draw_shapes("neon", 6, start=100).with_transform(EvalTransform())
    scores = discover(model, batch, steps=1, per_example=True)
    monitor = Monitor(model, reference, distance=distance, view=view)
    reading = monitor.observe(batch)
    assert reading.shift == pytest.approx(circuit_shift(reference, scores, distance=distance, **vars(view)))
    usual = Monitor(model, reference, distance=distance)
    assert usual.id != monitor.id
    assert "view" not in usual.to_dict()
    assert monitor.to_dict()["view"]["weights"] == view.weights


def test_domains_are_compared_alike(model: Model, reference: EdgeScores) -> None:
    batch = draw_shapes("neon", 6, start=100).with_transform(EvalTransform())
    view = ShiftView(weights="signed")
    (domain,) = measure_domains(model, reference, {"neon": batch}, view=view)
    scores = discover(model, batch, steps=1)
    assert domain.shifts["spearman"] == pytest.approx(circuit_shift(reference, scores, weights="signed"))


def test_a_view_that_does_not_fit_is_refused_at_once(model: Model, reference: EdgeScores) -> None:
    with pytest.raises(InputError, match="expected 1 to"):
        Monitor(model, reference, view=ShiftView(top_k=10**6))

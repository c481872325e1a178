"""The parts of the cost of a circuit add up to what its discovery took."""

from small_vits import untrained_vit

import assay
from assay.analyses.generalization.cost import discovery_cost
from assay.analyses.generalization.inspection import InspectionSettings
from assay.analyses.generalization.rank_plots import plot_cost
from assay.tasks import EvalTransform, draw_shapes


def test_the_parts_are_named_counted_and_can_be_drawn() -> None:
    model = assay.load_model(untrained_vit())
    task = draw_shapes("flat", 12).task(EvalTransform(resize=(32, 32)))
    found = discovery_cost(model, task, settings=InspectionSettings(steps=3))
    assert list(found) == ["plain-forward", "forward", "backward", "contraction", "metrics"]
    direct = assay.discover(model, task, "eap-ig-inputs", steps=3).details["passes"]
    assert found["forward"]["passes"]["forward"] == direct["forward"]
    assert found["backward"]["passes"]["backward"] == direct["backward"]
    ax = plot_cost(found)
    assert {label.get_text() for label in ax.get_yticklabels()} >= {
        "one plain pass",
        "forward passes",
        "backward passes",
    }
    assert ax.get_xlabel() == "seconds over all models and images"

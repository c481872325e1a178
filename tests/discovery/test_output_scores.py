"""The edges into the logits alone, against the same column of the full scores."""

import pytest
import torch
import vit_goldens

from assay.analyses.generalization import dependency_depth_bias
from assay.core.errors import InputError
from assay.discovery.edges import discover, output_scores


@pytest.mark.parametrize("quadrature", ["midpoint", "left", "right"])
@pytest.mark.parametrize("ablation", ["mean-positional", "resample", "zero"])
def test_a_column_of_the_full_scores(quadrature: str, ablation: str) -> None:
    model, task = vit_goldens.model("vit_edges_a"), vit_goldens.task("vit_edges_a")
    settings = {"steps": 3, "quadrature": quadrature, "ablation": ablation}
    full = discover(model, task, "eap-ig-inputs", per_example=True, **settings)
    found = output_scores(model, task, batch_size=5, **settings)
    torch.testing.assert_close(found.values, full.values[:, -1], rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(found.per_example, full.per_example[:, :, -1], rtol=1e-10, atol=1e-14)


def test_passes_and_record() -> None:
    model, task = vit_goldens.model("vit_edges_a"), vit_goldens.task("vit_edges_a")
    found = output_scores(model, task, per_example=False)
    assert found.details["passes"] == {"forward": 7.0, "backward": 0.0}
    assert found.per_example is None
    assert found.provenance["targets"] == "logits"
    assert found.provenance["quadrature"] == "midpoint"
    full = dependency_depth_bias(discover(model, task, "eap-ig-inputs"), targets="output")
    assert dependency_depth_bias(found) == pytest.approx(full, rel=1e-5)
    with pytest.raises(InputError, match="steps is True"):
        output_scores(model, task, steps=True)
    with pytest.raises(InputError, match="got 1; give at least 2 examples"):
        output_scores(model, task.subset([0]))

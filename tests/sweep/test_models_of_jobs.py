"""Models of a plan: where the process that deals them runs them, and revisions of hub ids."""

from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.errors import FileFormatError, InputError
from assay.models.streaming import StreamedWeight
from assay.pipeline.expand import expand
from assay.pipeline.jobs import model_of
from assay.pipeline.limits import Limits
from assay.pipeline.models import model_at, models_run_on
from assay.pipeline.plan_file import parse_plan


def plan(**changes: Any) -> Any:
    small = {"name": "small", "n": 6, "models": ["mini"], "tasks": ["ioi"], "methods": ["eap"], "sizes": [50]}
    return parse_plan({**small, **changes})


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
def test_jobs_of_a_device_that_only_workers_have_are_expanded_here() -> None:
    with pytest.raises(InputError, match="device 'cuda:0' does not exist"):
        expand(plan(), device="cuda:0")
    with models_run_on("cpu"):
        jobs = expand(plan(), device="cuda:0")
        assert model_of(jobs[0]).device.type == "cpu"
    assert {job.source["device"] for job in jobs} == {"cuda:0"}
    assert [job.id for job in jobs] == [job.id for job in expand(plan(), device="cpu")]


def test_a_revision_belongs_to_a_hub_id_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="revision applies only to ids of the Hugging Face Hub"):
        model_at("mini@main", "cpu", None)
    (tmp_path / "my@model").mkdir()
    with pytest.raises(FileFormatError, match=r"my@model has no config\.json"):
        model_at(str(tmp_path / "my@model"), "cpu", None)
    assert model_at("planted:induction/gpt2/bare", "cpu", None).id.startswith("planted")


def test_a_device_map_places_every_model_and_is_no_part_of_a_job() -> None:
    streamed = plan().model_copy(update={"limits": Limits(device_map="stream")})
    jobs = expand(streamed)
    assert {job.source["device_map"] for job in jobs} == {"stream"}
    assert [job.id for job in jobs] == [job.id for job in expand(plan())]
    assert isinstance(next(model_of(jobs[0]).module.parameters()), StreamedWeight)
    spread = plan().model_copy(update={"limits": Limits(device_map="auto")})
    assert spread.limits.n_workers == 1
    assert [job.id for job in expand(spread)] == [job.id for job in jobs]
    with pytest.raises(
        InputError, match="spreads every model over all devices, and 3 workers would share them"
    ):
        expand(plan().model_copy(update={"limits": Limits(device_map="auto", workers=3)}))


def test_an_unknown_device_map_is_refused_with_the_plan() -> None:
    with pytest.raises(InputError, match="device-map"):
        parse_plan({"name": "x", "models": ["mini"], "tasks": ["ioi"], "limits": {"device-map": "disk"}})

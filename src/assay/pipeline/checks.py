"""What is refused before any work begins: names, devices, places that cannot be written."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.core.errors import writing
from assay.discovery.edges import get_method
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.execution import ABLATIONS, Ablation, get_ablation
from assay.metrics import find_metric
from assay.models.placing import check_device
from assay.objectives import Objective, get_objective, is_registered
from assay.tasks import TASKS, Task, digits_source, is_task_file


def check_writable(directory: Path, *, make: bool = False) -> None:
    """Refuse a directory in which no file can be made, before any work is done for it.

    Args:
        directory: It need not exist.
        make: Make it if it does not exist; otherwise nothing is left behind.

    Raises:
        OutputError: With the reason the system gives.
    """
    with writing(f"write to {directory}", "choose a writable directory"):
        if make:
            directory.mkdir(parents=True, exist_ok=True)
        existing = next(
            place for place in (directory, *directory.absolute().parents) if os.path.exists(place)
        )
        with tempfile.TemporaryFile(dir=existing):
            pass


def check_options(
    *,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    task: Task | str | None = None,
    ablation: str | None = None,
    objective: str | Objective | None = None,
    metrics: Sequence[str] | None = None,
    device: str | None = None,
) -> None:
    """Refuse unknown names before a model is loaded; the errors name near matches or all valid names."""
    if method is not None:
        get_method(method, **(options or {}))
    if isinstance(task, str) and not is_task_file(task) and digits_source(task) is None:
        TASKS[task.replace("_", "-")]
    if ablation is not None:
        get_ablation(ablation)
    if objective is not None:
        get_objective(objective)
    for key in metrics or ():
        find_metric(key)
    if device is not None:
        check_device(device)


def registered(objective: Objective, ablation: Ablation) -> bool:
    """Whether both are what their keys name; records hold keys, so a store can tell only these apart."""
    return is_registered(objective) and ablation.key in ABLATIONS and ABLATIONS[ablation.key] is ablation


def usual_replacement(ablation: str) -> str:
    """What gates replace single heads by under an ablation: `mean` where that is defined for edges alone."""
    return ablation if ablation in INTERVENTIONS else "mean"

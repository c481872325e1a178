"""Logits with some heads replaced by one draw of an ablation."""

import torch

from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.runs import Heads, run_with_heads_replaced
from assay.execution.ablation import Setting
from assay.models import Model
from assay.tasks import Task


def logits_under(
    model: Model,
    task: Task,
    intervention: str,
    heads: Heads,
    *,
    setting: Setting | None = None,
    reference: Task | None = None,
    batch_size: int = 64,
    seed: int = 0,
) -> torch.Tensor:
    """The run of all prompts; `setting` holds plain passes of an earlier call."""
    if setting is None:
        setting = Setting(
            model=model, task=task, reference=reference or task, batch_size=batch_size, seed=seed
        )
    replacement = INTERVENTIONS[intervention].prepare_heads(setting)
    return run_with_heads_replaced(model, task, heads, replacement, batch_size=setting.batch_size)

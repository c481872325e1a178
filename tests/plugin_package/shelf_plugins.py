"""What another package may register with assay: one entry of every kind, each as small as it can be."""

import dataclasses

import numpy as np
import torch
import transformers

from assay.analyses.calibration import Found, Gate
from assay.analyses.generalization.dependency import Distance
from assay.core.measurement import Measurement
from assay.discovery.edges.patching import Random
from assay.execution import ABLATIONS, Ablation, CircuitRuns, Prepared
from assay.metrics.metric import MetricSpec
from assay.models import FAMILIES, Model
from assay.objectives import Objective
from assay.page.blocks import Column, Document, Facts, Page, PageForm, Section, Table
from assay.stats import mean_of
from assay.tasks import Task
from assay.tasks.grammars import Induction


class ShelfMethod(Random):
    """Random scores under another name."""

    key = "shelf-method"
    source = "this package"


method = ShelfMethod()


def _answer_logit(runs: CircuitRuns, spec: MetricSpec) -> Measurement:
    """Mean margin of the whole model."""
    margins = runs.margins("full")
    return Measurement(
        id=spec.id,
        name=spec.key,
        value=float(margins.mean()),
        n=len(margins),
        unit=spec.unit,
        per_example=margins,
        components={"margin": margins},
        statistic=mean_of("margin"),
        provenance={**runs.provenance, "metric": spec.key},
        seed=runs.seed,
    )


metric = MetricSpec(
    key="shelf-metric",
    id="X1.shelf",
    name="margin of the model",
    unit="logits",
    runs=("full",),
    meaning="How far the model prefers its answers, whatever the circuit.",
    compute=_answer_logit,
)


def _shorter(full: np.ndarray, kept: np.ndarray) -> Found:
    """Passes where the circuit's margins are one per prompt, as the model's are."""
    right = "pass" if np.shape(full) == np.shape(kept) else "fail"
    return Found(status=right, published=right, values={"n": float(len(full))})


gate = Gate(
    key="shelf-gate",
    code="X2",
    name="always",
    criterion="none",
    needs=("y_full", "y_keep"),
    function=_shorter,
    question="Does it pass?",
    on_pass="It does.",
    on_fail="It never fails.",
)


class ShelfTask(Induction):  # type: ignore[misc] # final for the package, open to whoever wants its prompts
    """Induction under another name."""

    key = "shelf-task"


class ShelfAblation(Ablation):
    """Zero under another name."""

    key = "shelf-ablation"

    def prepare(self, model: Model, task: Task, *, batch_size: int, seed: int) -> Prepared:
        """As zero does."""
        return ABLATIONS["zero"].prepare(model, task, batch_size=batch_size, seed=seed)


ablation = ShelfAblation()


def _first_logit(logits: torch.Tensor, clean_logits: torch.Tensor, batch: object) -> torch.Tensor:
    """Minus the first logit."""
    del clean_logits, batch
    return -logits[:, 0]


objective = Objective(key="shelf_objective", loss=_first_logit)


class ShelfConfig(transformers.GPT2Config):
    """GPT-2 under another model type."""

    model_type = "shelf"


family = dataclasses.replace(FAMILIES["gpt2"], key="shelf-family", model_types=("shelf",))
distance = Distance(
    key="shelf-distance",
    summary="Nought.",
    published="none",
    vectors=lambda graph, rows, view: rows[:, :1],
    between=lambda one, other: np.zeros(len(one)),
)


def page(document: Document) -> Page:
    """Margins of prompts as facts and a table."""
    margins = document["margins"]
    return Page(
        kind="shelf",
        title=f"Shelf page of {document['name']}",
        verdict=f"{np.mean(margins):.3f} logits over {len(margins)} prompts.",
        sections=[
            Section(
                title="Examples",
                blocks=[
                    Facts(facts=[("prompts", str(len(margins)))]),
                    Table(
                        columns=[Column(name="prompt"), Column(name="margin", numeric=True)],
                        rows=[[str(i), f"{each:.3f}"] for i, each in enumerate(margins)],
                        caption="Margin of each prompt.",
                    ),
                ],
            )
        ],
    )


page_form = PageForm(noun="shelf", schema="shelf/1", again="the shelf", make=page)

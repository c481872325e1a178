"""The id of an evaluation over domains: whatever can change one of its numbers changes it."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from small_vits import untrained_vit

from assay.analyses.generalization.domain_evaluation import DomainEvaluation
from assay.analyses.generalization.domains import EvaluationSettings
from assay.analyses.generalization.shift import ShiftView
from assay.models import Model, load_model
from assay.pipeline.domain_evaluation import EvaluationPlan, check_domains, evaluate_domains
from assay.pipeline.monitoring import MonitorPlan


START = MonitorPlan(reference="shapes:flat", window=8, reference_n=8, known_batches=2, steps=1)
HOW = EvaluationSettings(n=8, deltas=(0.5,), n_subsets=2, subset_size=1)
PLAN = EvaluationPlan(
    start=START, images=("shapes:neon",), rated=16, least=8, corruptions=("fog-1",), settings=HOW
)
OF_PLAN: dict[str, Any] = {
    "images": ("shapes:sketch",),
    "by": None,
    "parts": 2,
    "rated": 15,
    "least": 9,
    "corruptions": ("fog-2",),
}
OF_START: dict[str, Any] = {
    "reference": "shapes:relief",
    "known": "shapes:stripes",
    "window": 7,
    "reference_n": 16,
    "known_batches": 3,
    "distance": "cosine",
    "method": "eap-ig-activations",
    "objective": "js",
    "ablation": "zero",
    "steps": 2,
    "quadrature": "left",
    "seed": 1,
    "skip_bad": True,
}
OF_HOW: dict[str, Any] = {
    "measure": "macro-f1",
    "n": 9,
    "view": ShiftView(weights="signed"),
    "granularity": "sublayer",
    "ratio": 0.5,
    "sets": None,
    "include_input": True,
    "deltas": (0.6,),
    "n_subsets": 3,
    "subset_size": 2,
    "seed": 1,
}
# What an evaluation does not read: settings of alarms and of passes, and the view of a monitor.
UNREAD = {"threshold", "target", "rule", "alpha", "view", "batch_size"}
# Columns need a table, and the reference sets a model of 12 blocks.
ELSEWHERE = {"by", "sets"}


def changes() -> list[tuple[str, EvaluationPlan]]:
    """Every field of a plan and of its parts with another value."""
    plans = [
        (each.name, replace(PLAN, **{each.name: OF_PLAN[each.name]}))
        for each in fields(PLAN)
        if each.name not in {"start", "settings", *ELSEWHERE}
    ]
    for name, part, others in (("start", START, OF_START), ("settings", HOW, OF_HOW)):
        left_out = ELSEWHERE | (UNREAD if name == "start" else set())
        plans += [
            (f"{name}.{each.name}", replace(PLAN, **{name: replace(part, **{each.name: others[each.name]})}))
            for each in fields(part)
            if each.name not in left_out
        ]
    return plans


def vit(seed: int) -> Model:
    model = load_model(untrained_vit(seed))
    model.preprocessing = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    return model


@pytest.fixture(scope="module")
def model() -> Model:
    return vit(0)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluations")


def evaluated(model: Model, plan: EvaluationPlan, cache: Path) -> DomainEvaluation:
    return evaluate_domains(model, plan, cache=cache)


@pytest.mark.parametrize(("name", "plan"), changes())
def test_whatever_can_change_a_number_changes_the_id(
    model: Model, cache: Path, name: str, plan: EvaluationPlan
) -> None:
    usual = evaluated(model, PLAN, cache)
    assert evaluated(model, PLAN, cache).id == usual.id
    assert evaluated(model, plan, cache).id != usual.id, name


def test_other_weights_change_the_id(model: Model, cache: Path) -> None:
    other = vit(1)
    assert evaluated(other, PLAN, cache).id != evaluated(model, PLAN, cache).id


def test_labels_mean_the_reference_s_classes_where_the_model_names_none(model: Model, tmp_path: Path) -> None:
    for style, classes in (("flat", "abc"), ("neon", "bc")):
        for name in classes:
            (tmp_path / style / name).mkdir(parents=True)
            (tmp_path / style / name / "1.png").touch()  # not decoded
    start = replace(START, reference=str(tmp_path / "flat"))
    (images,) = check_domains(model, replace(PLAN, start=start, images=(str(tmp_path / "neon"),))).values()
    assert images.labels is not None
    assert images.labels.tolist() == [1, 2]


def test_the_columns_of_a_table_and_the_layer_sets_are_part_of_it(model: Model, cache: Path) -> None:
    provenance = evaluated(model, PLAN, cache).provenance
    assert provenance["by"] == []
    assert provenance["settings"]["sets"] == "symmetric"
    assert provenance["distance"] == "spearman"

"""What is known of models and examples is matched by their names, wherever it is given by name."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import assay
from assay.analyses.subsets.data import CorrectnessData
from assay.core.errors import InputError


N_MODELS, N_EXAMPLES = 24, 40
MODELS = [f"run-{place}" for place in range(N_MODELS)]
EXAMPLES = [f"night-{place}" for place in range(N_EXAMPLES)]
RNG = np.random.default_rng(0)
SKILL = RNG.uniform(0.5, 0.95, N_MODELS)
FRAME = pd.DataFrame(
    (RNG.uniform(size=(N_MODELS, N_EXAMPLES)) < SKILL[:, None]).astype(np.uint8), MODELS, EXAMPLES
)
ACCURACY = pd.Series(SKILL, MODELS)
GROUPS = {name: f"g{place // 2}" for place, name in enumerate(MODELS)}
RUNS = tuple(GROUPS.values())


def shuffled(values: Any, names: list[str]) -> "pd.Series[Any]":
    return pd.Series(list(values), names).sample(frac=1, random_state=1)


@pytest.mark.parametrize("given", [GROUPS, shuffled(RUNS, MODELS), list(RUNS), pd.Series(RUNS)])
def test_runs_are_matched_by_the_names_of_models(given: Any) -> None:
    frame = CorrectnessData.from_frame(FRAME, id_accuracy=ACCURACY)
    made = (
        CorrectnessData.from_frame(FRAME, id_accuracy=ACCURACY, groups=given),
        CorrectnessData.of(FRAME.to_numpy(), SKILL, model_ids=MODELS, groups=given),
        CorrectnessData.of(FRAME.to_numpy(), ACCURACY, groups=given),
        CorrectnessData.of(frame, groups=given),
        assay.oodselect(FRAME, ACCURACY, 10, groups=given).data,
        assay.oodselect(frame, None, 10, groups=given).data,
    )
    assert [data and data.groups for data in made] == [RUNS] * len(made)


def test_every_vector_is_matched_by_name() -> None:
    truth, site = np.arange(N_EXAMPLES) % 3, np.arange(N_EXAMPLES) * 0.5
    counts = np.arange(1, N_MODELS + 1)
    data = CorrectnessData.of(
        FRAME.to_numpy(),
        shuffled(SKILL, MODELS),
        model_ids=MODELS,
        example_ids=EXAMPLES,
        n_id=shuffled(counts, MODELS),
        families=shuffled(RUNS, MODELS),
        labels=shuffled(truth, EXAMPLES),
        meta={"site": shuffled(site, EXAMPLES)},
    )
    assert data.id_accuracy.tolist() == SKILL.tolist()
    assert data.n_id is not None
    assert data.n_id.tolist() == counts.tolist()
    assert data.families == RUNS
    assert data.labels is not None
    assert data.labels.tolist() == truth.tolist()
    assert data.meta["site"].tolist() == site.tolist()
    sub = assay.oodselect(data, None, 9, strata=shuffled(truth, EXAMPLES))
    assert np.bincount(truth[sub.indices]).max() <= 4
    allowed = shuffled(truth == 0, EXAMPLES)
    assert set(truth[assay.oodselect(data, None, 9, allowed=allowed).indices]) == {0}


def test_a_frame_is_read_by_name() -> None:
    read = CorrectnessData.from_frame(FRAME, id_accuracy=ACCURACY)
    mixed = shuffled(SKILL, MODELS)
    truth = np.arange(N_EXAMPLES) % 3
    of = CorrectnessData.of(FRAME, mixed, labels=shuffled(truth, EXAMPLES), meta={"truth": truth})
    assert of.hash == read.hash
    assert of.labels is not None
    assert of.labels.tolist() == of.meta["truth"].tolist() == truth.tolist()
    sub = assay.oodselect(FRAME.astype("boolean"), mixed, 10)
    assert sub.data is not None
    assert sub.data.hash == read.hash
    assert set(sub.example_ids) <= set(EXAMPLES)
    path = assay.selection_path(FRAME, mixed, [10], baselines=False)
    assert path.selections[0].indices.tolist() == sub.indices.tolist()
    soft = CorrectnessData.of(FRAME * 0.5, mixed, scores=True)
    assert soft.accuracy().tolist() == (read.accuracy() / 2).tolist()
    assert CorrectnessData.of(FRAME[:2], mixed, at_least=2).n_models == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups": GROUPS}, r"groups lacks model 'model_0' .* no names of their own: give groups in their"),
        ({"labels": shuffled([0] * N_EXAMPLES, EXAMPLES)}, "labels lacks example 'row_0' .*or example_ids="),
        ({"groups": {"run-0": "g"}, "model_ids": MODELS}, r"\(23 are missing\), 'run-2', 'run-3'"),
        ({"groups": pd.Series("g", [*MODELS, "run-3"]), "model_ids": MODELS}, "'run-3' more than once"),
        ({"groups": pd.Series(RUNS, range(1, 25)), "model_ids": MODELS}, "groups lacks model 'run-0'"),
    ],
)
def test_names_that_do_not_meet_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CorrectnessData.of(FRAME.to_numpy(), SKILL, **given)


def test_a_series_of_rows_of_a_table_is_in_the_order_of_nameless_models() -> None:
    kept = pd.Series(RUNS, range(7, 7 + N_MODELS))
    assert CorrectnessData.of(FRAME.to_numpy(), SKILL, groups=kept).groups == RUNS

"""The measurement table: golden values, one definition for each run, and what its folder guarantees."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from assay.circuits import Circuit, EdgeScores
from assay.core.errors import FileFormatError, InputError, UnknownNameError
from assay.discovery.heads import MeasurementTable
from assay.discovery.heads.interventions import INTERVENTIONS, Donor
from assay.discovery.heads.membership import separation
from assay.models import Model, load_model
from assay.tasks import PairTask


MakeTask = Callable[..., PairTask]


@pytest.fixture(scope="module")
def golden_table(golden: dict[str, Any], golden_model: Model, golden_task: PairTask) -> MeasurementTable:
    circuit = Circuit.from_heads(golden_model.graph, golden["circuit"])
    return MeasurementTable(golden_model, golden_task, circuit)


COLUMNS = {
    **{name: name for name in ("y_full", "ce_full", "y_cor", "y_patch", "y_cross")},
    **{f"{name}/mean": f"{name}_mean" for name in ("ce_keep", "ce_drop", "y_drop", "y_empty")},
    **{name: f"{name}_mean" for name in ("y_drop1", "y_minus1")},
    "dla": "dla_difference_frozen_norm",
    "dla_correct": "dla_correct_no_norm",
    "spectral_norm": "ov_spectral_norm",
    "sv_entropy": "ov_sv_entropy",
}


def test_columns_equal_the_golden_values(golden_table: MeasurementTable, golden: dict[str, Any]) -> None:
    near = {"rtol": 1e-9, "atol": 1e-11}
    for column, key in COLUMNS.items():
        np.testing.assert_allclose(golden_table.column(column), golden[key], err_msg=column, **near)
    attribution = golden_table.column("attribution")  # the publication's has the other sign
    np.testing.assert_allclose(-attribution, golden["attribution_patching"], **near)
    found = separation(np.abs(attribution.mean(axis=0)), golden_table.members)
    assert found.auroc == pytest.approx(golden["attribution_auroc_abs_mean"], rel=1e-12)
    magnitude = golden_table.column("magnitude").mean(axis=0)
    np.testing.assert_allclose(magnitude, golden["activation_magnitude"], **near)
    for name, expected in golden["composition"].items():  # 0 in the file where the receiver is not later
        composed = np.nan_to_num(golden_table.column(f"composition/{name}"))
        np.testing.assert_allclose(composed, np.array(expected, dtype=float), **near)


@pytest.mark.parametrize("quantity", ["y", "kl"])
def test_circuit_runs_equal_the_golden_values(
    golden_table: MeasurementTable, golden: dict[str, Any], quantity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Donor, "donors_of", lambda self, setting: np.array(golden["donor"]))
    for method, expected in golden[f"{quantity}_keep"].items():
        found = golden_table.column(f"{quantity}_keep/{method}").reshape(golden_table.P, -1)
        assert (found == found[:, :1]).all()  # every draw has the same donors
        np.testing.assert_allclose(found[:, 0], np.array(expected), rtol=1e-9, atol=1e-11, err_msg=method)


def test_the_circuits_own_heads_cost_less_alone(model64: Model, make_task: MakeTask) -> None:
    task, heads = make_task(n=4), [(1, 1), (0, 0)]
    alone, whole = (MeasurementTable(model64, task, heads) for _ in range(2))
    found, every = alone.column("y_drop1/circuit"), whole.column("y_drop1")
    np.testing.assert_allclose(found, every[:, whole.places], rtol=1e-10)
    spent = whole.passes["forward"]
    assert alone.passes["forward"] < spent
    np.testing.assert_allclose(whole.column("y_drop1/circuit"), found, rtol=1e-10)
    assert whole.passes["forward"] == spent


def test_an_edge_circuit_of_all_edges_is_the_model(model64: Model, make_task: MakeTask) -> None:
    table = MeasurementTable(model64, make_task(n=4), Circuit.full(model64.graph))
    assert not table.by_heads
    assert table.k == table.H
    for method in ("zero", "mean", "resample", "resample-donor", "noise-additive"):
        kept = table.column(f"y_keep/{method}").reshape(4, -1)
        full = np.repeat(table.column("y_full")[:, None], INTERVENTIONS[method].draws, axis=1)
        np.testing.assert_allclose(kept, full, rtol=1e-8, atol=1e-9, err_msg=method)


@pytest.mark.parametrize("method", ["mean", "mean-positional"])
def test_edges_of_kept_heads_and_replaced_heads_are_one_run(
    model64: Model, make_task: MakeTask, method: str
) -> None:
    """The pool's further prompts are ablated like the task's own, not by their own means."""
    task, more = make_task(n=4, ragged=method == "mean"), make_task(n=3, seed=1)
    heads = Circuit.from_heads(model64.graph, [(0, 0), (1, 1)])
    circuits, how = (heads, Circuit(graph=heads.graph, mask=heads.mask)), {"more": more, "ablation": method}
    by_heads, by_edges = (MeasurementTable(model64, task, each, **how) for each in circuits)
    assert (by_heads.by_heads, by_edges.by_heads, by_edges.heads) == (True, False, heads.heads)
    for column in (f"pool/y_keep/{method}", "kl_keep/resample", "y_keep/zero", "y_minus1"):
        own, edges = by_heads.column(column), by_edges.column(column)
        np.testing.assert_allclose(own, edges, rtol=1e-7, atol=1e-8, err_msg=column)


def test_rows_do_not_depend_on_batches_or_blocks(
    model64: Model, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, circuit = make_task(n=6, ragged=True), Circuit.from_heads(model64.graph, [(0, 0)])
    whole = MeasurementTable(model64, task, circuit)
    monkeypatch.setattr("assay.discovery.heads.table.ROWS_AT_ONCE", 4)
    parts = MeasurementTable(model64, task, circuit, batch_size=3)
    for name in ("y_drop1", "y_patch", "y_cross", "y_keep/noise-additive", "ocse", "llc"):
        np.testing.assert_allclose(whole.column(name), parts.column(name), rtol=1e-8, atol=1e-9, err_msg=name)


def test_the_pool_is_the_task_and_more(model64: Model, make_task: MakeTask) -> None:
    task, more = make_task(n=4), make_task(n=3, seed=1)
    circuit = Circuit.from_heads(model64.graph, [(0, 0)])
    table = MeasurementTable(model64, task, circuit, more=more)
    assert table.n_pool == 7
    pool = table.column("pool/y_keep/mean")
    np.testing.assert_array_equal(pool[:4], table.column("y_keep/mean"))
    other = MeasurementTable(model64, more, circuit, reference=task)
    np.testing.assert_allclose(pool[4:], other.column("y_keep/mean"), rtol=1e-10)
    assert len(table.column("pool/y_full")) == 7
    alone = MeasurementTable(model64, task, circuit)
    np.testing.assert_array_equal(alone.column("pool/y_full"), alone.column("y_full"))
    # Outputs of the heads on further prompts are not held for their logits.
    held = sum(z.numel() for each in table._outputs.values() for z in each)
    assert held == task.n * task.length * table.H * model64.d_head
    assert table.passes["forward"] == pytest.approx(2 * 7)


def test_single_heads_cost_half_a_pass_and_last_tokens_a_token(model64: Model, make_task: MakeTask) -> None:
    task, circuit = make_task(n=4), Circuit.from_heads(model64.graph, [(0, 0)])
    table = MeasurementTable(model64, task, circuit)
    for _ in range(2):
        table.column("y_full")
        assert table.passes["forward"] == pytest.approx(4)
    before = table.passes["forward"]
    table.column("y_patch")
    spent = table.passes["forward"] - before
    layers, heads = model64.n_layers, model64.n_heads
    through = 0 if model64.graph.parallel else 1  # a parallel block's own MLP does not read its heads
    shares = sum((layers - layer - 1 + through) / layers for layer in range(layers)) * heads
    assert spent == pytest.approx(4 * (2 + shares))  # both prompts of a pair
    before = table.passes["forward"]
    table.column("y_cross")
    assert table.passes["forward"] - before == pytest.approx(4 * (2 + shares / task.length))
    table.column("attribution")
    assert table.passes["backward"] == 4


@pytest.fixture
def filled(golden_model: Model, make_task: MakeTask, tmp_path: Path) -> MeasurementTable:
    table = MeasurementTable(golden_model, make_task(n=5), [(0, 0)], folder=tmp_path / "table")
    table.column("y_drop1")
    table.column("y_keep/mean")
    return table


def again(table: MeasurementTable, folder: Path, **changes: Any) -> MeasurementTable:
    parts = {name: getattr(table, name) for name in ("model", "task", "circuit")}
    return MeasurementTable(**(parts | changes), folder=folder)


def test_a_table_continues_where_it_was_cut_off(
    filled: MeasurementTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.discovery.heads.table.ROWS_AT_ONCE", 1)
    folder = tmp_path / "other"
    first = again(filled, folder)
    first.column("y_patch")
    files = sorted(folder.glob("y_patch.*"))
    assert len(files) == 5
    kept = [file.read_bytes() for file in files]
    files[1].unlink()
    files[2].write_bytes(kept[2][:-1] + bytes([kept[2][-1] ^ 1]))  # changed
    files[3].write_bytes(next((tmp_path / "table").glob("kl_keep*")).read_bytes())  # another column
    resumed = again(filled, folder)
    np.testing.assert_array_equal(resumed.column("y_patch"), first.column("y_patch"))
    # The runs of the three prompts that were lost, of five.
    assert resumed.passes["forward"] == pytest.approx(first.passes["forward"] * 3 / 5)
    assert [files[at].read_bytes() == kept[at] for at in (0, 4)] == [True, True]
    monkeypatch.undo()
    found = again(filled, tmp_path / "table")  # kept columns cost nothing
    for column in ("y_drop1", "y_keep/mean", "kl_keep/mean"):
        np.testing.assert_array_equal(found.column(column), filled.column(column))
    assert found.passes == {"forward": 0.0, "backward": 0.0}


def test_the_folder_of_another_model_or_circuit_is_refused(
    filled: MeasurementTable, model64: Model, make_task: MakeTask, tmp_path: Path
) -> None:
    folder = tmp_path / "table"
    for what, changes in {
        "circuit": {"circuit": [(1, 1)]},
        ".*model": {"model": model64, "task": make_task(n=5), "circuit": []},
        "task": {"task": make_task(n=5, seed=9)},
    }.items():
        with pytest.raises(InputError, match=f"another {what}"):
            again(filled, folder, **changes)
    (folder / "job.json").write_text('{"hash": ')
    with pytest.raises(FileFormatError, match="not the record of a job"):
        again(filled, folder)


def test_unknown_columns_methods_and_circuits(golden_model: Model, make_task: MakeTask) -> None:
    task, graph = make_task(n=3), golden_model.graph
    table = MeasurementTable(golden_model, task, Circuit.from_heads(graph, [(0, 0)]))
    for name in ("y_drop2", "y_keep", "y_full/mean", "kl_full", "y_keep/median"):
        with pytest.raises(UnknownNameError, match="column"):
            table.column(name)
    assert MeasurementTable(golden_model, task, [(0, 0)]).hash == table.hash
    some, ragged = EdgeScores(graph, torch.rand(graph.valid.shape)).top(30), make_task(n=3, ragged=True)
    edges = MeasurementTable(golden_model, task, some, more=ragged)
    with pytest.raises(InputError, match="lengths"):
        edges.column("pool/y_keep/mean-positional")
    with pytest.raises(InputError, match="defined for heads"):
        edges.column("y_keep/soft")
    with pytest.raises(InputError, match="out of range"):
        table.keep([(9, 0)])


def test_a_prompt_without_a_donor_of_its_answer_has_no_run(golden_model: Model, make_task: MakeTask) -> None:
    """Else its own outputs would stand in for the others', and its margin be that of the whole model."""
    answers, wrong = torch.tensor([[1], [1], [2], [3], [2]]), torch.full((5, 1), 9)
    task = replace(make_task(n=5), answers=answers, wrong=wrong)
    same = "resample-donor-same-class"
    table = MeasurementTable(golden_model, task, [(0, 0)], ablation=same)
    alone = [False, False, False, True, False]
    for name in (f"y_keep/{same}", f"kl_keep/{same}", "y_drop1", "y_minus1"):
        found = np.isnan(table.column(name)).reshape(5, -1)
        assert found.any(axis=1).tolist() == found.all(axis=1).tolist() == alone, name
    assert np.isfinite(table.column("y_full")).all()


def test_a_prompt_without_finite_outputs_spoils_no_other(gpt2_tiny64: nn.Module, make_task: MakeTask) -> None:
    """Means, deviations and counts of active directions are those of the other prompts."""
    module = copy.deepcopy(gpt2_tiny64)
    embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone())
    task = make_task(n=6)
    unused = next(token for token in range(61) if not torch.cat([task.clean, task.corrupted]).eq(token).any())
    task.clean[2, 1] = unused
    model, rest = load_model(module), [0, 1, 3, 4, 5]
    with torch.no_grad():  # stands for an overflow in the run
        embedding.weight[unused] = torch.nan
    whole, others = (MeasurementTable(model, each, [(0, 1)]) for each in (task, task.subset(rest)))
    columns = ("y_full", "y_keep/mean", "y_keep/mean-positional", "y_keep/mean-last", "y_drop1", "y_minus1")
    for column in (*columns, "y_patch", "y_cross", "attribution"):
        found = whole.column(column)
        assert np.isnan(found[2]).all(), column
        np.testing.assert_allclose(found[rest], others.column(column), rtol=1e-8, atol=1e-10, err_msg=column)
    assert np.isfinite(whole.column("y_keep/noise")[rest]).all()
    np.testing.assert_allclose(whole.column("llc"), others.column("llc"))
    np.testing.assert_allclose(whole.column("ocse"), others.column("ocse"), rtol=1e-8)

"""Prompts read at several positions: every quantity is the mean over tasks that read one position each."""

from typing import Any

import numpy as np
import pytest
import torch
from reads import one_read_each, several_reads
from torch import nn

from assay.analyses.calibration.battery import calibrate_all
from assay.circuits import Circuit
from assay.core.errors import AssayWarning, InputError
from assay.discovery.edges import discover, discover_positions
from assay.discovery.edges.outputs import output_scores
from assay.discovery.heads import discover_heads
from assay.discovery.heads.table import MeasurementTable
from assay.execution import CircuitRuns, run_circuit, run_model
from assay.metrics import measure
from assay.models import Model, load_model
from assay.tasks import PairTask


ONE_NUMBER_PER_PROMPT = ("kl", "output-divergence", "ce-delta", "output-variants", "topk")


def random_circuit(model: Model, share: float = 0.5) -> Circuit:
    generator = torch.Generator().manual_seed(0)
    graph = model.graph
    return Circuit(
        graph=graph, mask=graph.valid & (torch.rand(graph.valid.shape, generator=generator) < share)
    )


def close(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    found, expected = torch.as_tensor(found), torch.as_tensor(expected)
    assert expected.abs().max() > 0
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("objective", ["logit_diff", "logit_diff_max", "prob_diff", "ce", "kl", "js"])
def test_scores_are_means_over_reads(gpt2_tiny64: nn.Module, objective: str) -> None:
    model = load_model(gpt2_tiny64)
    task = several_reads(model, ragged=True)
    single = one_read_each(task, with_wrong="diff" in objective)
    found = discover(model, task, "eap-ig-inputs", objective=objective, per_example=True, batch_size=3)
    twin = discover(model, single.task, "eap-ig-inputs", objective=objective, per_example=True)
    assert found.per_example is not None
    assert twin.per_example is not None
    close(found.per_example, single.mean(twin.per_example))
    close(found.values, single.mean(twin.per_example).mean(0))


@pytest.mark.parametrize("method", ["eap", "eap-ig-activations", "clean-corrupted", "relp", "exact", "ifr"])
@pytest.mark.parametrize("ablation", ["resample", "zero"])
def test_every_method_scores_the_mean_over_reads(gpt2_tiny64: nn.Module, method: str, ablation: str) -> None:
    if method == "clean-corrupted" and ablation == "zero":
        pytest.skip("clean-corrupted needs corrupted prompts")
    model = load_model(gpt2_tiny64)
    task = several_reads(model, n=3, ragged=method != "ifr")
    single = one_read_each(task)
    how: dict[str, Any] = {"objective": "ce", "ablation": ablation, "per_example": True}
    found, twin = discover(model, task, method, **how), discover(model, single.task, method, **how)
    assert found.per_example is not None
    assert twin.per_example is not None
    close(found.per_example, single.mean(twin.per_example))


def test_scores_of_every_family_are_means_over_reads(module64: nn.Module) -> None:
    model = load_model(module64)
    task = several_reads(model, ragged=True)
    single = one_read_each(task)
    found = discover(model, task, "eap-ig-inputs", objective="ce", per_example=True)
    twin = discover(model, single.task, "eap-ig-inputs", objective="ce", per_example=True)
    assert found.per_example is not None
    assert twin.per_example is not None
    close(found.per_example, single.mean(twin.per_example), 1e-5)  # some norms are computed in float32


def test_methods_that_look_at_all_examples_agree_with_single_reads(gpt2_tiny64: nn.Module) -> None:
    """With as many reads per prompt, both tasks have the same mean loss, so the same edges are kept."""
    model = load_model(gpt2_tiny64)
    task = several_reads(model, n=3, ragged=False)
    single = one_read_each(task)
    for objective, threshold in (("kl", 1e-4), ("ce", 1e-3)):
        found, twin = (
            discover(model, each, "acdc", objective=objective, threshold=threshold)
            for each in (task, single.task)
        )
        close(found.values, twin.values)
    with pytest.warns(AssayWarning, match="ugs has not settled"):
        masks = discover(model, task, "ugs", objective="kl", updates=3)
    assert torch.isfinite(masks.values).all()


def test_scores_by_span_and_into_the_logits_are_those_of_discover(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = several_reads(model, ragged=True)
    whole = discover(model, task, "eap-ig-inputs", objective="ce", per_example=True)
    by_span = discover_positions(model, task, "eap-ig-inputs", objective="ce", spans="each")
    close(by_span.total().values, whole.values)
    into = output_scores(model, task, objective="ce", per_example=True)
    assert whole.per_example is not None
    assert into.per_example is not None
    close(into.per_example, whole.per_example[:, :, -1])


@pytest.mark.parametrize("ablation", ["resample", "zero", "mean", "mean-positional"])
def test_circuits_give_the_logits_of_single_reads(module64: nn.Module, ablation: str) -> None:
    model = load_model(module64)
    task = several_reads(model, ragged=False)
    single = one_read_each(task)
    for share in (0.2, 0.6):
        circuit = random_circuit(model, share).connected()
        found = run_circuit(model, task, circuit, ablation=ablation, batch_size=3)
        assert found.shape == (task.n, 3, model.n_vocab)
        close(found.flatten(0, 1), run_circuit(model, single.task, circuit, ablation=ablation))


def test_full_and_empty_circuits_are_the_model(module64: nn.Module) -> None:
    model = load_model(module64)
    task = several_reads(model, ragged=True)
    real, full = task.positions >= 0, Circuit.full(model.graph)
    everywhere = model.unembed(model.forward(task.clean))
    rows, places = real.nonzero(as_tuple=True)
    with torch.no_grad():
        close(run_model(model, task)[real], everywhere[rows, task.positions[rows, places]])
    close(run_circuit(model, task, full)[real], run_model(model, task)[real])
    close(run_circuit(model, task, full.emptied())[real], run_model(model, task, corrupted=True)[real])


def test_pairs_and_spans_are_run_at_every_read(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = several_reads(model, ragged=False)
    circuit = random_circuit(model)
    pairs = torch.tensor([[0, 2], [3, 1], [3, 3]])
    found = run_circuit(model, task, circuit, pairs=pairs)
    close(found, run_circuit(model, task.paired(pairs), circuit))
    close(found[2], run_circuit(model, task, circuit)[3])
    scores = discover_positions(model, task, "eap", objective="ce", spans="each")
    of_spans, single = scores.top(40), one_read_each(task)
    found = run_circuit(model, task, of_spans).flatten(0, 1)
    close(found, run_circuit(model, single.task, of_spans))
    every = Circuit(graph=model.graph, mask=scores.slots, spans=scores.spans)
    close(run_circuit(model, task, every), run_model(model, task))


def test_margins_and_metrics_are_means_over_reads(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = several_reads(model, n=6, ragged=True)
    single, circuit = one_read_each(task), random_circuit(model)
    margins = {
        each.n: CircuitRuns(model, each, circuit, objective="ce").margins("keep")
        for each in (task, single.task)
    }
    close(margins[task.n], single.mean(margins[single.task.n]))
    for key in ONE_NUMBER_PER_PROMPT:
        found, twin = (measure(circuit, model, each, key, objective="ce") for each in (task, single.task))
        for name, values in found.components.items():
            expected = single.mean(twin.components[name]).numpy()
            np.testing.assert_allclose(values, expected, atol=1e-9, err_msg=f"{key} {name}")
        for part, measured in found.parts.items():
            for name, values in measured.components.items():
                expected = single.mean(twin.parts[part].components[name]).numpy()
                np.testing.assert_allclose(values, expected, atol=1e-9, err_msg=f"{key} {part} {name}")
    restricted = measure(circuit, model, task, "kl", restricted_to="answers")
    assert np.isfinite(restricted.value)
    for key in ("faithfulness-norm", "corrupt-restore", "scrub-kl", "scrub-recovery", "minimality", "dprime"):
        assert measure(circuit, model, task, key, objective="ce").n <= task.n


@pytest.mark.parametrize("method", ["activation-patching", "drop-effect", "attribution-patching", "llc"])
def test_scores_of_heads_are_means_over_reads(gpt2_tiny64: nn.Module, method: str) -> None:
    model = load_model(gpt2_tiny64)
    task = several_reads(model, n=4, ragged=False)
    single = one_read_each(task)
    options: dict[str, Any] = {"objective": "ce"}
    found, twin = (discover_heads(model, each, method, **options) for each in (task, single.task))
    if method == "llc":
        assert np.isfinite(found.values).all()
    elif method == "activation-patching":  # a ratio of sums
        close(found.values, twin.values)
    else:
        assert found.flat_examples is not None
        assert twin.flat_examples is not None
        close(found.flat_examples, single.mean(twin.flat_examples))


def test_mediation_takes_several_reads_with_all_positions(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = several_reads(model, ragged=True)
    with pytest.raises(InputError, match=r"read position only \(positions='last'\) reads prompts at one"):
        discover_heads(model, task, "mediation", objective="ce")
    found = discover_heads(model, task, "mediation", objective="ce", positions="all")
    single = one_read_each(task)
    twin = discover_heads(model, single.task, "mediation", objective="ce", positions="all")
    assert found.flat_examples is not None
    assert twin.flat_examples is not None
    close(found.flat_examples, single.mean(twin.flat_examples))


def test_what_reads_one_position_says_so(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = several_reads(model, ragged=True)
    circuit = random_circuit(model)
    one = "reads prompts at one position, but some here are read at 3; give each position a prompt of its own"
    for run in (
        lambda: calibrate_all(Circuit.from_heads(model.graph, [(0, 1)]), model, task),
        lambda: discover_heads(model, task, "dla"),
        lambda: discover_heads(model, task, "ov-norm"),
        lambda: MeasurementTable(model, task, circuit),
        lambda: discover_heads(model, task, "drop-effect", ablation="mean-last"),
    ):
        with pytest.raises(InputError, match=one):
            run()


def test_one_read_in_a_column_is_an_ordinary_task(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = several_reads(model, reads=1, ragged=False)
    assert task.positions.shape == (task.n,)
    plain = PairTask(
        clean=task.clean,
        corrupted=task.corrupted,
        answers=task.answers,
        wrong=task.wrong,
        positions=task.positions,
    )
    assert plain.data_hash == task.data_hash
    assert torch.equal(discover(model, task, "eap").values, discover(model, plain, "eap").values)

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import nn

from assay.core.errors import DegenerateDataWarning, InputError
from assay.discovery.heads import Langevin, fisher_count, learning_coefficient, learning_coefficients
from assay.discovery.heads.llc import _HeadLoss, _split_r_hat, _starts
from assay.models import Model, load_model
from assay.objectives import get_objective
from assay.tasks import PairTask
from assay.tasks.rows import draw_rows


MakeTask = Callable[..., PairTask]


# ---- losses with a known coefficient --------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 6])
def test_a_regular_minimum_has_half_its_dimension(d: int) -> None:
    n, sampler = 100_000, Langevin(step=4e-6, localisation=1.0, chains=64, burn_in=500, draws=5000)
    found = learning_coefficient(lambda w: (w**2).sum(1), torch.zeros(d).double(), n, sampler)
    # The chain of a quadratic is an autoregression, so its stationary mean is known in closed form.
    tempered = n / math.log(n)
    curvature = 2 * tempered + sampler.localisation
    exact = d * tempered / (curvature * (1 - sampler.step * curvature / 4))
    assert exact == pytest.approx(d / 2, rel=0.02)
    assert found.value == pytest.approx(exact, rel=0.05)
    assert found.warnings == ()
    assert found.value == pytest.approx(found.chain_values.mean())


def test_a_quartic_minimum_has_a_quarter() -> None:
    sampler = Langevin(step=3e-4, localisation=0.01, chains=256, burn_in=300, draws=1500)
    found = learning_coefficient(lambda w: (w**4).sum(1), torch.zeros(1).double(), 10_000, sampler)
    assert found.value == pytest.approx(1 / 4, abs=0.015)


def crossing_lines(tempered: float, g: float) -> float:
    """E[n b (w1 w2)^2] under exp(-n b (w1 w2)^2 - g |w|^2 / 2): w2 is Gaussian given w1."""

    def weight(log_x: float) -> float:
        x2 = math.exp(2 * log_x)
        return math.exp(log_x - g * x2 / 2) / math.sqrt(2 * tempered * x2 + g)

    def share(log_x: float) -> float:
        x2 = math.exp(2 * log_x)
        return tempered * x2 / (2 * tempered * x2 + g)

    low, high = -45.0, math.log(40 / math.sqrt(g))
    options = {"limit": 500, "epsabs": 0.0, "epsrel": 1e-9}
    top = integrate.quad(lambda u: weight(u) * share(u), low, high, **options)[0]
    return top / integrate.quad(weight, low, high, **options)[0]


def test_two_crossing_lines_have_a_half() -> None:
    n, g = 10_000, 4.0
    sampler = Langevin(step=2e-4, localisation=g, chains=256, burn_in=4000, draws=6000)
    found = learning_coefficient(lambda w: (w[:, 0] * w[:, 1]) ** 2, torch.zeros(2).double(), n, sampler)
    expected = crossing_lines(n / math.log(n), g)
    assert found.value == pytest.approx(expected, abs=0.02)
    # The limit 1/2 is approached as 1 / ln n, because two factors vanish together.
    rising = [crossing_lines(tempered, 1e-3) for tempered in (1e3, 1e6, 1e12, 1e24)]
    assert rising == sorted(rising)
    assert rising[-1] == pytest.approx(1 / 2, abs=0.02)


def test_a_saddle_is_not_converged() -> None:
    sampler = Langevin(step=1e-3, localisation=1.0, burn_in=0, draws=50)
    found = learning_coefficient(lambda w: -(w**2).sum(1), torch.zeros(3).double(), 100, sampler)
    assert found.value < 0
    assert found.warnings == ("llc_not_converged",)


def test_r_hat_by_hand() -> None:
    assert _split_r_hat(np.array([[1.0, 1.0, 1.0, 1.0]])) == 1.0
    assert _split_r_hat(np.array([[0.0, 0.0, 1.0, 1.0]])) == math.inf
    trace = np.array([[0.0, 2.0, 1.0, 3.0]])  # halves of mean 1 and 2, variance 2 each
    assert _split_r_hat(trace) == pytest.approx(math.sqrt(1 / 2 + 0.5 / 2))
    assert math.isnan(_split_r_hat(np.zeros((2, 3))))


def test_chains_follow_the_seed() -> None:
    def run(seed: int) -> np.ndarray:
        sampler = Langevin(seed=seed, burn_in=3, draws=5)
        return learning_coefficient(lambda w: (w**2).sum(1), torch.zeros(2).double(), 50, sampler).losses

    np.testing.assert_array_equal(run(1), run(1))
    assert not np.array_equal(run(1), run(2))
    assert len(set(run(1)[:, 0].tolist())) == 4  # every chain has noise of its own


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step": 0.0}, "step is 0.0"),
        ({"localisation": -1.0}, "localisation -1.0"),
        ({"chains": 0}, "chains is 0"),
        ({"burn_in": -1}, "burn_in -1"),
        ({"draws": 0}, "draws 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Langevin(**settings)


def test_one_example_has_no_temperature() -> None:
    with pytest.raises(InputError, match="n is 1"):
        learning_coefficient(lambda w: (w**2).sum(1), torch.zeros(2).double(), 1)


# ---- heads ----------------------------------------------------------------------------------------


def displaced_loss(
    module: nn.Module, task: PairTask, layer: int, head: int, value: torch.Tensor, output: torch.Tensor
) -> torch.Tensor:
    """Mean cross-entropy of a copy of the model whose own weights have been changed."""
    changed = copy.deepcopy(module)
    model = load_model(changed)
    d_head, d_model = model.d_head, model.d_model
    group = head * model.n_kv_heads // model.n_heads
    with torch.no_grad():
        if model.family.key == "gpt2":
            attention = changed.transformer.h[layer].attn
            attention.c_attn.weight[:, 2 * d_model + head * d_head :][:, :d_head] += value
            attention.c_proj.weight[head * d_head : (head + 1) * d_head] += output
        elif model.family.key == "gpt-neox":
            attention = changed.gpt_neox.layers[layer].attention
            first = head * 3 * d_head + 2 * d_head
            attention.query_key_value.weight[first : first + d_head] += value.T
            attention.dense.weight[:, head * d_head : (head + 1) * d_head] += output.T
        else:
            attention = changed.model.layers[layer].self_attn
            attention.v_proj.weight[group * d_head : (group + 1) * d_head] += value.T
            attention.o_proj.weight[:, head * d_head : (head + 1) * d_head] += output.T
        logits = model.read(model.forward(task.clean), task.positions).double()
    return -logits.log_softmax(1).gather(1, task.answers).mean()


@pytest.mark.parametrize("place", [(0, 0), (1, 2)])
def test_displacing_a_head_is_changing_its_weights(
    module64: nn.Module, make_task: MakeTask, place: tuple[int, int]
) -> None:
    model, task, (layer, head) = load_model(module64), make_task(5, ragged=True), place
    chains, size = 2, 2 * model.d_model * model.d_head
    generator = torch.Generator().manual_seed(0)
    moved = 0.1 * torch.randn(chains, size, dtype=torch.float64, generator=generator)
    loss = _HeadLoss(model, _starts(model, task, chains, 2), get_objective("ce"), layer, head, chains, task.n)
    found, gradient = loss(moved)
    for chain in range(chains):
        value, output = moved[chain].split(size // 2)
        parts = value.view(model.d_model, -1), output.view(-1, model.d_model)
        expected = displaced_loss(module64, task, layer, head, *parts)
        assert float(found[chain]) == pytest.approx(float(expected), rel=1e-6)
    direction = torch.randn(chains, size, dtype=torch.float64, generator=generator)
    step = 1e-4
    slope = (loss(moved + step * direction)[0] - loss(moved - step * direction)[0]) / (2 * step)
    torch.testing.assert_close(slope, (gradient * direction).sum(1), rtol=2e-3, atol=1e-4)


def test_a_head_that_changes_nothing_has_no_coefficient(gpt2_tiny64: nn.Module, make_task: MakeTask) -> None:
    """With the unembedding at zero the loss is flat: every trace stays where it is."""
    module = copy.deepcopy(gpt2_tiny64)
    with torch.no_grad():
        module.lm_head.weight.zero_()
    model = load_model(module)
    sampler = Langevin(burn_in=2, draws=4, chains=2)
    scores = learning_coefficients(model, make_task(), [(1, 2)], sampler=sampler)
    assert scores[1, 2] == 0
    assert np.isnan(np.delete(scores.flat, 5)).all()
    assert scores.details["heads"]["1.2"]["start_loss"] == pytest.approx(math.log(61))
    assert fisher_count(model, make_task()).flat.tolist() == [0] * 6


# Eight steps from the start settle nothing, but each is the same step.
@pytest.mark.filterwarnings("ignore:llc_not_converged")
def test_coefficients_do_not_depend_on_batches_or_on_the_other_heads(
    gpt2_tiny64: nn.Module, make_task: MakeTask
) -> None:
    model, task = load_model(gpt2_tiny64), make_task(6)
    sampler = Langevin(step=1e-4, burn_in=5, draws=3, chains=2)
    first = learning_coefficients(model, task, [(0, 1)], sampler=sampler)
    second = learning_coefficients(model, task, [(1, 0), (0, 1)], sampler=sampler, batch_size=2)
    assert first[0, 1] == pytest.approx(second[0, 1], rel=1e-9)
    assert first.provenance["localisation"] == 100.0
    assert not any(module._forward_hooks for module in gpt2_tiny64.modules())


def test_traces_that_still_move_are_reported(gpt2_tiny64: nn.Module, make_task: MakeTask) -> None:
    model = load_model(gpt2_tiny64)
    sampler = Langevin(step=1e-3, localisation=0.0, burn_in=0, draws=40)
    with pytest.warns(DegenerateDataWarning, match=r"llc_not_converged: .* for 1 of 1 heads, \(0, 0\) first"):
        scores = learning_coefficients(model, make_task(), [(0, 0)], sampler=sampler)
    assert scores.warnings == ("llc_not_converged",)
    assert scores.details["not_converged"] == [(0, 0)]


def test_one_example_is_too_few_for_heads(gpt2_tiny64: nn.Module, make_task: MakeTask) -> None:
    model = load_model(gpt2_tiny64)
    with pytest.raises(InputError, match="there is only 1 example"):
        learning_coefficients(model, make_task(1))
    few = fisher_count(model, make_task(), n=1)
    assert (few.reason, few.values.any()) == ("too_few", False)
    with pytest.raises(InputError, match="n is 0"):
        fisher_count(model, make_task(), n=0)


# ---- counting -------------------------------------------------------------------------------------


def literal_count(module: nn.Module, task: PairTask, flat: int) -> int:
    """Through the gradients of the parameters themselves, one example at a time."""
    module = copy.deepcopy(module)
    model = load_model(module)
    layer, head = divmod(flat, model.n_heads)
    block, d_head = model.blocks[layer], model.d_head
    rows = []
    for i in range(task.n):
        module.zero_grad()
        one = task.subset([i])
        logits = model.read(model.forward(one.clean), one.positions)
        (-logits.log_softmax(1).gather(1, one.answers)).sum().backward()
        outs = [part.weight.grad for part in block.qkv]
        outs = [g.T if isinstance(m, nn.Linear) else g for g, m in zip(outs, block.qkv, strict=True)]
        value = block.channels(outs)[:, model.n_heads + model.n_kv_heads + block.kv_head(head)]
        out = block.out.weight.grad.T if isinstance(block.out, nn.Linear) else block.out.weight.grad
        rows.append(torch.cat([value.flatten(), out[head * d_head : (head + 1) * d_head].flatten()]))
    variance = torch.stack(rows).var(0)
    return int((variance > 0.01 * variance.max()).sum())


def test_counts_are_those_of_the_parameter_gradients(module64: nn.Module, make_task: MakeTask) -> None:
    model, task = load_model(module64), make_task(5, ragged=True)
    scores = fisher_count(model, task)
    expected = [literal_count(module64, task, flat) for flat in range(scores.values.size)]
    assert scores.details["counts"] == expected
    np.testing.assert_allclose(scores.flat, np.array(expected) / (2 * math.log(5)))
    assert len(set(expected)) > 1  # heads of a layer differ
    assert fisher_count(model, task, batch_size=2).details["counts"] == expected


def test_a_sample_of_the_examples_counts(golden_model: Model, golden_task: PairTask) -> None:
    twenty = fisher_count(golden_model, golden_task)
    assert twenty.details["n"] == 20
    rows = draw_rows(golden_task.n, 20, seed=0, what="examples")
    assert rows.max() >= 20  # a file may list kind after kind
    sampled = fisher_count(golden_model, golden_task.subset(rows.tolist()), n=50)
    np.testing.assert_array_equal(twenty.values, sampled.values)
    other = fisher_count(golden_model, golden_task, seed=1)
    assert not np.array_equal(twenty.values, other.values)

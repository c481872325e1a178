"""Predicted peak memory: by hand, against the allocator, and what batches and errors make of it."""

from collections.abc import Callable

import pytest
import torch
import transformers
from allocator import peak_on_cpu
from thorough import one_of
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.discovery.edges import discover, get_method
from assay.discovery.edges.running import Asked, in_one_batch, resolve
from assay.execution import CircuitRunner, batches, get_ablation, run_circuit, run_model
from assay.execution.forward import circuit_run, plain_run
from assay.execution.memory import Fit, largest_batch, peak_bytes
from assay.models import Model, load_model
from assay.tasks import PairTask, Task, align_prompts


WIDE = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDE |= {"num_key_value_heads": 2, "vocab_size": 101, "head_dim": 16, "bos_token_id": 0, "eos_token_id": 0}
SHAPES: dict[str, tuple[str, dict]] = {
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 101}),
    "llama": ("llama", WIDE),
    "gemma2": ("gemma2", {**WIDE, "pad_token_id": 0, "sliding_window": 24}),
    "olmo2": ("olmo2", {**WIDE, "pad_token_id": 0, "num_key_value_heads": 4}),
}
MANY_TOKENS = ("gpt2", {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 20011})


def wide_model(shape: str) -> Model:
    model_type, entries = (SHAPES | {"many tokens": MANY_TOKENS})[shape]
    entries = {**entries, "bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **entries)
    return load_model(transformers.AutoModelForCausalLM.from_config(config).eval())


def prompts(batch: int, length: int) -> PairTask:
    tokens = torch.randint(1, 60, (2, batch, length), generator=torch.Generator().manual_seed(0))
    answers = torch.zeros(batch, 1).long()
    return PairTask(clean=tokens[0], corrupted=tokens[1], answers=answers, wrong=answers + 1)


def allocated(job: Callable[[], object]) -> int:
    """Peak of the bytes of a job once what is kept for later runs is there."""
    job()
    return peak_on_cpu(job)


def peak_of(asked: Asked) -> int | None:
    """What a batch of a discovery holds at most beyond the weights, predicted."""
    run = in_one_batch(asked.method, asked.settings)
    return None if run is None else peak_bytes(asked.model, asked.task.stand_in(asked.size), run)


def test_the_peak_of_a_run_worked_by_hand(gpt2_tiny: nn.Module) -> None:
    model, task = load_model(gpt2_tiny), prompts(3, 8)
    weight = model.module.transformer.wte.weight
    d_model = weight.shape[1]

    def run(model: Model, task: Task) -> None:
        rows = model.module.transformer.wte.weight[task.clean]  # 3 x 8 x d_model numbers of 4 bytes
        doubled = rows * 2
        del rows
        doubled.sum()  # 4 bytes beside one array of the two
        doubled.view(-1, d_model)  # nothing

    assert peak_bytes(model, task, run) == 2 * 3 * 8 * d_model * 4


@pytest.mark.parametrize("shape", one_of(sorted(SHAPES), "gpt2"))
def test_predictions_are_what_the_allocator_gives_out(shape: str) -> None:
    model, task = wide_model(shape), prompts(4, 40)
    method = get_method("eap-ig-inputs")
    asked = resolve(model, task, method, method.choices(task, steps=1), batch_size=4)
    circuit = Circuit.random(model.graph, model.graph.n_edges // 4, seed=1)
    runner = CircuitRunner(model, circuit, resample=True)
    cases: list[tuple[int | None, Callable[[], object]]] = [
        (peak_of(asked), lambda: discover(model, task, steps=1, batch_size=4)),
        (
            peak_bytes(model, task, circuit_run(runner, circuit, get_ablation("resample"))),
            lambda: run_circuit(model, task, circuit, batch_size=4),
        ),
        (peak_bytes(model, task, plain_run), lambda: run_model(model, task, batch_size=4)),
    ]
    for predicted, job in cases:
        assert predicted == pytest.approx(allocated(job), rel=0.15)


def test_predicting_leaves_the_model_as_it_was(gpt2_tiny: nn.Module) -> None:
    model, task = load_model(gpt2_tiny), prompts(2, 8)
    before, digest = run_model(model, task), model.weight_hash
    assert peak_bytes(model, task, plain_run) is not None
    assert model.weight_hash == digest
    assert torch.equal(run_model(model, task), before)


def test_a_run_that_asks_for_numbers_of_an_activation_is_not_predicted(gpt2_tiny: nn.Module) -> None:
    model, task = load_model(gpt2_tiny), prompts(2, 8)

    def run(model: Model, task: Task) -> Tensor:
        return model.forward(task.clean).nonzero()

    assert peak_bytes(model, task, run) is None


@pytest.mark.parametrize("memory", [5, 99, 1000, 4321, 10**6])
def test_the_largest_batch_fits_and_is_near_what_would(memory: int) -> None:
    asked: list[int] = []

    def peak(size: int) -> int:
        asked.append(size)
        return 50 + 10 * size + min(300, 30 * size)  # chunks of fixed size make it grow more slowly

    fit = largest_batch(peak, 500, memory)
    assert fit is not None
    best = max((size for size in range(1, 501) if peak(size) <= memory), default=1)
    assert fit == Fit(size=fit.size, bytes=peak(fit.size))
    assert best // 2 <= fit.size <= best


def test_a_batch_is_as_large_as_the_prediction_allows_and_scores_are_the_same() -> None:
    model, task = wide_model("gpt2"), prompts(12, 16)
    method = get_method("eap")
    settings = method.choices(task)
    whole = resolve(model, task, method, settings, batch_size=12)
    needed = peak_of(whole)
    assert needed is not None
    half = resolve(model, task, method, settings, batch_size=12, memory=needed // 2)
    assert 3 <= half.size < 7
    taken = peak_of(half)
    assert taken is not None
    assert taken <= needed // 2
    torch.testing.assert_close(
        discover(model, task, "eap", batch_size=12, memory=needed // 2).values,
        discover(model, task, "eap", batch_size=12).values,
    )


@pytest.mark.slow
@pytest.mark.parametrize("job", ["discover", "circuit", "corrupted"])
def test_longer_corrupted_prompts_count(job: str) -> None:
    """A batch that would fit if the corrupted prompts were as short as the clean ones is split."""
    model, short = wide_model("gpt2"), prompts(24, 4)
    task = PairTask(
        clean=short.clean,
        corrupted=prompts(24, 60).corrupted,
        answers=short.answers,
        wrong=short.wrong,
        alignment=align_prompts([4] * 24, [60] * 24),
    )
    circuit = Circuit.random(model.graph, 20, seed=0)

    def run(memory: int | None) -> object:
        if job == "discover":
            return discover(model, task, "eap", memory=memory)
        if job == "circuit":
            return run_circuit(model, task, circuit, memory=memory)
        return run_model(model, task, corrupted=True, memory=memory)

    half = allocated(lambda: run(None)) // 2
    assert allocated(lambda: run(half)) <= 1.15 * half


def test_one_example_that_does_not_fit_is_refused_before_work_starts(
    gpt2_tiny: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, task = load_model(gpt2_tiny), prompts(3, 8)
    monkeypatch.setattr(batches, "measured_free", lambda device: 1000)
    message = (
        r"one example of 8 positions needs about 0\.00 GiB beyond the weights .* free on cpu\. Use shorter"
    )
    circuit = Circuit.random(model.graph, 20, seed=0)
    for job in (
        lambda: discover(model, task),
        lambda: run_model(model, task),
        lambda: run_circuit(model, task, circuit),
    ):
        with pytest.raises(InputError, match=message):
            job()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "length", "options"),
    [
        ("gpt2", 40, {"ablation": "zero"}),
        ("gpt2", 40, {"ablation": "mean-positional"}),
        ("many tokens", 4, {"objective": "kl"}),  # whose losses take more than the blocks
        ("many tokens", 4, {"objective": "js"}),
    ],
)
def test_a_prediction_follows_ablation_and_objective(
    shape: str, length: int, options: dict[str, str]
) -> None:
    model, task = wide_model(shape), prompts(6, length)
    method = get_method("eap-ig-inputs")
    predicted, usual = (
        peak_of(resolve(model, task, method, method.choices(task, steps=2, **each), batch_size=6))
        for each in (options, {})
    )
    peak = allocated(lambda: discover(model, task, steps=2, batch_size=6, **options))
    assert predicted == pytest.approx(peak, rel=0.15)
    assert predicted != usual


@pytest.mark.parametrize("ablation", ["zero", "mean", "resample"])
def test_a_prediction_for_a_circuit_follows_the_ablation(ablation: str) -> None:
    model, task = wide_model("llama"), prompts(6, 40)
    circuit, carried = Circuit.random(model.graph, model.graph.n_edges // 10, seed=0), get_ablation(ablation)
    runner = CircuitRunner(model, circuit, resample=carried.paired)
    predicted = peak_bytes(model, task, circuit_run(runner, circuit, carried))
    peak = allocated(lambda: run_circuit(model, task, circuit, ablation=ablation, batch_size=6))
    assert predicted == pytest.approx(peak, rel=0.15)


@pytest.mark.gpu
def test_predictions_on_a_gpu_are_near_what_it_gives_out() -> None:
    config = transformers.GPT2Config(n_layer=6, bos_token_id=0, eos_token_id=0)
    model = load_model(transformers.GPT2LMHeadModel(config).eval().to("cuda"))
    task, method = prompts(8, 128), get_method("eap-ig-inputs")
    asked = resolve(model, task, method, method.choices(task, steps=2), batch_size=8)
    predicted = peak_of(asked)
    discover(model, task, steps=2, batch_size=8)  # workspaces of libraries
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    discover(model, task, steps=2, batch_size=8)
    assert predicted == pytest.approx(torch.cuda.max_memory_allocated() - before, rel=0.15)

"""Experts of a mixture as nodes: routing of the clean run, and every run beside a literal one."""

import functools
from pathlib import Path

import literal
import pytest
import torch
import transformers
from tiny_decoders import mixture
from torch import Tensor, nn

from assay.circuits import Circuit, load_circuit, write_eap_ig
from assay.core.errors import GraphMismatchError, InputError, UnknownNameError, UnsupportedModelError
from assay.discovery.edges import METHODS, discover, discover_positions, output_scores
from assay.execution import ABLATIONS, PairRunner, run_circuit, run_model
from assay.execution.soft import SoftRunner
from assay.graph import build_graph
from assay.models import Model, load_model
from assay.models.experts import Experts, Routing
from assay.tasks import PairTask


N, LENGTH, COUNT = 5, 6, 5
NEAR = {"rtol": 1e-9, "atol": 1e-10}
SERVED = {"eap", "eap-ig-inputs", "eap-ig-activations", "clean-corrupted", "exact", "random"}


def build(kind: str, **more: object) -> nn.Module:
    """A random mixture of five experts, two per token, in float64."""
    config = mixture(kind, COUNT, **more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = transformers.AutoModelForCausalLM.from_config(config).double().eval()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    for part in module.modules():
        if hasattr(part, "variance_epsilon"):  # transformers computes these norms in float32
            part.forward = functools.partial(root_mean_square, part)
    return module


def root_mean_square(norm: nn.Module, stream: Tensor) -> Tensor:
    return norm.weight * stream * (stream.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()


@pytest.fixture(scope="module", params=["mixtral", "olmoe"])
def model(request: pytest.FixtureRequest) -> Model:
    more = {"clip_qkv": 0.5} if request.param == "olmoe" else {}
    return load_model(build(request.param, **more), experts="nodes")


@pytest.fixture(scope="module")
def task() -> PairTask:
    generator = torch.Generator().manual_seed(3)
    clean, corrupted = torch.randint(2, 61, (2, N, LENGTH), generator=generator)
    answers = torch.tensor([[[3]], [[4]]]).expand(2, N, 1)
    lengths = torch.tensor([6, 4, 5, 6, 3])
    return PairTask(
        clean=clean,
        corrupted=corrupted,
        answers=answers[0],
        wrong=answers[1],
        lengths=lengths,
        ablation="resample",
        objective="logit_diff",
    )


def corrupted_outputs(model: Model, task: PairTask) -> tuple[Tensor, literal.Outputs, list[Tensor]]:
    """The corrupted input, its tokens sent where those of the clean input go; node by node."""
    routing = literal.routing_of(model, task.clean)
    logits, outputs = literal.run_plain(model, task.corrupted, routing=routing)
    return logits, outputs, routing


# ---- the definition --------------------------------------------------------------------------------------


def test_one_token_and_two_experts_by_hand() -> None:
    """Experts 1 and 2 double and triple what they read; the router's factors are 3/4 and 1/4.

    At x = (4, 0): o_1 = 3/4 * 2 * (4, 0) = (6, 0) and o_2 = 1/4 * 3 * (4, 0) = (3, 0), together (9, 0). With
    an edge into expert 1 cut, it alone reads (0, 4): o_1 = (0, 6), o_2 stays. Expert 0 gets no token: (0, 0).
    """

    class Multiples(nn.Module):
        def forward(self, tokens: Tensor, chosen: Tensor, factors: Tensor) -> Tensor:
            return (tokens[:, None] * (chosen + 1)[..., None] * factors[..., None]).sum(1)

    experts = Experts(module=Multiples(), count=3)
    routing = Routing(chosen=torch.tensor([[[1, 2]]]), weight=torch.tensor([[[0.75, 0.25]]]))
    x, other = torch.tensor([[[4.0, 0.0]]]), torch.tensor([[[0.0, 4.0]]])
    whole = experts([(0, x), (1, x), (2, x)], routing, lambda stream: stream)
    assert [each.flatten().tolist() for each in whole] == [[0, 0], [6, 0], [3, 0]]
    cut = experts([(1, other), (2, x)], routing, lambda stream: stream)
    assert [each.flatten().tolist() for each in cut] == [[0, 6], [3, 0]]
    spread = routing.spread(torch.stack([*whole[1:]], 2), 3)
    assert spread.flatten(0, 2).tolist() == [[0, 0], [6, 0], [3, 0]]


def test_the_graph_has_a_source_and_a_target_per_expert() -> None:
    """Two blocks of 2 heads and 3 experts: 1 + 2 * 5 sources, 2 * (6 + 3) + 1 targets, counted by hand.

    Block 0: q, k, v of 2 heads read 1 source (6), 3 experts read 3 (9). Block 1: 6 targets read 6 (36), 3
    read 8 (24). logits reads 11. Together 86.
    """
    graph = build_graph(2, 2, experts=3)
    assert graph.sources[:6] == ("input", "a0.h0", "a0.h1", "m0.e0", "m0.e1", "m0.e2")
    assert graph.targets[6:9] == ("m0.e0", "m0.e1", "m0.e2")
    assert (graph.n_sources, graph.n_targets, graph.n_edges) == (11, 19, 6 + 9 + 36 + 24 + 11)
    assert graph.edge_index("m0.e1->m1.e2") == (4, 17)
    assert graph.feeds[graph.target_index("m1.e2")].nonzero().tolist() == [[graph.source_index("m1.e2")]]
    with pytest.raises(UnknownNameError, match="writes after"):
        graph.edge_index("m0.e1->m0.e2")
    assert build_graph(**graph.describe()) == graph


def test_a_graph_without_experts_is_the_one_it_was() -> None:
    graph = build_graph(12, 12)
    assert graph.describe() == {
        "n_layers": 12,
        "n_heads": 12,
        "n_kv_heads": 12,
        "parallel": False,
        "mlps": True,
    }
    assert graph.fingerprint == "3716ee43bfa718c3"
    assert graph.fingerprint != build_graph(12, 12, experts=1).fingerprint
    with pytest.raises(InputError, match=r"experts=2, mlps=False"):
        build_graph(1, 1, mlps=False, experts=2)


def test_experts_together_write_what_the_mixture_writes(model: Model, task: PairTask) -> None:
    """The sources of a block add up to the native module's output, and to what the matrices give."""
    native: list[Tensor] = []
    handles = [
        block.mlp.register_forward_hook(lambda module, args, output: native.append(output))
        for block in model.blocks
    ]
    with torch.no_grad():
        model.module(task.clean)
        for handle in handles:
            handle.remove()
        with model.tracing() as trace:
            model.forward(task.clean)
        _, outputs = literal.run_plain(model, task.clean)
    for layer, block in enumerate(model.blocks):
        torch.testing.assert_close(block.all_mlps(trace.mlp[layer]), native[layer], **NEAR)
        by_expert = torch.stack([outputs[name] for name in model.graph.mlp_names(layer)], 2).flatten(2)
        torch.testing.assert_close(trace.mlp[layer], by_expert, **NEAR)
        assert int((trace.mlp[layer].unflatten(-1, (COUNT, -1)) != 0).any(-1).sum(-1).max()) == 2


# ---- ablated runs ----------------------------------------------------------------------------------------


def test_the_full_circuit_is_the_model_and_the_empty_one_the_corrupted_input_sent_as_the_clean_one(
    model: Model, task: PairTask
) -> None:
    graph = model.graph
    full = run_circuit(model, task, Circuit(graph=graph, mask=graph.valid))
    torch.testing.assert_close(full, run_model(model, task), rtol=0, atol=0)
    empty = run_circuit(model, task, Circuit.empty(graph))
    logits, _, _ = corrupted_outputs(model, task)
    torch.testing.assert_close(empty, logits[torch.arange(N), task.positions], **NEAR)
    assert float((empty - run_model(model, task, corrupted=True)).abs().max()) > 0.1


@pytest.mark.parametrize("ablation", ["resample", "zero", "mean"])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_a_circuit_is_run_as_literally(model: Model, task: PairTask, ablation: str, share: float) -> None:
    graph = model.graph
    kept = graph.valid & (torch.rand(graph.valid.shape, generator=torch.Generator().manual_seed(7)) < share)
    circuit = Circuit(graph=graph, mask=kept)
    _, clean = literal.run_plain(model, task.clean)
    _, ablated, _ = corrupted_outputs(model, task)
    if ablation == "zero":
        ablated = {name: torch.zeros_like(value) for name, value in clean.items()}
    if ablation == "mean":
        real = (torch.arange(LENGTH) < task.lengths[:, None])[..., None]
        count = int(task.lengths.sum())
        ablated = {
            name: ((value * real).sum((0, 1), keepdim=True) / count).expand_as(value)
            for name, value in clean.items()
        }
    with torch.no_grad():
        expected = literal.run_circuit(model, circuit, task.clean, ablated)
    expected = expected[torch.arange(N), task.positions]
    for size in (1, N):
        found = run_circuit(model, task, circuit, ablation=ablation, batch_size=size)
        torch.testing.assert_close(found, expected, **NEAR)
    runner, [batch] = SoftRunner(model), task.batches(N)
    prepared = ABLATIONS[ablation].prepare(model, task, batch_size=2, seed=0)
    pairs = [runner.prepare_batch(batch, prepared)]
    if ablation == "resample":
        pairs.append(runner.prepare(task.clean, task.corrupted, task.positions))
    for each in pairs:
        with torch.no_grad():
            torch.testing.assert_close(runner.logits(each, kept.double()), expected, **NEAR)


@pytest.mark.parametrize("ablation", ["noise", "noise-additive"])
def test_noise_does_not_depend_on_the_batch(model: Model, task: PairTask, ablation: str) -> None:
    scores = discover(model, task, "eap")
    runs = [
        run_circuit(model, task, scores.top(60), ablation=ablation, batch_size=size) for size in (1, 2, N)
    ]
    for each in runs[1:]:
        torch.testing.assert_close(each, runs[0], **NEAR)
    assert float((runs[0] - run_model(model, task)).abs().max()) > 0.01


def test_files_keep_the_graph(model: Model, task: PairTask, tmp_path: Path) -> None:
    circuit = discover(model, task, "eap").top(40)
    read = load_circuit(circuit.save(tmp_path / "circuit.safetensors"))
    assert (read.hash, read.graph) == (circuit.hash, model.graph)
    with pytest.raises(GraphMismatchError, match="EAP-IG graphs have one MLP per block"):
        write_eap_ig(circuit, tmp_path / "circuit.json")


def test_one_edge_into_one_expert_is_cut_as_literally(model: Model, task: PairTask) -> None:
    """Only that expert reads something else; tokens go where they went."""
    graph = model.graph
    _, ablated, _ = corrupted_outputs(model, task)
    for name in ("input->m0.e1", "a0.h2->m1.e3", "m0.e0->a1.h1.q", "m0.e4->m1.e0", "m1.e2->logits"):
        mask = graph.valid.clone()
        mask[graph.edge_index(name)] = False
        circuit = Circuit(graph=graph, mask=mask)
        with torch.no_grad():
            expected = literal.run_circuit(model, circuit, task.clean, ablated)
        found = run_circuit(model, task, circuit)
        torch.testing.assert_close(found, expected[torch.arange(N), task.positions], **NEAR)


def test_chosen_pairs_are_run_like_a_task_of_them(model: Model) -> None:
    clean, corrupted = torch.randint(2, 61, (2, 3, 4), generator=torch.Generator().manual_seed(8))
    task = PairTask(clean=clean, corrupted=corrupted, answers=clean[:, :1], objective="ce")
    graph = model.graph
    kept = graph.valid & (torch.rand(graph.valid.shape, generator=torch.Generator().manual_seed(9)) < 0.5)
    circuit, pairs = Circuit(graph=graph, mask=kept), torch.tensor([[0, 1], [2, 2], [1, 0]])
    found = run_circuit(model, task, circuit, pairs=pairs)
    torch.testing.assert_close(found, run_circuit(model, task.paired(pairs), circuit), **NEAR)


# ---- attribution -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "ablation"),
    [
        *(
            (method, "resample")
            for method in ("eap", "eap-ig-inputs", "clean-corrupted", "eap-ig-activations")
        ),
        *((method, "mean") for method in ("eap", "eap-ig-inputs", "eap-ig-activations")),
    ],
)
def test_scores_are_those_of_the_slow_twin(model: Model, task: PairTask, method: str, ablation: str) -> None:
    found = discover(model, task, method, steps=2, ablation=ablation, per_example=True, batch_size=2)
    torch.testing.assert_close(found.per_example, slow_scores(model, task, method, ablation), **NEAR)
    torch.testing.assert_close(found.values, found.per_example.mean(0), **NEAR)


def slow_scores(model: Model, task: PairTask, method: str, ablation: str) -> Tensor:
    """Node by node with one copy of the stream per target, by autograd."""
    logits, clean = literal.run_plain(model, task.clean)
    _, ablated, routing = corrupted_outputs(model, task)
    if ablation == "mean":
        real = (torch.arange(LENGTH) < task.lengths[:, None])[..., None]
        count = int(task.lengths.sum())
        ablated = {
            name: ((value * real).sum((0, 1), keepdim=True) / count).expand_as(value)
            for name, value in clean.items()
        }
    [batch] = task.batches(N)
    index = torch.arange(N)
    loss = literal.loss_of(model, "logit_diff", batch, task.positions, logits[index, task.positions])
    differences = {name: ablated[name] - clean[name] for name in clean}

    def at(alpha: float, names: list[str]) -> dict[str, Tensor]:
        moved = {name: ablated[name] + alpha * (clean[name] - ablated[name]) for name in names}
        return literal.edge_gradients(model, task.clean, loss, override=moved, routing=routing)

    def scored(alphas: list[float], names: list[str]) -> Tensor:
        parts = [literal.scores(model, differences, at(a, names), task.lengths) for a in alphas]
        return torch.stack(parts).mean(0)

    alphas = {"eap": [1.0], "clean-corrupted": [0.0, 1.0]}.get(method, [0.25, 0.75])
    if method != "eap-ig-activations":
        return scored(alphas, ["input"])
    graph = model.graph
    total = torch.zeros(N, graph.n_sources, graph.n_targets, dtype=torch.float64)
    groups = [["input"]]
    for layer in range(model.n_layers):
        groups += [[f"a{layer}.h{head}" for head in range(model.n_heads)], graph.mlp_names(layer)]
    for group in groups:
        rows = [graph.source_index(name) for name in group]
        total[:, rows] = scored(alphas, group)[:, rows]
    return total


def test_the_exact_score_of_an_edge_is_a_literal_run(model: Model, task: PairTask) -> None:
    few = task.subset(range(2))
    found = discover(model, few, "exact", per_example=True)
    logits, _ = literal.run_plain(model, few.clean)
    _, ablated, _ = corrupted_outputs(model, few)
    [batch] = few.batches(2)
    index = torch.arange(2)
    loss = literal.loss_of(model, "logit_diff", batch, few.positions, logits[index, few.positions])
    graph = model.graph
    for name in ("input->m0.e1", "a0.h2->m1.e3", "m0.e4->m1.e0", "m1.e2->logits", "input->a0.h0.q"):
        mask = graph.valid.clone()
        mask[graph.edge_index(name)] = False
        with torch.no_grad():
            run = literal.run_circuit(model, Circuit(graph=graph, mask=mask), few.clean, ablated)
        row, column = graph.edge_index(name)
        torch.testing.assert_close(found.per_example[:, row, column], loss(run) - loss(logits), **NEAR)


def test_the_path_integral_is_complete_where_tokens_go_nowhere_else(task: PairTask) -> None:
    """With one node per mixture the choice of experts jumps, and the gap stays."""
    gaps = {}
    for form in ("together", "nodes"):
        found = discover(load_model(build("olmoe"), experts=form), task, steps=128)
        gaps[form] = found.details["completeness_gap"]
    assert gaps["nodes"] < 1e-3 < 0.02 < gaps["together"]


def test_an_edge_into_an_expert_without_tokens_scores_zero(model: Model, task: PairTask) -> None:
    found = discover(model, task, "eap", per_example=True)
    real = torch.arange(LENGTH) < task.lengths[:, None]
    for layer, factors in enumerate(literal.routing_of(model, task.clean)):
        used = ((factors > 0) & real[..., None]).any(1)
        scores = found.per_example[:, 0, model.graph.mlp_targets(layer)]
        assert bool((scores[~used] == 0).all())
        assert bool((scores[used] != 0).any())


# ---- identity and what is refused ------------------------------------------------------------------------


def test_the_form_is_part_of_the_identity(model: Model, task: PairTask) -> None:
    one = model.with_experts("together")
    assert model.describe() == {**one.describe(), "experts": "nodes"}
    assert model.graph.fingerprint != one.graph.fingerprint
    assert (one.graph.experts, model.graph.experts, model.uncut.graph) == (0, COUNT, one.graph)
    found = discover(model, task, "eap")
    assert found.provenance["model"]["experts"] == "nodes"
    routing = found.details["routing"]
    assert routing["changed"] > 0


def test_what_is_not_served_is_refused_by_name(model: Model, task: PairTask) -> None:
    for method in sorted(set(METHODS) - SERVED):
        with pytest.raises(InputError, match=rf"{method} does not serve the experts.*eap-ig-inputs"):
            discover(model, task, method)
    circuit = Circuit(graph=model.graph, mask=model.graph.valid)
    for what, ask in {
        "a table of pairs": lambda: PairRunner(model, circuit),
        "discover_positions": lambda: discover_positions(model, task),
        "output_scores": lambda: output_scores(model, task),
    }.items():
        with pytest.raises(UnsupportedModelError, match=f"{what} does not serve the experts of"):
            ask()


def test_experts_of_a_model_without_them_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"mini has no mixture of experts, so experts='nodes' does not apply"
    ):
        load_model("mini", experts="nodes")
    with pytest.raises(UnknownNameError, match=r"form of experts 'node'"):
        load_model("mini", experts="node")
    with pytest.raises(InputError, match=r"device_map does not apply .* experts are nodes only where"):
        load_model("mini", experts="nodes", device_map="stream")

"""What every served vision transformer must satisfy; `test_vits` and `test_timm_vits` bring the modules.

A subclass gives a fixture `module`: a classifier of `SIZE` classes in float64 and evaluation mode.
"""

from copy import deepcopy

import literal_vits
import pytest
import torch
from literal_vits import LiteralVit, Outputs
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.discovery.edges import discover, output_scores
from assay.discovery.edges.gradients import ActivationDifferences, GradientSums
from assay.execution import run_circuit, run_model
from assay.models import Model, load_model
from assay.tasks import ImageTask


N = 4
ABLATIONS = ("resample", "mean-positional", "zero")


def randomise(module: nn.Module, *, seed: int = 0) -> nn.Module:
    """Numbers far from the usual starts (zero biases, unit gains), so that none can be left out."""
    generator = torch.Generator().manual_seed(seed)
    norms = {id(part.weight) for part in module.modules() if isinstance(part, nn.LayerNorm)}
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if id(parameter) in norms else 0.35 * noise)
    return module.double().eval()


def image_task(model: Model, n: int = N) -> ImageTask:
    """Images with counterparts and labels, as the model takes them."""
    generator = torch.Generator().manual_seed(5)
    both = torch.randn(2, n, 3, *model.image_size, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, model.n_classes, (n,), generator=generator)
    return ImageTask(images=both[0], corrupted=both[1], labels=labels)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


class Literally:
    """A model's literal twin and what both are run on."""

    def __init__(self, module: nn.Module) -> None:
        self.vit: LiteralVit = literal_vits.literal(module)
        self.model = load_model(module)
        self.task = image_task(self.model)
        assert self.task.corrupted is not None
        with torch.no_grad():
            self.embed = self.vit.embed(self.task.images)
            self.other = self.vit.embed(self.task.corrupted)
        self.logits, self.outputs = literal_vits.whole(self.vit, self.embed)

    def ablated(self, ablation: str) -> Outputs:
        """What a cut edge carries."""
        if ablation == "resample":
            return literal_vits.whole(self.vit, self.other)[1]
        if ablation == "mean-positional":
            return literal_vits.means(self.outputs)
        return {name: torch.zeros_like(value) for name, value in self.outputs.items()}


class Conformance:
    """Tests of one module; each compares the engine with a literal run or with the module itself."""

    @pytest.fixture
    def twin(self, module: nn.Module) -> Literally:
        return Literally(module)

    def test_literal_run_is_the_module(self, twin: Literally, module: nn.Module) -> None:
        """The reference of the other tests, checked against the native forward."""
        with torch.no_grad():
            output = module(twin.task.images)
        expected = output if isinstance(output, Tensor) else output.logits
        close(twin.logits, expected)
        assert list(twin.outputs) == list(twin.model.graph.sources)
        assert twin.vit.graph.fingerprint == twin.model.graph.fingerprint
        assert twin.model.n_tokens == twin.embed.shape[1]
        assert twin.model.n_classes == twin.logits.shape[1]

    def test_sources_and_biases_add_up_to_the_stream(self, twin: Literally) -> None:
        model = twin.model
        with torch.no_grad(), model.tracing(streams=True) as trace:
            model.forward(twin.task.images)
        total = trace.input.clone()
        for layer, block in enumerate(model.blocks):
            close(trace.attention_in[layer], total)
            heads = trace.z[layer].unflatten(-1, (model.n_heads, model.d_head))
            for head in range(model.n_heads):
                total = total + heads[:, :, head] @ block.out_weight()[head]
            if block.out_bias() is not None:
                total = total + block.out_bias()
            close(trace.mlp_in[layer], total)
            total = total + trace.mlp[layer]
        assert trace.final_in is not None
        close(trace.final_in, total)

    def test_every_source_writes_what_the_literal_run_has(self, twin: Literally) -> None:
        model = twin.model
        with torch.no_grad(), model.tracing() as trace:
            model.forward(twin.task.images)
        zeros = [torch.zeros_like(value) for value in trace.mlp]
        written = ActivationDifferences(
            model=model,
            input=trace.input,
            z=[z.unflatten(-1, (model.n_heads, model.d_head)) for z in trace.z],
            mlp=trace.mlp or zeros,
        ).expand(slice(0, N))
        for row, source in enumerate(model.graph.sources):
            close(written[row], twin.outputs[source])

    def test_gradient_at_every_target(self, twin: Literally) -> None:
        """In random directions, against autograd through one copy of the stream per target."""
        model, task = twin.model, twin.model.bind(twin.task)
        generator = torch.Generator().manual_seed(2)
        weights = torch.randn(model.n_classes, generator=generator, dtype=torch.float64)

        def loss(logits: Tensor) -> Tensor:
            return (logits.tanh() * weights).sum(-1)

        expected = literal_vits.gradients(twin.vit, twin.embed, loss)
        with model.frozen(), model.tracing(gradients=True) as trace:
            logits = model.read(model.forward(task.images), task.positions)
            torch.autograd.grad(loss(logits).sum(), trace.leaf)
        sums = GradientSums(model)
        sums.add(trace, task.positions, 1.0)
        probe = torch.randn(twin.embed.shape, generator=generator, dtype=torch.float64)
        heads = torch.zeros(*probe.shape[:2], model.n_heads, model.d_head, dtype=torch.float64)
        differences = ActivationDifferences(
            model=model,
            input=probe,
            z=[heads] * model.n_layers,
            mlp=[torch.zeros_like(probe)] * model.n_layers,
        )
        found = sums.contract(differences, task.positions, per_example=True)
        for column, target in enumerate(model.graph.targets):
            close(found[:, 0, column], (probe * expected[target]).sum((1, 2)))

    def test_full_circuit_is_the_model(self, twin: Literally) -> None:
        model = twin.model
        close(run_model(model, twin.task), twin.logits)
        for ablation in ABLATIONS:
            found = run_circuit(Circuit.full(model.graph), model, twin.task, ablation=ablation)
            close(found, twin.logits)

    @pytest.mark.parametrize("ablation", ABLATIONS)
    def test_random_circuits(self, twin: Literally, ablation: str) -> None:
        model, graph = twin.model, twin.model.graph
        ablated = twin.ablated(ablation)
        generator = torch.Generator().manual_seed(7)
        for density in (0.0, 0.15, 0.5, 0.85, 0.97):
            mask = graph.valid & (torch.rand(graph.valid.shape, generator=generator) < density)
            circuit = Circuit(graph=graph, mask=mask)
            kept = {edge for edge in literal_vits.edges(graph) if _holds(circuit, edge)}
            expected = literal_vits.with_edges(twin.vit, twin.embed, kept, ablated)
            close(run_circuit(circuit, model, twin.task, ablation=ablation), expected)
            close(run_circuit(circuit, model, twin.task, ablation=ablation, batch_size=3), expected)

    @pytest.mark.parametrize("ablation", ABLATIONS)
    def test_path_gradients(self, twin: Literally, ablation: str) -> None:
        ablated, loss = twin.ablated(ablation), literal_vits.kl_from(twin.logits)
        expected = literal_vits.path_scores(twin.vit, twin.embed, ablated, loss, [1 / 6, 1 / 2, 5 / 6])
        settings = {"ablation": ablation, "steps": 3}
        found = discover(twin.model, twin.task, "eap-ig-inputs", per_example=True, **settings)
        assert found.per_example is not None
        close(found.per_example, expected)
        close(found.values, expected.mean(0))
        # The fast path is the last column of the same scores.
        last = output_scores(twin.model, twin.task, batch_size=3, **settings)
        assert last.per_example is not None
        close(last.per_example, expected[:, :, -1])
        close(last.values, expected[:, :, -1].mean(0))

    def test_exact_scores(self, twin: Literally) -> None:
        """By the task's own settings, KL under mean-positional ablation."""
        ablated, loss = twin.ablated("mean-positional"), literal_vits.kl_from(twin.logits)
        expected = literal_vits.exact_scores(twin.vit, twin.embed, ablated, loss)
        close(discover(twin.model, twin.task, "exact").values, expected.mean(0))

    def test_head_of_the_features_is_the_logits(self, twin: Literally, module: nn.Module) -> None:
        features = twin.model.features(twin.task.images)
        heads = [
            part
            for name, part in module.named_children()
            if isinstance(part, nn.Linear) and ("classifier" in name or name in ("head", "head_dist"))
        ]
        if len(heads) == 1:
            close(heads[0](features).detach(), twin.logits)
        else:  # each head reads its own token; the features are the mean of the tokens
            hidden = twin.model.forward(twin.task.images)
            close(features, hidden[:, : len(heads)].mean(1))

    def test_lower_precision(self, twin: Literally, module: nn.Module) -> None:
        expected = discover(twin.model, twin.task, "eap-ig-inputs", steps=3).values
        for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.3)):
            low = load_model(deepcopy(module).to(dtype))
            found = discover(low, twin.task, "eap-ig-inputs", steps=3)
            assert found.values.dtype == torch.float32
            difference = (found.values.double() - expected).abs().max()
            assert float(difference) <= tolerance * float(expected.abs().max())


def _holds(circuit: Circuit, edge: tuple[str, str]) -> bool:
    graph = circuit.graph
    return bool(circuit.mask[graph.source_index(edge[0]), graph.target_index(edge[1])])

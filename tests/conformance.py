"""What every served model of text or images must satisfy: its fast paths equal slow, literal ones.

Files with a subclass give a fixture `twin`: `models/test_families` and `timm/test_timm_vits`.
"""

from copy import deepcopy
from dataclasses import replace

import literal
import pytest
import torch
from small_models import examples
from torch import Tensor

from assay.circuits import Circuit
from assay.discovery.edges import discover, output_scores, quadrature_nodes
from assay.execution import ABLATIONS, run_circuit, run_model
from assay.execution.soft import SoftRunner
from assay.models import Model, load_model
from assay.tasks import PairTask


KINDS = ("resample", "mean", "zero")
STEPS = 2


class Twin:
    """A model, its examples, and what its literal run gives on them."""

    def __init__(self, model: Model) -> None:
        self.model, self.task = model, examples(model)
        if isinstance(self.task, PairTask):  # prompts of several lengths
            lengths = torch.tensor([7, 5, 3])
            self.task = replace(self.task, lengths=lengths, positions=lengths - 1)
        with torch.no_grad():
            _, self.clean = literal.run_plain(model, self.task.clean)
            _, self.other = literal.run_plain(model, self.task.corrupted)
            self.native = self.natively(self.task.clean)

    def natively(self, inputs: Tensor) -> Tensor:
        """The logits of the module itself, at the read position."""
        output = self.model.module(inputs)
        return self.read(output if isinstance(output, Tensor) else output.logits)

    def read(self, logits: Tensor) -> Tensor:
        """Of prompts those at the read position."""
        return logits[torch.arange(self.task.n), self.task.positions] if logits.ndim == 3 else logits

    def near(self, found: Tensor, expected: Tensor) -> None:
        # GPT-J and GPT-Neo multiply queries and keys in float32, as norms of others are computed.
        near = 1e-9 if self.model.vision is not None else 1e-5
        torch.testing.assert_close(found, expected, rtol=near, atol=near)

    def key(self, kind: str) -> str:
        """The ablation of a kind; prompts of several lengths have no means of single positions."""
        return "mean-positional" if kind == "mean" and self.model.vision is not None else kind

    def ablated(self, kind: str) -> literal.Outputs:
        """What a cut edge carries."""
        if kind == "resample":
            return self.other
        if kind == "zero":
            return {name: torch.zeros_like(value) for name, value in self.clean.items()}
        over = (0, 1) if self.model.vision is None else (0,)
        real = (torch.arange(self.task.length) < self.task.lengths[:, None])[..., None].double()
        return {
            name: ((value * real).sum(over, keepdim=True) / real.sum(over, keepdim=True)).expand_as(value)
            for name, value in self.clean.items()
        }

    def loss(self, logits: Tensor) -> Tensor:
        """KL from the clean logits, which are constants, in nats."""
        clean = self.native.log_softmax(-1)
        return (clean.exp() * (clean - self.read(logits).log_softmax(-1))).sum(-1)

    def cut(self, mask: Tensor, kind: str) -> Tensor:
        """The logits of a circuit by its definition."""
        circuit, ablated = Circuit(graph=self.model.graph, mask=mask), self.ablated(kind)
        with torch.no_grad():
            return self.read(literal.run_circuit(self.model, circuit, self.task.clean, ablated))


class Conformance:
    """Each test compares the engine with a literal run, or with the module itself."""

    def test_logits_are_those_of_the_native_forward(self, twin: Twin) -> None:
        model, task = twin.model, twin.task
        found, _ = literal.run_plain(model, task.clean)
        twin.near(twin.read(found), twin.native)
        rounding = 1e-5 if model.family.key in ("gptj", "gpt-neo") else 1e-9
        runs = {"model": run_model(model, task)}
        for kind in KINDS:
            runs[kind] = run_circuit(Circuit.full(model.graph), model, task, ablation=twin.key(kind))
        runs["in batches"] = run_model(model, task, batch_size=2)
        expected = dict.fromkeys(runs, twin.native)
        torch.testing.assert_close(runs, expected, rtol=rounding, atol=rounding)
        empty = run_circuit(Circuit.empty(model.graph), model, task, ablation="resample")
        with torch.no_grad():
            torch.testing.assert_close(empty, twin.natively(task.corrupted), rtol=rounding, atol=rounding)
        if model.vision is None:
            return
        features = model.features(task.clean)
        heads = [getattr(model.module, name, None) for name in ("classifier", "head")]
        if not hasattr(model.module, "head_dist") and (head := next(filter(None, heads), None)):
            twin.near(head(features).detach(), twin.native)

    def test_sources_and_biases_add_up_to_the_stream(self, twin: Twin) -> None:
        model = twin.model
        with torch.no_grad(), model.tracing(streams=True) as trace:
            hidden = model.forward(twin.task.clean)
        assert list(twin.clean) == list(model.graph.sources)
        twin.near(trace.input, twin.clean["input"])
        total = trace.input.clone()
        for layer, block in enumerate(model.blocks):
            twin.near(trace.attention_in[layer], total)
            heads = trace.z[layer].unflatten(-1, (model.n_heads, model.d_head))
            written = torch.einsum("bphc,hcd->hbpd", heads, block.out_weight())
            for head, expected in enumerate(written):
                twin.near(twin.clean[f"a{layer}.h{head}"], expected)
            if model.graph.mlps:
                twin.near(twin.clean[f"m{layer}"], trace.mlp[layer])
            attention = written.sum(0)
            if block.out_bias() is not None:
                attention = attention + block.out_bias()
            twin.near(trace.mlp_in[layer], total if model.graph.parallel else total + attention)
            total = total + attention + trace.mlp[layer]
            with torch.no_grad():
                twin.near(model.resume(trace.block_in[layer], trace, layer=layer), hidden)
        twin.near(trace.final_in, total)

    @pytest.mark.parametrize("kind", KINDS)
    def test_ablated_runs_are_literal_ones(self, twin: Twin, kind: str) -> None:
        model, task, graph, ablation = twin.model, twin.task, twin.model.graph, twin.key(kind)
        generator = torch.Generator().manual_seed(7)
        masks = [
            graph.valid & (torch.rand(graph.valid.shape, generator=generator) < density)
            for density in (0.15, 0.6, 0.97)
        ]
        soft, [batch] = SoftRunner(model), task.batches(task.n)
        prepared = ABLATIONS[ablation].prepare(model, task, batch_size=task.n, seed=0)
        one = graph.valid.clone()
        one[0, graph.channel_target(1, "k")] = False
        for mask in (*masks, one):
            circuit, expected = Circuit(graph=graph, mask=mask), twin.cut(mask, kind)
            twin.near(run_circuit(circuit, model, task, ablation=ablation), expected)
            twin.near(run_circuit(circuit, model, task, ablation=ablation, batch_size=2), expected)
            with torch.no_grad():
                twin.near(soft.logits(soft.prepare_batch(batch, prepared), mask.double()), expected)
            if kind == "resample":
                pairs = torch.arange(task.n)[:, None].expand(-1, 2)
                twin.near(run_circuit(circuit, model, task, ablation=ablation, pairs=pairs), expected)

    @pytest.mark.parametrize("kind", KINDS)
    def test_scores_are_path_integrals(self, twin: Twin, kind: str) -> None:
        """Of gradients at each target's own copy of the stream; they depend on no batch size."""
        model, task, ablated = twin.model, twin.task, twin.ablated(kind)
        moved = {name: ablated[name] - value for name, value in twin.clean.items()}
        start, end = ablated["input"].expand_as(twin.clean["input"]), twin.clean["input"]
        expected = torch.zeros(task.n, *model.graph.valid.shape, dtype=torch.float64)
        for node in quadrature_nodes(STEPS):
            embed = start + node.alpha * (end - start)
            gradients = literal.edge_gradients(model, task.clean, twin.loss, embed=embed)
            expected += node.weight * literal.scores(model, moved, gradients, task.lengths)
        settings = {"ablation": twin.key(kind), "steps": STEPS, "objective": "kl"}
        for size in (None, 2):
            found = discover(model, task, "eap-ig-inputs", per_example=True, batch_size=size, **settings)
            assert found.per_example is not None
            twin.near(found.per_example, expected)
            twin.near(found.values, expected.mean(0))
        # The column of the logits by itself.
        last = output_scores(model, task, batch_size=2, **settings)
        assert last.per_example is not None
        twin.near(last.per_example, expected[:, :, -1])

    def test_exact_scores_are_the_rise_of_the_loss(self, twin: Twin) -> None:
        """When one edge is cut; some edges of each kind are tried."""
        model, graph = twin.model, twin.model.graph
        found = discover(model, twin.task, "exact", ablation="resample", objective="kl").values
        edges = graph.valid.nonzero()
        for row, column in edges[:: max(1, len(edges) // 7)].tolist():
            mask = graph.valid.clone()
            mask[row, column] = False
            twin.near(found[row, column], twin.loss(twin.cut(mask, "resample")).mean())

    def test_lower_number_types(self, twin: Twin) -> None:
        """They are loaded, and scores keep their digits."""
        settings = {"objective": "kl", "steps": STEPS}
        expected = discover(twin.model, twin.task, "eap-ig-inputs", **settings).values
        for dtype, tolerance in ((torch.float32, 1e-3), (torch.bfloat16, 0.5), (torch.float16, 0.1)):
            low = load_model(deepcopy(twin.model.module).to(dtype))
            found = discover(low, twin.task, "eap-ig-inputs", **settings).values
            assert found.dtype == torch.float32
            difference = float((found.double() - expected).abs().max())
            assert difference <= tolerance * float(expected.abs().max())

"""Curves as MIB's evaluation draws them: golden values, and a literal version on modules of transformers.

That one knows the graph by EAP-IG's names alone, with keys and values for each query head, and runs each
target from a stream of its own. It shares nothing with the package but the examples.
"""

import itertools
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from array_runs import ArrayRuns
from small_models import build, text_task
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from assay.circuits import Circuit, EdgeScores, NodeScores
from assay.core.errors import InputError
from assay.core.random import torch_stream
from assay.graph import build_graph
from assay.metrics import FaithfulnessCurve, faithfulness_curve
from assay.metrics.curve import FRACTIONS
from assay.models import Model, load_model


# ---- golden values: the metric is a function of the mask, masks and counts are those of EAP-IG's graph class


class SyntheticRuns(ArrayRuns):
    """Margins b_i + sum of w_ie W_e + c tanh(sum of u_e W_e) of three examples, W_e = 1 where e is kept."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        config = GPT2Config(vocab_size=5, n_embd=4, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0)
        model = load_model(GPT2LMHeadModel(config))  # of which the graph alone is used
        super().__init__(answers=[[0]] * 3, wrong=[[1]] * 3, circuit=Circuit.full(model.graph))
        self.model, self.arrays = model, arrays

    def margins(self, which: str) -> np.ndarray:
        return self.margins_of(self.circuit)

    def margins_of(self, circuit: Circuit) -> np.ndarray:
        weight, a = circuit.mask.double().numpy(), self.arrays
        if circuit.cells is not None:
            weight = weight * circuit.cells.numpy().reshape(len(weight), -1).mean(1, keepdims=True)
        return a["b"] + (a["w"] * weight).sum((1, 2)) + a["c"] * math.tanh((a["u"] * weight).sum())


@pytest.fixture(scope="module")
def golden(shared: Callable[[str], Path]) -> tuple[dict[str, Any], SyntheticRuns]:
    with np.load(shared("golden/front/curve.npz")) as file:
        runs = SyntheticRuns(dict(file))
    return json.loads(shared("golden/front/curve.json").read_text()), runs


def check(curve: FaithfulnessCurve, expected: dict[str, Any], **axes: FaithfulnessCurve) -> None:
    near = {"rel": 1e-9, "abs": 1e-12}
    assert curve.values.tolist() == pytest.approx(expected["faithfulness"], **near)
    assert curve.kept_edges.tolist() == expected.get("real_edge_counts", expected["weighted_edge_counts"])
    for name, each in {"": curve, **axes}.items():
        assert (each.cpr, each.cmd) == pytest.approx((expected[f"cpr{name}"], expected[f"cmd{name}"]), **near)


@pytest.mark.parametrize("prune", [True, "early-stop"])
@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("selection", ["top", "greedy"])
def test_golden_curves_of_edges(
    golden: tuple[dict[str, Any], SyntheticRuns], selection: str, absolute: bool, prune: bool | str
) -> None:
    document, runs = golden
    scores = EdgeScores(runs.model.graph, torch.from_numpy(runs.arrays["scores"]))

    def curve(**how: Any) -> FaithfulnessCurve:
        how |= {"selection": selection, "absolute": absolute, "prune": prune}
        return faithfulness_curve(scores, runs.model, runs.task, runs=runs, **how)

    how = f"{selection}, {'absolute' if absolute else 'signed'}, {'fixpoint' if prune is True else prune}"
    expected = document["edge"][how]
    check(curve(), expected, _log=curve(log_scale=True), _weighted_share=curve(axis="kept"))
    assert curve().n_edges.tolist() == expected["n"]


@pytest.mark.parametrize("prune", [True, "early-stop", False])
@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("level", ["node", "neuron"])
def test_golden_curves_of_nodes_and_neurons(
    golden: tuple[dict[str, Any], SyntheticRuns], level: str, absolute: bool, prune: bool | str
) -> None:
    document, runs = golden
    scores = NodeScores(runs.model.graph, torch.from_numpy(runs.arrays[f"{level}_scores"]))

    def curve(**how: Any) -> FaithfulnessCurve:
        how |= {"absolute": absolute, "prune": prune}
        return faithfulness_curve(scores, runs.model, runs.task, runs=runs, **how)

    rule = "early-stop" if prune == "early-stop" else "fixpoint"  # which make no difference
    expected = document[level][f"{'absolute' if absolute else 'signed'}, {rule}"]
    found = curve(random_circuits=1)
    check(found, expected, _log=curve(log_scale=True), _weighted_share=curve(axis="counted"))
    assert found.n_edges.tolist() == expected["n"]
    assert f"the strongest {level}s by" in found.convention
    assert found.random is not None
    assert found.random[0, -1] == pytest.approx(1.0)
    with pytest.raises(InputError, match="greedy selection grows edges"):
        curve(selection="greedy")


def test_golden_curve_of_nine_circuits(golden: tuple[dict[str, Any], SyntheticRuns]) -> None:
    document, runs = golden
    graph = runs.model.graph
    nine = [Circuit(graph=graph, mask=torch.from_numpy(mask)) for mask in runs.arrays["nine_masks"]]
    curve, kept = (
        faithfulness_curve(nine, runs.model, runs.task, runs=runs, axis=axis) for axis in ("asked", "kept")
    )
    check(curve, document["nine_circuits"], _weighted_share=kept)
    assert (curve.scores, curve.fractions.tolist()) == (None, list(FRACTIONS))
    assert curve.convention.startswith("given circuits; pruned")
    with pytest.raises(InputError, match="8 circuits were given for 10 fractions"):
        faithfulness_curve(nine[:8], runs.model, runs.task, runs=runs)
    with pytest.raises(InputError, match="an empty circuit has no place on a logarithmic axis"):
        faithfulness_curve(nine, runs.model, runs.task, runs=runs, axis="kept", log_scale=True)


# ---- a literal version of the evaluation


SHAPES = ("gpt2", "qwen2", "gemma2", "llama")
SHARES = (0.02, 0.1, 0.3, 0.6, 1.0)
Edge = tuple[str, str]


class Evaluation:
    """MIB's evaluation of circuits of edges on one native module."""

    def __init__(self, module: Any, clean: Tensor, corrupted: Tensor, right: Tensor, wrong: Tensor) -> None:
        self.module, config = module, module.config
        self.old = config.model_type == "gpt2"
        self.body = module.transformer if self.old else module.model
        self.layers = list(self.body.h if self.old else self.body.layers)
        self.n_heads = config.num_attention_heads
        self.gemma = config.model_type == "gemma2"
        self.inputs, self.right, self.wrong = {"clean": clean, "corrupted": corrupted}, right, wrong
        self.run = cache(self._run)
        heads = [[f"a{layer}.h{head}" for head in range(self.n_heads)] for layer in range(len(self.layers))]
        self.sources = ["input"] + [
            name for layer, names in enumerate(heads) for name in (*names, f"m{layer}")
        ]
        edges: list[Edge] = []
        for layer in range(len(self.layers)):
            before = self.sources[: 1 + layer * (self.n_heads + 1)]
            edges += [(u, f"{v}<{c}>") for c in "qkv" for v in heads[layer] for u in before]
            edges += [(u, f"m{layer}") for u in [*before, *heads[layer]]]
        self.edges = [*edges, *((u, "logits") for u in self.sources)]

    def _run(self, kept: frozenset[Edge]) -> float:
        """Mean logit difference with these edges kept; `a~` of all sources from the corrupted input."""
        with torch.no_grad():
            cut, bias = self.forward("corrupted", {}, None)
            outputs, _ = self.forward("clean", cut, kept)
            logits = self.logits(self.stream("logits", outputs, cut, kept, bias))
        rows = torch.arange(len(logits))
        return float((logits[rows, self.right] - logits[rows, self.wrong]).mean())

    def stream(
        self, target: str, outputs: dict[str, Tensor], cut: dict[str, Tensor], kept: Any, bias: Tensor
    ) -> Tensor:
        """Sum of what a target reads; of Gemma's heads layer by layer through the norm behind them."""
        read = {u: value if kept is None or (u, target) in kept else cut[u] for u, value in outputs.items()}
        if not self.gemma:
            return sum(read.values(), start=bias)
        total = bias
        for layer, block in enumerate(self.layers):
            heads = [value for u, value in read.items() if u.startswith(f"a{layer}.")]
            total = total + (block.post_attention_layernorm(sum(heads)) if heads else 0.0)
        return total + sum(value for u, value in read.items() if not u.startswith("a"))

    def forward(
        self, side: str, cut: dict[str, Tensor], kept: frozenset[Edge] | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """What every source writes (Gemma's heads: before the norm behind them), and the biases beside."""
        tokens = self.inputs[side]
        places = torch.arange(tokens.shape[1])
        if self.old:
            outputs = {"input": self.body.wte(tokens)}
            bias = self.body.wpe(places).expand(len(tokens), -1, -1)
        else:
            outputs = {"input": self.body.embed_tokens(tokens)}
            bias = torch.zeros_like(outputs["input"])
        for layer, block in enumerate(self.layers):
            attention = block.attn if self.old else block.self_attn
            norm = block.ln_1 if self.old else block.input_layernorm
            written = {}
            for head in range(self.n_heads):
                reads = [norm(self.stream(f"a{layer}.h{head}<{c}>", outputs, cut, kept, bias)) for c in "qkv"]
                written[f"a{layer}.h{head}"] = self.head(attention, layer, head, reads)
            outputs |= written
            if self.old:
                bias = bias + attention.c_proj.bias
            reads = self.stream(f"m{layer}", outputs, cut, kept, bias)
            if self.old:
                outputs[f"m{layer}"] = block.mlp(block.ln_2(reads))
            elif self.gemma:
                mlp = block.mlp(block.pre_feedforward_layernorm(reads))
                outputs[f"m{layer}"] = block.post_feedforward_layernorm(mlp)
            else:
                outputs[f"m{layer}"] = block.mlp(block.post_attention_layernorm(reads))
        return outputs, bias

    def head(self, attention: Any, layer: int, head: int, reads: list[Tensor]) -> Tensor:
        """Output of one query head in the stream, with its own copy of the key and value it shares."""
        if self.old:
            q, k, v = (
                part.split(attention.head_dim, -1)[head]
                for number, read in enumerate(reads)
                for part in [attention.c_attn(read).chunk(3, -1)[number]]
            )
        else:
            shared = head * self.module.config.num_key_value_heads // self.n_heads
            parts = (attention.q_proj, head), (attention.k_proj, shared), (attention.v_proj, shared)
            q, k, v = (
                projection(read).split(attention.head_dim, -1)[number]
                for (projection, number), read in zip(parts, reads, strict=True)
            )
            cos, sin = self.body.rotary_emb(v, torch.arange(v.shape[1])[None])
            q, k = (
                x * cos + torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1) * sin
                for x in (q, k)
            )
        scores = q @ k.mT * (attention.head_dim**-0.5 if self.old else attention.scaling)
        cap = getattr(self.module.config, "attn_logit_softcapping", None)
        scores = scores if cap is None else torch.tanh(scores / cap) * cap
        distance = torch.arange(scores.shape[-1])[:, None] - torch.arange(scores.shape[-1])
        window = getattr(attention, "sliding_window", None)
        seen = (distance >= 0) & (distance < (window or math.inf))
        z = scores.masked_fill(~seen, -math.inf).softmax(-1) @ v
        weight = attention.c_proj.weight if self.old else attention.o_proj.weight.T
        return z @ weight.split(attention.head_dim, 0)[head]

    def logits(self, stream: Tensor) -> Tensor:
        normed = (self.body.ln_f if self.old else self.body.norm)(stream)
        logits = self.module.lm_head(normed[:, -1])
        cap = getattr(self.module.config, "final_logit_softcapping", None)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def pruned(self, kept: set[Edge], rule: bool | str) -> set[Edge]:
        """Nodes without an edge out, or (but for `input`) into any of their inputs, go with their edges."""
        while rule:
            entered = {v.partition("<")[0] for _, v in kept}
            nodes = {u for u, _ in kept if u == "input" or u in entered}
            left = {(u, v) for u, v in kept if u in nodes and v.partition("<")[0] in {*nodes, "logits"}}
            if left == kept or rule == "early-stop":
                return left
            kept = left
        return kept

    def areas(
        self, scores: dict[Edge, float], *, absolute: bool, prune: bool | str, axis: str
    ) -> tuple[list[float], list[int], float, float]:
        """Faithfulness, counts, area under it and area from 1."""
        order = sorted(self.edges, key=lambda edge: -(abs(scores[edge]) if absolute else scores[edge]))
        chosen = [self.pruned(set(order[: int(p * len(order))]), prune) for p in SHARES]
        nothing, everything = self.run(frozenset()), self.run(frozenset(self.edges))
        faithful = [
            (self.run(frozenset(each)) - nothing) / (everything - nothing) for each in chosen
        ]  # ratio of means
        counts = [len(each) for each in chosen]
        at = SHARES if axis == "asked" else [count / len(order) for count in counts]
        under = apart = 0.0
        for (p, q), (f, g) in zip(itertools.pairwise(at), itertools.pairwise(faithful), strict=True):
            under += (q - p) * (f + g) / 2
            apart += (q - p) * (abs(1 - f) + abs(1 - g)) / 2
        return faithful, counts, under, apart


def test_graphs_with_a_key_and_value_for_each_query_head_have_the_published_sizes() -> None:
    shapes = {(12, 12): 32_491, (24, 14): 179_749, (26, 8): 74_218, (32, 32): 1_592_881}
    assert {shape: build_graph(*shape).n_edges for shape in shapes} == shapes


@pytest.fixture(scope="module", params=SHAPES)
def pair(request: pytest.FixtureRequest) -> tuple[Model, Evaluation]:
    module: nn.Module = build(request.param)
    model = load_model(module).ungrouped()
    task = text_task(model)
    wrong = task.wrong
    assert wrong is not None
    answers = (task.answers[:, 0], wrong[:, 0])
    model = model.treating("eap-ig") if request.param == "gemma2" else model
    return model, Evaluation(module, task.clean, task.corrupted, *answers)


@pytest.mark.parametrize("absolute", [True, False])
def test_curves_equal_the_literal_evaluation(pair: tuple[Model, Evaluation], absolute: bool) -> None:
    model, theirs = pair
    names = [(u, v) for u, v in theirs.edges]
    values = torch.randn(len(names), dtype=torch.float64, generator=torch_stream(1, "mib"))
    table = torch.zeros(model.graph.valid.shape, dtype=torch.float64)
    for (u, v), value in zip(names, values.tolist(), strict=True):
        table[model.graph.edge_index(f"{u}->{v}")] = value
    assert len(names) == model.graph.n_edges
    scores, task = EdgeScores(model.graph, table), text_task(model)
    for prune, axis in itertools.product((True, "early-stop", False), ("asked", "kept")):
        how: dict[str, Any] = {"absolute": absolute, "prune": prune, "axis": axis}
        curve = faithfulness_curve(scores, model, task, fractions=SHARES, **how)
        faithful, counts, under, apart = theirs.areas(dict(zip(names, values.tolist(), strict=True)), **how)
        # transformers computes the norms and rotations of all but GPT-2 in float32
        near = {"rel": 1e-9 if theirs.old else 1e-5, "abs": 1e-9 if theirs.old else 1e-5}
        assert curve.kept_edges.tolist() == counts
        assert curve.values.tolist() == pytest.approx(faithful, **near)
        assert (curve.cpr, curve.cmd) == pytest.approx((under, apart), **near)

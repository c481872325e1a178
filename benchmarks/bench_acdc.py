"""Cost of greedy edge removal, as ratios in one run.

Three ways to the same circuit: `acdc`; the algorithm as published, which reruns the whole model for each
edge, every query, key and value of every head on its own copy of the stream; and the runner of compiled
circuits, asked once per edge. On a small random model each is run to its end and the circuits are compared.
On `mini` the slow ways are timed on a random sample of the edges, each under the cuts that the search had
made when it came to that edge, and their time is that of the sample times the edges; their rises and
decisions are compared with those of `acdc`. `--full` runs them to the end there too.
Processor seconds on one thread, since a search is a long chain of small steps. Prints one JSON document;
`--save` writes it to benchmarks/results.

    python benchmarks/bench_acdc.py [--n 8] [--threshold 0.02] [--sample 60] [--full] [--save]
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional

from assay.circuits import Circuit, EdgeScores
from assay.discovery.edges import discover
from assay.execution import ABLATIONS, CircuitRunner, run_model
from assay.graph import Graph
from assay.models import Model, load_model
from assay.objectives import OBJECTIVES
from assay.tasks import PairTask, load_task


Run = Callable[[Tensor], Tensor]  # mask of kept edges -> logits at the read position


class WholeModel:
    """The ablated run of a GPT-2 by its definition: all nodes, one copy of the stream per target.

    As fast as it can be without knowing anything about the mask: one matrix product mixes the sources for
    all targets of a block, and all heads run in one batch.
    """

    def __init__(self, model: Model, task: PairTask) -> None:
        self.model, self.task = model, task
        with torch.no_grad(), model.tracing(until=0) as clean:
            model.forward(task.clean)
        with torch.no_grad(), model.tracing(streams=True) as self.ablated:
            model.forward(task.corrupted)
        self.clean_input = clean.input
        self.rows = torch.arange(task.n)
        length = task.length
        self.causal = torch.ones(length, length, dtype=torch.bool).tril()
        self.weights = [
            (block.qkv_weight().permute(1, 0, 2).contiguous(), block.qkv_bias()[:, None], block.out_weight())
            for block in model.blocks
        ]

    @torch.no_grad()
    def __call__(self, mask: Tensor) -> Tensor:
        model, graph, ablated = self.model, self.model.graph, self.ablated
        kept = mask.float()
        differences = (self.clean_input - ablated.input)[None]
        for layer, block in enumerate(model.blocks):
            first, mlp = graph.channel_target(layer, "q"), graph.mlp_target(layer)
            streams = self.mix(differences, kept[:, first:mlp], ablated.attention_in[layer])
            weight, bias, out = self.weights[layer]
            normed = block.attention_norm.module(streams)
            channels = torch.baddbmm(bias, normed.flatten(1, 2), weight).unflatten(1, streams.shape[1:3])
            queries, keys, values = (part.transpose(0, 1) for part in channels.chunk(3))
            z = functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=self.causal, scale=block.scaling
            )
            other = ablated.z[layer].unflatten(-1, (model.n_heads, model.d_head)).permute(2, 0, 1, 3)
            written = torch.bmm((z.transpose(0, 1) - other).flatten(1, 2), out)
            differences = torch.cat([differences, written.unflatten(1, streams.shape[1:3])])
            stream = self.mix(differences, kept[:, mlp : mlp + 1], ablated.mlp_in[layer])[0]
            differences = torch.cat([differences, (block.run_mlp(stream) - ablated.mlp[layer])[None]])
        final = self.mix(differences, kept[:, -1:], ablated.final_in)[0]
        return model.finish(final[self.rows, self.task.positions])

    @staticmethod
    def mix(differences: Tensor, kept: Tensor, start: Tensor) -> Tensor:
        mixed = kept[: len(differences)].T @ differences.flatten(1)
        return start + mixed.view(-1, *differences.shape[1:])


class Compiled:
    """The runner of compiled circuits on one mask: nodes without a way to the logits are left out."""

    def __init__(self, model: Model, task: PairTask) -> None:
        self.model = model
        self.batch = next(task.batches(task.n))
        self.baseline = (
            ABLATIONS["resample"].prepare(model, task, batch_size=task.n, seed=0).baseline(self.batch)
        )
        with torch.no_grad(), model.tracing() as self.clean:
            model.forward(task.clean)

    def __call__(self, mask: Tensor) -> Tensor:
        runner = CircuitRunner(self.model, Circuit(graph=self.model.graph, mask=mask), resample=True)
        return runner.logits(self.clean, self.baseline, self.batch.positions)


def published(model: Model, task: PairTask, run: Run, threshold: float) -> Tensor:
    """The kept edges, one run per edge."""
    batch = next(task.batches(task.n))
    clean, divergence = run_model(model, task).double(), OBJECTIVES["kl"]
    mask, loss = model.graph.valid.clone(), 0.0
    for edge in order(model.graph):
        mask[edge] = False
        new = float(divergence(run(mask).double(), clean, batch).mean())
        if new - loss < threshold:
            loss = new
        else:
            mask[edge] = True
    return mask


def seconds(function: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """Processor seconds of the fastest repetition, and what it returned."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        result = function()
        times.append(time.process_time() - started)
    return min(times), result


def order(graph: Graph) -> list[tuple[int, int]]:
    """Edges as they are visited."""
    return [
        (source, target)
        for target in reversed(range(graph.n_targets))
        for source in reversed(graph.valid[:, target].nonzero().squeeze(1).tolist())
    ]


def sampled(
    model: Model, task: PairTask, run: Run, scores: EdgeScores, threshold: float, count: int
) -> dict[str, Any]:
    """Seconds per edge of one way on some edges, and how far its rises lie from the scores."""
    graph, batch = model.graph, next(task.batches(task.n))
    clean, divergence = run_model(model, task).double(), OBJECTIVES["kl"]
    kept = scores.threshold(threshold, absolute=False).mask
    visited = order(graph)
    generator = torch.Generator().manual_seed(0)
    chosen = set(torch.randperm(len(visited), generator=generator)[:count].tolist())
    mask, spent, gaps, differ = graph.valid.clone(), 0.0, [], 0

    def loss() -> float:
        return float(divergence(run(mask).double(), clean, batch).mean())

    for place, (source, target) in enumerate(visited):
        before = loss() if place in chosen else 0.0
        mask[source, target] = False
        if place in chosen:
            took, after = seconds(loss)
            spent += took
            gaps.append(abs(after - before - float(scores.values[source, target])))
            differ += (after - before >= threshold) != bool(kept[source, target])
        mask[source, target] = kept[source, target]
    return {
        "seconds per edge": spent / len(chosen),
        "edges sampled": len(chosen),
        "decisions that differ": differ,
        "largest difference of a rise": max(gaps),
    }


def compare(model: Model, task: PairTask, threshold: float, count: int | None) -> dict[str, object]:
    """One search in each way; the slow ones on a sample of `count` edges, or to the end."""

    def forward() -> None:
        with torch.no_grad():
            model.unembed(model.forward(task.clean))

    plain, _ = seconds(forward, 5)
    took, scores = seconds(lambda: discover(model, task, "acdc", threshold=threshold), 3)
    circuit, edges = scores.threshold(threshold, absolute=False), model.graph.n_edges
    others: dict[str, Any] = {}
    for name, way in (("whole model per edge", WholeModel), ("compiled run per edge", Compiled)):
        if count is None:
            spent, mask = seconds(lambda way=way: published(model, task, way(model, task), threshold))
            found = {"edges that differ": int((circuit.mask ^ mask).sum())}
        else:
            found = sampled(model, task, way(model, task), scores, threshold, count)
            spent = found.pop("seconds per edge") * edges
        others[name] = {
            "seconds": round(spent, 2),
            "times acdc": round(spent / took, 1),
            "forward passes": round(spent / plain),
            **found,
        }
    whole, tested = others["whole model per edge"], scores.details["tested"]
    return {
        "threshold": threshold,
        "edges": edges,
        "kept": circuit.n_edges,
        "tested": tested,
        "hypotheses evaluated": scores.details["runs"],
        "seconds of a plain forward pass": round(plain, 5),
        "acdc": {"seconds": round(took, 3), "forward passes": round(took / plain, 1)},
        **others,
        "times acdc, whole model on tested edges only": round(whole["seconds"] / took * tested / edges, 1),
        "goal": 10,
    }


def tiny(n: int) -> tuple[Model, PairTask]:
    """Four blocks of four heads with random weights, and random prompts."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=101,
        n_positions=16,
        n_embd=32,
        n_layer=4,
        n_head=4,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = load_model(transformers.GPT2LMHeadModel(config).eval())
    ids = torch.randint(1, 101, (2, n, 12))
    return model, PairTask(clean=ids[0], corrupted=ids[1], answers=ids[0, :, :1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--threshold", type=float, nargs="+", default=[0.02])
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--full", action="store_true", help="run the slow searches on mini to the end")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    mini = load_model("mini")
    task = load_task("ioi", mini, n=options.n, seed=0)
    count = None if options.full else options.sample
    result = {
        "benchmark": "acdc",
        "machine": {
            "device": "cpu",
            "threads": 1,
            "dtype": "float32",
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "examples": options.n,
        "four blocks of four heads, random": [
            compare(*tiny(options.n), threshold, None) for threshold in options.threshold
        ],
        "mini, IOI": [compare(mini, task, threshold, count) for threshold in options.threshold],
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.save:
        folder = Path(__file__).parent / "results"
        folder.mkdir(exist_ok=True)
        (folder / "acdc_cpu_float32.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""A made-up audit document of realistic size, so that the report is tested without a model."""

import copy
import functools
from typing import Any

import numpy as np

from assay.graph import Graph, build_graph


def synthetic_document(**shape: Any) -> dict[str, Any]:
    """A document like the one `assay.runner.audit` writes; every number is invented. Yours to change."""
    return copy.deepcopy(_made(**shape))


@functools.cache
def _made(
    n_layers: int = 4, n_heads: int = 8, n_kv_heads: int | None = None, size: int = 149, listed: int = 600
) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    graph = build_graph(n_layers, n_heads, n_kv_heads)
    layers = graph.source_layer.numpy()[:, None] / (n_layers + 1)
    strength = rng.lognormal(-6.0, 1.7, size=(graph.n_sources, graph.n_targets)) * (0.4 + layers)
    importance = rng.lognormal(0, 1.1, size=(graph.n_sources, 1))
    strength[0] *= 12
    strength[:, -1] *= 25
    scores = strength * importance * np.where(rng.random(strength.shape) < 0.8, 1, -1) * graph.valid.numpy()
    order = np.argsort(-np.abs(scores).ravel(), kind="stable")[:listed]
    rows, columns = np.unravel_index(order, scores.shape)
    edges = [
        {
            "source": graph.sources[row],
            "target": graph.targets[column],
            "score": float(scores[row, column]),
            "rank": rank + 1,
        }
        for rank, (row, column) in enumerate(zip(rows, columns, strict=True))
        if scores[row, column] != 0
    ]
    kept = _connected(graph, edges[:size])
    for rank, edge in enumerate(edges):
        edge["kept"] = rank in kept

    fractions = np.array([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
    values = 1 / (1 + np.exp(-2.2 * (np.log(fractions) - np.log(0.034))))
    values[-1] = 1.0
    spread = 0.055 * np.sqrt(values * (1 - values)) * 2
    random_values = np.array([0, 0, 0, 0.002, 0.004, 0.01, 0.02, 0.06, 0.3, 1.0])

    per_layer = np.zeros((n_layers + 1, n_layers + 1))
    pairs = graph.source_layer.numpy()[:, None], graph.target_layer.numpy()[None, :] - 1
    np.add.at(per_layer, pairs, np.abs(scores))
    heads = [
        [float(scores[graph.head_source(layer, head)].sum()) for head in range(n_heads)]
        for layer in range(n_layers)
    ]

    return {
        "schema": "assay-audit/1",
        "title": "A circuit for indirect-object identification in mini",
        "created": "2026-11-21T16:10:00+00:00",
        "model": {
            "id": "mini",
            "family": "gpt2",
            "n_layers": n_layers,
            "n_heads": n_heads,
            "n_kv_heads": n_kv_heads or n_heads,
            "d_model": 128,
            "n_parameters": 1_834_240,
            "weight_hash": "9b1f22c4d0a1b2c3",
        },
        "task": {
            "name": "ioi",
            "n": 200,
            "seed": 0,
            "objective": "logit_diff",
            "ablation": "resample",
            "data_hash": "51aa7702f3d4c5b6",
            "accuracy": 0.995,
            "mean_margin": 4.31,
            "examples": [
                {
                    "clean": f"When {a} and {b} went to the {place}, {b} gave a {thing} to",
                    "corrupted": f"When {a} and {b} went to the {place}, {c} gave a {thing} to",
                    "answers": [a],
                    "wrong": [b],
                    "margin": margin,
                }
                for a, b, c, place, thing, margin in [
                    ("Mary", "John", "Peter", "store", "drink", 4.9),
                    ("Alice", "Robert", "Emma", "garden", "letter", 3.7),
                    ("Sarah", "Frank", "John", "station", "key", 4.4),
                ]
            ],
        },
        "discovery": {"n": 200, "seed": 0, "data_hash": "0d0d7702f3d4c5b6", "held_out": True, "n_shared": 0},
        "graph": {
            **graph.describe(),
            "n_edges": graph.n_edges,
            "n_sources": graph.n_sources,
            "n_targets": graph.n_targets,
            "fingerprint": graph.fingerprint,
        },
        "method": {
            "key": "eap-ig-inputs",
            "objective": "logit_diff",
            "ablation": "resample",
            "steps": 5,
            "quadrature": "midpoint",
            "completeness_gap": 0.0123,
            "seconds": 3.4,
            "passes": {"forward": 12, "backward": 5},
        },
        "edges": edges,
        "curve": {
            "fractions": fractions.tolist(),
            "n_edges": np.maximum(1, np.round(fractions * graph.n_edges)).astype(int).tolist(),
            "values": values.tolist(),
            "low": (values - spread).tolist(),
            "high": (values + spread).tolist(),
            "n": 200,
            "random": {
                "fractions": fractions.tolist(),
                "values": random_values.tolist(),
                "low": (random_values - 0.01).tolist(),
                "high": (random_values + 0.04).tolist(),
                "n_circuits": 20,
            },
            "cpr": 0.871,
            "cmd": 0.133,
        },
        "circuit": {
            "id": "c0ffee1234567890",
            "size": size,
            "n_edges": len(kept),
            "fraction": len(kept) / graph.n_edges,
            "n_nodes": len({edges[rank]["source"] for rank in kept}) + 1,
            "target": 0.9,
            "faithfulness": {"value": 0.921, "low": 0.897, "high": 0.944, "level": 0.95},
            "discovery_faithfulness": 0.913,
            "confirmed": True,
        },
        "random": {
            "n_circuits": 20,
            "n_edges": len(kept),
            "values": rng.normal(0.03, 0.012, 20).tolist(),
            "mean": 0.031,
            "low": 0.012,
            "high": 0.052,
        },
        "measurements": [
            _measurement(
                "D02.faithfulness_norm",
                "faithfulness-norm",
                0.921,
                0.897,
                0.944,
                "fraction",
                "target",
                "pass",
                0.8,
            ),
            _measurement(
                "D02.faithfulness", "faithfulness", 0.948, 0.931, 0.966, "fraction", "target", "pass", 0.8
            ),
            _measurement(
                "D02.completeness", "completeness", 1.132, 1.08, 1.19, "fraction", "higher", "pass", 0.8
            ),
            _measurement("D03.kl", "kl", 0.214, 0.18, 0.26, "nats", "lower", "moderate", 0.1),
            _measurement("D04.ce_delta_drop", "ce-delta", 3.71, 3.4, 4.0, "nats", "higher", "pass", 0.5),
            _measurement(
                "D01.output_divergence",
                "output-divergence",
                0.061,
                0.041,
                0.083,
                "nats",
                "lower",
                "inconclusive",
                0.05,
            ),
            _measurement(
                "C4b.minimality", "minimality", 0.034, 0.01, 0.05, "fraction", "report", "none", None
            ),
            {
                "id": "D05.tau_K",
                "name": "tau",
                "value": None,
                "reason": "all_tied",
                "interval": None,
                "n": 0,
                "n_excluded": 200,
                "unit": "correlation",
                "direction": "higher",
                "status": "inconclusive",
                "verdict": {
                    "status": "inconclusive",
                    "published": "inconclusive",
                    "thresholds": {"pass": 0.9, "fail": 0.9},
                },
                "warnings": ["undefined"],
            },
        ],
        "topk": {
            "k": [1, 5, 10],
            "agreement": [0.965, 0.871, 0.802],
            "low": [0.929, 0.851, 0.781],
            "high": [0.986, 0.89, 0.822],
            "random": [0.05, 0.21, 0.3],
            "chance": [0.002, 0.01, 0.02],
            "tau": [None, 0.74, 0.69],
            "label_top1_full": 0.995,
            "label_top1_circuit": 0.96,
            "patterns": ["best_guess_reproduced"],
            "n": 200,
        },
        "per_layer": {
            "rows": ["input", *(f"layer {layer}" for layer in range(n_layers))],
            "columns": [*(f"layer {layer}" for layer in range(n_layers)), "logits"],
            "values": per_layer.tolist(),
        },
        "per_head": heads,
        "provenance": {
            "id": "4f2a9c1be07d5533",
            "library": "assay 0.1.0",
            "record": {"job": "audit", "method": {"key": "eap-ig-inputs", "steps": 5}, "seed": 0},
            "machine": {"device": "cpu", "dtype": "float32", "torch": "2.13.0", "seconds": 41.2},
        },
    }


def _connected(graph: Graph, edges: list[dict[str, Any]]) -> set[int]:
    """Positions of the edges on a path from input to logits, by naive repeated deletion."""
    ends = [
        (
            graph.source_index(e["source"]),
            set(graph.feeds[graph.target_index(e["target"])].nonzero().flatten().tolist()),
        )
        for e in edges
    ]
    kept = set(range(len(edges)))
    while True:
        fed = {row for i in kept for row in ends[i][1]} | {0}
        read = {ends[i][0] for i in kept}
        dead = {
            i
            for i in kept
            if ends[i][0] not in fed or (edges[i]["target"] != "logits" and not ends[i][1] & read)
        }
        if not dead:
            return kept
        kept -= dead


def _measurement(
    code: str,
    name: str,
    value: float,
    low: float,
    high: float,
    unit: str,
    direction: str,
    status: str,
    threshold: float | None,
) -> dict[str, Any]:
    return {
        "id": code,
        "name": name,
        "value": value,
        "interval": {"low": low, "high": high, "level": 0.95, "method": "bootstrap"},
        "n": 200,
        "n_excluded": 0,
        "unit": unit,
        "direction": direction,
        "status": status,
        "verdict": {
            "status": status,
            "published": status,
            "thresholds": {} if threshold is None else {"pass": threshold, "fail": threshold},
        },
        "warnings": [],
    }

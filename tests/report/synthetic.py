"""A made-up audit document of realistic size, so that the report is tested without a model."""

import copy
import functools
import re
from typing import Any

import numpy as np

from assay import stats
from assay.core.record import plain
from assay.graph import Graph, build_graph
from assay.pipeline import Audit


def large_document() -> dict[str, Any]:
    """A document of a circuit whose drawing opens on the edges kept of its strongest 60."""
    document = synthetic_document(n_layers=12, n_heads=12, size=5_000, listed=5_000)
    shown = _connected(build_graph(12, 12), document["edges"][:60])
    for rank in shown:
        document["edges"][rank]["shown"] = True
    found = {"value": 0.2, "low": 0.1, "high": 0.3, "level": 0.95}
    document["excerpt"] = {"size": 60, "n_edges": len(shown), "attribution": 0.25, "faithfulness": found}
    return document


def audit_of(document: dict[str, Any]) -> Audit:
    """The audit that a document is of."""
    return Audit.from_dict(document)


def synthetic_document(**shape: Any) -> dict[str, Any]:
    """A document like the one `assay.pipeline.audit` writes; every number is invented. Yours to change."""
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
            "dtype": "bfloat16",
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
        "discovery": {"n": 200, "seed": 0, "data_hash": "0d0d7702f3d4c5b6", "held_out": True},
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
        "worst_case": None,
        "calibration": None,
        "left_out": [],
        "circuit": {
            "id": "c0ffee1234567890",
            "size": size,
            "n_edges": len(kept),
            "fraction": len(kept) / graph.n_edges,
            "n_nodes": len({edges[rank]["source"] for rank in kept}) + 1,
            "nodes": [*dict.fromkeys(edges[rank]["source"] for rank in sorted(kept)), "logits"],
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
                "hash": "0" * 16,
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
        "hash": "0" * 16,
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


# ------------------------------------------------------------------------------------------- the worst case


def synthetic_worst_case(protocol: str = "all", n: int = 160) -> dict[str, Any]:
    """A document like that of `WorstCase.to_dict`: invented divergences, described by the real statistics."""
    return copy.deepcopy(_made_worst_case(protocol, n))


NAMES = ("Mary", "John", "Peter", "Alice", "Emma", "Frank")
PLACES = ("garden", "hospital", "office", "restaurant", "school", "store", "station", "park")
OBJECTS = ("ring", "kiss", "bone", "basketball", "computer", "necklace", "drink", "snack")


@functools.cache
def _made_worst_case(protocol: str, n: int) -> dict[str, Any]:
    rng = np.random.default_rng(11)
    sides = {
        side: {
            "place": rng.choice(PLACES, n),
            "object": rng.choice(OBJECTS, n),
            "names": np.array([rng.permutation(NAMES)[:3] for _ in range(n)]),
        }
        for side in ("clean", "corrupted")
    }
    bad = 3.0 * np.isin(sides["clean"]["object"], ["ring", "kiss"]) * rng.gamma(3.0, 0.4, n)
    shape = (n, n) if protocol == "all" else (n * 20,)
    if protocol == "all":
        values = rng.gamma(1.0, 0.5, shape) + bad[:, None] + rng.gamma(1.5, 0.3, (1, n))
        anchor = rng.gamma(6.0, 0.9, shape) + bad[:, None]
    else:
        values, anchor = rng.gamma(1.0, 0.7, shape), rng.gamma(6.0, 0.9, shape)
    end = float(max(values.max(), anchor.max()))
    drawn, anchor_drawn = stats.histogram(values, maximum=end), stats.histogram(anchor, maximum=end)
    summary = stats.summarize(values, thresholds=(1.0, 5.0))
    methods = ("ustat", "published") if protocol == "all" else ("order-statistic",)
    certificates = [
        stats.certificate(values, p, method=method).to_dict()
        for p in (0.95, 0.99, 0.999)
        for method in methods
    ]
    compared = stats.compare_with_anchor(values, anchor)
    record: dict[str, Any] = {
        "schema": "assay-worst-case/1",
        "kind": "worst_case",
        "id": "4f2a9c1be07d5533",
        "enumerated": False,
        "reuse_clean": False,
        "protocol": protocol,
        "independent": True,
        "n_clean": n,
        "n_corrupted": n,
        "n_pairs": values.size,
        "n_distinct_clean": n - 3,
        "n_distinct_corrupted": n,
        "population": {"clean": 620_928, "corrupted": None},
        "model": {"id": "mini", "family": "gpt2", "weight_hash": "9b1f22c4d0a1b2c3"},
        "task": {"name": "ioi", "data_hash": "51aa7702f3d4c5b6"},
        "circuit": {"hash": "c0ffee1234567890", "name": "ioi-mini", "n_edges": 149, "n_graph_edges": 1281},
        "ablation": "resample",
        "divergence": "kl",
        "unit": "nats",
        "seed": 0,
        "summary": {
            "absolute": dict(summary.absolute),
            "z": dict(summary.z),
            "argmax_differs": 0.031,
            "above": [{"threshold": at, "share": share} for at, share in summary.exceedance.items()],
            "mean_standard_error": summary.standard_error,
        },
        "anchor": {"absolute": dict(stats.summarize(anchor).absolute), **vars(compared)},
        "histogram": {
            "edges": drawn.edges.tolist(),
            "counts": drawn.counts.tolist(),
            "anchor_counts": anchor_drawn.counts.tolist(),
        },
        "certificates": certificates,
        "maximum_exceedance": stats.maximum_exceedance(n),
        "worst": [],
        "worst_clean": [],
        "worst_corrupted": [],
        "fields": {"tests": [], "heatmaps": []},
        "search": None,
        "outside": None,
        "explanation": None,
        "warnings": [
            {"name": "few_tail_points", "message": "p99.99 of this many pairs rests on less than one value."}
        ],
        "seconds": 12.5,
        "provenance": {"id": "4f2a9c1be07d5533", "library": "assay 0.1.0", "record": {"seed": 0}},
    }
    if protocol != "all":
        return dict(plain(record))
    top = stats.top_indices(values, 14)
    for rank, at in enumerate(top.tolist(), start=1):
        i, j = divmod(at, n)
        clean, corrupted = _tokens(sides["clean"], i), _tokens(sides["corrupted"], j)
        differs = [a != b for a, b in zip(clean, corrupted, strict=True)]
        answer, other = (
            str(name) for name in (sides["clean"]["names"][i][0], sides["corrupted"]["names"][j][0])
        )
        record["worst"].append(
            {
                "rank": rank,
                "clean_index": i,
                "corrupted_index": j,
                "multiplicity": 2 if rank == 2 else 1,
                "divergence": float(values[i, j]),
                "empty": float(anchor[i, j]),
                "clean": {"text": "".join(clean), "tokens": clean, "fields": {}},
                "corrupted": {"text": "".join(corrupted), "tokens": corrupted, "fields": {}},
                "differs": differs,
                "answer": {
                    "text": f" {answer}",
                    "id": 5,
                    "rank": {"model": 1, "circuit": 2, "corrupted": 40},
                    "logit": {"model": 17.2, "circuit": 12.1, "corrupted": 3.3},
                },
                "top": {
                    name: [
                        {
                            "token": token,
                            "id": len(token) * 100 + ord(token[-1]),
                            "logit": 17.2 - 2.1 * place - shift,
                        }
                        for place, token in enumerate(tokens)
                    ]
                    for name, tokens, shift in (
                        ("model", [f" {answer}", " the", " him"], 0.0),
                        ("circuit", [f" {other}", f" {answer}", "\n"], 1.3),
                        ("corrupted", [f" {other}", " the", " her"], 0.4),
                    )
                },
            }
        )
    for side, axis in (("clean", 1), ("corrupted", 0)):
        means, maxima = values.mean(axis=axis), values.max(axis=axis)
        record[f"worst_{side}"] = [
            {
                "index": int(at),
                "text": "".join(_tokens(sides[side], int(at))),
                "mean": float(means[at]),
                "max": float(maxima[at]),
            }
            for at in np.argsort(-means)[:5]
        ]
    record["fields"] = _fields(values, sides)
    return dict(plain(record))


def _tokens(side: dict[str, Any], at: int) -> list[str]:
    first, second, _ = side["names"][at]
    words = (
        f"Then, {first} and {second} went to the {side['place'][at]}. {second} gave a {side['object'][at]} to"
    )
    return re.findall(r" ?\w+|[^\w\s]", words)


def _fields(values: np.ndarray, sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    exceeds = values > np.quantile(values, 0.99)
    labels = {
        ("corrupted." if side == "corrupted" else "") + name: found[name].reshape(
            (-1, 1) if side == "clean" else (1, -1)
        )
        for side, found in sides.items()
        for name in ("place", "object")
    }
    tests = []
    for field, bears in labels.items():
        found, table = stats.cell_tests(exceeds, bears), stats.cell_table(values, bears)
        tests += [
            {
                "field": field,
                "value": value,
                "n_inputs": found.n_inputs[at, 0],
                "n_pairs": found.n[at, 0],
                "mean": table.mean[at, 0],
                "exceed": found.exceed[at, 0],
                "pooled": found.pooled,
                "p_value": found.p_value[at, 0],
                "q_value": found.q_value[at, 0],
                "significant": found.significant()[at, 0],
            }
            for at, value in enumerate(found.rows)
        ]
    tests.sort(key=lambda each: (each["p_value"], -each["exceed"]))
    heatmaps = []
    for first, second in (("place", "object"), ("object", "corrupted.object")):
        found = stats.cell_tests(exceeds, labels[first], labels[second])
        table = stats.cell_table(values, labels[first], labels[second], quantiles=(1.0, 0.999, 0.9999))
        heatmaps.append(
            {
                "rows_field": first,
                "columns_field": second,
                "rows": found.rows,
                "columns": found.columns,
                "n": found.n,
                "n_inputs": found.n_inputs,
                **dict(zip(("max", "p99.9", "p99.99"), table.quantiles, strict=True)),
                "q_value": found.q_value,
                "significant": found.significant(),
            }
        )
    return {"tests": tests, "heatmaps": heatmaps}

"""How much of a table of pairs has to be evaluated to find its worst pairs?

The circuit of a full `assay.audit` on the embedded model; all pairs of distinct clean and corrupted inputs
(500 x 500; docstring 200 x 200, as its pairs cost more); two starts of each search. For each share of the
table evaluated: how many of the 10 and 100 worst pairs were found, and whether the worst was. With --ascent,
what `search_worst` finds in the whole grammar. Adds to TASK.json beside this file (TASK_grammar.json); --plot
draws all tasks. Tables are kept under --cache and made only once; a table of 500 x 500 takes minutes.

    python experiments/worst_pair_search/run.py --task ioi --cache /tmp/tables
    python experiments/worst_pair_search/run.py --task ioi --cache /tmp/tables --ascent
    python experiments/worst_pair_search/run.py --plot
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import assay
from assay.analyses.worst_case import matrix_search, sample_pairs, search_worst
from assay.analyses.worst_case.evaluation import PairEvaluator
from assay.circuits import Circuit
from assay.models import Model


HERE = Path(__file__).parent
SIDE = {"ioi": 500, "greater-than": 500, "docstring": 200}
SHARES = (0.02, 0.05, 0.1)
SEEDS = range(5)  # of the inputs; the search was developed on seed 100
STARTS = range(2)

Strategy = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]


def by_chance(table: np.ndarray, empty: np.ndarray, budget: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(table.size, size=budget, replace=False)


def by_empty(table: np.ndarray, empty: np.ndarray, budget: int, seed: int) -> np.ndarray:
    return np.argsort(-empty.ravel(), kind="stable")[:budget]


def by_search(*, rank: int, prior: bool = False) -> Strategy:
    def evaluated(table: np.ndarray, empty: np.ndarray, budget: int, seed: int) -> np.ndarray:
        found = matrix_search(
            lambda rows, columns: table[rows, columns],
            *table.shape,
            budget,
            rank=rank,
            prior=empty if prior else None,
            seed=seed,
        )
        return np.ravel_multi_index(found.pairs.T, table.shape)

    return evaluated


STRATEGIES: dict[str, Strategy] = {
    "random": by_chance,
    "ranked by the empty circuit": by_empty,
    "effects": by_search(rank=0),
    "effects and factors": by_search(rank=3),
    "effects, factors, empty circuit": by_search(rank=3, prior=True),
}


def circuit_of(model: Model, key: str, cache: Path) -> Circuit:
    path = cache / f"{key}.safetensors"
    if not path.exists():
        assay.audit(model, key, n_random=1, metrics=["kl"], full=True).circuit.save(path)
    return assay.load_circuit(path, model.graph)


def tables(model: Model, circuit: Circuit, key: str, seed: int, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    """Divergences of circuit and empty circuit on all pairs of distinct inputs."""
    path = cache / f"{key}_{seed}.npz"
    if not path.exists():
        n = SIDE[key]
        sample = sample_pairs(assay.load_task(key, model, n=2), "all", 4 * n, 4 * n, seed=seed)
        sides = [side.subset(side.distinct.first_index[:n]) for side in (sample.clean, sample.corrupted)]
        values = PairEvaluator(model, circuit, *sides).table(slice(None), slice(None))
        np.savez(path, K=values.divergence, K0=values.empty)
    with np.load(path) as stored:
        return stored["K"], stored["K0"]


def measure(table: np.ndarray, empty: np.ndarray, strategy: Strategy, budget: int) -> dict[str, Any]:
    """Shares found, one entry per start; a strategy without chance starts once."""
    order = np.argsort(-table.ravel(), kind="stable")
    found: dict[str, list[float]] = {"top10": [], "top100": [], "max": []}
    for start in STARTS if strategy is not by_empty else range(1):
        seen = np.zeros(table.size, dtype=bool)
        seen[strategy(table, empty, budget, start)] = True
        assert seen.sum() <= budget
        found["top10"].append(round(float(seen[order[:10]].mean()), 3))
        found["top100"].append(round(float(seen[order[:100]].mean()), 3))
        found["max"].append(float(seen[order[0]]))
    return found


def compare(
    model: Model, key: str, cache: Path, seeds: list[int], record: dict[str, Any], path: Path
) -> None:
    """Fill in what the record lacks."""
    circuit = circuit_of(model, key, cache)
    record |= {
        "task": key,
        "model": model.describe(),
        "circuit": {"hash": circuit.hash, "n_edges": circuit.n_edges},
    }
    for seed in seeds:
        table, empty = tables(model, circuit, key, seed, cache)
        record.setdefault("tables", {})[str(seed)] = {
            "shape": list(table.shape),
            "mean": float(table.mean()),
            "p99.9": float(np.quantile(table, 0.999)),
            "max": float(table.max()),
        }
        for name, strategy in STRATEGIES.items():
            for share in SHARES:
                cell = record.setdefault("recall", {}).setdefault(name, {}).setdefault(str(share), {})
                if str(seed) not in cell:
                    cell[str(seed)] = measure(table, empty, strategy, int(share * table.size))
                    print(key, seed, name, share, cell[str(seed)], flush=True)
        record["summary"] = summarised(record["recall"])
        path.write_text(json.dumps(record, indent=1) + "\n")


def summarised(recall: dict[str, Any]) -> dict[str, Any]:
    """Mean and least share over draws and starts."""
    return {
        name: {
            share: {
                what: {
                    "mean": round(float(np.mean([np.mean(each[what]) for each in of_seed.values()])), 3),
                    "least": float(min(min(each[what]) for each in of_seed.values())),
                }
                for what in ("top10", "top100", "max")
            }
            for share, of_seed in shares.items()
        }
        for name, shares in recall.items()
    }


def climb(model: Model, key: str, cache: Path, budget: int) -> dict[str, Any]:
    """`search_worst` over the whole grammar, on one seed."""
    found = search_worst(
        circuit_of(model, key, cache), model, key, budget=budget, restarts=8, k=3, seed=0
    ).to_dict()
    kept = (
        "max",
        "n_evaluations",
        "budget",
        "seed",
        "ascents",
        "climbing_evaluations",
        "matrix_shape",
        "seconds",
    )
    pairs = [
        {name: pair[name] for name in ("divergence", "empty")}
        | {side: pair[side]["text"] for side in ("clean", "corrupted")}
        | {"top": {run: pair["top"][run][0]["token"] for run in ("model", "circuit")}}
        for pair in found["pairs"]
    ]
    return {name: found[name] for name in kept} | {"pairs": pairs}


def plot() -> None:
    from matplotlib.figure import Figure

    paths = [HERE / f"{key}.json" for key in SIDE]
    records = [json.loads(path.read_text()) for path in paths if path.exists()]
    figure = Figure(figsize=(3.4 * len(records), 3.2), layout="constrained")
    axes = figure.subplots(1, len(records), sharey=True, squeeze=False)[0]
    marks = dict(
        zip(
            STRATEGIES,
            (("#999999", "x"), ("#cc79a7", "^"), ("#56b4e9", "s"), ("#d55e00", "o"), ("#009e73", "d")),
            strict=True,
        )
    )
    for ax, record in zip(axes, records, strict=True):
        for name, (colour, marker) in marks.items():
            by_share = record["summary"][name]
            shares = [float(share) for share in by_share]
            means = [each["top10"]["mean"] for each in by_share.values()]
            ax.plot([100 * share for share in shares], means, color=colour, marker=marker, label=name)
        first = next(iter(record["tables"].values()))
        ax.set_title(
            f"{record['task']}: {first['shape'][0]} x {first['shape'][1]}, {len(record['tables'])} draws"
        )
        ax.set_xlabel("pairs evaluated (%)")
        ax.set_xscale("log")
        ax.set_xticks([100 * share for share in SHARES], [f"{100 * share:g}" for share in SHARES])
        ax.minorticks_off()
    axes[0].set_ylabel("share of the 10 worst pairs found")
    axes[0].legend(fontsize=7)
    figure.savefig(HERE / "worst_pair_search.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=SIDE)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--cache", type=Path, default=Path("tables"))
    parser.add_argument("--ascent", action="store_true", help="search the whole grammar instead of a table")
    parser.add_argument("--budget", type=int, default=12_500, help="of --ascent")
    parser.add_argument("--plot", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.plot:
        plot()
        return
    options.cache.mkdir(parents=True, exist_ok=True)
    model = assay.load_model("mini")
    for key in [options.task] if options.task else SIDE:
        if options.ascent:
            path = HERE / f"{key}_grammar.json"
            path.write_text(json.dumps(climb(model, key, options.cache, options.budget), indent=1) + "\n")
            continue
        path = HERE / f"{key}.json"
        record = json.loads(path.read_text()) if path.exists() else {}
        compare(model, key, options.cache, options.seeds, record, path)


if __name__ == "__main__":
    main()

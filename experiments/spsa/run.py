"""How near the zeroth-order estimator comes to gradient scores, and what it costs.

Three models: the golden vision transformer of the tests (172 edges, its 12 images, KL), `mini` on ioi (1519
edges, 12 prompts) and a planted induction model (100 edges, 5 true, 12 prompts). For each number of draws K:
Pearson correlation with the scores of `eap-ig-inputs` (5 nodes), Spearman correlation of the magnitudes,
seconds; on the planted model the AUROC of the true edges. Peak memory of both estimators comes from processes
of their own.

Writes results.json beside this file; half an hour on one core.

    python experiments/spsa/run.py [--only vit]
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import roc_auc_score

import assay
from assay.discovery.edges import Choices, discover
from assay.discovery.edges.spsa import spsa_sweep
from assay.execution import get_ablation
from assay.models import Model
from assay.models.planted import planted_model
from assay.objectives import get_objective
from assay.tasks import PairTask, Task


HERE = Path(__file__).parent
DRAWS = (25, 100, 400, 1600)
EPSILON = 1e-3
PLANTED = tuple(
    f"{program}/gpt2/interfering" for program in ("fraction", "greater-than", "two-hop", "reverse")
)
# Pearson and Spearman that were stated with the definition, for a transformer like the first.
STATED = {25: (0.24, 0.00), 100: (0.45, 0.16), 400: (0.77, 0.44), 1600: (0.90, 0.64)}


def golden_vit() -> tuple[Model, Task, str]:
    """The vision transformer of the tests, in float64, with its 12 images."""
    sys.path.insert(0, str(HERE.parents[1] / "tests"))
    import vit_goldens

    return vit_goldens.model("vit_edges_a"), vit_goldens.task("vit_edges_a"), "kl"


def mini_ioi() -> tuple[Model, Task, str]:
    """The embedded model on 12 prompts of indirect object identification."""
    model = assay.load_model("mini")
    return model, assay.load_task("ioi", model, n=12), "logit_diff"


def planted_induction() -> tuple[Model, Task, str]:
    """A planted induction circuit among heads and MLPs that interfere."""
    planted = planted_model("induction/gpt2/interfering")
    drawn = planted.examples(12)
    task = PairTask(
        clean=drawn.clean, corrupted=drawn.corrupted, answers=drawn.answers, wrong=drawn.wrong, name="planted"
    )
    return planted.model, task, "logit_diff"


CASES = {"vit": golden_vit, "mini": mini_ioi, "planted": planted_induction}


def estimate(
    model: Model, task: Task, objective: str, draws: int, seed: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Estimated scores of the edges and what was reported beside."""
    settings = Choices(
        objective=get_objective(objective),
        ablation=get_ablation("resample"),
        steps=5,
        quadrature="midpoint",
        per_example=False,
        seed=seed,
    )
    started = time.perf_counter()
    sweep = spsa_sweep(model, model.bind(task), settings, task.n, draws, EPSILON)
    seconds = time.perf_counter() - started
    values = (sweep.total / task.n)[model.graph.valid].numpy()
    return values, {"seconds": round(seconds, 2), "noise": sweep.details["noise"]}


def compare(name: str, seeds: int) -> Iterator[dict[str, Any]]:
    """One model: agreement at every number of draws, mean over seeds; what is known after each of them."""
    model, task, objective = CASES[name]()
    started = time.perf_counter()
    exact = discover(model, task, objective=objective, ablation="resample", steps=5)
    seconds = time.perf_counter() - started
    valid = model.graph.valid
    gradient = exact.values[valid].double().numpy()
    truth = None
    if name == "planted":
        true = set(planted_model("induction/gpt2/interfering").edges)
        truth = [model.graph.edge_name(*edge) in true for edge in valid.nonzero().tolist()]
    result: dict[str, Any] = {
        "edges": int(valid.sum()),
        "examples": task.n,
        "objective": objective,
        "root_mean_square_score": float(np.sqrt((gradient**2).mean())),
        "largest_score": float(np.abs(gradient).max()),
        "gradient_seconds": round(seconds, 2),
        "draws": {},
    }
    if truth is not None:
        result["gradient_auroc"] = float(roc_auc_score(truth, np.abs(gradient)))
    for draws in DRAWS:
        rows = []
        for seed in range(seeds if draws < 1000 else 1):
            values, told = estimate(model, task, objective, draws, seed)
            error = float(np.sqrt(((values - gradient) ** 2).mean()))
            row = {
                "pearson": float(pearsonr(values, gradient)[0]),
                "spearman": float(spearmanr(np.abs(values), np.abs(gradient))[0]),
                "root_mean_square_error": error,
                **told,
            }
            if truth is not None:
                row["auroc"] = float(roc_auc_score(truth, np.abs(values)))
            rows.append(row)
        result["draws"][str(draws)] = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
        result["draws"][str(draws)]["seeds"] = len(rows)
        print(name, draws, result["draws"][str(draws)], flush=True)
        yield result


def aurocs() -> Iterator[dict[str, Any]]:
    """Area under the curve of planted edges, gradient against estimate, 12 prompts a model."""
    found: dict[str, Any] = {}
    for name in PLANTED:
        planted = planted_model(name)
        drawn = planted.examples(12)
        task = PairTask(
            clean=drawn.clean, corrupted=drawn.corrupted, answers=drawn.answers, wrong=drawn.wrong, name=name
        )
        valid = planted.model.graph.valid
        truth = [planted.model.graph.edge_name(*edge) in planted.edges for edge in valid.nonzero().tolist()]
        gradient = discover(planted.model, task, ablation="resample", steps=5).values[valid].abs()
        found[name] = {
            "gradient": float(roc_auc_score(truth, gradient)),
            "edges": len(truth),
            "true": sum(truth),
        }
        for draws in DRAWS[:3]:
            values, _ = estimate(planted.model, task, "logit_diff", draws, 0)
            found[name][str(draws)] = float(roc_auc_score(truth, np.abs(values)))
        print(name, found[name], flush=True)
        yield found


def peak(estimator: str) -> dict[str, float]:
    """Growth of this process's peak memory in a sweep over mini's prompts, MiB, 12 prompts per pass."""
    model, task, objective = mini_ioi()
    discover(model, task.subset([0]), "random")  # what any run loads
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if estimator == "gradient":
        discover(model, task, objective=objective, ablation="resample", steps=5, batch_size=12)
    else:
        estimate(model, task, objective, 5, 0)
    return {"MiB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=[*CASES, "aurocs", "memory"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peak", choices=["gradient", "spsa"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        print(json.dumps(peak(arguments.peak)))
        return
    path = HERE / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    results["stated"] = {str(draws): values for draws, values in STATED.items()}
    results["epsilon"] = EPSILON
    for name in CASES:
        if arguments.only in (None, name):
            for known in compare(name, arguments.seeds):
                results[name] = known
                path.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.only in (None, "aurocs"):
        for known in aurocs():
            results["aurocs"] = known
            path.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.only in (None, "memory"):
        results["memory"] = {}
        for estimator in ("gradient", "spsa"):
            command = [sys.executable, __file__, "--peak", estimator]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results["memory"][estimator] = json.loads(found.splitlines()[-1])["MiB"]
        path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

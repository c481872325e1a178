"""How well do the gradient methods estimate exact edge ablation on the embedded model?

For each task: Pearson over all edges, Spearman over the union of the 200 strongest edges of either, and
the completeness gap of every quadrature. Writes agreement_n{N}.json beside this file.

    python experiments/mini_agreement/run.py [--n 20] [--task ioi ...]
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr

import assay


TASKS = ("ioi", "greater-than", "docstring")
METHODS = ("eap-ig-inputs", "eap-ig-activations", "clean-corrupted", "eap")
RULES = ("midpoint", "left", "right", "gauss-legendre")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--task", action="append", help="default: all three")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = assay.load_model("mini")
    valid = model.graph.valid
    result: dict[str, object] = {
        "model": model.describe(),
        "n": options.n,
        "seed": 0,
        "steps": 5,
        "tasks": {},
    }
    for key in options.task or TASKS:
        task = assay.load_task(key, model, n=options.n, seed=0)
        exact = assay.discover(model, task, "exact").values[valid].double().numpy()
        found: dict[str, object] = {}
        for method in METHODS:
            estimate = assay.discover(model, task, method).values[valid].double().numpy()
            strongest = np.union1d(np.argsort(-abs(estimate))[:200], np.argsort(-abs(exact))[:200])
            found[method] = {
                "pearson, all edges": round(float(pearsonr(estimate, exact).statistic), 4),
                "spearman, 200 strongest of either": round(
                    float(spearmanr(estimate[strongest], exact[strongest]).statistic), 4
                ),
            }
        gaps = {
            rule: round(assay.discover(model, task, quadrature=rule).details["completeness_gap"], 5)
            for rule in RULES
        }
        result["tasks"][key] = {"agreement with exact": found, "completeness gap at 5 steps": gaps}  # type: ignore[index]
        print(key, json.dumps(result["tasks"][key], indent=1), flush=True)  # type: ignore[index]
    path = Path(__file__).with_name(f"agreement_n{options.n}.json")
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

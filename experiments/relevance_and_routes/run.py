"""How `relp` (both forms) and `ifr` stand beside `eap`: agreement with exact ablation, and cost.

Agreement on the embedded model, as in `experiments/mini_agreement`: Pearson over all edges, Spearman over the
union of the 200 strongest edges of either, Pearson over the edges into one kind of target. `ifr` has no sign
and no objective, so it is compared with the magnitude of the damage. Cost in forward-equivalents: processor
time of `discover` over that of one plain forward pass of the same examples with logits at every position,
smallest of some repetitions, on one thread. Writes result_n{N}.json beside this file.

    python experiments/relevance_and_routes/run.py [--n 50] [--task ioi ...]
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr

import assay
from assay.discovery.edges import EdgeMethod, get_method
from assay.models import Model
from assay.tasks import PairTask


METHODS: dict[str, EdgeMethod] = {
    "eap": get_method("eap"),
    "relp": get_method("relp"),
    "eap-ig-inputs": get_method("eap-ig-inputs"),
    "ifr": get_method("ifr"),
}


def kind_of_target(name: str) -> str:
    """q, k, v, m or logits."""
    return name.rpartition(".")[2] if "." in name else name if name == "logits" else "m"


def agreement(model: Model, task: PairTask) -> dict[str, dict[str, float]]:
    """Each method against exact ablation."""
    valid = model.graph.valid
    kinds = np.array([kind_of_target(model.graph.targets[column]) for _, column in valid.nonzero().tolist()])
    damage = assay.discover(model, task, "exact").values[valid].double().numpy()
    found = {}
    for label, method in METHODS.items():
        exact = abs(damage) if method.key == "ifr" else damage
        estimate = assay.discover(model, task, method).values[valid].double().numpy()
        strongest = np.union1d(np.argsort(-abs(estimate))[:200], np.argsort(-abs(exact))[:200])
        row = {
            "pearson, all edges": pearsonr(estimate, exact).statistic,
            "spearman, 200 strongest of either": spearmanr(estimate[strongest], exact[strongest]).statistic,
        }
        for kind in ("q", "k", "v", "m", "logits"):
            here = kinds == kind
            if estimate[here].any():
                row[f"pearson, edges into {kind}"] = pearsonr(estimate[here], exact[here]).statistic
        found[label] = {name: round(float(value), 4) for name, value in row.items()}
    return found


def seconds(run: Callable[[], object], repetitions: int) -> float:
    """Smallest processor time; other processes on the machine do not count."""
    run()
    taken = []
    for _ in range(repetitions):
        started = time.process_time()
        run()
        taken.append(time.process_time() - started)
    return min(taken)


def costs(model: Model, task: PairTask, repetitions: int) -> dict[str, float]:
    """Forward-equivalents of each method."""

    @torch.no_grad()
    def plain() -> None:
        model.unembed(model.forward(task.clean))

    unit = seconds(plain, repetitions)
    found = {}
    for label, method in METHODS.items():
        spent = seconds(lambda method=method: assay.discover(model, task, method), repetitions)  # type: ignore[misc]
        found[label] = round(spent / unit, 2)
    return found


def small_gpt2() -> tuple[Model, PairTask]:
    """GPT-2 small's shape with random weights, 10 prompts of 16 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = assay.load_model(GPT2LMHeadModel(GPT2Config()).eval())
    ids = torch.randint(0, model.n_vocab, (2, 10, 16))
    answers = torch.randint(0, model.n_vocab, (10, 1))
    return model, assay.PairTask(clean=ids[0], corrupted=ids[1], answers=answers, wrong=(answers + 1) % 50257)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--task", action="append", help="default: ioi")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = assay.load_model("mini")
    result: dict[str, Any] = {"model": model.describe(), "n": options.n, "seed": 0}

    def keep(part: str, name: str, found: dict[str, Any]) -> None:
        result.setdefault(part, {})[name] = found
        print(part, name, json.dumps(found, indent=1), flush=True)
        path = Path(__file__).with_name(f"result_n{options.n}.json")
        path.write_text(json.dumps(result, indent=1) + "\n")

    for key in options.task or ("ioi",):
        task = assay.load_task(key, model, n=options.n, seed=0)
        keep("agreement with exact", key, agreement(model, task))
    few = assay.load_task("ioi", model, n=20, seed=0)
    keep("forward-equivalents", "mini, 20 prompts of ioi", costs(model, few, options.repetitions))
    shape = "shape of GPT-2 small, 10 prompts of 16 tokens"
    keep("forward-equivalents", shape, costs(*small_gpt2(), options.repetitions))


if __name__ == "__main__":
    main()

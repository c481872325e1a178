"""Circuits of two published language models: scores and curves, for docs/published-models.md.

    make real
    python experiments/published_models/run.py .real/smollm2-135m --work WORK &
    python experiments/published_models/run.py .real/gemma3-270m --work WORK
    python experiments/published_models/tables.py WORK

About three hours for each model on one core. Every piece is a file in WORK; a run that was stopped goes on
with the first one that is not there. `tables.py` makes the CSV files and the figure from them.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import assay
from assay.pipeline.prompts import DrawnPrompts, draw_prompts


N = 60  # prompts to find circuits on, and as many others to measure them on
SIZES = {
    "smollm2-135m": (64, 256, 512, 1024, 2048, 4096, 6144, 8192, 12288, 16384, 24576, 32768),
    "gemma3-270m": (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096),
}
EVERY_METHOD = ("ioi", "greater-than", "docstring")
DEFAULT_METHOD = (
    "capital-country",
    "gendered-pronoun",
    "induction",
    "sva",
)
DEFAULT = "eap-ig-inputs"
# Method, objective (None: the task's own), and whether to rank by signed score too.
METHODS: Sequence[tuple[str, str | None, bool]] = (
    (DEFAULT, None, True),
    ("relp", None, True),
    ("eap", None, True),
    ("clean-corrupted", None, True),
    (DEFAULT, "kl", True),
    ("clean-corrupted", "kl", False),
    ("ifr", None, False),
    ("random", None, False),
)
SLOW_METHODS: Sequence[tuple[str, str | None, dict[str, Any]]] = (
    ("eap-ig-activations", None, {"steps": 3}),
    ("ugs", "kl", {"updates": 100, "samples": 2, "examples": 8, "rate": 0.1, "warm_start": DEFAULT}),
)


def stored(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a file holds, which is made first where there is none. Arrays go to .npz, the rest to .json."""
    if path.suffix == ".npz":
        if not path.exists():
            write(path, lambda place: np.savez_compressed(place, **make()))
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    if not path.exists():

        def save(place: Path) -> None:
            place.write_text(json.dumps(make(), indent=1, default=float) + "\n")

        write(path, save)
    return json.loads(path.read_text())


def write(path: Path, save: Callable[[Path], object]) -> None:
    """Write a file whole or not at all, and say how long it took."""
    path.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    scratch = path.with_name(f".{os.getpid()}-{path.name}")
    save(scratch)
    scratch.replace(path)
    print(f"{time.strftime('%H:%M:%S')} {path.name} {time.perf_counter() - began:.0f} s", flush=True)


def label(method: str, objective: str | None, absolute: bool) -> str:
    """Name of a ranking, a part of its file's name."""
    return "+".join([method, objective or "own", "size" if absolute else "signed"])


# ------------------------------------------------------------------------------------------ curves


class Curves:
    """The rankings of one model on one task."""

    def __init__(self, model: assay.Model, name: str, task: str, work: Path) -> None:
        self.model, self.task, self.work = model, task, work
        self.sizes = SIZES[name]
        self.drawn: DrawnPrompts = draw_prompts(model, task, n=N, seed=0)
        self._runs: assay.CircuitRuns | None = None

    def scores(self, method: str, objective: str | None, **options: Any) -> assay.EdgeScores:
        """Scores of the edges, on the prompts to find circuits on."""
        path = self.work / f"scores+{method}+{objective or 'own'}.npz"

        def make() -> dict[str, Any]:
            began = time.perf_counter()
            scores = assay.discover(self.model, self.drawn.discovery, method, objective=objective, **options)
            facts = {"seconds": time.perf_counter() - began, "passes": scores.details.get("passes")}
            return {"values": scores.values.numpy(), "facts": json.dumps(facts, default=str)}

        return assay.EdgeScores(self.model.graph, torch.from_numpy(stored(path, make)["values"]))

    @property
    def runs(self) -> assay.CircuitRuns:
        """Runs on the other prompts; those of the model and of the empty circuit serve every ranking."""
        if self._runs is None:
            empty = assay.Circuit.empty(self.model.graph)
            self._runs = assay.CircuitRuns(self.model, self.drawn.measured, empty)
        return self._runs

    def measured(self, circuit: assay.Circuit) -> dict[str, Any]:
        """Margin, KL and agreement of the first and the first five outputs, for each prompt."""
        runs = self.runs.of(circuit)
        agreement = assay.measure(circuit, self.model, runs.task, "topk", runs=runs, K=[1, 5])
        kl = assay.measure(circuit, self.model, runs.task, "kl", runs=runs)
        return {
            "margin": runs.margins("keep"),
            "kl": kl.per_example,
            "top1": agreement.parts["acc@1"].per_example,
            "top5": agreement.parts["acc@5"].per_example,
            "edges": circuit.n_edges,
        }

    def curve(self, scores: assay.EdgeScores, method: str, objective: str | None, absolute: bool) -> None:
        """Measure the strongest connected edges of each size."""

        def make() -> dict[str, Any]:
            rows = []
            for size in self.sizes:
                # Shares into different targets have no common scale: routes are grown from the logits.
                strongest = scores.greedy(size) if method == "ifr" else scores.top(size, absolute=absolute)
                circuit = strongest.connected(warn=False)  # most of a small signed set is cut off
                rows.append(self.measured(circuit))
            table = {key: np.stack([np.asarray(row[key]) for row in rows]) for key in rows[0]}
            return {"sizes": np.asarray(self.sizes), **table}

        stored(self.work / f"curve+{label(method, objective, absolute)}.npz", make)

    def reference(self) -> None:
        """Margins of the model and of the empty circuit."""

        def make() -> dict[str, Any]:
            empty = self.measured(assay.Circuit.empty(self.model.graph))
            return {"full": self.runs.margins("full"), **{f"empty_{key}": empty[key] for key in empty}}

        stored(self.work / "reference.npz", make)


def curves(model: assay.Model, name: str, work: Path) -> None:
    """All methods on three tasks, the default one (of both objectives) on the others."""
    for task in (*EVERY_METHOD, *DEFAULT_METHOD):
        methods = [each for each in METHODS if task in EVERY_METHOD or each[0] == DEFAULT]
        rankings = Curves(model, name, task, work / task)
        rankings.reference()
        for method, objective, signed in methods:
            scores = rankings.scores(method, objective)
            for absolute in (True, False) if signed else (True,):
                rankings.curve(scores, method, objective, absolute)


def slow(model: assay.Model, name: str, work: Path) -> None:
    """Methods whose cost allows one run: integrated gradients on activations, and a learned mask."""
    rankings = Curves(model, name, "ioi", work / "ioi")
    for method, objective, options in SLOW_METHODS:
        scores = rankings.scores(method, objective, **options)
        rankings.curve(scores, method, objective, absolute=True)


PARTS = {"curves": curves, "slow": slow}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a model, named as in SIZES")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all, in order")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = assay.load_model(options.model)
    for part in options.part or PARTS:
        PARTS[part](model, options.model.name, options.work / options.model.name)


if __name__ == "__main__":
    main()

"""Does looking at the tail find better circuits than one-shot attribution of the same size?

For each task of the embedded model and up to three sizes: the best circuit that EAP-IG gives (two objectives,
on the task's pairs or on independent ones, two selections; the best of the eight by p99.9 on screening
pairs), a mask learned from the same scores with the tail in its loss, and at the middle size also a mask
trained on the mean alone and swaps. All are compared on held-out pairs that nothing before has seen. Writes
TASK.json beside this file as it goes; --cost adds what the repairs cost in plain forward passes, --plot draws
all tasks into the documentation.

    python experiments/tail_repair/run.py --task greater-than
    python experiments/tail_repair/run.py --task greater-than --cost
    python experiments/tail_repair/run.py --plot
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import assay
from assay.analyses.worst_case import repair, sample_pairs
from assay.analyses.worst_case.evaluation import PairEvaluator
from assay.analyses.worst_case.inputs import PairSample
from assay.analyses.worst_case.repair_search import largest_top
from assay.circuits import Circuit
from assay.discovery.edges import MaskSettings
from assay.execution import SoftRunner
from assay.models import Model


HERE = Path(__file__).parent
PICTURE = HERE.parents[1] / "docs" / "images" / "tail-repair.svg"
# Around the sizes at which attribution keeps about 90 % of the behaviour.
SIZES = {"ioi": (60, 100, 204), "greater-than": (26, 52, 100), "docstring": (310, 620, 900)}
MIDDLE = {"ioi": 100, "greater-than": 52, "docstring": 620}
# Steps of a mask and pairs per step.
STEPS = {"ioi": (200, 24), "greater-than": (200, 24), "docstring": (150, 16)}
CIRCUITS = {
    "empty": "empty",
    "eap-ig": "EAP-IG",
    "mask, tail": "mask, mean + tail",
    "mask, mean": "mask, mean only",
    "swap": "swaps",
}
# Inputs of each side, and pairs per input: each clean input meets that many corrupted ones.
HELD_OUT = {"ioi": (4000, 10), "greater-than": (4000, 10), "docstring": (2000, 8)}
SCREENING = {"ioi": (1000, 4), "greater-than": (1000, 4), "docstring": (500, 4)}


@dataclass(frozen=True)
class Pairs:
    """Pairs of independently drawn inputs, every input in equally many of them."""

    sample: PairSample
    meetings: int

    @classmethod
    def draw(cls, task: assay.PairTask, n: int, meetings: int, prefix: str) -> "Pairs":
        return cls(sample_pairs(task, "iid", n, prefix=prefix), meetings)

    def values(self, model: Model, circuit: Circuit) -> tuple[np.ndarray, np.ndarray]:
        """Divergence of the circuit and of the empty one."""
        evaluator = PairEvaluator(model, circuit, self.sample.clean, self.sample.corrupted)
        rows = np.arange(self.sample.n_pairs)
        found = [evaluator.pairs(rows, np.roll(rows, shift)) for shift in range(self.meetings)]
        divergence, empty = (np.concatenate(part) for part in zip(*(each[:2] for each in found), strict=True))
        return divergence, empty


def described(divergences: np.ndarray) -> dict[str, float]:
    """The numbers of the tables."""
    return {
        "mean": float(divergences.mean()),
        "p99": float(np.quantile(divergences, 0.99)),
        "p99.9": float(np.quantile(divergences, 0.999)),
        "max": float(divergences.max()),
    }


def baseline(model: Model, task: assay.PairTask, size: int, screening: Pairs) -> dict[str, Any]:
    """The best of EAP-IG's circuits of a size, by p99.9 on the screening pairs."""
    found: list[dict[str, Any]] = []
    for pairs, prompts in (("own", task), ("independent", independent(task))):
        for objective in ("kl", task.objective):
            scores = assay.discover(model, prompts, "eap-ig-inputs", objective=objective)
            for selection, circuit in (("top", largest_top(scores, size)), ("greedy", scores.greedy(size))):
                divergences = screening.values(model, circuit)[0]
                found.append(
                    {
                        "pairs": pairs,
                        "objective": objective,
                        "selection": selection,
                        "mean": float(divergences.mean()),
                        "p99.9": float(np.quantile(divergences, 0.999)),
                        "circuit": circuit,
                        "scores": scores,
                    }
                )
    for each in found:
        print(task.name, size, {key: value for key, value in each.items() if key != "scores"}, flush=True)
    return min(found, key=lambda each: each["p99.9"])


def independent(task: assay.PairTask) -> assay.PairTask:
    """Pairs as they are judged on: clean and corrupted inputs drawn independently."""
    sample = sample_pairs(task, "iid", 200, prefix="tail-attribution:")
    assert sample.clean.answers is not None
    return assay.PairTask(
        clean=sample.clean.tokens,
        corrupted=sample.corrupted.tokens,
        answers=sample.clean.answers,
        wrong=sample.clean.wrong,
        lengths=sample.clean.lengths,
        positions=sample.clean.positions,
        name=task.name,
        objective=task.objective,
    )


def run_size(
    model: Model, task: assay.PairTask, size: int, screening: Pairs, held_out: Pairs
) -> Iterator[dict[str, Any]]:
    """Baseline and repairs of one size, on the held-out pairs; the record so far after each."""
    started = time.perf_counter()
    best = baseline(model, task, size, screening)
    circuit = best["circuit"]
    divergences, empty = held_out.values(model, circuit)
    record: dict[str, Any] = {
        "n_edges": size,
        "empty": described(empty),
        "eap-ig": {
            "pairs": best["pairs"],
            "objective": best["objective"],
            "selection": best["selection"],
            "n_edges": circuit.n_edges,
            "n_connected": circuit.connected().n_edges,
            **described(divergences),
        },
    }
    yield record
    steps, batch = STEPS[task.name]
    runs: dict[str, dict[str, Any]] = {"mask, tail": {"method": "mask", "tail": 0.5}}
    if size == MIDDLE[task.name]:
        runs["mask, mean"] = {"method": "mask", "tail": 0.0}
        runs["swap"] = {"method": "swap", "rounds": 5}
    for name, options in runs.items():
        mask: dict[str, Any] = {"settings": MaskSettings(steps=steps), "batch_size": batch}
        found = repair(
            best["scores"],
            model,
            task,
            n_edges=size,
            n_discovery=2000,
            n_validation=2000,
            n_certificate=100,
            **(options if name == "swap" else {**options, **mask}),
        )
        after = described(held_out.values(model, found.circuit)[0])
        record[name] = {
            "n_edges": found.circuit.n_edges,
            "shared with eap-ig": found.circuit.jaccard(circuit),
            "origin": next(each.origin for each in found.candidates if each.circuit == found.circuit),
            **after,
            "change": {
                key: after[key] / record["eap-ig"][key] - 1 for key in ("mean", "p99", "p99.9", "max")
            },
            "cost": dict(found.cost),
        }
        print(task.name, size, name, json.dumps(record[name]), flush=True)
        record["seconds"] = time.perf_counter() - started
        yield record


def run(key: str) -> None:
    """All sizes of a task; the file is written after each."""
    model = assay.load_model("mini")
    task = assay.load_task(key, model, n=100, seed=0)
    screening = Pairs.draw(task, *SCREENING[key], "tail-screening:")
    held_out = Pairs.draw(task, *HELD_OUT[key], "tail-held-out:")
    result: dict[str, Any] = {
        "model": model.describe(),
        "task": task.describe(),
        "screening": {"meetings": screening.meetings, **screening.sample.describe()},
        "held_out": {"meetings": held_out.meetings, **held_out.sample.describe()},
        "machine": {"cpu": platform.machine(), "threads": torch.get_num_threads()},
        "sizes": {},
    }
    for size in sorted(SIZES[key], key=lambda size: size != MIDDLE[key]):
        for record in run_size(model, task, size, screening, held_out):
            result["sizes"][str(size)] = record
            (HERE / f"{key}.json").write_text(json.dumps(result, indent=1, default=float) + "\n")


def unit_costs(model: Model, key: str) -> dict[str, float]:
    """CPU seconds of one plain pass, and the other kinds of passes as multiples of it; best of several."""
    task = assay.load_task(key, model, n=32, seed=1)
    runner = SoftRunner(model)
    pairs = runner.prepare(task.clean, task.corrupted, task.positions)
    mask = torch.rand(task.n, *model.graph.valid.shape).requires_grad_()
    sample = Pairs.draw(task, 512, 1, "tail-cost:")
    circuit = assay.discover(model, task).top(MIDDLE[key])

    def seconds(act: Callable[[], object], n: int) -> float:
        times = []
        for _ in range(8):
            started = time.process_time()
            act()
            times.append((time.process_time() - started) / n)
        return min(times)

    plain = seconds(lambda: assay.run_model(model, task), task.n)
    return {
        "plain seconds": plain,
        "soft": seconds(lambda: runner.logits(pairs, mask).logsumexp(1).sum().backward(), task.n) / plain,
        "circuit": seconds(lambda: sample.values(model, circuit), 512) / plain,
    }


def add_costs(key: str) -> None:
    """What each repair spent, in plain forward passes over one prompt."""
    path = HERE / f"{key}.json"
    result = json.loads(path.read_text())
    units = unit_costs(assay.load_model("mini"), key)
    result["unit costs"] = units
    for size in result["sizes"].values():
        for record in size.values():
            if isinstance(record, dict) and "cost" in record:
                cost = record["cost"]
                record["cost in forward passes"] = round(
                    cost["model"] + cost["soft_backward"] * units["soft"] + cost["circuit"] * units["circuit"]
                )
    path.write_text(json.dumps(result, indent=1) + "\n")


def plot_data() -> dict[str, dict[str, dict[str, float]]]:
    """Task and size -> circuit -> mean, percentiles and maximum, at the middle sizes."""
    found = {}
    for key, size in MIDDLE.items():
        path = HERE / f"{key}.json"
        record = json.loads(path.read_text())["sizes"].get(str(size), {}) if path.exists() else {}
        rows = {name: record[name] for name in CIRCUITS if name in record}
        if rows:
            found[f"{key}, {size} edges"] = rows
    return found


def plot() -> None:
    """Mean, percentiles and maximum of every circuit, one panel per task."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    marks = {
        "mean": ("o", "#0072B2"),
        "p99": ("^", "#009E73"),
        "p99.9": ("s", "#D55E00"),
        "max": ("x", "#555555"),
    }
    data = plot_data()
    figure = Figure(figsize=(10, 2.9), layout="constrained")
    for place, (title, rows) in enumerate(data.items(), start=1):
        panel = figure.add_subplot(1, len(data), place)
        for height, record in enumerate(rows.values()):
            for statistic, (marker, colour) in marks.items():
                panel.plot(record[statistic], -height, marker, color=colour, label=statistic, markersize=6)
        panel.set(
            title=title, xscale="log", xlabel="KL, nats", yticks=[-height for height in range(len(rows))]
        )
        panel.set_yticklabels([CIRCUITS[name] for name in rows])
        panel.set_ylim(0.5 - len(rows), 0.5)
        panel.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles[: len(marks)], labels[: len(marks)], loc="outside lower center", ncols=4, frameon=False
    )
    # Text stays text: a tenth of the size, and readable without the picture.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tail_repair"}):
        figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", action="append", choices=SIZES, help="may be given more than once")
    parser.add_argument("--cost", action="store_true", help="add costs to the tasks named")
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for key in options.task or ():
        if not options.cost:
            run(key)
        else:
            add_costs(key)
    if options.plot:
        plot()


if __name__ == "__main__":
    main()

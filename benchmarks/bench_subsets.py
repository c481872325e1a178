"""Subset selection: swap beside the published optimiser, its time against size, memory, a killed verdict.

Parts, one or more with `--part`; without it the first two, about a minute:

    planted     swap and adam (5 and 20 trials), 288 training models x 8,000 examples of the golden matrix
    cost        swap against models x examples; slope in logarithms
    scores      swap on 600 x 12,000 and 1200 x 40,000, as bits and as scores in [0, 1]    (a minute)
    synthetic   swap and adam (5 and 20 trials), 1000 x 20,000, a fifth planted     (minutes)
    large       1800 x 71,433, one size, in a process of its own                    (minutes)
    largest     4200 x 146,722, two sizes, in a process of its own                  (minutes)
    verdict     1800 x 71,433, eight sizes, two workers, whole and killed           (about half an hour)

Every part but `verdict` runs on one core. Prints one JSON document; `--save` merges the parts into that of
benchmarks/results; a CPU without fast products of bytes (VNNI) has one of its own, `cpu_float32`. Exit code
1, and nothing saved, if the killed verdict has other bytes than the whole one.

    python benchmarks/bench_subsets.py [--part NAME ...] [--save]
"""

import os


os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy and torch are imported

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from assay.analyses.subsets.adam import adam
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import line_correlation
from assay.analyses.subsets.matrix import Answers, bytes_are_fast
from assay.analyses.subsets.path import selection_path
from assay.analyses.subsets.swap import Solution, swap
from assay.core.random import stream


sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from planted_subsets import planted_columns, planted_matrix, planted_models


ROOT = Path(__file__).resolve().parent.parent
RESIDUAL = 1.0  # latent factors as strong as screening by covariance cannot see through
QUICK = ("planted", "cost")
SHAPES = {"large": (1800, 71_433), "largest": (4200, 146_722), "verdict": (1800, 71_433)}
SIZES = {
    "large": (10_000,),
    "largest": (10_000, 60_000),
    "verdict": (100, 500, 1000, 2500, 5000, 10_000, 20_000, 40_000),
}
COST_SHAPES = (
    (200, 2000),
    (400, 4000),
    (800, 8000),
    (1200, 12_000),
    (1600, 24_000),
    (2000, 40_000),
    (2400, 72_000),
)
KILLS = 3
Parts = tuple[np.ndarray, np.ndarray, np.ndarray]


def split(n_models: int) -> Parts:
    """Training, validation and test models, 60 : 20 : 20."""
    order = stream(0, "bench-subsets.split").permutation(n_models)
    train, validation = n_models * 6 // 10, n_models * 8 // 10
    return order[:train], order[train:validation], order[validation:]


def timed(call: Callable[[], Solution]) -> tuple[Solution, float]:
    """The result and its processor time, which other processes of the machine disturb least."""
    started = time.process_time()
    found = call()
    return found, time.process_time() - started


def solvers(correct: np.ndarray, y: np.ndarray, parts: Parts) -> dict[str, Callable[[int], Solution]]:
    """Swap, and adam with 5 and 20 trials."""
    train, validation, _ = parts
    sides = Answers.of(correct, train), Answers.of(correct, validation)

    def published(trials: int, size: int) -> Solution:
        return adam(sides[0], size, y[train], y[validation], validation=sides[1], trials=trials)

    return {
        "swap": lambda size: swap(sides[0], [(size, y[train], y[validation])], validation=sides[1])[0],
        "adam, 5 trials": partial(published, 5),
        "adam, 20 trials": partial(published, 20),
    }


def against_adam(
    correct: np.ndarray, y: np.ndarray, parts: Parts, sizes: tuple[int, ...], planted: np.ndarray
) -> dict[str, Any]:
    """By size: processor seconds and held-out R of swap, of 5 and of 20 trials of the published optimiser."""
    calls, test, table = solvers(correct, y, parts), parts[2], {}
    calls["swap"](sizes[0])  # what is made once
    for size in sizes:
        rows: dict[str, Any] = {}
        for name, call in calls.items():
            found, seconds = timed(partial(call, size))
            r = line_correlation(y[test], correct[test][:, found.indices].mean(axis=1))
            precision = float(np.isin(found.indices, planted).mean())
            rows[name] = {
                "seconds": round(seconds, 3),
                "test R": round(r, 4),
                "precision": round(precision, 3),
            }
            if name != "swap":
                rows[name]["times swap"] = round(seconds / rows["swap"]["seconds"], 1)
                rows[name]["swap lower by"] = round(r - rows["swap"]["test R"], 3)
        table[str(size)] = rows
        print(f"size {size}: {json.dumps(rows)}", file=sys.stderr)
    return {"goal": {"times swap, 20 trials": 25}} | table


def planted_part() -> dict[str, Any]:
    folder = ROOT / "tests" / "golden" / "oodselect"
    golden = json.loads((folder / "planted_301.json").read_text())["splits"]["split42"]
    data, planted = np.load(folder / "planted_301.npz"), np.load(folder / "planted_301_index.npy")
    train, validation, test = (np.array(golden[name]) for name in ("train", "val", "test"))
    sizes = tuple(int(size) for size in golden["sizes"])
    return against_adam(data["X"], data["y"], (train, validation, test), sizes, planted)


def synthetic_part() -> dict[str, Any]:
    made = planted_matrix(1000, 20_000, residual=RESIDUAL)
    return against_adam(made.correct, made.id_accuracy, split(1000), (200, 1000, 4000, 8000), made.planted)


def cost_part() -> dict[str, Any]:
    """Swap with a tenth of the examples selected: all of it and one iteration, against training entries."""
    rows = []
    for n_models, n_examples in COST_SHAPES:
        made, parts = planted_matrix(n_models, n_examples, residual=RESIDUAL), split(n_models)
        found, seconds = timed(
            partial(solvers(made.correct, made.id_accuracy, parts)["swap"], n_examples // 10)
        )
        iterations = sum(stage["iterations"] for stage in found.trace)
        rows.append(
            {
                "models": n_models,
                "examples": n_examples,
                "entries": len(parts[0]) * n_examples,
                "iterations": iterations,
                "seconds": round(seconds, 3),
                "ms per iteration": round(1000 * seconds / iterations, 3),
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr)
    logs = {key: np.log([row[key] for row in rows]) for key in ("entries", "seconds", "ms per iteration")}
    slopes = {
        f"slope of {key}": round(float(np.polyfit(logs["entries"], logs[key], 1)[0]), 3)
        for key in ("seconds", "ms per iteration")
    }
    return {"points": rows} | slopes


def scores_part() -> dict[str, Any]:
    """Swap on answers as bits, on the same answers as scores, and on scores between 0 and 1."""
    table: dict[str, Any] = {"goal": {"times the bits": 6}}
    for n_models, n_examples in ((600, 12_000), (1200, 40_000)):
        made, parts = planted_matrix(n_models, n_examples, residual=RESIDUAL), split(n_models)
        noise = stream(0, "bench-subsets.scores").random(made.correct.shape)
        matrices = {
            "bits": made.correct,
            "the same as scores": made.correct.astype(np.float32),
            "scores": (0.7 * made.correct + 0.3 * noise).astype(np.float32),
        }
        rows: dict[str, Any] = {}
        sets = {}
        for name, matrix in matrices.items():
            run = partial(solvers(matrix, made.id_accuracy, parts)["swap"], n_examples // 10)
            run()  # what is made once
            sets[name], seconds = timed(run)
            iterations = sum(stage["iterations"] for stage in sets[name].trace)
            rows[name] = {"seconds": round(seconds, 3), "iterations": iterations}
            each = rows[name]["ms per iteration"] = round(1000 * seconds / iterations, 3)
            rows[name]["times the bits, per iteration"] = round(each / rows["bits"]["ms per iteration"], 2)
        same = np.array_equal(sets["bits"].indices, sets["the same as scores"].indices)
        table[f"{n_models} x {n_examples}"] = rows | {"same sets": same}
    return table


# ------------------------------------------------------------------------------ in processes of their own


def large_part(name: str, goal: dict[str, float]) -> dict[str, Any]:
    """What a process takes that reads a large matrix and solves its sizes, or judges them."""
    n_models, n_examples = SHAPES[name]
    models = planted_models(n_models, n_families=40)
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        correct = np.concatenate(list(planted_columns(models, n_examples, residual=RESIDUAL)), axis=1)
        np.savez(folder / "data.npz", X=correct, y=models.id_accuracy, family=models.families)
        del correct
        measured = answer(child(name, folder, "whole"))
        if name == "verdict":
            measured = {"whole": measured} | killed(folder)
            measured["same bytes"] = measured["last"]["verdicts"] == measured["whole"]["verdicts"]
    return {"models": n_models, "examples": n_examples, "goal": goal} | measured


def child(name: str, folder: Path, keep: str) -> subprocess.Popen[bytes]:
    """This file in a process of its own, one thread in each product."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    arguments = [sys.executable, __file__, "--child", name, str(folder), str(folder / keep)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment)


def answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What such a process prints in the end."""
    text, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    document: dict[str, Any] = json.loads(text)
    return document


def killed(folder: Path) -> dict[str, Any]:
    """The same verdict, killed as soon as another wave of reruns is kept."""
    kept, kills = folder / "killed", 0
    for wave in range(1, KILLS + 1):
        process = child("verdict", folder, "killed")
        while process.poll() is None and not (kept.exists() and kept.read_bytes().count(b"\n") > wave):
            time.sleep(0.05)
        process.kill()
        kills += process.wait() < 0
    return {"kills": kills, "last": answer(child("verdict", folder, "killed"))}


def measured_here(name: str, folder: Path, keep: Path) -> dict[str, Any]:
    """In a process of its own: reads the matrix, solves each size or judges all of them."""
    data = CorrectnessData.load(folder / "data.npz")
    wall, spent = time.perf_counter(), time.process_time()
    rows: dict[str, Any] = {}
    if name == "verdict":
        path = selection_path(data, sizes=[size for size in SIZES[name] if size <= data.n_examples])
        rows["verdicts"] = [each.to_dict() for each in path.judge(workers=2, keep=keep)]
    else:
        parts = split(data.n_models)
        swap_one = solvers(data.correct, data.id_accuracy, parts)["swap"]
        for size in SIZES[name]:
            found, seconds = timed(partial(swap_one, size))
            r = line_correlation(data.id_accuracy[parts[2]], data.accuracy(found.indices)[parts[2]])
            rows[str(size)] = {"seconds": round(seconds, 2), "test R": round(r, 4)}
    # Of this process alone: what `resource` says begins with the memory of the one that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = round(int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6, 1)
    seconds = {"seconds wall": time.perf_counter() - wall, "core seconds": time.process_time() - spent}
    return {name: round(each, 1) for name, each in seconds.items()} | {"peak MB": peak} | rows


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "planted": planted_part,
    "cost": cost_part,
    "scores": scores_part,
    "synthetic": synthetic_part,
    "large": lambda: large_part("large", {"seconds": 15, "peak MB": 1000}),
    "largest": lambda: large_part("largest", {"seconds": 90, "peak MB": 2500}),
    "verdict": lambda: large_part("verdict", {"seconds wall": 1500, "peak MB": 2000}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=tuple(PARTS), default=list(QUICK))
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, folder, keep = options.child
        print(json.dumps(measured_here(name, Path(folder), Path(keep))))
        return
    parts = {name: PARTS[name]() for name in options.part}
    kind = "cpu" if bytes_are_fast() else "cpu_float32"
    document: dict[str, Any] = {
        "benchmark": "subsets",
        "machine": {
            "device": "cpu",
            "threads": 1,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "python": platform.python_version(),
        },
        "parts": parts,
    }
    path = Path(__file__).parent / "results" / f"subsets_{kind}.json"
    if options.save and path.exists():
        merged = json.loads(path.read_text(encoding="utf-8"))["parts"] | parts
        document["parts"] = {name: merged[name] for name in PARTS if name in merged}
    print(json.dumps(document, indent=1))
    if not parts.get("verdict", {}).get("same bytes", True):
        sys.exit("the killed verdict has other bytes than the whole one")
    if options.save:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Subset selection: swap beside the published optimiser, its time against size, the memory of large problems.

Parts, one or more with `--part`; without it the first three, about a minute:

    planted     swap and adam (5 and 20 trials), 288 training models x 8,000 examples of the golden matrix
    kernels     one pass over the matrix and one count, by layout, in dense passes of the same process
    cost        swap against models x examples; slope in logarithms
    scores      swap on 600 x 12,000 and 1200 x 40,000, as bits and as scores in [0, 1]    (a minute)
    synthetic   swap and adam (5 and 20 trials), 1000 x 20,000, a fifth planted     (minutes)
    large       1800 x 71,433, one size, in a process of its own                    (minutes)
    largest     4200 x 146,722, two sizes, in a process of its own                  (minutes)
    sweep       4200 x 146,722, 25 sizes, each solved for itself                    (a quarter of an hour)
    fold        4200 x 146,722, 25 sizes, reruns of a fold one by one and in a wave (ten minutes)
    resumed     300 x 4000, the verdict on three sizes, killed ten times, and the bytes compared    (a minute)
    verdict     1800 x 71,433, the same on eight sizes, two workers                 (about half an hour)
    accelerator 1000 x 20,000: solver, reruns of a fold and adam on a device, and packed    (a minute)

The last three take `--models`, `--examples` and `--judged` (sizes) for another problem of the same kind,
which is not saved. Exit code 1, and nothing saved, if a verdict was killed less often or then has other
bytes. `accelerator` is skipped where PyTorch finds none and `--device` names none.

`fold` takes `--device` too. Every part but `resumed` and `verdict` runs on one core. The large matrices are
generated packed, a chunk of examples at a time, into a file; the process that is measured reads only that.
Prints one JSON document; `--save` merges the parts into that of benchmarks/results, by kind of device: a
CPU without fast products of bytes (VNNI) is one of its own, `cpu_float32`.

    python benchmarks/bench_subsets.py [--part NAME ...] [--save]
"""

import os


os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy and torch are imported

import argparse
import hashlib
import json
import platform
import resource
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

from assay.analyses.subsets.layouts import AnswerTable, DenseMatrix, PackedMatrix
from assay.analyses.subsets.line import line_correlation
from assay.analyses.subsets.objective import Found
from assay.analyses.subsets.placement import as_matrix, device_of, int8_is_fast
from assay.analyses.subsets.swap import swap
from assay.core.random import stream


sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from planted_subsets import CHUNK, planted_columns, planted_examples, planted_matrix, planted_models


ROOT = Path(__file__).resolve().parent.parent
RESIDUAL = 1.0  # latent factors as strong as screening by covariance cannot see through
QUICK = ("planted", "kernels", "cost")
SHAPES = {
    "large": (1800, 71_433),
    "largest": (4200, 146_722),
    "resumed": (300, 4000),
    "verdict": (1800, 71_433),
    "accelerator": (1000, 20_000),
}
JUDGED = {
    "resumed": (20, 100, 400),
    "verdict": (100, 500, 1000, 2500, 5000, 10_000, 20_000, 40_000),
    "accelerator": (200, 1000, 4000),
}
KILLS = 10
LARGE_SIZES = {"large": (10_000,), "largest": (10_000, 60_000)}
SWEEP = (  # 25 sizes of the default grid
    *(10, 50, 100, 250, 500, 1000, 2500, 5000, 7500, 10_000, 15_000, 20_000, 25_000, 30_000, 35_000, 40_000),
    *(50_000, 60_000, 70_000, 80_000, 90_000, 100_000, 120_000, 140_000, 146_722),
)
COST_SHAPES = (
    (200, 2000),
    (400, 4000),
    (800, 8000),
    (1200, 12_000),
    (1600, 24_000),
    (2000, 40_000),
    (2400, 72_000),
)


def best(call: Callable[[], object], repeats: int = 5) -> float:
    """Shortest of several runs, seconds."""
    call()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def split(n_models: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training, validation and test models, 60 : 20 : 20."""
    order = stream(0, "bench-subsets.split").permutation(n_models)
    train, validation = n_models * 6 // 10, n_models * 8 // 10
    return order[:train], order[train:validation], order[validation:]


def timed(call: Callable[[], Found]) -> tuple[Found, float]:
    """The result and its processor time, which other processes of the machine disturb least."""
    started = time.process_time()
    found = call()
    return found, time.process_time() - started


def against_adam(
    correct: np.ndarray,
    id_accuracy: np.ndarray,
    parts: tuple[np.ndarray, np.ndarray, np.ndarray],
    sizes: tuple[int, ...],
    planted: np.ndarray,
) -> dict[str, Any]:
    """By size: processor seconds and held-out R of swap, of 5 and of 20 trials of the published optimiser."""
    from assay.analyses.subsets.adam import adam

    train, validation, test = parts
    sides = as_matrix(correct, train), as_matrix(correct, validation)
    held_out: dict[str, Any] = {"validation": sides[1], "id_validation": id_accuracy[validation]}

    def row(found: Found, seconds: float) -> dict[str, Any]:
        r = line_correlation(id_accuracy[test], correct[test][:, found.indices].mean(axis=1))
        precision = float(np.isin(found.indices, planted).mean())
        return {"seconds": round(seconds, 3), "test R": round(r, 4), "precision": round(precision, 3)}

    found: dict[str, Any] = {}
    swap(sides[0], id_accuracy[train], sizes[0], **held_out)  # the packing along examples is made once
    for size in sizes:
        solvers: dict[str, Callable[[], Found]] = {
            "swap": partial(swap, sides[0], id_accuracy[train], size, **held_out)
        }
        for trials in (5, 20):
            solvers[f"adam, {trials} trials"] = partial(
                adam, sides[0], id_accuracy[train], size, trials=trials, seed=0, **held_out
            )
        rows = {name: row(*timed(call)) for name, call in solvers.items()}
        ours = rows["swap"]
        for name, limit in (("adam, 5 trials", 15), ("adam, 20 trials", 50)):
            rows[name] |= {
                "times swap": round(rows[name]["seconds"] / ours["seconds"], 1),
                "goal": limit,
                "swap lower by": round(rows[name]["test R"] - ours["test R"], 4),
            }
        found[str(size)] = rows
        print(f"size {size}: {json.dumps(rows)}", file=sys.stderr)
    return found


def planted_part() -> dict[str, Any]:
    folder = ROOT / "tests" / "golden" / "oodselect"
    golden = json.loads((folder / "planted_301.json").read_text())["splits"]["split42"]
    data = np.load(folder / "planted_301.npz")
    train, validation, test = (np.array(golden[name]) for name in ("train", "val", "test"))
    planted = np.load(folder / "planted_301_index.npy")
    sizes = tuple(int(size) for size in golden["sizes"])
    return against_adam(data["X"], data["y"], (train, validation, test), sizes, planted)


def synthetic_part() -> dict[str, Any]:
    planted = planted_matrix(1000, 20_000, residual=RESIDUAL)
    return against_adam(
        planted.correct, planted.id_accuracy, split(1000), (200, 1000, 4000, 8000), planted.planted
    )


def kernels_part() -> dict[str, Any]:
    generator = stream(0, "bench-subsets.kernels")
    found: dict[str, Any] = {}
    for n_models, n_examples in ((288, 8000), (600, 20_000), (1080, 71_433)):
        bits = generator.integers(0, 256, (n_models // 8, n_examples), dtype=np.uint8)
        matrices: dict[str, AnswerTable] = {"packed": PackedMatrix(bits, n_models)}
        matrices["dense"] = DenseMatrix(matrices["packed"].dense())
        weights = np.rint(1000 * generator.standard_normal(n_models))
        examples = np.sort(generator.choice(n_examples, n_examples // 4, replace=False))
        unit = best(partial(matrices["dense"].weigh, weights), 15)
        rows: dict[str, Any] = {"dense pass, ms": round(1000 * unit, 3)}
        for name, matrix in matrices.items():
            passes = best(partial(matrix.weigh, weights), 15) / unit
            counts = best(partial(matrix.count, examples), 15) / unit
            rows[name] = {
                "pass": round(passes, 2),
                "count of a quarter": round(counts, 2),
                "megabytes": round(matrix.nbytes / 1e6, 1),
            }
        found[f"{n_models} x {n_examples}"] = rows
    return found


def cost_part() -> dict[str, Any]:
    """Swap with a tenth of the examples selected: all of it and one iteration, against training entries."""
    rows = []
    for n_models, n_examples in COST_SHAPES:
        planted = planted_matrix(n_models, n_examples, residual=RESIDUAL)
        train, validation, _ = split(n_models)
        sides = as_matrix(planted.correct, train), as_matrix(planted.correct, validation)
        y = planted.id_accuracy
        found, seconds = timed(
            partial(
                swap,
                sides[0],
                y[train],
                n_examples // 10,
                validation=sides[1],
                id_validation=y[validation],
            )
        )
        iterations = sum(stage["iterations"] for stage in found.trace)
        rows.append(
            {
                "models": n_models,
                "examples": n_examples,
                "layout": sides[0].name,
                "entries": len(train) * n_examples,
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
    found: dict[str, Any] = {"goal": {"times the bits": 6}}
    for n_models, n_examples in ((600, 12_000), (1200, 40_000)):
        planted = planted_matrix(n_models, n_examples, residual=RESIDUAL)
        train, validation, _ = split(n_models)
        y, noise = planted.id_accuracy, stream(0, "bench-subsets.scores").random(planted.correct.shape)
        tables: dict[str, tuple[np.ndarray, str]] = {
            "bits": (planted.correct, "packed"),
            "the same as scores": (planted.correct.astype(np.float32), "auto"),
            "scores": ((0.7 * planted.correct + 0.3 * noise).astype(np.float32), "auto"),
        }
        rows: dict[str, Any] = {}
        sets = {}
        for name, (table, layout) in tables.items():
            sides = [as_matrix(table, part, layout=layout) for part in (train, validation)]
            held_out: dict[str, Any] = {"validation": sides[1], "id_validation": y[validation]}
            run = partial(swap, sides[0], y[train], n_examples // 10, **held_out)
            run()  # what is made once
            sets[name], seconds = timed(run)
            iterations = sum(stage["iterations"] for stage in sets[name].trace)
            each = seconds / iterations
            rows[name] = {"seconds": round(seconds, 3), "iterations": iterations}
            if name == "bits":
                unit = each
            else:
                rows[name]["times the bits, per iteration"] = round(each / unit, 2)
        same = np.array_equal(sets["bits"].indices, sets["the same as scores"].indices)
        found[f"{n_models} x {n_examples}"] = rows | {"same sets": same}
    return found


def write_large(name: str, folder: Path) -> None:
    """The packed matrix of a large problem, made a chunk of examples at a time."""
    n_models, n_examples = SHAPES[name]
    models = planted_models(n_models, n_families=40)
    bits = np.empty((-(-n_models // 8), n_examples), dtype=np.uint8)
    for at, chunk in enumerate(planted_columns(models, n_examples, residual=RESIDUAL)):
        bits[:, at * CHUNK : at * CHUNK + chunk.shape[1]] = PackedMatrix.pack(chunk).bits
    np.save(folder / "bits.npy", bits)
    np.save(folder / "id_accuracy.npy", models.id_accuracy)
    np.save(folder / "families.npy", models.families)


def solve_large(folder: Path, sizes: tuple[int, ...]) -> dict[str, Any]:
    """In a process of its own: reads the packed matrix, solves every size, says what it took."""
    id_accuracy = np.load(folder / "id_accuracy.npy")
    correct = PackedMatrix(np.load(folder / "bits.npy"), len(id_accuracy))
    planted = planted_examples(correct.n_examples, 0.2, 0)
    started = time.process_time()
    train, validation, test = split(len(id_accuracy))
    sides = [as_matrix(correct, part, layout="packed") for part in (train, validation, test)]
    held_out: dict[str, Any] = {"validation": sides[1], "id_validation": id_accuracy[validation]}
    rows: dict[str, Any] = {"seconds to split": round(time.process_time() - started, 2)}
    for size in sizes:
        found, seconds = timed(partial(swap, sides[0], id_accuracy[train], size, **held_out))
        accuracy = sides[2].count(found.indices) / size
        rows[str(size)] = {
            "seconds": round(seconds, 2),
            "iterations": sum(stage["iterations"] for stage in found.trace),
            "test R": round(line_correlation(id_accuracy[test], accuracy), 4),
            "precision": round(float(np.isin(found.indices, planted).mean()), 3),
        }
        print(size, json.dumps(rows[str(size)]), file=sys.stderr)
    return rows | {"peak MB": peak_megabytes()}


def peak_megabytes() -> float:
    """Of this process; the system says kilobytes on Linux, bytes on macOS."""
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)


def judge_large(folder: Path, sizes: tuple[int, ...], store: Path) -> dict[str, Any]:
    """In a process of its own: the job of `assay select` on the packed matrix, with two workers."""
    from assay.analyses.subsets.data import CorrectnessData
    from assay.pipeline.subsets import select_stored
    from assay.store import Store

    solves = counted_solves()
    id_accuracy = np.load(folder / "id_accuracy.npy")
    correct = PackedMatrix(np.load(folder / "bits.npy"), len(id_accuracy))
    data = CorrectnessData.of(correct, id_accuracy, families=np.load(folder / "families.npy"))
    started, spent = time.perf_counter(), time.process_time()
    found = select_stored(data, sizes, workers=2, store=Store(store))
    wall, seconds = time.perf_counter() - started, time.process_time() - spent
    verdicts = {
        str(row["size"]): {key: row["verdict"][key] for key in ("status", "r", "p_value", "n_permutations")}
        for row in found.document["rows"]
    }
    text = json.dumps([found.document, [*found.selections.values()]])
    return {
        "seconds wall": round(wall, 1),
        "core seconds": round(seconds, 1),
        "peak MB": peak_megabytes(),
        "solves": len(solves),
        "reruns": found.document["verdict"]["n_permutations"],
        "document": hashlib.sha256(text.encode()).hexdigest()[:16],
        "sizes": verdicts,
    }


def counted_solves() -> list[int]:
    """Filled with the size of each run of the solver from now on."""
    from assay.analyses.subsets import problem

    solve, sizes = problem.swap_together, []

    def counted(train: AnswerTable, tasks: Any, **options: Any) -> list[Found]:
        sizes.extend(task.size for task in tasks)
        return solve(train, tasks, **options)

    problem.swap_together = counted
    return sizes


def child(*given: str) -> subprocess.Popen[bytes]:
    """This file in a process of its own, one thread in each product."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, __file__, *given], stdout=subprocess.PIPE, env=environment)


def answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What such a process prints in the end."""
    text, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    found: dict[str, Any] = json.loads(text)
    return found


def judged(name: str, folder: str, store: str) -> list[str]:
    """Arguments of a verdict in a process of its own."""
    return ["--judge", folder, "--store", f"{folder}/{store}", "--sizes", *map(str, JUDGED[name])]


def resumed_part(name: str) -> dict[str, Any]:
    """The same verdict whole, and killed ten times, spread over its parts."""
    from assay.store import Store

    with tempfile.TemporaryDirectory() as folder:
        write_large(name, Path(folder))
        store, most = Store(Path(folder) / "whole"), 0
        process = child(*judged(name, folder, "whole"))
        while process.poll() is None:
            most = max(most, store.count("subset-part"))
            time.sleep(0.05)
        whole = answer(process)
        store, kills, started = Store(Path(folder) / "killed"), 0, time.perf_counter()
        for _ in range(KILLS):
            process = child(*judged(name, folder, "killed"))
            enough = store.count("subset-part") + max(1, most // (KILLS + 1))
            while process.poll() is None and store.count("subset-part") < enough:
                time.sleep(0.01)
            process.kill()
            kills += process.wait() < 0
        resumed = answer(child(*judged(name, folder, "killed")))
        left = store.count("subset-part")
    return {
        **dict(zip(("models", "examples"), SHAPES[name], strict=True)),
        "goal": {"seconds wall": 1500, "peak MB": 2000},
        "kills": kills,
        "same bytes": resumed["document"] == whole["document"],
        "parts": most,
        "parts left": left,
        "seconds with kills": round(time.perf_counter() - started, 1),
        "whole": whole,
        "last": {key: resumed[key] for key in ("seconds wall", "core seconds", "peak MB", "solves")},
    }


def large_part(name: str, sizes: tuple[int, ...], goal: dict[str, float]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write_large(name, Path(folder))
        found = answer(child("--solve", folder, "--sizes", *map(str, sizes)))
    n_models, n_examples = SHAPES[name]
    return {"models": n_models, "examples": n_examples, "goal": goal} | found


def sweep_part() -> dict[str, Any]:
    found = large_part("largest", SWEEP, {"seconds in all": 1200, "peak MB": 2000})
    total = sum(row["seconds"] for key, row in found.items() if key.isdigit())
    return {"seconds in all": round(total, 1)} | found


def fold_part(device: str | None = None) -> dict[str, Any]:
    """Core seconds of a rerun of one fold, alone and as one of a wave, packed or on a device."""
    from assay.analyses.subsets.crossfit import FoldRuns, plan_folds
    from assay.analyses.subsets.data import CorrectnessData
    from assay.analyses.subsets.permutation import Exchange
    from assay.analyses.subsets.problem import make_problem

    with tempfile.TemporaryDirectory() as folder:
        write_large("largest", Path(folder))
        bits, y, families = (np.load(f"{folder}/{each}.npy") for each in ("bits", "id_accuracy", "families"))
    data = CorrectnessData.of(PackedMatrix(bits, len(y)), y, families=families)
    splits = plan_folds(data).splits
    assert splits is not None
    place: dict[str, Any] = {"layout": "accelerator", "device": device} if device else {"layout": "packed"}
    folds = FoldRuns(data, splits, SWEEP, make_problem(data, **place).settings)
    drawn = [Exchange.of(data).draw(y, 0, each) for each in range(folds.wave)]
    started = time.process_time()
    alone = folds.select(0, drawn[:1])
    middle = time.process_time()
    together = folds.select(0, drawn)
    each = (time.process_time() - middle) / folds.wave
    same = all(np.array_equal(*pair) for pair in zip(alone[0], together[0], strict=True))
    return {
        **dict(zip(("models", "examples"), SHAPES["largest"], strict=True)),
        **({"device": hardware(device)} if device else {}),
        "alone, s": round(middle - started, 1),
        f"one of {folds.wave}, s": round(each, 1),
        "same sets": same,
        "peak MB": peak_megabytes(),
    }


def hardware(device: str) -> str:
    """What a device is called."""
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def accelerator_part(device: str | None = None) -> dict[str, Any]:
    """Wall seconds of the solver, of the reruns of a fold and of adam's restarts, on a device and packed."""
    import torch

    from assay.analyses.subsets.crossfit import FoldRuns, plan_folds
    from assay.analyses.subsets.data import CorrectnessData
    from assay.analyses.subsets.permutation import Exchange
    from assay.analyses.subsets.problem import make_problem

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None and found is None:
        return {"skipped": "PyTorch finds no accelerator here; --device names one"}
    place = device or str(found)
    sizes, (n_models, n_examples) = JUDGED["accelerator"], SHAPES["accelerator"]
    planted = planted_matrix(n_models, n_examples, residual=RESIDUAL)
    data = CorrectnessData.of(planted.correct, planted.id_accuracy, families=planted.families)
    exchange, splits = Exchange.of(data), plan_folds(data).splits
    assert splits is not None
    layouts: dict[str, dict[str, Any]] = {
        "packed": {"layout": "packed"},
        "accelerator": {"layout": "accelerator", "device": place},
    }

    def calls(given: dict[str, Any]) -> dict[str, Callable[[], list[list[int]]]]:
        problem = make_problem(data, **given)
        restarts = make_problem(data, solver="adam", trials=20, epochs=200, **given)
        folds = FoldRuns(data, splits, sizes, problem.settings)
        drawn = [exchange.draw(data.id_accuracy, 0, each) for each in range(folds.wave)]

        def reruns() -> list[list[int]]:
            return [each.tolist() for selected in folds.select(0, drawn) for each in selected]

        return {
            "swap, one size": lambda: [problem.solve(sizes[1]).indices.tolist()],
            f"swap, a fold of {folds.wave} reruns": reruns,
            "adam, 20 trials of 200 epochs": lambda: [restarts.solve(sizes[1]).indices.tolist()],
        }

    rows: dict[str, Any] = {name: {} for name in calls(layouts["packed"])}
    sets: dict[str, list[list[list[int]]]] = {name: [] for name in rows}
    for layout, given in layouts.items():
        for name, call in calls(given).items():
            call()  # matrices are made once
            started = time.perf_counter()
            sets[name].append(call())
            rows[name][f"{layout}, s"] = round(time.perf_counter() - started, 3)
    for name, (one, other) in sets.items():
        rows[name]["times faster"] = round(rows[name]["packed, s"] / rows[name]["accelerator, s"], 2)
        rows[name]["same sets"] = one == other
    return {"models": n_models, "examples": n_examples, "device": hardware(place)} | rows


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "planted": planted_part,
    "kernels": kernels_part,
    "cost": cost_part,
    "scores": scores_part,
    "synthetic": synthetic_part,
    "large": lambda: large_part("large", LARGE_SIZES["large"], {"seconds": 15, "peak MB": 1000}),
    "largest": lambda: large_part("largest", LARGE_SIZES["largest"], {"seconds": 90, "peak MB": 2000}),
    "sweep": sweep_part,
    "fold": fold_part,
    "resumed": lambda: resumed_part("resumed"),
    "verdict": lambda: resumed_part("verdict"),
    "accelerator": accelerator_part,
}


def failures(parts: dict[str, dict[str, Any]]) -> list[str]:
    """What did not hold that must."""
    found = []
    for name in {*parts} & {"resumed", "verdict"}:
        kills = parts[name]["kills"]
        if kills < KILLS:
            found.append(f"{name}: killed {kills} times, expected {KILLS}; take a larger problem")
        if not parts[name]["same bytes"]:
            found.append(f"{name}: the document after kills has other bytes than the whole one")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=tuple(PARTS), default=list(QUICK))
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--solve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--models", type=int, help="models of the parts `verdict`, `resumed`, `accelerator`")
    parser.add_argument("--examples", type=int, help="examples of these parts")
    parser.add_argument("--judged", type=int, nargs="+", help="subset sizes of these parts")
    parser.add_argument(
        "--device", help="device of the part `accelerator` (default: what PyTorch finds) or `fold` (the CPU)"
    )
    options = parser.parse_args()
    other = options.models or options.examples or options.judged
    if other and (options.save or not {*options.part} <= {*JUDGED}):
        parser.error(
            "--models, --examples and --judged are for the parts resumed, verdict and accelerator, without "
            "--save: what is saved is of the standard problems"
        )
    alone = options.part == ["accelerator"] or (options.part == ["fold"] and bool(options.device))
    if not alone and (options.device or (options.save and "accelerator" in options.part)):
        parser.error(
            "--device (of the parts accelerator and fold), and --save with the part accelerator, need that "
            "part alone: its results are saved by kind of device"
        )
    for name in JUDGED:
        n_models, n_examples = SHAPES[name]
        SHAPES[name] = options.models or n_models, options.examples or n_examples
        JUDGED[name] = tuple(options.judged or JUDGED[name])
    if options.solve:
        print(json.dumps(solve_large(options.solve, tuple(options.sizes))))
        return
    if options.judge:
        print(json.dumps(judge_large(options.judge, tuple(options.sizes), options.store)))
        return
    on_device = {"accelerator": accelerator_part, "fold": fold_part}
    parts = {name: on_device[name](options.device) for name in options.part if alone}
    parts |= {name: PARTS[name]() for name in options.part if name not in parts}
    for name in [name for name, part in parts.items() if "skipped" in part]:
        print(f"{name}: skipped; {parts.pop(name)['skipped']}", file=sys.stderr)
    kind = device_of(options.device).type if alone else "cpu" if int8_is_fast() else "cpu_float32"
    document: dict[str, Any] = {
        "benchmark": "subsets",
        "machine": {
            "device": kind.partition("_")[0],
            "threads": 1,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "python": platform.python_version(),
        },
        "parts": parts,
    }
    path = Path(__file__).parent / "results" / f"subsets_{kind}.json"
    failed = failures(document["parts"])
    if options.save and not failed and path.exists():
        saved = json.loads(path.read_text(encoding="utf-8"))["parts"]
        merged = saved | document["parts"]
        document["parts"] = {name: merged[name] for name in PARTS if name in merged}
    text = json.dumps(document, indent=1)
    print(text)
    if failed:
        sys.exit("\n".join(failed))
    if options.save:
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

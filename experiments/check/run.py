"""How often `assay check` is wrong, and what it finds.

    python run.py limits            simulated lines exactly at their thresholds, 400 files a cell; resumes
    python run.py observe CACHE     per-prompt numbers of `mini` and its copies, kept in CACHE; resumes
    python run.py pairs CACHE       checks drawn from them
    python run.py whole CACHE       null copies checked against 8 locks, as users run them; resumes

Results go to results.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import assay
from assay.core.random import stream
from assay.models import Model
from assay.pipeline.check import SequentialCheck, look_sizes
from assay.pipeline.lock import (
    LEAST_MARGIN,
    RATIO,
    CircuitPart,
    Observed,
    fresh_prompts,
    lock_error,
    observe,
    read_lock,
)


RESULTS = Path(__file__).parent / "results.json"
LOOKS = look_sizes(400)
PARTS, LINES = 6, 3
SHAPES = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "t5": lambda rng, size: rng.standard_t(5, size) / np.sqrt(5 / 3),
    "exponential": lambda rng, size: rng.exponential(size=size) - 1,
    "mirrored": lambda rng, size: 1 - rng.exponential(size=size),
}


def keep(name: str, values: dict[str, Any]) -> None:
    """Add values under a name of the results."""
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results[name] = results.get(name, {}) | values
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def seen(top: np.ndarray, bottom: np.ndarray, full: np.ndarray) -> Observed:
    """Observations without scores of edges."""
    return Observed(
        top=top, bottom=bottom, full=full, gain=bottom[:, -1], scores=torch.zeros(1), n_scored=len(full)
    )


def judged(lines: list[tuple[list[CircuitPart], bool]], pools: list[Observed]) -> list[str]:
    """The verdicts of a check that takes its prompts from the beginning of each pool."""
    test = SequentialCheck(lines, len(LOOKS))
    for size in LOOKS:
        test.look([seen(each.top[:size], each.bottom[:size], each.full[:size]) for each in pools])
        if "open" not in test.verdicts:
            break
    return test.verdicts


# ---- limits ---------------------------------------------------------------------------------------


def drawn(rng: np.random.Generator, shape: str, n: int, truth: np.ndarray, spread: float) -> Observed:
    """Prompts of a line whose parts have these values."""
    bottom = np.repeat(rng.gamma(9.0, 1 / 9, (n, 1)), PARTS, axis=1)
    noise = SHAPES[shape](rng, (n, PARTS))
    return seen(truth * bottom + spread * noise, bottom, np.ones(n))


def part_of(locked: Observed, place: int, margin: float | None = None) -> CircuitPart:
    """A part without its interval, which the test does not read.

    Of the circuits of `mini`, half the interval of the value is below .05, which is then the usual margin.
    """
    table = np.stack([locked.top[:, place], locked.bottom[:, place]])
    value = float(RATIO.of_sums(table.sum(1), table.shape[1]))
    usual = abs(value) / 2 if place else LEAST_MARGIN
    error = lock_error(value, RATIO.linearised(table))
    return CircuitPart(name=str(place), value=value, error=error, margin=usual if margin is None else margin)


def at_limit(shape: str, n_locked: int, spread: float, side: str, draws: int) -> float:
    """Share of files with a wrong verdict where every line is exactly at a threshold.

    For `lost`, every part has fallen by exactly its margin since the lock. For `kept`, one part of each line
    is at its threshold as written, and the others are where they were.
    """
    wrong, value = 0, np.full(PARTS, 0.9)
    for draw in range(draws):
        rng = stream(draw, f"{shape} {n_locked} {spread} {side}")
        lines, pools = [], []
        for _ in range(LINES):
            locked = drawn(rng, shape, n_locked, value, spread)
            parts = [part_of(locked, place, 0.1) for place in range(PARTS)]
            truth = value - 0.1
            if side == "kept":
                truth = value.copy()
                truth[0] = parts[0].threshold
            lines.append((parts, False))
            pools.append(drawn(rng, shape, LOOKS[-1], truth, spread))
        wrong += side in judged(lines, pools)
    return wrong / draws


def limits(*sides: str, draws: int = 400) -> None:
    for side in sides or ("lost", "kept"):
        for shape in SHAPES:
            for n_locked in (25, 200):
                for spread in (0.1, 0.5):
                    cell = f"{side}: {shape}, {n_locked} locked, spread {spread}"
                    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
                    if cell not in known.get("limits", {}):
                        wrong = at_limit(shape, n_locked, spread, side, draws)
                        keep("limits", {cell: wrong})
                        print(cell, wrong, flush=True)


# ---- mini and its copies --------------------------------------------------------------------------


def permuted() -> Model:
    """`mini` with the neurons of its MLPs in another order: the same function."""
    model = assay.load_model("mini")
    for layer, block in enumerate(model.module.transformer.h):
        order = torch.from_numpy(stream(layer, "neurons").permutation(block.mlp.c_fc.weight.shape[1]))
        with torch.no_grad():
            block.mlp.c_fc.weight.copy_(block.mlp.c_fc.weight[:, order])
            block.mlp.c_fc.bias.copy_(block.mlp.c_fc.bias[order])
            block.mlp.c_proj.weight.copy_(block.mlp.c_proj.weight[order])
    model.refresh()
    return model


def without_head(layer: int, head: int) -> Model:
    """`mini` with the output slice of a head zeroed."""
    model = assay.load_model("mini")
    weight = model.module.transformer.h[layer].attn.c_proj.weight
    width = weight.shape[0] // model.n_heads
    with torch.no_grad():
        weight[head * width : (head + 1) * width] = 0
    model.refresh()
    return model


def destroyed(task: str, steps: int = 40) -> Model:
    """`mini` fine-tuned to prefer the wrong answers of a task."""
    model = assay.load_model("mini")
    data = assay.load_task(task, model, n=64, seed=99)
    optimizer = torch.optim.Adam(model.module.parameters(), lr=1e-4)
    for _ in range(steps):
        logits = model.module(data.clean).logits[torch.arange(data.n), data.positions]
        wrong = data.wrong.clamp(min=0)
        optimizer.zero_grad()
        (-logits.log_softmax(-1).gather(1, wrong)[data.wrong >= 0].mean()).backward()
        optimizer.step()
    model.refresh()
    return model


NULL = {"float32": 600, "float64": 200, "bfloat16": 200, "permuted": 200}  # prompts of each task
CHANGED = {"ioi": 50, "greater-than": 150, "docstring": 50}  # of a changed copy
PIECE, PAIRS = 50, 200  # prompts at a time; pairs of one model


def copy_of(name: str) -> Model:
    kind, _, what = name.partition(" ")
    if kind == "without":
        return without_head(*map(int, what.split(".")))
    if kind == "destroyed":
        return destroyed(what)
    return permuted() if kind == "permuted" else assay.load_model("mini", dtype=getattr(torch, kind))


def heads_of(parts: tuple[CircuitPart, ...]) -> list[str]:
    return [f"without {part.name[1:].replace('.h', '.')}" for part in parts[1:]]


def pools(cache: Path) -> None:
    """Observe every copy on prompts of its own; audits and the lock are made first."""
    path = cache / "circuits.lock.toml"
    if not path.is_file():
        tasks = ("ioi", "greater-than", "docstring")
        for task in tasks:
            assay.audit("mini", task, n=60, out=cache / task)
        assay.lock("mini", [cache / task for task in tasks], path)
    lock = read_lock(path)
    wanted = [(name, locked, n) for name, n in NULL.items() for locked in lock.circuits]
    for locked in lock.circuits:
        wanted += [
            (name, locked, CHANGED[locked.name])
            for name in (*heads_of(locked.parts), f"destroyed {locked.name}")
        ]
    names = list(dict.fromkeys(name for name, _, _ in wanted))
    for name, locked, n in sorted(wanted, key=lambda each: each[2] == NULL["float32"]):
        files = [cache / f"{name} {locked.name} {start}.npz" for start in range(0, n, PIECE)]
        if all(file.is_file() for file in files):
            continue
        model, circuit = copy_of(name), lock.load(locked)
        task = fresh_prompts(model, circuit, locked, cache, n=n, seed=1000 + names.index(name))
        for place, file in enumerate(files):
            rows = range(place * PIECE, (place + 1) * PIECE)
            how = {"objective": locked.objective, "ablation": locked.ablation}
            if not file.is_file():
                found = observe(
                    model, task.subset(rows), circuit, [part.name for part in locked.parts], **how
                )
                np.savez(file, **{key: getattr(found, key) for key in ("top", "bottom", "full")})
                print(file.name, flush=True)


def pool(cache: Path, name: str, task: str) -> Observed:
    files = sorted(cache.glob(f"{name} {task} *.npz"))
    arrays = [np.load(file) for file in files]
    return seen(*(np.concatenate([each[key] for each in arrays]) for key in ("top", "bottom", "full")))


def rows_of(of: Observed, rows: np.ndarray) -> Observed:
    return seen(of.top[rows], of.bottom[rows], of.full[rows])


def pairs(cache: Path) -> None:
    """Locks of 200 prompts, and checks of copies on others."""
    lock = read_lock(cache / "circuits.lock.toml")
    base = {each.name: pool(cache, "float32", each.name) for each in lock.circuits}

    def trial(number: int, changed: dict[str, Observed]) -> dict[str, str]:
        """Verdicts where the lines of some tasks come from a copy; the others from the model itself."""
        rng, lines, fresh = stream(number, "pairs"), [], []
        for locked in lock.circuits:
            order = rng.permutation(len(base[locked.name].full))
            then = rows_of(base[locked.name], order[:200])
            lines.append(([part_of(then, at) for at in range(len(locked.parts))], True))
            of = changed.get(locked.name)
            now = rows_of(base[locked.name], order[200:600])
            fresh.append(now if of is None else rows_of(of, rng.permutation(len(of.full))))
        return dict(zip(base, judged(lines, fresh), strict=True))

    null, power = [], {}
    for number in range(PAIRS):
        name = list(NULL)[number % len(NULL)]
        copies = {} if name == "float32" else {task: pool(cache, name, task) for task in base}
        null += [{"copy": name, **trial(number, copies)}]
    for locked in lock.circuits:
        for name in (*heads_of(locked.parts), f"destroyed {locked.name}"):
            copies = {locked.name: pool(cache, name, locked.name)}
            found = [trial(1000 + number, copies)[locked.name] for number in range(20)]
            power[f"{locked.name} {name}"] = {each: found.count(each) for each in sorted(set(found))}
            print(locked.name, name, power[f"{locked.name} {name}"], flush=True)
    verdicts = [verdict for pair in null for key, verdict in pair.items() if key != "copy"]
    alarms = sum(any(each in ("lost", "unsolved") for each in pair.values()) for pair in null)
    print(alarms, {each: verdicts.count(each) for each in set(verdicts)})
    keep(
        "pairs",
        {
            "pairs": PAIRS,
            "false_alarms": alarms,
            "lines": {v: verdicts.count(v) for v in sorted(set(verdicts))},
        },
    )
    keep("power", power)


# ---- whole runs -----------------------------------------------------------------------------------


TASKS = ("ioi", "greater-than", "docstring")
LOCKS = 8  # of `mini`, each of three audits with a seed of their own


def whole(cache: Path) -> None:
    """Check every null copy against locks of several audits, each time on a draw of its own."""
    for place in range(LOCKS):
        path = cache / f"{place}.lock.toml"
        if not path.is_file():
            for task in TASKS:
                assay.audit("mini", task, n=60, seed=10_000 * place, out=cache / f"{place}-{task}")
            assay.lock("mini", [cache / f"{place}-{task}" for task in TASKS], path)
    for number in range(PAIRS):
        path = cache / f"pair-{number}.json"
        if path.is_file():
            continue
        name = list(NULL)[number % len(NULL)]
        lock = cache / f"{number // len(NULL) % LOCKS}.lock.toml"
        check = assay.check(copy_of(name), lock, seed=100_000 + number)
        path.write_text(json.dumps({"copy": name} | {each.name: each.verdict for each in check.circuits}))
    checks = [json.loads((cache / f"pair-{number}.json").read_text()) for number in range(PAIRS)]
    alarms = sum(any(each[task] in ("lost", "unsolved") for task in TASKS) for each in checks)
    verdicts = [each[task] for each in checks for task in TASKS]
    counts = {v: verdicts.count(v) for v in sorted(set(verdicts))}
    keep("whole runs", {"pairs": PAIRS, "locks": LOCKS, "false_alarms": alarms, "lines": counts})


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "limits":
        limits(*rest)
    else:
        {"observe": pools, "pairs": pairs, "whole": whole}[what](*map(Path, rest))

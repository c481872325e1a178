"""Throughput of a sweep: two workers against one, and Ray against local processes, on real jobs.

The jobs are EAP-IG of the embedded model on independent draws of prompts, about a second each: none
needs another, so two workers could at best be twice as fast as one. Time is counted from the first job that
ends to the last that ends, by the monotonic clock; bringing workers up, which is done once however many
jobs there are, is reported apart. Each way runs in a store of its own, all stores must hold the same in the
end, and the best of several rounds counts, the ways taking turns. Prints one JSON document; `--save` writes
it to benchmarks/results.

    python benchmarks/bench_sweep.py [--jobs 32] [--prompts 64] [--rounds 3] [--no-ray] [--save]
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from assay.pipeline.jobs import Job, expand
from assay.pipeline.plan import Limits, parse_plan
from assay.pipeline.sweep import run_jobs
from assay.pipeline.workers import LocalWorkers, RayWorkers, Workers
from assay.store import Store


sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from store_content import content


GOAL_WORKERS = 1.7  # throughput of two workers in that of one, at least
GOAL_RAY = 1.2  # seconds on Ray in seconds on local processes, at most


def jobs_of(count: int, prompts: int, method: str) -> tuple[Job, ...]:
    """Independent discoveries: one per seed."""
    plan = parse_plan(
        {
            "name": "throughput",
            "n": prompts,
            "seeds": list(range(count)),
            "models": ["mini"],
            "tasks": ["ioi"],
            "methods": [method],
            "sizes": [100],
        }
    )
    return tuple(job for job in expand(plan) if job.kind == "discover")


class Clock:
    """When the first job ended and the last one."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last = 0.0

    def tell(self, stage: str, done: int, total: int) -> None:
        self.last = time.monotonic()
        if done and self.first is None:
            self.first = self.last

    @property
    def seconds(self) -> float:
        assert self.first is not None
        return self.last - self.first


def run(workers: Workers, count: int, jobs: tuple[Job, ...], folder: Path) -> dict[str, Any]:
    clock = Clock()
    limits = Limits(workers=count)
    outcome = run_jobs(jobs, folder, workers=workers, limits=limits, progress=clock.tell)
    assert len(outcome.names("done")) == len(jobs), outcome
    start = outcome.seconds - clock.seconds
    return {"seconds": clock.seconds, "start": start, "content": content(Store(folder))}


def measure(count: int, prompts: int, method: str, rounds: int, ray: bool) -> dict[str, Any]:
    jobs = jobs_of(count, prompts, method)
    ways: dict[str, tuple[Callable[[], Workers], int]] = {
        "one worker": (LocalWorkers, 1),
        "two workers": (LocalWorkers, 2),
    }
    if ray:
        ways["two workers on Ray"] = (lambda: RayWorkers("local"), 2)
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for name, (make, n_workers) in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                found = run(make(), n_workers, jobs, Path(folder))
            print(f"{name}: {found['seconds']:.1f} s", file=sys.stderr)
            if name not in best or found["seconds"] < best[name]["seconds"]:
                best[name] = found
    first, *others = (found.pop("content") for found in best.values())
    assert all(other == first for other in others), "the ways disagree"
    one, two = best["one worker"]["seconds"], best["two workers"]["seconds"]
    result: dict[str, Any] = {
        "jobs": count,
        "seconds of a job": round(one / count, 3),
        "seconds": {name: round(found["seconds"], 3) for name, found in best.items()},
        "seconds to bring workers up": {name: round(found["start"], 3) for name, found in best.items()},
        "equal stores": True,
        "two workers in one": {"throughput": round(one / two, 3), "goal": f">= {GOAL_WORKERS}"},
    }
    if ray:
        on_ray = best["two workers on Ray"]["seconds"]
        result["Ray in local processes"] = {"time": round(on_ray / two, 3), "goal": f"<= {GOAL_RAY}"}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=32)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--method", default="eap-ig-inputs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    document = {
        "benchmark": "sweep",
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "independent jobs": measure(
            options.jobs, options.prompts, options.method, options.rounds, not options.no_ray
        ),
    }
    text = json.dumps(document, indent=1)
    print(text)
    if options.save:
        folder = Path(__file__).parent / "results"
        folder.mkdir(exist_ok=True)
        (folder / "sweep.json").write_text(text + "\n")


if __name__ == "__main__":
    main()

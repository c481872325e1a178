"""Time of `rank_models` over the 12 embedded models, all metrics but sharpness; widths of its intervals.

The images are the drawn sketches. `--against SRC` times the sources in another folder (a checkout of an
earlier commit) in the same run, one process each, in turns, and adds the ratio of the times and, for each
metric, the ratio of the mean widths of the intervals. Times that are compared are of the processor, so that
other work on the machine counts little. Prints one JSON document; `--save NAME` writes it to
benchmarks/results.

    python benchmarks/bench_ranking.py [--n 400] [--repeats 1] [--against SRC] [--save ranking_cpu]
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch


def measured(n: int) -> dict[str, Any]:
    """One ranking in this process: seconds without imports, peak memory, the intervals."""
    import transformers.models.vit.modeling_vit  # noqa: F401 (loaded once per process, whatever is ranked)

    from assay.analyses.generalization import rank_models
    from assay.tasks import find_domains
    from assay.zoo import Zoo

    zoo = Zoo.embedded()
    target = find_domains("shapes:sketch", n=n, start=20_000)["sketch"]
    known = find_domains("shapes:flat", n=n, start=1_000_000)["flat"]
    zoo.load(zoo.keys[0])
    started, spent = time.perf_counter(), time.process_time()
    ranking = rank_models(zoo, target, id_data=known)
    seconds, cpu = time.perf_counter() - started, time.process_time() - spent
    rows = {key: column.rows for key, column in ranking.columns.items()}
    return {
        "seconds": seconds,
        "cpu seconds": cpu,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "values": {key: [row["value"] for row in each] for key, each in rows.items()},
        "widths": {key: [row["high"] - row["low"] for row in each] for key, each in rows.items()},
    }


def in_process(n: int, sources: Path) -> dict[str, Any]:
    """The same in a fresh process that imports `assay` from a folder."""
    environment = os.environ | {"PYTHONPATH": str(sources), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    call = [sys.executable, __file__, "--n", str(n), "--one"]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The fastest of some runs, less the values of each model."""
    fastest = min(runs, key=lambda run: run["cpu seconds"])
    means = {key: round(sum(each) / len(each), 5) for key, each in fastest["widths"].items()}
    return {
        "seconds": round(fastest["seconds"], 2),
        "cpu seconds": round(fastest["cpu seconds"], 2),
        "cpu seconds of all runs": [round(run["cpu seconds"], 2) for run in runs],
        "peak MB": round(fastest["peak MB"]),
        "mean width of the intervals": means,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--save")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(measured(options.n)))
        return
    folders = {"now": Path(__file__).parents[1] / "src"} | (
        {"before": options.against.resolve()} if options.against else {}
    )
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in folders}
    for _ in range(options.repeats):
        for name, folder in folders.items():
            runs[name].append(in_process(options.n, folder))
    document: dict[str, Any] = {
        "benchmark": "ranking",
        "machine": {
            "device": "cpu",
            "threads": options.threads,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "models": 12,
        "images": options.n,
        **{name: summary(each) for name, each in runs.items()},
    }
    if options.against:
        now, before = document["now"], document["before"]
        document["times faster"] = round(before["cpu seconds"] / now["cpu seconds"], 2)
        old, new = (each["mean width of the intervals"] for each in (before, now))
        document["width, now / before"] = {key: round(new[key] / old[key], 3) for key in new if old.get(key)}
    text = json.dumps(document, indent=1)
    print(text)
    if options.save:
        path = Path(__file__).parent / "results" / f"{options.save}.json"
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

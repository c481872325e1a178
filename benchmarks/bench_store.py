"""Time the usual questions to a store of 100,000 results, and how many results a second it takes in.

    python benchmarks/bench_store.py [--results 100000] [--puts 300] [--no-postgres]

Measurements with the payload that `assay measure` stores, a circuit for every six of them, one audit of a
fifth of a megabyte in a thousand.
PostgreSQL is started from the system's own binaries in a temporary directory; without them SQLite is timed
alone.
"""

import argparse
import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa


sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from postgres_server import PostgresServer, binaries

from assay.core.record import record_id
from assay.store import DATABASE_NAME, About, Store
from assay.store.store import RESULTS


LIMIT_MS = 100.0
METRICS = ("faithfulness-norm", "faithfulness", "completeness", "kl", "ce-delta", "topk")
MODELS = ("mini", "gpt2", "pythia-160m", "llama-3.2-1b", "qwen2.5-0.5b")
TASKS = ("ioi", "greater-than", "sva", "docstring", "gendered-pronouns")
METHODS = ("eap", "eap-ig-inputs", "acdc", "ugs")


def measurement(number: int, random: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Provenance and payload of the size and shape of a stored measurement."""
    metric = METRICS[number % len(METRICS)]
    value = float(random.random())
    interval = {"low": value - 0.05, "high": value + 0.05, "level": 0.95, "method": "bca"}
    provenance = {
        "library": "0.1.0",
        "model": {"id": MODELS[number // 7 % 5], "family": "gpt2", "weight_hash": "574135c1f761b961"},
        "task": {
            "name": TASKS[number // 35 % 5],
            "data_hash": f"{number:064x}",
            "n": 200,
            "config": {"task": "ioi", "corruption": "abc", "options": {}, "bos": False, "n": 400, "seed": 0},
        },
        "circuit": f"{number // 7:016x}",
        "graph": "62531a8bc2ac47d3",
        "ablation": "resample",
        "objective": "logit_diff",
        "seed": number // 700,
        "metric": {"id": f"D02.{metric}", "key": metric, "version": 1, "options": {}},
    }
    payload = {
        "id": f"D02.{metric}",
        "name": metric,
        "value": value,
        "standard_error": 0.03,
        "interval": interval,
        "n": 200,
        "n_excluded": 0,
        "unit": "fraction",
        "status": "pass" if value > 0.8 else "fail",
        "verdict": {"status": "pass", "values": {"value": value}, "thresholds": {"pass": 0.8, "fail": 0.8}},
        "warnings": [],
        "details": {f"detail_{place}": float(each) for place, each in enumerate(random.random(10))},
        "parts": {"all": {"value": value, "interval": interval, "unit": "fraction", "status": "none"}},
        "statistic": {"kind": "ratio-of-sums", "numerator": {"keep": 1.0}, "denominator": {"full": 1.0}},
        "provenance": provenance,
    }
    return provenance, payload


def rows(count: int) -> Iterator[dict[str, Any]]:
    """What `put` would write of `count` results."""
    random = np.random.default_rng(0)
    for number in range(count):
        kind = "audit" if number % 1000 == 999 else "circuit" if number % 7 == 6 else "measurement"
        provenance, payload = measurement(number, random)
        if kind == "circuit":  # of the six measurements before it, which know its hash alone
            method = {"key": METHODS[number // 175 % 4], "options": {}}
            payload = {"hash": provenance["circuit"], "n_edges": 100 + number % 50}
            provenance = {key: provenance[key] for key in ("library", "model", "task")} | {"method": method}
        elif kind == "audit":
            edges = [{"source": f"a{each % 12}.h{each % 9}", "score": 0.1 * each} for each in range(4500)]
            payload = {"title": "A circuit", "measurements": [payload], "edges": edges}
        yield {
            "id": record_id(kind, provenance),
            "kind": kind,
            "created": f"2026-01-{1 + number % 28:02d}T00:00:{number % 60:02d}.{number:06d}+00:00",
            "provenance": provenance,
            "payload": payload,
        }


def about(row: dict[str, Any]) -> About:
    """What such a result is found by."""
    provenance, payload = row["provenance"], row["payload"]
    measured = payload["measurements"][0] if row["kind"] == "audit" else payload
    interval = measured.get("interval", {})
    return About(
        model=provenance["model"]["id"],
        task=provenance["task"]["name"],
        method=provenance.get("method", {}).get("key"),
        metric=provenance.get("metric", {}).get("key"),
        n=measured.get("n"),
        seed=provenance.get("seed"),
        value=measured.get("value"),
        low=interval.get("low"),
        high=interval.get("high"),
        status=measured.get("status"),
        circuit=payload.get("hash", provenance.get("circuit")),
        size=payload.get("n_edges"),
        ablation=provenance.get("ablation"),
    )


def fill(store: Store, count: int) -> float:
    """Write many results at once; `put` would wait for the disk after each. Returns seconds."""
    started = time.perf_counter()
    written = (
        row | about(row).to_dict() | {name: json.dumps(row[name]) for name in ("provenance", "payload")}
        for row in rows(count)
    )
    with store._transaction(write=True) as connection:
        while chunk := list(itertools.islice(written, 1000)):
            connection.execute(sa.insert(RESULTS), chunk)
    return time.perf_counter() - started


def questions(store: Store) -> dict[str, Callable[[], Any]]:
    """What is usually asked."""
    known = store.query(limit=1)[0].id
    return {
        "by kind: all audits": lambda: store.query("audit"),
        "by kind: first 100 measurements": lambda: store.query("measurement", limit=100),
        "model and task, newest 100": lambda: store.query(
            model="mini", task="ioi", order="-created", limit=100
        ),
        "model, task and metric": lambda: store.query(model="gpt2", task="sva", metric="kl"),
        "metric, by value": lambda: store.query(metric="kl", order="-value", limit=100),
        "newest 100": lambda: store.query(order="-created", limit=100),
        "one by the beginning of its id": lambda: store.get(known[:10]),
        "count of all": lambda: store.count(),
        "count by status": lambda: store.count("measurement", status="fail"),
        "frame of one seed": lambda: store.to_frame("measurement", metric="kl", seed=1),
    }


def timed(question: Callable[[], Any], repeats: int = 7) -> dict[str, float | int]:
    """Milliseconds of a few runs, the first with its cold caches apart; `cpu` is this process alone."""
    spent, worked = [], []
    found = None
    for _ in range(repeats + 1):
        started, before = time.perf_counter(), time.process_time()
        found = question()
        spent.append(1e3 * (time.perf_counter() - started))
        worked.append(1e3 * (time.process_time() - before))
    size = found if isinstance(found, int) else len(found) if hasattr(found, "__len__") else 1
    middle = statistics.median(spent[1:])
    return {
        "ms": round(middle, 2),
        "least_ms": round(min(spent[1:]), 2),
        "cpu_ms": round(min(worked[1:]), 2),
        "longest_ms": round(max(spent[1:]), 2),
        "first_ms": round(spent[0], 2),
        "found": int(size),
        "of_limit": round(middle / LIMIT_MS, 3),
    }


def put_some(location: str, writer: int, count: int, arrays: bool) -> None:
    store = Store(location)
    random = np.random.default_rng(writer)
    for number in range(count):
        provenance, payload = measurement(number, random)
        made = {"per_example": random.random(200)} if arrays else None
        found = about({"kind": "measurement", "provenance": provenance, "payload": payload})
        store.put("measurement", {**provenance, "writer": writer}, payload, made, about=found)


def puts_per_second(location: str, count: int, *, writers: int = 1, arrays: bool = False) -> float:
    """Of writers in processes of their own, starting the processes included in neither."""
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=put_some, args=(location, writer, count, arrays)) for writer in range(writers)
    ]
    started = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return round(writers * count / (time.perf_counter() - started), 1)


def puts(location: Callable[[str], str], count: int) -> dict[str, float]:
    found = {
        "one writer": puts_per_second(location("one"), count),
        "one writer, an array each": puts_per_second(location("array"), count, arrays=True),
        "two writers": puts_per_second(location("two"), count, writers=2),
    }
    return found | {"two over one": round(found["two writers"] / found["one writer"], 2)}


def bench(store: Store, count: int) -> dict[str, Any]:
    filled = fill(store, count)
    asked = {name: timed(question) for name, question in questions(store).items()}
    return {
        "results": store.count(),
        "fill_seconds": round(filled, 1),
        "open_ms": timed(lambda: Store(store.location))["ms"],
        "questions": asked,
        "all_under_100_ms": all(each["ms"] < LIMIT_MS for each in asked.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=int, default=100_000)
    parser.add_argument("--puts", type=int, default=300)
    parser.add_argument("--no-postgres", action="store_true")
    options = parser.parse_args()
    document: dict[str, Any] = {"benchmark": "store", "results": options.results}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        store = Store(folder / "sqlite")
        document["sqlite"] = bench(store, options.results)
        document["sqlite"]["bytes"] = (store.directory / DATABASE_NAME).stat().st_size
        document["sqlite"]["puts_per_second"] = puts(lambda name: str(folder / name), options.puts)
        found = None if options.no_postgres else binaries()
        if found is not None:
            server = PostgresServer(found)
            try:
                made = Store(server.database(arrays=str(folder / "postgres")))
                document["postgresql"] = bench(made, options.results)
                document["postgresql"]["puts_per_second"] = puts(
                    lambda name: server.database(arrays=str(folder / f"postgres-{name}")), options.puts
                )
            finally:
                server.close()
    print(json.dumps(document))


if __name__ == "__main__":
    main()

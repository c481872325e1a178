"""How soon alarms find a change, and how often they go off without one, from the readings of `measure.py`.

    python experiments/monitor_delay/analyse.py --work DIR

5 references of 16 batches each, drawn anew; for each of them 40 streams: 39 known batches, 50 quiet ones,
then 50 of a changed source (or quiet ones again). All alarms see the same streams. Writes `results.json`
beside this file.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from adwin import Adwin
from measure import REFERENCE, SOURCES, WINDOW

import assay
from assay.analyses.generalization import SequentialTest, calibrate_threshold
from assay.analyses.generalization.alarms import ConformalAlarm
from assay.analyses.generalization.noise_floor import NoiseFloor
from assay.stats.drift import ks_p_value, mmd_p_value
from assay.zoo import Zoo


REFERENCES, STREAMS, KNOWN, BEFORE, AFTER = 5, 40, 39, 50, 50
ALPHA, TARGET, SAMPLE = 0.05, 0.8, 128
CHANGES = ("sketch", "fog-1", "gaussian-noise-1")
METHODS = (
    "conformal",
    "conformal on the raw shift",
    "sequential",
    "threshold",
    "ADWIN on the excess",
    "ADWIN on the confidence",
    "KS on the confidence",
    "MMD on the features",
)
Arrays = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    zoo = Zoo.embedded()
    best = max(zoo.entries, key=lambda each: each.id_accuracy)
    graph = assay.load_model(str(zoo.folder(best.key))).graph
    sources = {name: dict(np.load(work / f"{name}.npz")) for name in SOURCES}
    rng = np.random.default_rng(0)
    sample = {key: np.concatenate(sources["reference"][key])[:SAMPLE] for key in ("logits", "features")}
    drift = {name: drift_of(each, sample, rng) for name, each in sources.items()}
    quiet = sources["flat"]
    first: dict[str, dict[str, list[float]]] = {
        change: {method: [] for method in METHODS} for change in ("none", *CHANGES)
    }
    rates: dict[str, list[float]] = {method: [] for method in METHODS}
    covered = []
    for number in range(REFERENCES):
        rows = rng.permutation(len(quiet["blocks"]))
        own, rest = rows[:REFERENCE], rows[REFERENCE:]
        floor = NoiseFloor(graph=graph, blocks=quiet["blocks"][own], n=WINDOW)
        read = {change: readings(floor, sources[change]) | drift[change] for change in ("flat", *CHANGES)}
        read["quiet"] = {key: each[rest] for key, each in read.pop("flat").items()}
        covered.append(float(((read["quiet"]["low"] <= 0) & (read["quiet"]["high"] >= 0)).mean()))
        domains = {"clean": read["quiet"], **{change: read[change] for change in CHANGES[1:]}}
        threshold = calibrate_threshold(
            {name: float(each["excess"].mean()) for name, each in domains.items()},
            {name: float(each["accuracy"].mean()) for name, each in domains.items()},
            TARGET,
        ).value
        for _ in range(STREAMS):
            order = rng.permutation(len(rest))
            known, before = order[:KNOWN], order[KNOWN : KNOWN + BEFORE]
            for change in ("none", *CHANGES):
                later = (
                    (read["quiet"], order[KNOWN + BEFORE : KNOWN + BEFORE + AFTER])
                    if change == "none"
                    else (read[change], rng.permutation(len(read[change]["excess"]))[:AFTER])
                )
                parts = {
                    key: (
                        read["quiet"][key][known],
                        np.concatenate([read["quiet"][key][before], later[0][key][later[1]]]),
                    )
                    for key in read["quiet"]
                }
                for method, on in alarms(parts, threshold, rng):
                    if change == "none":
                        first["none"][method].append(first_of(on))
                        rates[method].append(float(on.mean()))
                    elif method == "sequential" and on[:BEFORE].any():
                        continue  # it was on before: its false alarms are counted without a change
                    else:
                        first[change][method].append(first_of(on[BEFORE:]))
        print(f"reference {number + 1}: coverage {covered[-1]:.3f}", flush=True)
    document = {
        "window": WINDOW,
        "references": REFERENCES,
        "streams": STREAMS,
        "known": KNOWN,
        "alpha": ALPHA,
        "target": TARGET,
        "batches": {"before": BEFORE, "after": AFTER},
        "accuracy": {name: float(accuracy(each).mean()) for name, each in sources.items()},
        "coverage of no shift": summary(covered),
        "false alarms per batch": {method: float(np.mean(each)) for method, each in rates.items()},
        "any false alarm in 100 batches": {
            method: float(np.mean(np.isfinite(each))) for method, each in first["none"].items()
        },
        "delay": {
            change: {method: summary(each) for method, each in first[change].items()} for change in CHANGES
        },
        "found within": {
            change: {
                method: [float(np.mean(np.array(each) <= batch)) for batch in range(1, AFTER + 1)]
                for method, each in first[change].items()
            }
            for change in CHANGES
        },
    }
    path = Path(__file__).with_name("results.json")
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def accuracy(source: Arrays) -> np.ndarray:
    return np.asarray((source["logits"].argmax(-1) == source["labels"]).mean(1))


def confidence(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray((powers / powers.sum(-1, keepdims=True)).max(-1))


def drift_of(source: Arrays, sample: Arrays, rng: np.random.Generator) -> Arrays:
    """What needs no circuit, a number per batch: tests against 128 known images, and the mean confidence."""
    known, new = confidence(sample["logits"]), confidence(source["logits"])
    return {
        "confidence": new.mean(1),
        "ks": np.array([ks_p_value(known, each) for each in new]),
        "mmd": np.array([mmd_p_value(sample["features"], each, rng=rng) for each in source["features"]]),
    }


def readings(floor: NoiseFloor, source: Arrays) -> Arrays:
    """What the circuit says, one number per batch."""
    found = [floor.of_blocks(each) for each in source["blocks"]]
    excess, floors = (np.array([getattr(each, name) for each in found]) for name in ("value", "floor"))
    return {
        "excess": excess,
        "shift": 1 - (1 - excess) * (1 - floors),
        "low": np.array([each.interval.low for each in found]),
        "high": np.array([each.interval.high for each in found]),
        "accuracy": accuracy(source),
    }


def alarms(
    parts: dict[str, tuple[np.ndarray, np.ndarray]], threshold: float, rng: np.random.Generator
) -> Iterator[tuple[str, np.ndarray]]:
    """Method, and at which batches of the stream it raises the alarm."""
    known, stream = parts["excess"]
    yield "conformal", stream > ConformalAlarm(known=tuple(known), alpha=ALPHA).limit
    raw = ConformalAlarm(known=tuple(parts["shift"][0]), alpha=ALPHA).limit
    yield "conformal on the raw shift", parts["shift"][1] > raw
    test, on = SequentialTest.start(known.tolist()), []
    for value in stream:
        test = test.observe(float(value), 1 - float(rng.random()))
        on.append(test.alarm(ALPHA))
    yield "sequential", np.array(on)
    yield "threshold", stream > threshold
    yield "ADWIN on the excess", adwin(known, stream)
    yield "ADWIN on the confidence", adwin(*parts["confidence"])
    yield "KS on the confidence", parts["ks"][1] <= ALPHA
    yield "MMD on the features", parts["mmd"][1] <= ALPHA


def adwin(known: np.ndarray, stream: np.ndarray) -> np.ndarray:
    window = Adwin(ALPHA)
    for value in known:
        window.add(float(value))
    return np.array([window.add(float(value)) for value in stream])


def first_of(on: np.ndarray) -> float:
    """Batches until the first alarm, 1 for the first; infinite without one."""
    return float(on.argmax()) + 1 if on.any() else float("inf")


def summary(values: list[float]) -> dict[str, float | int | None]:
    array = np.array(values)
    low, median, high = np.quantile(array, [0.05, 0.5, 0.95], method="nearest")
    finite: Callable[[float], float | None] = lambda each: float(each) if np.isfinite(each) else None  # noqa: E731
    return {"low": finite(low), "median": finite(median), "high": finite(high), "n": len(array)}


if __name__ == "__main__":
    main()

"""How often a monitor of `mini` is wrong on prompts of its own grammar, and how often it sees others.

One reference circuit and 120 batches of indirect-object prompts; the false-alarm rate is over random choices
of 39 known batches among them, each tried on the other 81. The power is over 20 batches of every other stream
against the same choices. About two minutes on one core.

    python experiments/prompt_monitor/run.py
"""

import json
from pathlib import Path

import numpy as np

from assay.analyses.generalization import ConformalAlarm, circuit_shift
from assay.analyses.generalization.batches import circuit_like
from assay.core.random import stream
from assay.discovery.edges import discover
from assay.models import load_model
from assay.tasks import TASKS, Tokens
from assay.tasks.prompt_set import ArrivingPrompts


WINDOW, KNOWN, SAME, OTHER, SPLITS, STEPS = 16, 39, 120, 20, 1000, 3
DISTANCES = ("spearman", "cosine", "l2")
# Streams that are not the reference's: another task, other templates, or a share of another task.
STREAMS = {
    "ioi, other templates": (("ioi", {"template_ids": (5, 6, 7)}, 1.0),),
    "10 % greater-than": (("ioi", {}, 0.9), ("greater-than", {}, 0.1)),
    "25 % greater-than": (("ioi", {}, 0.75), ("greater-than", {}, 0.25)),
    "50 % greater-than": (("ioi", {}, 0.5), ("greater-than", {}, 0.5)),
    "greater-than": (("greater-than", {}, 1.0),),
}


def main() -> None:
    model = load_model("mini")
    tokens = Tokens(model.tokenizer)

    def batch(parts: tuple, name: str) -> ArrivingPrompts:
        """A window with every part's share of prompts, drawn anew."""
        prompts: list[str] = []
        for place, (key, options, share) in enumerate(parts):
            rest = WINDOW - sum(round(each[2] * WINDOW) for each in parts[1:])
            n = round(share * WINDOW) if place else rest
            drawn = TASKS[key](tokens, **options).draw(n, stream(0, f"{name}/{key}"))
            prompts += [each.text for each in drawn]
        return ArrivingPrompts(prompts=tuple(prompts), domain=name)

    own = (("ioi", {}, 1.0),)
    reference = discover(model, batch(own, "reference").task(model), steps=STEPS)

    def shifts(parts: tuple, name: str, n: int) -> dict[str, np.ndarray]:
        found = [circuit_like(model, batch(parts, f"{name}/{k}").task(model), reference) for k in range(n)]
        return {
            distance: np.array([circuit_shift(reference, each, distance=distance) for each in found])
            for distance in DISTANCES
        }

    same = shifts(own, "same", SAME)
    others = {name: shifts(parts, name, OTHER) for name, parts in STREAMS.items()}
    streams = {"same grammar": same, **others}
    results: dict[str, dict] = {}
    for distance in DISTANCES:
        alarms: dict[str, list[float]] = {"same grammar": [], **{name: [] for name in others}}
        for split in range(SPLITS):
            order = stream(0, f"split/{split}").permutation(SAME)
            rule = ConformalAlarm(known=tuple(same[distance][order[:KNOWN]]), alpha=0.05)
            alarms["same grammar"].append(rate(rule, same[distance][order[KNOWN:]]))
            for name, found in others.items():
                alarms[name].append(rate(rule, found[distance]))
        results[distance] = {
            name: {
                "alarms": round(float(np.mean(rates)), 4),
                "shift": round(float(np.mean(streams[name][distance])), 4),
            }
            for name, rates in alarms.items()
        }
    record = {
        "model": model.id,
        "window": WINDOW,
        "known_batches": KNOWN,
        "alpha": 0.05,
        "steps": STEPS,
        "batches": {"same grammar": SAME, "others": OTHER},
        "splits": SPLITS,
        "results": results,
    }
    (Path(__file__).parent / "results.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(results, indent=1))


def rate(rule: ConformalAlarm, shifts: np.ndarray) -> float:
    """Share of batches that raise the alarm."""
    return float(np.mean([rule.alarm(float(each)) for each in shifts]))


if __name__ == "__main__":
    main()

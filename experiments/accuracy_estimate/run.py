"""Does the estimate of accuracy keep its promises? 400 worlds of covariate shift.

Every world draws 24 families of domains with one severity each, a new domain from the same law, one that
leaves it and one whose leaving a saturated classifier does not show. The product's estimator judges readings
of 200 inputs, as a monitor takes them. The first 15 families alone, and accuracies dealt out at random, cost
nothing more. One line per world is written to `worlds.jsonl` (not kept under version control); a later start
goes on from there.

    python experiments/accuracy_estimate/run.py [--worlds 400] [--processes 2] [--tables-only]
"""

import argparse
import json
import os
from multiprocessing import Pool
from pathlib import Path
from typing import Any


os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from worlds import LEAVES, UNSEEN, World

from assay.analyses.generalization.accuracy_estimate import AccuracyEstimator
from assay.core.random import stream
from assay.stats import clopper_pearson


HERE = Path(__file__).resolve().parent
LINES, SUMMARY, DOCS = HERE / "worlds.jsonl", HERE / "results.json", HERE.parents[1] / "docs"
TABLE, FIGURE = DOCS / "tables" / "accuracy-estimate.inc", DOCS / "images" / "accuracy-estimate.svg"
N, FAMILIES, FEW = 200, 24, 15
FIRST = 100  # the levels of the two rules of silence were chosen on the worlds before
Record = dict[str, Any]


def simulate(seed: int) -> Record:
    """Everything that is measured in one world."""
    world, rng = World(seed), stream(seed, "accuracy/domains")

    def measured(kind: str | None, least: int) -> Record:
        family = world.family(rng) if kind is None else world.family(rng, (kind,))
        readings, accuracy = world.measured(rng, N, family, float(rng.integers(least, 6)))
        return {"kind": family.kind, "readings": readings, "accuracy": accuracy}

    return {
        "seed": seed,
        "id_accuracy": world.id_accuracy,
        "domains": [measured(None, 1) for _ in range(FAMILIES)],
        "inside": measured(None, 1),
        "outside": measured(LEAVES[seed % len(LEAVES)], 3),
        "unseen": measured(UNSEEN, 3),
    }


def measure(n_worlds: int, processes: int) -> None:
    """The worlds not yet done."""
    done = {each["seed"] for each in worlds()}
    with Pool(processes) as pool, LINES.open("a") as file:
        for record in pool.imap_unordered(
            simulate, [seed for seed in range(FIRST, FIRST + n_worlds) if seed not in done]
        ):
            file.write(json.dumps(record) + "\n")
            file.flush()


def worlds() -> list[Record]:
    """What earlier starts have written, by seed."""
    lines = LINES.read_text().splitlines() if LINES.exists() else []
    records = {record["seed"]: record for record in map(json.loads, lines)}
    return [records[seed] for seed in sorted(records)]


# ------------------------------------------------------------------------------------------------- judgement


def estimator(world: Record, n_families: int, accuracies: list[float] | None = None) -> AccuracyEstimator:
    """The product's estimator on the first families of a world."""
    domains = world["domains"][:n_families]
    names = tuple(domains[0]["readings"])
    return AccuracyEstimator(
        names=names,
        readings=tuple(tuple(each["readings"][name] for name in names) for each in domains),
        performance=tuple(accuracies or [each["accuracy"] for each in domains]),
        families=tuple(map(str, range(n_families))),
        id_performance=world["id_accuracy"],
        n=N,
    )


def judged(world: Record, n_families: int) -> Record:
    """What the estimator says of the new domains of a world, and whether it is right."""
    stack = estimator(world, n_families)
    record: Record = {"level": stack.offered, "useful": not stack.silence}
    for place in ("inside", "outside", "unseen"):
        domain = world[place]
        estimate = stack.estimate(domain["readings"], n=N)
        record[place] = {"kind": domain["kind"], "spoke": estimate.interval is not None}
        if estimate.interval is not None and estimate.value is not None:
            record[place] |= {
                "covered": domain["accuracy"] in estimate.interval,
                "width": estimate.interval.high - estimate.interval.low,
                "error": abs(estimate.value - domain["accuracy"]),
                "id_error": abs(world["id_accuracy"] - domain["accuracy"]),
                "value": estimate.value,
                "accuracy": domain["accuracy"],
            }
    # Coverage without the two rules of silence: what the interval would have been.
    z = stack._scaled(np.array([[world["inside"]["readings"][name] for name in stack.names]]))[0]
    record["covered_always"] = world["inside"]["accuracy"] in stack._interval(z)
    return record


def rate(hits: list[bool]) -> Record:
    """A share with its exact 95 % interval."""
    interval = clopper_pearson(sum(hits), len(hits))
    return {"n": len(hits), "share": sum(hits) / len(hits), "low": interval.low, "high": interval.high}


def summary(records: list[Record]) -> Record:
    """The rates that the documentation shows."""
    result: Record = {"worlds": len(records), "images": N}
    for name, n_families in (("families_24", FAMILIES), ("families_15", FEW)):
        rows = [judged(each, n_families) for each in records]
        spoke = [each["inside"] for each in rows if each["inside"]["spoke"]]
        result[name] = {
            "level": rows[0]["level"],
            "useful": rate([each["useful"] for each in rows]),
            "coverage": rate([each["covered"] for each in spoke]),
            "coverage_without_silence": rate([each["covered_always"] for each in rows]),
            "speaks_inside": rate([each["inside"]["spoke"] for each in rows]),
            "abstains_outside": rate([not each["outside"]["spoke"] for each in rows]),
            "abstains_by_kind": {
                kind: rate([not each["outside"]["spoke"] for each in rows if each["outside"]["kind"] == kind])
                for kind in LEAVES
            },
            "abstains_unseen": rate([not each["unseen"]["spoke"] for each in rows]),
            "coverage_unseen": rate([each["unseen"]["covered"] for each in rows if each["unseen"]["spoke"]]),
            "mean_width": float(np.mean([each["width"] for each in spoke])),
            "mean_error": float(np.mean([each["error"] for each in spoke])),
            "mean_id_error": float(np.mean([each["id_error"] for each in spoke])),
        }
        if n_families == FAMILIES:
            result["points"] = [[round(each["accuracy"], 3), round(each["value"], 3)] for each in spoke]
    used = []
    for each in records:
        dealt = stream(each["seed"], "accuracy/null").permutation(
            [row["accuracy"] for row in each["domains"]]
        )
        used.append(not estimator(each, FAMILIES, dealt.tolist()).silence)
    result["used_although_useless"] = rate(used)
    result["concept"] = concept()
    return result


def concept() -> Record:
    """One world whose inputs stay and whose labels are renamed for half of the inputs: nothing is seen."""
    world, rng = World(0), stream(0, "accuracy/concept")
    domains = []
    for _ in range(FAMILIES):
        readings, accuracy = world.measured(rng, N, world.family(rng), float(rng.integers(1, 6)))
        domains.append({"readings": readings, "accuracy": accuracy})
    stack = estimator({"domains": domains, "id_accuracy": world.id_accuracy}, FAMILIES)
    family = world.family(rng)
    x, y = world.sample(rng, N, family, 1.0)
    estimate = stack.estimate(world.readings(x), n=N)
    predicted = world.model.logits(x).argmax(1)
    renamed = np.where(x @ family.direction > np.median(x @ family.direction), (y + 1) % 4, y)
    return {
        "estimate": estimate.to_dict(),
        "accuracy": float((predicted == y).mean()),
        "accuracy_after": float((predicted == renamed).mean()),
    }


# ---------------------------------------------------------------------------------------------- what is shown


def percent(share: Record) -> str:
    return f"{100 * share['share']:.1f} % [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"


def write_table(result: Record) -> None:
    """The table of the page of theory."""
    many, few = result["families_24"], result["families_15"]
    useless = percent(result["used_although_useless"])
    rows = [
        ("worlds", str(result["worlds"]), str(result["worlds"])),
        ("level asked for and given", *(f"95 %, {100 * each['level']:.0f} %" for each in (many, few))),
        *(
            (label, percent(many[key]), percent(few[key]))
            for label, key in (
                ("coverage where it speaks", "coverage"),
                ("coverage if it always spoke", "coverage_without_silence"),
                ("backtest passed", "useful"),
                ("speaks, new domain of the same law", "speaks_inside"),
                ("silent, inputs leave what was calibrated", "abstains_outside"),
                ("silent, inputs leave but the model does not show it", "abstains_unseen"),
                ("coverage there, where it speaks", "coverage_unseen"),
            )
        ),
        ("backtest passed by useless readings", useless, ""),
        *(
            (label, f"{many[key]:.3f}", f"{few[key]:.3f}")
            for label, key in (
                ("mean width of the interval", "mean_width"),
                ("mean absolute error", "mean_error"),
                ("the same of in-distribution accuracy", "mean_id_error"),
            )
        ),
    ]
    lines = ["| | 24 families | 15 families |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    TABLE.write_text("\n".join(lines) + "\n")


def draw(result: Record) -> None:
    """Estimates against accuracies of the new domains."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 4.0), layout="constrained")
    axes = figure.subplots()
    accuracy, value = np.array(result["points"]).T
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    axes.scatter(accuracy, value, s=9, color="#0072b2", alpha=0.6, linewidths=0)
    least = float(min(accuracy.min(), value.min())) - 0.03
    axes.set(
        xlabel=f"accuracy on {N} labelled inputs",
        ylabel="estimate without labels",
        xlim=(least, 1),
        ylim=(least, 1),
    )
    axes.set_title(f"{len(accuracy)} new domains of {result['worlds']} worlds", fontsize=10)
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=400)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tables-only", action="store_true")
    options = parser.parse_args()
    if options.tables_only:
        result = json.loads(SUMMARY.read_text())
    else:
        measure(options.worlds, options.processes)
        result = summary([each for each in worlds() if 0 <= each["seed"] - FIRST < options.worlds])
        SUMMARY.write_text(json.dumps(result, indent=1) + "\n")
    write_table(result)
    draw(result)


if __name__ == "__main__":
    main()

"""Does the estimate of accuracy keep its promises? 400 worlds of covariate shift, calibrated as a monitor is.

Every world has labelled examples, split as `split_known` splits them, and the families of the 39 corruptions:
clean examples, six families of five severities, nine of one, and three more of one, which are counted in a
column of their own. Each domain draws a batch of 64 examples from the part that is changed; readings and
accuracy are those of this batch. A batch to be judged holds 64 new examples: of a new family of the same law,
unchanged, of inputs that leave this law, and of inputs whose leaving a saturated classifier does not show.
Readings and estimates come from the product's functions. Accuracies dealt out at random cost nothing more.
One line per world is written to `worlds.jsonl` (not kept under version control); a later start goes on there.

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
from worlds import LEAVES, UNSEEN, Family, World, shares_of

from assay.analyses.generalization.accuracy_estimate import AccuracyEstimator
from assay.analyses.generalization.batches import Labelled
from assay.core.random import stream
from assay.stats import clopper_pearson


HERE = Path(__file__).resolve().parent
LINES, SUMMARY, DOCS = HERE / "worlds.jsonl", HERE / "results.json", HERE.parents[1] / "docs"
TABLE, FIGURE = DOCS / "tables" / "accuracy-estimate.inc", DOCS / "images" / "accuracy-estimate.svg"
N, GRADED, SINGLE, MORE = 64, 6, 9, 3  # images of a batch; families of five severities, of one, beyond
# Examples to learn from and to change: those of 19 batches, which the conformal rule needs, and of 5.
POOLS = {"usual": (9 * N + N // 2, 9 * N + N // 2), "small": (N, 4 * N)}
WORLDS_OF = {"usual": 1.0, "small": 0.095}  # share of the worlds asked for
FIRST = 100  # the rules of silence were chosen on the worlds before
# What stands in the columns of the table: the pool, and whether the families beyond are used.
COLUMNS = {"usual": ("usual", False), "small": ("small", False), "more": ("usual", True)}
PLACES, MEANS = ("inside", "clean", "outside", "unseen"), ("width", "error", "id_error")
Record = dict[str, Any]


def calibrated(world: World, rng: np.random.Generator, pool: str) -> tuple[Labelled, Record]:
    """What readings learn from, and the domains that an estimate is learnt on."""
    n_learn, n_change = POOLS[pool]
    inputs, labels = world.labelled(world.examples(rng, n_learn))
    known = Labelled(outputs=world.outputs(inputs), labels=labels)
    source = world.examples(rng, n_change)

    def domain(name: str, family: Family | None, severity: float) -> Record:
        shares = shares_of(family, severity)[source.cluster]
        rows = rng.choice(n_change, N, replace=False, p=shares / shares.sum())
        x, y = world.labelled(source.of(rows), family, severity)
        return {"readings": world.readings(x, known), "accuracy": world.accuracy(x, y), "family": name}

    domains = [domain("clean", None, 0.0)]
    for place in range(GRADED):
        family = world.family(rng)
        domains += [domain(f"graded-{place}", family, float(severity)) for severity in range(1, 6)]
    for place in range(SINGLE + (MORE if pool == "usual" else 0)):
        name = f"single-{place}" if place < SINGLE else f"more-{place - SINGLE}"
        domains.append(domain(name, world.family(rng), float(rng.integers(1, 6))))
    return known, {"id_accuracy": world.accuracy(*world.labelled(source)), "domains": domains}


def simulate(job: tuple[str, int]) -> Record:
    """Everything that is measured in one world with a pool of one size."""
    pool, seed = job
    world, rng = World(seed), stream(seed, "accuracy/domains")
    known, record = calibrated(world, rng, pool)

    def batch(family: Family | None, severity: float) -> Record:
        x, y = world.labelled(world.examples(rng, N, family, severity), family, severity)
        kind = "clean" if family is None else family.kind
        return {"readings": world.readings(x, known), "accuracy": world.accuracy(x, y), "kind": kind}

    leaves = LEAVES[seed % len(LEAVES)]
    return {
        "pool": pool,
        "seed": seed,
        **record,
        "inside": batch(world.family(rng), float(rng.integers(1, 6))),
        "clean": batch(None, 0.0),
        "outside": batch(world.family(rng, (leaves,)), float(rng.integers(3, 6))),
        "unseen": batch(world.family(rng, (UNSEEN,)), float(rng.integers(3, 6))),
    }


def measure(n_worlds: int, processes: int) -> None:
    """The worlds not yet done."""
    done = {(each["pool"], each["seed"]) for each in worlds()}
    jobs = [
        (pool, FIRST + place)
        for pool, share in WORLDS_OF.items()
        for place in range(round(share * n_worlds))
        if (pool, FIRST + place) not in done
    ]
    with Pool(processes) as workers, LINES.open("a") as file:
        for record in workers.imap_unordered(simulate, jobs):
            file.write(json.dumps(record) + "\n")
            file.flush()


def worlds() -> list[Record]:
    """What earlier starts have written, by pool and seed."""
    lines = LINES.read_text().splitlines() if LINES.exists() else []
    records = {(record["pool"], record["seed"]): record for record in map(json.loads, lines)}
    return [records[key] for key in sorted(records)]


# ------------------------------------------------------------------------------------------------- judgement


def estimator(world: Record, pool: str, *, more: bool = False, dealt: bool = False) -> AccuracyEstimator:
    """The product's estimator on the domains of a world; `dealt`: with accuracies dealt out at random."""
    domains = [each for each in world["domains"] if more or not each["family"].startswith("more")]
    names = tuple(domains[0]["readings"])
    accuracies = [each["accuracy"] for each in domains]
    if dealt:
        accuracies = stream(world["seed"], "accuracy/null").permutation(accuracies).tolist()
    return AccuracyEstimator(
        names=names,
        readings=tuple(tuple(each["readings"][name] for name in names) for each in domains),
        performance=tuple(accuracies),
        families=tuple(each["family"] for each in domains),
        id_performance=world["id_accuracy"],
        n=N,
        pool=POOLS[pool][1],
    )


def judged(world: Record, more: bool) -> Record:
    """What the estimator says of the new batches of a world, and whether it is right."""
    stack = estimator(world, world["pool"], more=more)
    useless = estimator(world, world["pool"], more=more, dealt=True)
    record: Record = {
        "level": stack.offered,
        "useful": not stack.silence,
        "useful_although_dealt": not useless.silence,
    }
    for place in PLACES:
        batch = world[place]
        estimate = stack.estimate(batch["readings"], n=N)
        # What the interval would be without the rules of silence.
        z = stack._scaled(np.array([[batch["readings"][name] for name in stack.names]]))[0]
        record[place] = {
            "kind": batch["kind"],
            "spoke": estimate.interval is not None,
            "covered_always": batch["accuracy"] in stack._interval(z),
        }
        if estimate.interval is not None and estimate.value is not None:
            record[place] |= {
                "covered": batch["accuracy"] in estimate.interval,
                "width": estimate.interval.high - estimate.interval.low,
                "error": abs(estimate.value - batch["accuracy"]),
                "id_error": abs(world["id_accuracy"] - batch["accuracy"]),
                "value": estimate.value,
                "accuracy": batch["accuracy"],
            }
    return record


def rate(hits: list[bool]) -> Record:
    """A share with its exact 95 % interval."""
    interval = clopper_pearson(sum(hits), len(hits))
    return {"n": len(hits), "share": sum(hits) / len(hits), "low": interval.low, "high": interval.high}


def column(rows: list[Record]) -> Record:
    """The rates of some worlds, and means over new batches of a family of the same law."""
    found: Record = {"worlds": len(rows), "level": rows[0]["level"]}
    for key in ("useful", "useful_although_dealt"):
        found[key] = rate([each[key] for each in rows])
    for place in PLACES:
        spoke = [each[place] for each in rows if each[place]["spoke"]]
        found[place] = {
            "speaks": rate([each[place]["spoke"] for each in rows]),
            "silent": rate([not each[place]["spoke"] for each in rows]),
            "coverage": rate([each["covered"] for each in spoke]),
            "coverage_without_silence": rate([each[place]["covered_always"] for each in rows]),
        }
    found["silent_by_kind"] = {
        kind: rate([not each["outside"]["spoke"] for each in rows if each["outside"]["kind"] == kind])
        for kind in LEAVES
    }
    inside = [each["inside"] for each in rows if each["inside"]["spoke"]]
    means = {f"mean_{key}": float(np.mean([each[key] for each in inside])) for key in MEANS}
    return {**found, **means}


def summary(records: list[Record]) -> Record:
    """The rates that the documentation shows."""
    result: Record = {"images": N, "pools": POOLS}
    for name, (pool, more) in COLUMNS.items():
        rows = [judged(each, more) for each in records if each["pool"] == pool]
        result[name] = column(rows)
        if name == "usual":
            inside = [each["inside"] for each in rows if each["inside"]["spoke"]]
            result["points"] = [[round(each["accuracy"], 3), round(each["value"], 3)] for each in inside]
    result["concept"] = concept()
    return result


def concept() -> Record:
    """One world whose inputs stay and whose labels are renamed for half of the inputs: nothing is seen."""
    world, rng = World(0), stream(0, "accuracy/concept")
    known, record = calibrated(world, rng, "usual")
    stack = estimator(record, "usual")
    family = world.family(rng)
    x, y = world.labelled(world.examples(rng, N, family, 1.0), family, 1.0)
    along = x @ family.direction
    renamed = np.where(along > np.median(along), (y + 1) % 4, y)
    return {
        "estimate": stack.estimate(world.readings(x, known), n=N).to_dict(),
        "accuracy": world.accuracy(x, y),
        "accuracy_after": world.accuracy(x, renamed),
    }


# ---------------------------------------------------------------------------------------------- what is shown


def percent(share: Record) -> str:
    return f"{100 * share['share']:.1f} % [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"


def write_table(result: Record) -> None:
    """The table of the page of theory."""
    columns = [result[name] for name in COLUMNS]

    def shares(label: str, *path: str) -> list[str]:
        return [label, *(percent(at(each, *path)) for each in columns)]

    def means(label: str, key: str) -> list[str]:
        return [label, *(f"{each[key]:.3f}" for each in columns)]

    rows = [
        ["worlds", *(str(each["worlds"]) for each in columns)],
        ["level offered", *(f"{100 * each['level']:.0f} %" for each in columns)],
        shares("new domain of the same law: speaks", "inside", "speaks"),
        shares("coverage where it speaks", "inside", "coverage"),
        shares("coverage if it always spoke", "inside", "coverage_without_silence"),
        shares("batch in distribution: speaks", "clean", "speaks"),
        shares("coverage where it speaks", "clean", "coverage"),
        shares("inputs leave what was calibrated: silent", "outside", "silent"),
        shares("inputs leave, the model does not show it: silent", "unseen", "silent"),
        shares("coverage where it speaks", "unseen", "coverage"),
        shares("backtest passed", "useful"),
        shares("backtest passed by useless readings", "useful_although_dealt"),
        means("mean width of the interval", "mean_width"),
        means("mean absolute error", "mean_error"),
        means("the same of in-distribution accuracy", "mean_id_error"),
    ]
    heads = ["", "16 families", "16 families, smallest pool", "19 families"]
    lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|---|---|---|---|"]
    TABLE.write_text("\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n")


def at(record: Record, *path: str) -> Record:
    for name in path:
        record = record[name]
    return record


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
        xlabel=f"accuracy on the {N} inputs of the batch",
        ylabel="estimate without labels",
        xlim=(least, 1),
        ylim=(least, 1),
    )
    axes.set_title(f"{len(accuracy)} new batches in {result['usual']['worlds']} worlds", fontsize=10)
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

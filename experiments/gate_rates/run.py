"""How often is each gate wrong? Worlds whose truth is known, drawn again and again.

Counts the rigorous verdicts of each gate and part in worlds at their thresholds and near them (`limits`), and
both verdicts in the worlds of `worlds.py`. Writes results.json beside this file, the table of
docs/theory/gate-rates.md and docs/images/gate-limits.svg, the same files every time; half an hour on two
cores.

    python experiments/gate_rates/run.py [--repetitions 200] [--only C16] [--page]
"""

import argparse
import json
from collections import Counter
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import at_limits
import numpy as np
from limits import CELLS
from matplotlib import rc_context
from planted import allowed_errors
from worlds import WORLDS

from assay.core.random import stream
from assay.stats import clopper_pearson


HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
SEED = 42
PROCESSES = 2
STATUSES = ("pass", "moderate", "fail", "inconclusive")
TARGET = 0.08  # 16 errors in 200
BEGIN, END = "<!-- begin: rates, written by make gate-rates -->", "<!-- end -->"
Record = dict[str, Any]


def tally_world(index: int, repetitions: int) -> Record:
    """Both verdicts of a gate in one world, counted."""
    world = WORLDS[index]
    found = [world.judge(stream(SEED, f"{world.key} {at}")) for at in range(repetitions)]
    status = Counter(each.status for each in found)
    published = Counter(each.published for each in found)
    errors = {each: status[each] for each in world.errors}
    return {
        "gate": world.gate,
        "world": world.name,
        "truth": world.truth,
        "status": {each: status[each] for each in STATUSES},
        "published": {each: published[each] for each in STATUSES},
        "errors": errors,
        "error_intervals": {each: share_interval(count, repetitions) for each, count in errors.items()},
        "power": None if world.truth == "null" else share_interval(status[world.truth], repetitions),
        "measures": {
            name: round(float(np.nanmean([measure(each) for each in found])), 4)
            for name, measure in world.measures.items()
        },
        "reference": dict(world.reference),
        "within_target": max(errors.values()) <= round(TARGET * repetitions),
        "within_chance": max(errors.values()) <= allowed_errors(repetitions),
    }


def share_interval(count: int, n: int) -> list[float]:
    """Clopper-Pearson, 95 %."""
    interval = clopper_pearson(count, n)
    return [round(interval.low, 4), round(interval.high, 4)]


def measure(repetitions: int, only: str | None, known: Record | None) -> Record:
    """All counts, in the order of the lists, whatever the number of processes.

    Args:
        repetitions: Of each world away from a limit.
        only: Count the cells and worlds of this gate alone.
        known: Earlier results, which the others are taken from.
    """
    before = {at_limits.key_of(each): each for each in (known or {}).get("limits", ())} if only else {}
    earlier = {f"{each['gate']} {each['world']}": each for each in (known or {}).get("worlds", ())}
    places = [at for at, cell in enumerate(CELLS) if cell.gate == only or cell.key not in before]
    chosen = [at for at, world in enumerate(WORLDS) if only in (None, world.gate) or world.key not in earlier]
    with Pool(PROCESSES) as pool:
        for at, each in zip(places, pool.imap(at_limits.tally_cell, places), strict=True):
            before[CELLS[at].key] = each
            flag = "" if each["holds"] else "   BEYOND THE PROMISE"
            print(f"{at + 1}/{len(CELLS)} {CELLS[at].key}: {each['status']}{flag}", flush=True)
        for each in pool.imap(partial(tally_world, repetitions=repetitions), chosen):
            earlier[f"{each['gate']} {each['world']}"] = each
            flag = "" if each["within_target"] else "   MORE ERRORS THAN ALLOWED"
            print(f"{each['gate']} {each['world']}: {each['status']}{flag}", flush=True)
    return {
        "seed": SEED,
        "repetitions": repetitions,
        "errors_allowed": round(TARGET * repetitions),
        "errors_by_chance_at_five_percent": allowed_errors(repetitions),
        "limits": [before[cell.key] for cell in CELLS],
        "worlds": [earlier[world.key] for world in WORLDS],
    }


def text_of(results: Record) -> str:
    """The file of results; a line for each cell at a limit."""
    rest = json.dumps({**results, "limits": []}, indent=1, ensure_ascii=False)
    cells = ",\n  ".join(json.dumps(each, ensure_ascii=False) for each in results["limits"])
    return rest.replace('"limits": []', f'"limits": [\n  {cells}\n ]') + "\n"


def write_page(results: Record) -> None:
    """The table between the two marks of the page, and the picture."""
    page = DOCS / "theory" / "gate-rates.md"
    before, rest = page.read_text().split(BEGIN)
    table = at_limits.table(results["limits"], results["worlds"])
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")
    with rc_context({"svg.hashsalt": "gate-limits", "hatch.linewidth": 0.5}):
        figure = at_limits.picture(results["limits"])
        figure.savefig(DOCS / "images" / "gate-limits.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--only", help="code of a gate; the counts of the others are kept")
    parser.add_argument("--page", action="store_true", help="write the page from results.json, count nothing")
    arguments = parser.parse_args()
    path = HERE / "results.json"
    results = json.loads(path.read_text()) if path.is_file() else None
    if not arguments.page:
        results = measure(arguments.repetitions, arguments.only, results)
        path.write_text(text_of(results))
    write_page(results)
    for each in at_limits.beyond(results["limits"]):
        print(f"beyond the promise: {each}")


if __name__ == "__main__":
    main()

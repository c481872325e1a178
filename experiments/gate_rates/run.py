"""How often is each gate wrong? Worlds whose truth is known, drawn again and again.

Counts the rigorous verdicts of each gate and part in worlds at their thresholds and near them (`limits`),
both verdicts in the worlds of `worlds.py`, and how often the intervals behind the gates hold their truth.
Writes results.json beside this file, the tables of docs/theory/gate-rates.md and the pictures
docs/images/gate-limits.svg and gate-rates.svg, the same files every time; about half an hour on two cores.

    python experiments/gate_rates/run.py [--repetitions 200] [--coverage 400] [--only C16]
"""

import argparse
import json
from collections import Counter
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import at_limits
import interval_coverage
import numpy as np
from limits import CELLS
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.transforms import blended_transform_factory
from planted import allowed_errors
from worlds import WORLDS

from assay.core.random import stream
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS
from assay.stats import clopper_pearson


HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
SEED = 42
PROCESSES = 2
STATUSES = ("pass", "moderate", "fail", "inconclusive")
TARGET = 0.08  # 16 errors in 200
BEGIN, END = "<!-- begin: {}, written by make gate-rates -->", "<!-- end -->"
Record = dict[str, Any]


# --------------------------------------------------------------------------------------------- counting


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


def tally_case(index: int, repetitions: int) -> Record:
    """How often one kind of interval held its truth."""
    case = interval_coverage.CASES[index]
    found = interval_coverage.tally(case, repetitions)
    missed = repetitions - found["covered"]
    if case.claim.startswith("two-sided"):
        holds = 0.92 * repetitions <= found["covered"] <= 0.98 * repetitions
    elif case.claim.startswith("one-sided"):
        holds = max(found["below"], found["above"]) + found["undefined"] <= allowed_errors(repetitions)
    else:
        holds = missed <= allowed_errors(repetitions)
    return {
        "interval": case.interval,
        "world": case.world,
        "claim": case.claim,
        **found,
        "share_interval": share_interval(found["covered"], repetitions),
        "holds": bool(holds),
    }


def measure(repetitions: int, coverage: int, only: str | None = None, known: Record | None = None) -> Record:
    """All counts, in the order of the lists, whatever the number of processes.

    Args:
        repetitions: Of each world away from a limit.
        coverage: Worlds for each interval.
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
        worlds, cases = [], []
        for each in pool.imap(partial(tally_world, repetitions=repetitions), chosen):
            worlds.append(each)
            flag = "" if each["within_target"] else "   MORE ERRORS THAN ALLOWED"
            print(
                f"{len(worlds)}/{len(chosen)} {each['gate']} {each['world']}: {each['status']}{flag}",
                flush=True,
            )
        earlier |= {f"{each['gate']} {each['world']}": each for each in worlds}
        cases = [] if only is None or known is None else known["coverage"]
        jobs = range(0 if cases else len(interval_coverage.CASES))
        for each in pool.imap(partial(tally_case, repetitions=coverage), jobs):
            cases.append(each)
            flag = "" if each["holds"] else "   OUTSIDE WHAT IS CLAIMED"
            print(f"{each['interval']}, {each['world']}: {each['covered']} of {coverage}{flag}", flush=True)
    return {
        "seed": SEED,
        "repetitions": repetitions,
        "errors_allowed": round(TARGET * repetitions),
        "errors_by_chance_at_five_percent": allowed_errors(repetitions),
        "coverage_worlds": coverage,
        "limits": [before[cell.key] for cell in CELLS],
        "worlds": [earlier[world.key] for world in WORLDS],
        "coverage": cases,
    }


# ----------------------------------------------------------------------------------------------- tables


def percent(share: float) -> str:
    text = f"{100 * share:.1f}"
    return f"{text.removesuffix('.0')} %"


def reference_words(record: Record) -> str:
    """What the independent simulation found, verdicts only."""
    words = [
        f"{key.replace('published_', 'published ')} {percent(share)}"
        for key, share in record["reference"].items()
        if key not in record["measures"]
    ]
    return ", ".join(words)


def tables(results: Record) -> str:
    """The generated part of the page."""
    n = results["repetitions"]
    rows = [
        f"{n} repetitions of each world, seed {results['seed']}. Truth *neither*: pass and fail are both "
        "errors, each counted by itself. *Open* is inconclusive or moderate. Errors with the 95 % "
        "Clopper-Pearson interval of their share; **bold** where more than "
        f"{results['errors_allowed']}. *Published*: pass / moderate / fail. *Reference*: what an independent "
        "simulation of 200 repetitions found.",
        "",
        "| gate | world | truth | pass | open | fail | errors | published | reference |",
        "|---|---|---|--:|--:|--:|---|---|---|",
    ]
    for each in results["worlds"]:
        errors = []
        for kind, count in each["errors"].items():
            low, high = each["error_intervals"][kind]
            words = f"{count} ({100 * low:.1f} to {percent(high)})"
            words = words if count <= results["errors_allowed"] else f"**{words}**"
            errors.append(f"{kind} {words}" if each["truth"] == "null" else words)
        status, published = each["status"], each["published"]
        told = " / ".join(str(published[word]) for word in ("pass", "moderate", "fail"))
        open_ = status["inconclusive"] + status["moderate"]
        rows.append(
            f"| {each['gate']} | {each['world']} | {'neither' if each['truth'] == 'null' else each['truth']} "
            f"| {status['pass']} | {open_} | {status['fail']} | {', '.join(errors)} | {told} "
            f"| {reference_words(each)} |"
        )
    rows += [
        "",
        "Shares that no verdict shows, averaged over the repetitions:",
        "",
        "| gate | world | share | found | reference |",
        "|---|---|---|--:|--:|",
    ]
    for each in results["worlds"]:
        for name, share in each["measures"].items():
            known = each["reference"].get(name)
            rows.append(
                f"| {each['gate']} | {each['world']} | {name} | {percent(share)} "
                f"| {'' if known is None else percent(known)} |"
            )
    coverage = results["coverage_worlds"]
    rows += [
        "",
        f"Intervals in {coverage} worlds. *Below* and *above* count the truths that lay there. Two-sided: 92 "
        "to 98 % covered are wanted. One-sided: each end is a bound by itself, so that 90 % are covered, and "
        f"{allowed_errors(coverage)} misses are allowed at either end: a bound that misses 5 % has more in "
        "one count of a hundred. Always: as many misses at all n together. **Bold**: not so.",
        "",
        "| interval | of | claim | covered | 95 % interval | below | above |",
        "|---|---|---|--:|---|--:|--:|",
    ]
    for each in results["coverage"]:
        low, high = each["share_interval"]
        covered = percent(each["covered"] / coverage)
        rows.append(
            f"| {each['interval']} | {each['world']} | {each['claim']} "
            f"| {covered if each['holds'] else f'**{covered}**'} | {100 * low:.1f} to {percent(high)} "
            f"| {each['below']} | {each['above']} |"
        )
    return "\n".join(rows)


def into_page(name: str, text: str, page: str) -> str:
    """The page with everything between the two marks of one part replaced."""
    begin = BEGIN.format(name)
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{text}\n\n{END}{rest.partition(END)[2]}"


def text_of(results: Record) -> str:
    """The file of results; a line for each cell at a limit."""
    rest = json.dumps({**results, "limits": []}, indent=1, ensure_ascii=False)
    cells = ",\n  ".join(json.dumps(each, ensure_ascii=False) for each in results["limits"])
    return rest.replace('"limits": []', f'"limits": [\n  {cells}\n ]') + "\n"


# ---------------------------------------------------------------------------------------------- picture


def picture(results: Record) -> Figure:
    """A row per world: how often each verdict was right, open or wrong; the published rule beside it."""
    worlds, n = results["worlds"], results["repetitions"]
    limit = results["errors_allowed"] / n
    places, at = [], 0.0
    for before, each in zip([None, *worlds], worlds, strict=False):
        at += 0.0 if before is None else 1.0 if before["gate"] == each["gate"] else 1.6
        places.append(at)
    height = 0.185 * at + 1.7
    figure = Figure(figsize=(10.5, height), facecolor=PAPER)
    left, right = figure.subplots(1, 2, sharey=True)
    figure.subplots_adjust(left=0.31, right=0.97, wspace=0.08, bottom=0.75 / height, top=1 - 0.85 / height)
    for ax, verdicts, title in (
        (left, "status", "verdict with confidence, % of draws"),
        (right, "published", "published rule, % of draws"),
    ):
        for place, each in zip(places, worlds, strict=True):
            _bar(ax, place, {word: count / n for word, count in each[verdicts].items()}, each["truth"])
        ax.set_title(title, fontsize=10, loc="left", color=INK)
        ax.set_xlim(0, 1)
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25", "50", "75", "100"], fontsize=8, color=MUTED)
        ax.set_facecolor(PAPER)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    ends = {"pass": (1 - limit,), "fail": (limit,), "null": (limit, 1 - limit)}
    for before, place, each in zip([None, *worlds], places, worlds, strict=False):
        for end in ends[each["truth"]]:
            left.plot([end, end], [place - 0.47, place + 0.47], color=INK, linewidth=0.9)
        if before is None or before["gate"] != each["gate"]:
            x, y = figure.transFigure, left.transData
            left.text(
                0.012,
                place,
                each["gate"],
                fontsize=9,
                fontweight="bold",
                va="center",
                color=INK,
                transform=blended_transform_factory(x, y),
            )
    left.set_yticks(places, [each["world"] for each in worlds], fontsize=8, color=INK)
    left.set_ylim(at + 0.7, -0.7)
    keys = [
        Patch(color=SUPPORTS, label="right"),
        Patch(color=RULE, label="open (inconclusive or moderate)"),
        Patch(facecolor=OPPOSES, hatch="////", edgecolor=PAPER, linewidth=0, label="wrong"),
    ]
    figure.legend(handles=keys, loc="lower right", ncols=3, fontsize=8.5, frameon=False)
    figure.text(
        0.012,
        1 - 0.12 / height,
        f"Shares of {n} draws of each world: passes from the left, fails from the right. Ticks: "
        f"{results['errors_allowed']} errors, the most allowed.\n"
        "At a limit, and without an effect either way, both verdicts are wrong.",
        fontsize=9.5,
        va="top",
        color=INK,
    )
    return figure


def _bar(ax: Axes, place: float, shares: dict[str, float], truth: str) -> None:
    ax.barh(place, 1.0, height=0.72, color=RULE, linewidth=0)
    for word, start in (("pass", 0.0), ("fail", 1.0 - shares["fail"])):
        if shares[word]:
            style = {"color": SUPPORTS} if word == truth else {"facecolor": OPPOSES, "hatch": "////"}
            ax.barh(place, shares[word], left=start, height=0.72, linewidth=0, edgecolor=PAPER, **style)
    if truth == "null" and shares["pass"] + shares["fail"] == 1:
        ax.plot([shares["pass"]] * 2, [place - 0.36, place + 0.36], color=PAPER, linewidth=3)


def write_picture(figure: Figure, path: Path) -> None:
    with rc_context({"svg.hashsalt": path.stem, "hatch.linewidth": 0.5}):
        figure.savefig(path, metadata={"Date": None})


# ------------------------------------------------------------------------------------------------- main


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--coverage", type=int, default=400, help="worlds for each interval")
    parser.add_argument("--only", help="code of a gate; the counts of the others are kept")
    arguments = parser.parse_args()
    path = HERE / "results.json"
    known = json.loads(path.read_text()) if path.is_file() else None
    results = measure(arguments.repetitions, arguments.coverage, arguments.only, known)
    path.write_text(text_of(results))
    page = DOCS / "theory" / "gate-rates.md"
    text = into_page("limits", at_limits.table(results["limits"]), page.read_text())
    page.write_text(into_page("counts", tables(results), text))
    write_picture(at_limits.picture(results["limits"]), DOCS / "images" / "gate-limits.svg")
    write_picture(picture(results), DOCS / "images" / "gate-rates.svg")
    for each in at_limits.beyond(results["limits"]):
        print(f"beyond the promise: {each}")
    beyond = [f"{each['gate']} {each['world']}" for each in results["worlds"] if not each["within_target"]]
    print(
        f"{len(beyond)} of {len(WORLDS)} worlds with more errors than allowed: {', '.join(beyond) or 'none'}"
    )


if __name__ == "__main__":
    main()

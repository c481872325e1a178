"""The page of a benchmark of discovery methods: what it found, its table, and quality against cost."""

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.benchmark import BenchmarkRow, Bounded, DiscoveryBenchmark
from assay.metrics.page import NOTABLE
from assay.page import draw
from assay.page.blocks import PAGES, Figure, Page, PageForm, Section, Table, columns
from assay.page.draw import INK, LABEL_SIZE, OPPOSES, RULE, SUPPORTS, axes_of, place_labels
from assay.page.text import listed, model_text, number, plural


if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEGEND = (
    "CPR and CMD with 95 % intervals over examples. As published, CPR uses signed scores and CMD |score|; "
    "{}{} Passes: time of the discovery in plain forward passes over the "
    "same examples. MiB: additional memory. All CPR share one denominator, the gain of the model over its "
    "corrupted run: where that varies over examples, intervals are wide, but paired differences may be tight."
)


OPPOSITE = "CPR(|s|) and CMD(s) are the opposite."
CLIPPED = "clipped, faithfulness is cut at 1, and overshoot is what this takes from CPR."
DIVERGENCE = " KL: of circuits to the model in nats, by |score|, the mean over all sizes."


def quality_table(benchmark: DiscoveryBenchmark) -> Table:
    """A row per competitor that has scores, best CPR first: quality with intervals, and cost."""
    judged = any(row.truth is not None for row in benchmark.rows)
    clipped = all(row.signed is None or row.signed.overshoot is not None for row in benchmark.rows)
    diverging = all(row.absolute is None or row.absolute.kl is not None for row in benchmark.rows)
    others = ["clipped CPR", "clipped CMD", "overshoot"] if clipped else ["CPR(|s|)", "CMD(s)"]
    others += ["mean KL"] * diverging
    names = ["CPR", "CMD", *others, "passes", "seconds", "MiB", *(["AUROC"] if judged else [])]
    rows = []
    for row in benchmark.ranking():
        if row.signed is None or row.absolute is None:
            continue
        memory = None if row.peak_memory is None else row.peak_memory / 2**20
        more: tuple[Bounded | None, ...] = (row.absolute.cpr, row.signed.cmd)
        if clipped:
            more = (row.signed.clipped_cpr, row.absolute.clipped_cmd, row.signed.overshoot)
        if diverging:
            more = (*more, row.absolute.kl)
        cells = [title(row), f"{row.signed.cpr}", f"{row.absolute.cmd}"]
        cells += [number(None if each is None else each.value, 3) for each in more]
        cells += [number(cost, 1) for cost in (row.forward_equivalents, row.seconds, memory)]
        if judged:
            cells.append(number(None if row.truth is None else row.truth.auroc, 3))
        rows.append(cells)
    heads = [*columns("method"), *columns(*names, numeric=True)]
    note = LEGEND.format(CLIPPED if clipped else OPPOSITE, DIVERGENCE * diverging)
    return Table(columns=heads, rows=rows, note=note)


def title(row: BenchmarkRow) -> str:
    """A competitor with the options that are not at their defaults."""
    told = ", ".join(f"{name}={value}" for name, value in row.options.items())
    return f"{row.name} ({told})" if told else row.name


def notes(benchmark: DiscoveryBenchmark) -> list[str]:
    """What the table does not say: who could not compete, and what methods warned of."""
    rows = benchmark.rows
    unfinished = [row for row in rows if row.details.get("converged") is False and not row.warnings]
    sentences = [f"{row.name} did not compete: {row.reason}" for row in rows if row.reason]
    sentences += [f"{row.name}: {text}" for row in rows for text in row.warnings]
    return sentences + [f"{row.name}: not converged" for row in unfinished]


def heading(benchmark: DiscoveryBenchmark) -> str:
    """What was judged on what, in a line."""
    settings, judged = benchmark.settings, benchmark.evaluated_on
    where = f"{judged['n']} other examples" if benchmark.held_out else "the same examples"
    return (
        f"{benchmark.model['id']}, {benchmark.task}: {settings['n_edges']:,} edges; scores from "
        f"{benchmark.discovered_on['n']} examples, circuits judged on {where} ({settings['objective']}, "
        f"{settings['ablation']} ablation)"
    )


def finding(benchmark: DiscoveryBenchmark) -> str:
    """Which method has the best CPR, and which others cannot be told from it; empty for fewer than two."""
    best, *others = [row.name for row in benchmark.ranking() if row.cpr is not None] or [""]
    if not others:
        return ""
    tied = [name for name in others if not ((gap := benchmark.difference(best, name)) and gap.low > 0)]
    told = f"; {listed(tied)} cannot be told from it" if tied else ""
    beaten = len(others) - len(tied)
    above = f", above {plural(beaten, 'other method')} by a paired 95 % interval" if beaten else ""
    return f"{best} has the highest CPR{above}{told}.{_overshot(benchmark, best)}"


def _overshot(benchmark: DiscoveryBenchmark, best: str) -> str:
    """How much of the highest CPR is overshoot, and who leads without, where that is notable."""
    signed = {row.name: row.signed for row in benchmark.rows if row.signed is not None}
    clipped = {name: each.clipped_cpr.value for name, each in signed.items() if each.clipped_cpr is not None}
    overshoot = signed[best].overshoot
    if overshoot is None or not overshoot.value > NOTABLE:
        return ""
    leader = max(clipped, key=lambda name: clipped[name])
    return (
        f" {number(overshoot.value)} of it is overshoot, faithfulness above 1, which CMD counts as bad; by "
        f"clipped CPR {'it leads, too' if leader == best else f'{leader} leads'}."
    )


CHEAPEST = 0.1  # forward-equivalents; what costs less is drawn there


def plot_benchmark(benchmark: DiscoveryBenchmark, ax: "Axes | None" = None) -> "Axes":
    """Draw quality upwards and cost to the right, on a logarithmic axis; labels keep clear of each other.

    A method is a point with the interval of its CPR, a line across where its cost is unknown.
    """
    from matplotlib.ticker import NullFormatter

    ax = axes_of(ax, 7.2, 4.6)
    judged = [
        (title(row), row.forward_equivalents, row.cpr)
        for row in benchmark.rows
        if row.cpr is not None and not math.isnan(row.cpr.value)
    ]
    points = [(name, max(cost, CHEAPEST), cpr) for name, cost, cpr in judged if not math.isnan(cost)]
    ax.set_xscale("log")
    ax.axhline(1, color=RULE, linewidth=0.8, zorder=0)
    ax.axhline(0, color=RULE, linewidth=0.8, zorder=0)
    for _, cost, cpr in points:
        if math.isfinite(cpr.low) and math.isfinite(cpr.high):
            ax.plot([cost] * 2, [cpr.low, cpr.high], color=SUPPORTS, linewidth=2.0, alpha=0.55, zorder=2)
        ax.plot([cost], [cpr.value], "o", color=INK, markersize=5, zorder=3)
    levels = [(name, cpr.value) for name, cost, cpr in judged if math.isnan(cost)]
    for name, level in levels:
        ax.axhline(level, color=OPPOSES, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
        place: dict[str, Any] = {"xytext": (-2, 3), "textcoords": "offset points", "ha": "right"}
        place |= {"xycoords": ("axes fraction", "data"), "color": OPPOSES, "fontsize": LABEL_SIZE}
        ax.annotate(f"{name} (cost unknown)", (1, level), **place)
    costs = np.array([cost for _, cost, _ in points], dtype=float)
    value, low, high = (
        np.array([getattr(cpr, end) for *_, cpr in points]) for end in ("value", "low", "high")
    )
    if len(costs):
        ax.set_xlim(float(costs.min()) / 2, float(costs.max()) * 4)
    ends = [*value, *low, *high, *(level for _, level in levels)]
    if shown := [end for end in ends if math.isfinite(end)]:
        least, most = min(0.0, *shown), max(1.0, *shown)
        room = 0.07 * (most - least)
        ax.set_ylim(least - room, most + room)
    ax.xaxis.set_major_formatter(lambda x, _: f"≤ {x:g}" if math.isclose(x, CHEAPEST) else f"{x:,g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("cost of discovery in plain forward passes over the same examples")
    ax.set_ylabel("CPR (edges by signed score)")
    where = f"{benchmark.model['id']}, {benchmark.task}, n = {benchmark.evaluated_on['n']}"
    ax.set_title(draw.clipped(where, draw.LONGEST_LABEL), fontsize=9, color=INK, loc="left")
    place_labels(ax, tuple(name for name, *_ in points), costs, value, low=low, high=high)
    return ax


def benchmark_page(document: Mapping[str, Any]) -> Page:
    """Everything that is shown of a benchmark, from its document."""
    # The store adds the kind, which the document itself does not name.
    benchmark = DiscoveryBenchmark.from_dict({key: document[key] for key in document if key != "kind"})
    picture = Figure(
        draw=partial(plot_benchmark, benchmark),
        label=f"CPR against cost of discovery methods, {benchmark.model['id']}, {benchmark.task}",
        caption="CPR with its 95 % interval against the cost of the discovery, a point per method.",
    )
    return Page(
        kind="benchmark",
        title=f"Discovery methods on {benchmark.task} in {benchmark.model['id']}",
        verdict=finding(benchmark),
        subject=f"{heading(benchmark)}.",
        caveats=notes(benchmark),
        sections=[Section(title="Quality and cost", blocks=[picture, quality_table(benchmark)])],
        facts=[("model", model_text(benchmark.model))],
    )


SCHEMA = DiscoveryBenchmark.record_header["format"]
PAGES.add("benchmark", PageForm(noun="benchmark", schema=SCHEMA, again="benchmark", make=benchmark_page))

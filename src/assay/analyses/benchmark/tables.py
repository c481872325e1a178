"""Tables of a benchmark of discovery methods, for terminals and Markdown alike."""

import math
from collections.abc import Sequence

from assay.analyses.benchmark import (
    BenchmarkRow,
    Bounded,
    DiscoveryBenchmark,
    examine_order,
)
from assay.page.blocks import Column, Table
from assay.page.text import listed, plural


MISSING = "–"
LEGEND = (
    "CPR and CMD with 95 % intervals over examples. As published, CPR uses signed scores and CMD |score|; "
    "CPR(|s|) and CMD(s) are the opposite. Passes: time of the discovery in plain forward passes over the "
    "same examples. MiB: additional memory. All CPR share one denominator, the gain of the model over its "
    "corrupted run: where that varies over examples, intervals are wide, but paired differences may be tight."
)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[str]) -> Table:
    return Table(columns=[Column(name=name, numeric=name in numeric) for name in columns], rows=rows)


def quality_table(benchmark: DiscoveryBenchmark) -> Table:
    """A row per competitor that has scores, best CPR first: quality with intervals, and cost."""
    judged = any(row.truth is not None for row in benchmark.rows)
    columns = ["method", "CPR", "CMD", "CPR(|s|)", "CMD(s)", "passes", "seconds", "MiB"]
    columns += ["AUROC"] if judged else []
    rows = []
    for row in benchmark.ranking():
        if row.signed is None or row.absolute is None:
            continue
        memory = MISSING if row.peak_memory is None else mebibytes(row.peak_memory)
        cells = [title(row), f"{row.signed.cpr}", f"{row.absolute.cmd}"]
        cells += [bare(row.absolute.cpr), bare(row.signed.cmd), significant(row.forward_equivalents)]
        cells += [significant(row.seconds), memory]
        if judged:
            cells.append(MISSING if row.truth is None else share(row.truth.auroc))
        rows.append(tuple(cells))
    return _table(columns, rows, columns[1:])


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
    beaten = plural(len(others) - len(tied), "other method")
    return f"{best} has the highest CPR, above {beaten} by a paired 95 % interval{told}."


def order_of(benchmark: DiscoveryBenchmark) -> Table:
    """The published order beside what a benchmark found, a row per step."""
    rows = [
        (
            f"{link.worse} {'<' if link.strict else '≤'} {link.better}",
            MISSING if link.difference is None else f"{link.difference:+.3f}",
            link.verdict if link.reason is None else f"{link.verdict}: {link.reason}",
        )
        for link in examine_order(benchmark)
    ]
    return _table(("published", "difference", "measured"), rows, ("difference",))


def bare(known: Bounded) -> str:
    """A number without its interval."""
    return MISSING if math.isnan(known.value) else f"{known.value:.3f}"


def share(value: float) -> str:
    """A number of [0, 1] with three decimals; 1 only where it is exactly 1."""
    if math.isnan(value):
        return MISSING
    return "1" if value == 1 else f"{min(value, 0.9994999):.3f}"


def significant(value: float) -> str:
    """Two or three significant digits, no exponent."""
    if math.isnan(value):
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}"


def mebibytes(size: int) -> str:
    """Bytes as mebibytes."""
    return f"{size / 2**20:,.1f}" if size < 10 * 2**20 else f"{size / 2**20:,.0f}"

"""Calibrations as a page that knows no gate: both verdicts of each, its number as a picture, what to do."""

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.analyses.calibration.battery import SCHEMA
from assay.analyses.calibration.gate import GATES, REASONS, Judged, claim_name, head_name, sentence, warning
from assay.core.measurement import JUDGED
from assay.core.record import MACHINE
from assay.page import blocks, text
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, SUPPORTS, axes_of, clipped


if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.analyses.calibration.battery import CalibrationReport

Record = Mapping[str, Any]
RECOMMENDED, RECOMMENDED_GROUPS = 100, 300  # prompts
SCALE = "fails \N{LEFTWARDS ARROW} limit \N{RIGHTWARDS ARROW} passes"  # heading of the strips
LISTED_PARTS, LISTED_ROWS = 24, 30
FAR_TOO_MANY = 100_000
OPEN_STATES = ("not applicable", "undefined", "inconclusive")
COLOURS = {"pass": SUPPORTS, "moderate": INK, "fail": OPPOSES}
_DASH = "\N{EN DASH}"
# Every state with its verb, of one check and of several.
_VERBS = {
    "pass": ("passes", "pass"),
    "fail": ("fails", "fail"),
    "moderate": ("lies in between", "lie in between"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    "not applicable": ("does not apply", "do not apply"),
    "undefined": ("is undefined on these data", "are undefined on these data"),
    "none": ("has no verdict", "have no verdict"),
}


def calibration_page(document: Record) -> blocks.Page:
    """Everything that is shown of calibrations."""
    return blocks.Page(
        kind="calibrations",
        title=title(document),
        subject=_subject(document),
        verdict=overview(document),
        caveats=caveats(document),
        lede=(
            "Each check tests whether a number about the circuit can be trusted. ",
            text.italic("With confidence"),
            ": the verdict holds for every value that these prompts leave possible; otherwise it is "
            "inconclusive. It is wrong at most one time in twenty for values per prompt that are normal, t "
            "(5) or exponential, also at the limit. ",
            text.italic("Published rule"),
            ": the framework’s limit applied to the point estimate. There is no overall score: a failed "
            "check forbids the use that it guards, and other checks do not compensate for it.",
        ),
        sections=[blocks.Section(title="The checks", blocks=list(_checks(document)))],
        facts=list(_facts(document)),
        records=list(_records(document)),
        style="calibration",
    )


def title(document: Record) -> str:
    """What the page is about."""
    model, task = text.subject_of(document)
    return f"What can be trusted of the measurements on a circuit of {model} for {task}"


def overview(document: Record) -> str:
    """Every check with its verdict with confidence, then by its published rule; there is no overall score."""
    states, published = ({name: list[str]() for name in names} for names in (_VERBS, JUDGED))
    for gate in document["gates"]:
        judged, name = judged_of(gate["verdict"]), f"{gate['code']} {str(gate['name']).lower()}"
        if judged.state in ("not applicable", "undefined") and judged.because:
            first = judged.because.partition(". ")[0].rstrip(".")
            name += f" ({first[0].lower()}{first[1:]})"
        states.get(judged.state, states["none"]).append(name)
        if judged.published in JUDGED:
            published[judged.published].append(str(gate["code"]))
    rules = _verdicts(published) or "nothing is decided"
    return (
        f"With confidence, {_verdicts(states)}. By the published rules, which take numbers at face value, "
        f"{rules}."
    )


def _verdicts(checks: Mapping[str, Sequence[str]]) -> str:
    """Checks by what they say: `C11 and S1 pass; C12 fails`."""
    return "; ".join(
        f"{text.listed(names)} {_VERBS[state][len(names) > 1]}" for state, names in checks.items() if names
    )


def _subject(document: Record) -> str:
    """What is judged: the circuit, the ablation, the score where it was judged, and the prompts."""
    table, circuit, score = document["table"], document["circuit"], document.get("score")
    what = f"The circuit is {text.number(circuit['k'])} of {text.number(circuit['n_heads'])} heads"
    what += f", {text.kept(circuit)}, the rest under {table['ablation']} ablation."
    if score is not None:
        value, between = text.estimate(score["value"], score["low"], score["high"])
        bounds = f" {between} ({text.percent(score['level'])} interval)" if between else ""
        what += f" The score, faithfulness (share of the model’s margin): {value}{bounds}."
    where = f"Measured on {text.plural(table['n_prompts'], 'prompt')} of {document['task']['name']}"
    pool = table.get("n_pool") or 0
    more = f", and on a pool of {text.number(pool)} to estimate the variation over prompts"
    return f"{what} {where}{more if pool > table['n_prompts'] else ''}."


def caveats(document: Record) -> list[str]:
    """What to know before trusting any of the verdicts, the gravest first."""
    notes, circuit, score = [], document["circuit"], document.get("score")
    if circuit["k"] in (0, circuit["n_heads"]):
        odd = warning("trivial_circuit" if circuit["k"] else "empty_circuit")
        odd += " It is the whole model." if circuit["k"] and circuit.get("kind") == "heads" else ""
        notes.append(f"{odd} Checks that compare its heads with others do not apply.")
    held = score is not None and score["low"] is not None and score["low"] <= 0 <= score["high"]
    if held or any("score_near_zero" in gate["verdict"].get("warnings", ()) for gate in document["gates"]):
        where = "cannot be distinguished from 0" if held else "lies within three standard errors of 0"
        notes.append(
            f"The score {where}: the circuit may keep none of the behaviour, even if checks of its precision "
            "or constancy pass."
        )
    if same := (document.get("provenance") or {}).get("same_prompts"):
        checks = "One check is" if len(same) == 1 else f"{text.number(len(same))} checks are"
        notes.append(f"{checks} based on prompts that the circuit was found on. {REASONS['same_prompts'][1]}")
    notes += [f"{each}." for each in document["task"].get("notes", ())]
    if (n := document["table"]["n_prompts"]) < RECOMMENDED:
        notes.append(
            f"The table is based on {text.plural(n, 'prompt')}. {RECOMMENDED} or more are recommended, and "
            f"{RECOMMENDED_GROUPS} for the comparison of groups: with fewer, many checks stay open."
        )
    return notes


# ---- one check --------------------------------------------------------------------------------------


def _checks(document: Record) -> Iterator[blocks.Block]:
    """A row for each gate, what to do about it, and all that it computed behind a click."""
    gates, rows = document["gates"], []
    for gate in gates:
        judged, code = judged_of(gate["verdict"]), str(gate["code"])
        name = blocks.Cell(text=f"{code} {gate['name']}", below=gate["question"])
        rows.append(_row(name, judged, "; ".join(filter(None, (judged.label, passes_words(judged))))))
    names = blocks.columns("check", "with confidence", "published", "number", SCALE, "of what")
    caption = (
        "Every number on its own scale, with its limit in the middle and passing to the right; distances are "
        f"in units of the limit and compressed to fit. Bars are 90{text.NARROW}% intervals: one that crosses "
        "the limit leaves the check open. An open circle has no interval. A diamond is the number of the "
        "published rule, if it is another."
    )
    yield blocks.Table(columns=names, rows=rows, caption=caption, style="gate-parts")
    for gate in gates:
        if steps := advice(gate, document):
            yield blocks.Note(text=(text.bold(f"{gate['code']}:"), " ", " ".join(steps)), style="note")
    for gate in gates:
        anchor = "".join(each for each in str(gate["code"]) if each.isascii() and each.isalnum())
        summary, about = f"{gate['code']} {gate['name']}", list(_about(gate, document))
        yield blocks.Details(summary=summary, blocks=about, name=anchor, style="gate")


def _row(name: blocks.Cell | text.Text, judged: Judged, last: blocks.Cell | text.Text) -> blocks.Row:
    """Both verdicts on a number, the number and its picture."""
    word = judged.published
    mark, word = blocks.STATUSES[word] if word in JUDGED else (_DASH, "says nothing")
    own = "" if judged.state in blocks.STATUSES else _DASH
    status, drawing = blocks.Cell(status=judged.state, mark=own), blocks.Cell(drawing=strip(judged))
    published = (text.Span(mark, "sign"), " ", word)
    return blocks.Row(cells=[name, status, published, number_words(judged), drawing, last])


def _about(gate: Record, document: Record) -> Iterator[blocks.Block]:
    """What a verdict means and what it rests on."""
    verdict, judged = gate["verdict"], judged_of(gate["verdict"])
    # Scores without prompts leave only the heads to resample.
    heads_alone = verdict.get("details", {}).get("resampled") == "heads"
    over = "heads like these" if heads_alone else gate.get("generalises_over", "prompts like these")
    yield blocks.Note(text=judged.sentence, style="note")
    yield blocks.Note(text=f"The verdict with confidence generalises over {over}.", style="quiet note")
    for each in verdict.get("warnings", ()):
        yield blocks.Note(text=warning(each), style="warning")
    yield from _parts(verdict)
    yield from _numbers(gate, document)
    own = None if judged.part else judged.interval
    sources = {
        "Interval": f"{text.percent(own.level)}, method {own.method}" if own else "",
        "Weakness of the published form": sentence(gate.get("weakness", "")).rstrip("."),
        "Criterion": gate.get("criterion"),
        "Source": gate.get("source"),
    }
    told = " ".join(f"{name}: {words}." for name, words in sources.items() if words)
    yield blocks.Note(text=told, style="quiet note")


def advice(gate: Record, document: Record) -> list[str]:
    """What to do about the verdict of a gate, in sentences; none after a plain pass."""
    judged, verdict = judged_of(gate["verdict"]), gate["verdict"]
    steps: list[str] = [judged.because] if judged.state in (*OPEN_STATES, "fail") else []
    if judged.state in OPEN_STATES:
        steps.append(_needed(gate, document["table"]["n_prompts"]) or judged.remedy)
    if judged.state != "pass":
        steps.append(verdict.get("details", {}).get("finding", ""))
    return [each for each in steps if each]


def _needed(gate: Record, n_prompts: int) -> str:
    """How many prompts would settle an open verdict."""
    needed, details = gate["verdict"].get("n_needed"), gate["verdict"].get("details", {})
    if needed is None:
        return ""
    have = details.get("n_prompts", details.get("n", n_prompts))
    have = min(have.values(), default=n_prompts) if isinstance(have, Mapping) else have
    if needed <= have:
        return "The result is close; a few more prompts should settle it."
    if needed > FAR_TOO_MANY:
        return "The number lies on its limit: no feasible number of prompts would settle it."
    unit = 10 ** max(0, len(str(needed)) - 2)  # two digits, upwards: such forecasts know no more
    about = f"About {text.number(math.ceil(needed / unit) * unit)} {gate.get('counts', 'prompts')}"
    return f"{about} would settle it (here: {text.number(have)}), if the spread stays the same."


# ---- the numbers behind a check ---------------------------------------------------------------------


def _parts(verdict: Record) -> list[blocks.Table]:
    """The parts of a gate as rows: both verdicts, number, picture, its limits, why there is no verdict."""
    every = list((verdict.get("sub_results") or {}).values())
    absent = [judged_of(each).label for each in every if each.get("reason") == "not_applicable"]
    shown = [each for each in every if each.get("reason") != "not_applicable"]
    rows = [
        _part(each)
        for part in shown[:LISTED_PARTS]
        for each in (part, *(part.get("sub_results") or {}).values())
    ]
    names = blocks.columns("part", "with confidence", "published", "number", SCALE, "remark")
    note = f"Not measured here: {'; '.join(absent)}." if absent else ""
    left = max(0, len(shown) - LISTED_PARTS)
    return [blocks.Table(columns=names, rows=rows, left=left, note=note, style="gate-parts")] if rows else []


def _part(verdict: Record) -> blocks.Row:
    judged = judged_of(verdict)
    because = "" if judged.reason == "degenerate" else judged.because
    told = (sentence(passes_words(judged)), because, *map(warning, verdict.get("warnings", ())))
    return _row(judged.label, judged, blocks.Cell(text=" ".join(filter(None, told)), style="quiet"))


def _numbers(gate: Record, document: Record) -> Iterator[blocks.Block]:
    """Everything that a gate computed: its own picture, what it lists, then single numbers and limits."""
    verdict = gate["verdict"]
    details = verdict.get("details") or {}
    known = next((each for each in GATES.values() if each.key == gate["key"]), None)
    if known is not None and known.figure is not None and (block := known.figure(details)) is not None:
        yield block
    yield from _tables(details, document)
    facts = [
        (name.replace("_", " "), _shown(name, value)) for name, value in (verdict.get("values") or {}).items()
    ]
    limits = (verdict.get("thresholds") or {}).items()
    facts += [
        (f"limit: {name.replace('_', ' ')}", _shown(name, each)) for name, each in limits if each is not None
    ]
    if facts:
        yield blocks.Note(text="Numbers and limits", style="heading")
        yield blocks.Facts(facts=facts)


def _tables(details: Record, document: Record) -> Iterator[blocks.Table]:
    """A table of each set of records, and of all that is listed by the same names, or at the same places."""
    entries, beside = dict(details), dict[tuple[str, ...], dict[str, Any]]()
    for value in details.values():  # {statistic: [one per head]}
        if isinstance(value, Mapping) and value and all(isinstance(each, list) for each in value.values()):
            entries |= value
    columns_of_heads = entries.pop("columns", ())
    entries.pop("claims", None)  # of M93
    for name, value in entries.items():
        if isinstance(value, list):
            value = dict(zip(_places(len(value), columns_of_heads, document), value, strict=True))
        if not isinstance(value, Mapping) or len(value) < 2 or _is_interval(value):
            continue
        cells = list(value.values())
        if all(isinstance(each, Mapping) and not _is_interval(each) for each in cells):
            columns = [key for key, each in cells[0].items() if _fits(each)]
            yield _table(tuple(value), {key: [each.get(key) for each in cells] for key in columns})
        elif all(map(_fits, cells)):
            beside.setdefault(tuple(value), {})[name] = cells
    for shared, found in beside.items():
        if not all(isinstance(each, str) for cells in found.values() for each in cells):
            yield _table(shared, found)


def _places(n: int, columns_of_heads: Sequence[int], document: Record) -> list[str]:
    """Heads, where there is one value for each of the circuit, of those that are listed, or of the model."""
    heads, width = document["circuit"].get("heads") or (), document["model"].get("n_heads")
    if n == len(columns_of_heads):
        return [head_name(int(at), heads) for at in columns_of_heads]
    if n == len(heads):
        return [head_name(at, heads) for at in range(n)]
    if n == document["circuit"]["n_heads"]:
        return [f"a{at // width}.h{at % width}" for at in range(n)]
    return [str(at + 1) for at in range(n)]


def _table(names: Sequence[str], cells: Mapping[str, Sequence[Any]]) -> blocks.Table:
    """A column of names and one for each entry, cut to a bounded number of rows."""
    rows = [
        [claim_name(name), *(_shown(key, values[at]) for key, values in cells.items())]
        for at, name in enumerate(names[:LISTED_ROWS])
    ]
    columns = blocks.columns("") + blocks.columns(*(key.replace("_", " ") for key in cells), numeric=True)
    left = max(0, len(names) - LISTED_ROWS)
    return blocks.Table(columns=columns, rows=rows, left=left, style="gate-table")


def _fits(value: Any) -> bool:
    return not isinstance(value, list | Mapping) or _is_interval(value)


def _is_interval(value: Any) -> bool:
    return isinstance(value, Mapping) and {"low", "high"} <= set(value)


def _shown(name: str, value: Any) -> str:
    """A number in the form of its column: p-values to their own digits, whole numbers whole."""
    if isinstance(value, Mapping):
        return text.interval(value["low"], value["high"])
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str):
        return claim_name(value or "")
    if name == "p" or name.endswith(("_p", "p_values")):
        return text.p_value(value)
    whole = math.isfinite(value) and value == int(value)
    return text.number(int(value)) if whole else text.number(float(value), 3)


# ---- identity ---------------------------------------------------------------------------------------


def _facts(document: Record) -> Iterator[tuple[str, text.Text]]:
    circuit, task, table = document["circuit"], document["task"], document["table"]
    machine = table.get(MACHINE, {})
    seed = (task.get("config") or {}).get("seed")
    drawn = "" if seed is None else f"drawn with seed {seed}"
    pool = f"pool of {text.number(table['n_pool'])}" if table.get("n_pool") else ""
    forward = f"{text.number(round(machine.get('passes', {}).get('forward', 0)))} passes to fill it"
    yield from text.identity(document, f"{text.plural(circuit['k'], 'head')}, {text.kept(circuit)}", drawn)
    yield "prompts", (text.number(table["n_prompts"]), " ", text.quiet(pool))
    yield "resampling", f"seed {document['seed']}"
    columns = f"{text.number(len(machine.get('columns', ())))} columns "
    yield "table", (columns, text.quiet(forward), " ", text.code(table["hash"]))
    if against := ", ".join(document.get("against") or ()):
        yield "against", against
    if document.get("seconds") is not None:
        yield "took", f"{text.number(float(document['seconds']), 1)} s"


def _records(document: Record) -> Iterator[blocks.Block]:
    if missing := document.get("missing"):
        names = f"{text.plural(len(missing), 'column')} could not be measured"
        yield blocks.Details(summary=names, blocks=[blocks.Facts(facts=list(missing.items()))])
    yield blocks.folded_record("Provenance", document.get("provenance") or {})


# ---- words of a number --------------------------------------------------------------------------------


def judged_of(record: Mapping[str, Any]) -> Judged:
    """What a gate, or a part of one, decided about its number."""
    return Judged.from_dict(record["judged"])


def number_words(judged: Judged) -> str:
    """The number with its interval, where that has a width; empty where it is undefined."""
    interval = judged.interval
    if judged.value is None or interval is None or interval.high <= interval.low:
        return "" if judged.value is None else text.number(judged.value)
    return " ".join(text.estimate(judged.value, interval.low, interval.high))


def passes_words(judged: Judged) -> str:
    """Where the number passes and fails; empty without limits."""
    if judged.rule is None:
        return ""
    side, other = ("above", "below") if judged.rule.higher else ("below", "above")
    first, *more = (f"{limit:g}".replace("-", text.MINUS) for limit in judged.rule.limits)
    words = f"passes {side} {first}" if judged.rule.strict else f"passes at {first} or {side}"
    return f"{words}, fails {other} {more[0]}" if more else words


# ---- pictures -----------------------------------------------------------------------------------------


def relative(judged: Judged, value: float | None) -> float | None:
    """Where a number is if the limit of a pass is 0 and passing is to the right; in (-1, 1).

    The distance is counted in units of the limit itself (of 0.1 where that is 0) and bent, x / (1 + |x|), so
    that every number has a place: half way to the edge lies one unit.
    """
    if value is None or judged.rule is None:
        return None
    distance = (value - judged.rule.pass_at) / judged.unit * (1 if judged.rule.higher else -1)
    return distance / (1 + abs(distance))


def strip(judged: Judged) -> str:
    """A number around its limit, on the scale of `relative`; empty without either."""
    at = relative(judged, judged.value)
    if at is None or judged.rule is None:
        return ""

    def place(at: float) -> float:
        return round(130 * (1 + at), 1)

    interval, by = judged.interval, relative(judged, judged.published_value)
    fails = relative(judged, judged.rule.fails_beyond)
    parts = [
        '<rect class="pass" x="130" y="2" width="130" height="20"/>',
        f'<rect class="fail" x="0" y="2" width="{0 if fails is None else place(fails)}" height="20"/>',
        '<line class="axis" x1="0" x2="260" y1="12" y2="12"/>',
        '<line class="threshold" x1="130" x2="130" y1="0" y2="24"/>',
    ]
    if interval is not None:
        low, high = (place(relative(judged, end) or 0.0) for end in (interval.low, interval.high))
        parts.append(f'<line class="range" x1="{low}" x2="{high}" y1="12" y2="12"/>')
    if by is not None and by != at:
        x = place(by)
        parts.append(f'<path class="published" d="M{x - 5.5} 12L{x} 6.5L{x + 5.5} 12L{x} 17.5Z"/>')
    style = ' class="alone"' if interval is None else ""
    parts.append(f'<circle{style} cx="{place(at)}" cy="12" r="4.2"/>')
    words = f"{judged.label}: {number_words(judged)}; {passes_words(judged)}; {judged.state} with confidence"
    spoken = f'role="img" aria-label="{html.escape(words)}"'
    return f'<svg class="gate-strip" viewBox="-6 0 272 24" {spoken}>{"".join(parts)}</svg>'


def plot_gates(gates: Sequence[Mapping[str, Any]], ax: "Axes | None" = None) -> "Axes":
    """Draw a line per gate: the interval around its limit, the published number, the verdict with confidence.

    A bar is an interval, an open circle a number without one, a diamond the number of the published rule.

    Args:
        gates: As documents hold them: `code`, `name` and `verdict`.
        ax: Where; default: axes of their own.
    """
    ax = axes_of(ax, 9.2, 0.9 + 0.3 * len(gates))
    ax.set_facecolor("none")
    ax.axvspan(0, 1.02, color=SUPPORTS, alpha=0.06, linewidth=0)
    ax.axvspan(-1.02, 0, color=OPPOSES, alpha=0.05, linewidth=0)
    ax.axvline(0, color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
    for at, gate in enumerate(gates):
        judged = judged_of(gate["verdict"])
        colour, ends = COLOURS.get(judged.state, MUTED), judged.interval
        value, by = relative(judged, judged.value), relative(judged, judged.published_value)
        if ends is not None and judged.rule is not None:
            reach = [relative(judged, end) or 0.0 for end in (ends.low, ends.high)]
            ax.plot(reach, [at, at], color=colour, linewidth=3, solid_capstyle="butt")
        if value is not None:
            ax.plot(value, at, "o", color=colour, ms=6, mfc=PAPER if ends is None else colour, mew=1.6)
        if by is not None:
            ax.plot(by, at, "D", color=COLOURS.get(judged.published, MUTED), ms=8.5, mfc="none", zorder=4)
        ax.text(1.06, at, judged.state, va="center", color=colour, fontsize=8.5, clip_on=False)
    names = [f"{clipped(str(gate['name']), 36)}  {clipped(str(gate['code']), 8)}" for gate in gates]
    ax.set_yticks(range(len(gates)), names, parse_math=False)
    ax.set_xticks((-0.9, 0, 0.9), ("\N{LEFTWARDS ARROW} fails", "limit", "passes \N{RIGHTWARDS ARROW}"))
    ax.tick_params(length=0, colors=INK, top=False, labeltop=True, labelbottom=False)
    ax.set(ylim=(len(gates) - 0.4, -0.6), xlim=(-1.02, 1.5))
    ax.set_xlabel(
        "distance from the limit in units of the limit, drawn shorter the further it is", loc="left"
    )
    ax.spines[:].set_visible(False)
    return ax


def plot_calibration(report: "CalibrationReport", ax: "Axes | None" = None) -> "Axes":
    """Draw the gates of a calibration around the limit of a pass."""
    return plot_gates(report.to_dict()["gates"], ax)


blocks.PAGES.add(
    "calibration",
    blocks.PageForm(noun="calibration", schema=SCHEMA, again="`assay calibrate`", make=calibration_page),
)

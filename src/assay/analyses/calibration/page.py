"""Calibrations as a page that knows no gate: both verdicts of each, its number as a picture, what to do."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.analyses.calibration import plots
from assay.analyses.calibration.battery import SCHEMA
from assay.analyses.calibration.columns import JUDGES
from assay.analyses.calibration.gate import GATES, REASONS, Judged, claim_name, head_name, sentence, warning
from assay.analyses.calibration.plots import KINDS, judged_of
from assay.core.record import MACHINE
from assay.core.verdict import JUDGED, Verdict
from assay.page.blocks import (
    PAGES,
    Block,
    Cell,
    Column,
    Details,
    Facts,
    Figure,
    Interactive,
    Note,
    Page,
    PageForm,
    Row,
    Section,
    Table,
    columns,
    folded_record,
)
from assay.page.text import (
    NARROW,
    Span,
    Text,
    bold,
    code,
    estimate,
    interval,
    italic,
    listed,
    model_text,
    number,
    p_value,
    percent,
    plural,
    quiet,
    subject_of,
    task_text,
)


Record = Mapping[str, Any]
RECOMMENDED, RECOMMENDED_GROUPS = 100, 300  # prompts
LISTED_PARTS, LISTED_ROWS = 24, 30
FAR_TOO_MANY = 100_000
OPEN_STATES = ("not applicable", "undefined", "inconclusive")
_VERBS = {
    "pass": ("passes", "pass"),
    "moderate": ("lies in between", "lie in between"),
    "fail": ("fails", "fail"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    "not applicable": ("does not apply", "do not apply"),
    "undefined": ("is undefined on these data", "are undefined on these data"),
    "none": ("has no verdict", "have no verdict"),
}


def calibration_page(document: Record) -> Page:
    """Everything that is shown of calibrations."""
    gates = ordered(document)
    return Page(
        kind="calibrations",
        title=title(document),
        subject=_subject(document),
        verdict=overview(document),
        caveats=caveats(document),
        lede=(
            "Each check tests whether a number about the circuit can be trusted. ",
            italic("With confidence"),
            ": the verdict holds for every value that these prompts leave possible; otherwise it is "
            "inconclusive. It is wrong at most one time in twenty for values per prompt that are normal, t "
            "(5) or exponential, also at the limit. ",
            italic("Published rule"),
            ": the framework’s limit applied to the point estimate. There is no overall score: a failed "
            "check forbids the use that it guards, and other checks do not compensate for it.",
        ),
        sections=[
            Section(title="All checks at a glance", blocks=[_glance(gates)]),
            Section(title="The checks one by one", blocks=[_checks(gates, document)]),
        ],
        facts=list(_facts(document)),
        records=list(_records(document)),
        style="calibration",
    )


def ordered(document: Record) -> list[Record]:
    """The gates in the order of the framework, those of other packages last."""
    places = {GATES[key].code: place for place, key in enumerate(JUDGES)}
    return sorted(document["gates"], key=lambda gate: places.get(str(gate["code"]), len(places)))


def title(document: Record) -> str:
    """What the page is about."""
    return "What can be trusted of the measurements on a circuit of {} for {}".format(*subject_of(document))


def overview(document: Record) -> str:
    """Every check with its verdict with confidence, then by its published rule; there is no overall score."""
    states: dict[str, list[str]] = {name: [] for name in KINDS}
    published: dict[str, list[str]] = {name: [] for name in JUDGED}
    for gate in document["gates"]:
        judged, name = judged_of(gate["verdict"]), f"{gate['code']} {str(gate['name']).lower()}"
        if judged.state in ("not applicable", "undefined") and judged.because:
            first = judged.because.partition(". ")[0].rstrip(".")
            name += f" ({first[0].lower()}{first[1:]})"
        states.get(judged.state, states["none"]).append(name)
        published.get(judged.published, []).append(str(gate["code"]))
    rules, rest = _verdicts(published), len(document["gates"]) - sum(map(len, published.values()))
    others = f"; {'the others decide' if rest > 1 else 'the other one decides'} nothing" if rest else ""
    said = f"By the published rules, which take numbers at face value, {rules}{others}."
    return f"With confidence, {_verdicts(states)}. {said if rules else 'The published rules decide nothing.'}"


def _verdicts(checks: Mapping[str, Sequence[str]]) -> str:
    """Checks by what they say: `C11 and S1 pass; C12 fails`."""
    return "; ".join(
        f"{listed(names)} {_VERBS[state][len(names) > 1]}" for state, names in checks.items() if names
    )


def _subject(document: Record) -> str:
    """What is judged: the circuit, the ablation, the score where it was judged, and the prompts."""
    table, circuit, score = document["table"], document["circuit"], document.get("score")
    edges = "" if circuit.get("n_edges") is None else f", {plural(circuit['n_edges'], 'edge')}"
    what = f"The circuit is {number(circuit['k'])} of {number(circuit['n_heads'])} heads{edges}"
    what += f", the rest under {table['ablation']} ablation."
    if score is not None:
        value, between = estimate(score["value"], score["low"], score["high"])
        level = f" ({percent(score['level'])} interval)" if between else ""
        what += f" The score, faithfulness (share of the model’s margin): {value} {between}{level}."
    where = f"Measured on {plural(table['n_prompts'], 'prompt')} of {document['task']['name']}"
    pool = table.get("n_pool") or 0
    more = f", and on a pool of {number(pool)} to estimate the variation over prompts"
    return f"{what} {where}{more if pool > table['n_prompts'] else ''}."


def caveats(document: Record) -> list[str]:
    """What to know before trusting any of the verdicts, the gravest first."""
    notes, circuit, score = [], document["circuit"], document.get("score")
    if circuit["k"] in (0, circuit["n_heads"]):
        odd = warning("trivial_circuit" if circuit["k"] else "empty_circuit")
        notes.append(f"{odd} Checks that compare its heads with others do not apply.")
    held = score is not None and score["low"] is not None and score["low"] <= 0 <= score["high"]
    if held or any("score_near_zero" in gate["verdict"].get("warnings", ()) for gate in document["gates"]):
        where = "cannot be distinguished from 0" if held else "lies within three standard errors of 0"
        notes.append(
            f"The score {where}: the circuit may keep none of the behaviour, even if checks of its precision "
            "or constancy pass."
        )
    if same := (document.get("provenance") or {}).get("same_prompts"):
        checks = "One check is" if len(same) == 1 else f"{number(len(same))} checks are"
        notes.append(f"{checks} based on prompts that the circuit was found on. {REASONS['same_prompts'][1]}")
    notes += [f"{text}." for text in document["task"].get("notes", ())]
    if (n := document["table"]["n_prompts"]) < RECOMMENDED:
        notes.append(
            f"The table is based on {plural(n, 'prompt')}. {RECOMMENDED} or more are recommended, and "
            f"{RECOMMENDED_GROUPS} for the comparison of groups: with fewer, many checks stay open."
        )
    return notes


def _glance(gates: Sequence[Record]) -> Figure:
    return Figure(
        draw=lambda: plots.plot_gates(gates),
        label="All checks around their limits; the numbers are in the rows below.",
        caption="Every check on its own scale, oriented so that its limit is the line in the middle and "
        "passing is to the right; distances are in units of the limit and compressed to fit. Bars are "
        f"90{NARROW}% intervals: one that crosses the line leaves the check open. Blue passes, vermilion "
        "fails, black lies between, grey is open.",
        name="gates",
    )


# ---- one check --------------------------------------------------------------------------------------


def _checks(gates: Sequence[Record], document: Record) -> Interactive:
    """All gates; in a terminal a row each: both verdicts, the number and where it would pass."""
    checks, rows, steps = [], [], []
    for gate in gates:
        check, advised = _check(gate, document)
        checks.append(check)
        words = [" ".join(check["status"]), " ".join(check["published"]), check["value"]]
        passes = "; ".join(filter(None, (check["judged"].label, check["passes"])))
        rows.append([gate["code"], gate["name"], *words, passes])
        steps += [Note(text=f"{gate['code']}: {' '.join(advised)}")] if advised else []
    names = columns("", "check", "with confidence", "published", "number", "of what")
    values = {"checks": checks, "legend": plots.legend()}
    return Interactive(
        template="checks.html", values=values, blocks=[Table(columns=names, rows=rows), *steps]
    )


def _check(gate: Record, document: Record) -> tuple[dict[str, Any], list[str]]:
    """What the template shows of one gate, and what to do about it."""
    verdict, judged = gate["verdict"], judged_of(gate["verdict"])
    undefined, parts, steps = judged.value is None, _parts(verdict), advice(gate, document)
    lacking, beyond = ("".join(steps[:1]), steps[1:]) if undefined else ("", steps)
    over = gate.get("generalises_over")
    # Scores without prompts leave only the heads to resample.
    over = "heads like these" if verdict.get("details", {}).get("resampled") == "heads" else over
    notes = [
        Note(text=judged.sentence),
        Note(text=f"The verdict with confidence generalises over {over}." if over else "", style="quiet"),
        Note(text=(bold("Next."), " ", " ".join(beyond)) if beyond else ""),
        Note(text=_disagreement(judged, sentence(gate.get("weakness", ""))), style="quiet"),
        *(Note(text=warning(each), style="warning") for each in verdict.get("warnings", ())),
    ]
    check = {
        "key": "".join(each for each in str(gate["code"]) if each.isascii() and each.isalnum()) or "gate",
        "gate": gate,
        "judged": judged,
        "status": KINDS.get(judged.state, KINDS["none"]),
        "published": plots.published_words(judged),
        "value": "" if undefined else plots.number_words(judged),
        "passes": plots.passes_words(judged),
        "drawing": plots.strip(judged),
        "lacking": lacking,
        "words": [note for note in notes if note.text],
        "summary": f"{plural(len(parts[0].rows), 'part')}, all numbers" if parts else "All numbers",
        "more": [*parts, *_numbers(gate, document), Note(text=_sources(gate, judged), style="quiet note")],
    }
    return check, steps


def advice(gate: Record, document: Record) -> list[str]:
    """What to do about the verdict of a gate, in sentences; none after a plain pass."""
    judged, verdict = judged_of(gate["verdict"]), gate["verdict"]
    steps: list[str] = [judged.because] if judged.state in (*OPEN_STATES, "fail") else []
    if judged.state in OPEN_STATES:
        steps.append(_needed(gate, document["table"]["n_prompts"]) or judged.remedy)
    known = next((each for each in GATES.values() if each.code == gate["code"]), None)
    if judged.state != "pass" and known is not None and known.finding is not None:
        steps.append(known.finding(Verdict.from_dict(verdict), document["circuit"].get("heads") or ()))
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
    about = f"About {number(math.ceil(needed / unit) * unit)} {gate.get('counts', 'prompts')} would settle it"
    return f"{about} (here: {number(have)}), if the spread stays the same."


def _disagreement(judged: Judged, weakness: str) -> str:
    """What the published rule says where that is something else, of which number, and its weakness."""
    by = judged.published_value
    if judged.published not in JUDGED or judged.published == judged.state:
        return ""
    other = "" if by is None or judged.side(by) == judged.side(judged.value) else f" of {number(by)}"
    return f"The published rule says {judged.published}{other}. {weakness}".strip()


def _sources(gate: Record, judged: Judged) -> str:
    """How the interval came about, what the published form lacks, and where it is from."""
    own = None if judged.part else judged.interval
    parts = {
        "Interval": f"{percent(own.level)}, method {own.method}" if own else "",
        "Weakness of the published form": sentence(gate.get("weakness", "")).rstrip("."),
        "Criterion": gate.get("criterion"),
        "Source": gate.get("source"),
    }
    return " ".join(f"{name}: {words}." for name, words in parts.items() if words)


# ---- the numbers behind a check ---------------------------------------------------------------------


def _parts(verdict: Record) -> list[Table]:
    """The parts of a gate as rows: number, picture, both verdicts, a word on why there is none."""
    every = list((verdict.get("sub_results") or {}).values())
    absent = [judged_of(each).label for each in every if each.get("reason") == "not_applicable"]
    shown = [each for each in every if each.get("reason") != "not_applicable"]
    rows = [
        _part(each)
        for part in shown[:LISTED_PARTS]
        for each in (part, *(part.get("sub_results") or {}).values())
    ]
    names = columns("part", "number", "against its limit", "with confidence", "published", "remark")
    note = f"Not measured here: {'; '.join(absent)}." if absent else ""
    left = max(0, len(shown) - LISTED_PARTS)
    return [Table(columns=names, rows=rows, left=left, note=note, style="gate-parts")] if rows else []


def _part(verdict: Record) -> Row:
    judged = judged_of(verdict)
    mark, word = plots.published_words(judged)
    value, drawing = "" if judged.value is None else plots.number_words(judged), plots.strip(judged)
    because = "" if judged.reason == "degenerate" else judged.because
    remarks = [because, *map(warning, verdict.get("warnings", ()))]
    return Row(
        cells=[
            judged.label,
            value,
            Cell(drawing=drawing) if drawing else Span(plots.passes_words(judged) if value else "", "quiet"),
            Cell(status=judged.state, mark=KINDS.get(judged.state, KINDS["none"])[0]),
            (Span(mark, "sign"), " ", word),
            Cell(text=" ".join(filter(None, remarks)), style="quiet"),
        ]
    )


def _numbers(gate: Record, document: Record) -> Iterator[Block]:
    """Everything that a gate computed: its own picture, what it lists, then single numbers and limits."""
    verdict = gate["verdict"]
    details = verdict.get("details") or {}
    known = next((each for each in GATES.values() if each.code == gate["code"]), None)
    if known is not None and known.figure is not None and (block := known.figure(details)) is not None:
        yield block
    yield from _tables(details, document)
    facts = [(_plain(name), _shown(name, value)) for name, value in (verdict.get("values") or {}).items()]
    limits = (verdict.get("thresholds") or {}).items()
    facts += [(f"limit: {_plain(name)}", _shown(name, each)) for name, each in limits if each is not None]
    if facts:
        yield Note(text="Numbers and limits", style="heading")
        yield Facts(facts=facts)


def _tables(details: Record, document: Record) -> Iterator[Table]:
    """A table of each set of records, and of all that is listed by the same names, or at the same places."""
    entries, beside = dict(details), dict[tuple[str, ...], dict[str, Any]]()
    for value in details.values():  # {statistic: [one per head]}
        if isinstance(value, Mapping) and value and all(isinstance(each, list) for each in value.values()):
            entries |= value
    columns_of_heads = entries.pop("columns", ())
    for name, value in entries.items():
        if not isinstance(value, list | Mapping) or len(value) < 2 or _is_interval(value):
            continue
        cells = list(value.values() if isinstance(value, Mapping) else value)
        if all(isinstance(each, Mapping) and not _is_interval(each) for each in cells):
            records = (
                [{"": key, **each} for key, each in value.items()] if isinstance(value, Mapping) else cells
            )
            first, *others = [key for key, each in records[0].items() if _fits(each)]
            names = [str(each[first]) for each in records]
            yield _table(first, names, {key: [each.get(key) for each in records] for key in others})
        elif all(map(_fits, cells)):
            names = (
                list(value) if isinstance(value, Mapping) else _places(len(cells), columns_of_heads, document)
            )
            beside.setdefault(tuple(names), {})[name] = cells
    for shared, found in beside.items():
        if not all(isinstance(each, str) for cells in found.values() for each in cells):
            yield _table("", shared, found)


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


def _table(corner: str, names: Sequence[str], cells: Mapping[str, Sequence[Any]]) -> Table:
    """A column of names and one for each entry, cut to a bounded number of rows."""
    return Table(
        columns=[Column(name=_plain(corner)), *(Column(name=_plain(key), numeric=True) for key in cells)],
        rows=[
            [claim_name(name), *(_shown(key, values[at]) for key, values in cells.items())]
            for at, name in enumerate(names[:LISTED_ROWS])
        ],
        left=max(0, len(names) - LISTED_ROWS),
        style="gate-table",
    )


def _fits(value: Any) -> bool:
    return not isinstance(value, list | Mapping) or _is_interval(value)


def _is_interval(value: Any) -> bool:
    return isinstance(value, Mapping) and {"low", "high"} <= set(value)


def _plain(name: str) -> str:
    return {"bh": "Benjamini-Hochberg", "by": "Benjamini-Yekutieli", "m": "tested", "w": "W"}.get(
        name, name.replace("_", " ")
    )


def _shown(name: str, value: Any) -> str:
    """A number in the form of its column: p-values to their own digits, whole numbers whole."""
    if isinstance(value, Mapping):
        return interval(value["low"], value["high"])
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str):
        return value or ""
    if name == "p" or name.endswith(("_p", "p_values")):
        return p_value(value)
    return number(int(value)) if math.isfinite(value) and value == int(value) else number(float(value), 3)


# ---- identity ---------------------------------------------------------------------------------------


def _facts(document: Record) -> Iterator[tuple[str, Text]]:
    circuit, task, table = document["circuit"], document["task"], document["table"]
    machine = table.get(MACHINE, {})  # apart in a store
    passes, filled = table.get("passes", machine.get("passes")), table.get("columns", machine.get("columns"))
    edges = "" if circuit.get("n_edges") is None else f", {number(circuit['n_edges'])} edges"
    seed = (task.get("config") or {}).get("seed")
    pool = f"pool of {number(table['n_pool'])}" if table.get("n_pool") else ""
    took = "" if document.get("seconds") is None else f"{number(float(document['seconds']), 1)} s"
    facts: dict[str, Text] = {
        "result": code(document["id"]),
        "circuit": (
            f"{circuit.get('name') or ''} ",
            quiet(f"{circuit['k']} heads{edges}"),
            " ",
            code(circuit["hash"]),
        ),
        "model": model_text(document["model"]),
        "task": task_text(task, "" if seed is None else f"drawn with seed {seed}"),
        "prompts": (number(table["n_prompts"]), " ", quiet(pool)),
        "resampling": f"seed {document['seed']}",
        "table": (
            f"{number(len(filled or ()))} columns ",
            quiet(f"{number(round((passes or {}).get('forward', 0)))} passes to fill it"),
            " ",
            code(table["hash"]),
        ),
        "against": ", ".join(document.get("against") or ()),
        "took": took,
    }
    yield from ((name, text) for name, text in facts.items() if text)


def _records(document: Record) -> Iterator[Block]:
    if missing := document.get("missing"):
        names = f"{plural(len(missing), 'column')} could not be measured"
        yield Details(summary=names, blocks=[Facts(facts=list(missing.items()))])
    yield folded_record("Provenance", document.get("provenance") or {})


PAGES.add(
    "calibration",
    PageForm(noun="calibration", schema=SCHEMA, again="`assay calibrate`", make=calibration_page),
)

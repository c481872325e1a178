"""What is behind a gate: its parts, pairs, heads and claims as tables."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from assay.analyses.calibration.names import circuit_heads, claim_name, head_name, pair_name
from assay.analyses.calibration.page_words import KINDS, judged_of, number_line
from assay.analyses.calibration.reasons import warning
from assay.analyses.calibration.strips import strip
from assay.page.blocks import (
    Block,
    Cell,
    Column,
    Facts,
    Heading,
    HeatCell,
    HeatMap,
    Note,
    Row,
    Table,
)
from assay.page.text import Span, Text, interval, number, percent


Record = Mapping[str, Any]

LISTED_CLAIMS, LISTED_HEADS, LISTED_PAIRS, LISTED_TASKS = 40, 30, 24, 12
HEADS_SHOWN = 12  # of a table over all heads of the model
_PARTS = (
    Column(name="part"),
    Column(name="number", numeric=True),
    *(Column(name=name) for name in ("against its limit", "with confidence", "published", "remark")),
)


def parts(gate: Record) -> list[Block]:
    """The parts of a gate as rows: number, picture, both verdicts, a word on why there is none.

    Parts of C14 that were not measured are named below the table.
    """
    every = gate["verdict"].get("sub_results") or {}
    listed = LISTED_TASKS if gate["code"] in ("C17", "M93") else LISTED_PAIRS
    verdicts = [each for part in list(every.values())[:listed] for each in _with_its_parts(part)]
    absent = [each for each in every.values() if _unmeasured(gate, each)]
    rows = [_part(each) for each in verdicts if not _unmeasured(gate, each)]
    blocks: list[Block] = [Table(columns=_PARTS, rows=rows, style="gate-parts")] if rows else []
    if rows and len(every) > listed:
        blocks.append(_remark(f"{number(len(every) - listed)} parts more are in the result."))
    if rows and absent:
        labels = "; ".join(judged_of(each).label for each in absent)
        blocks.append(_remark(f"Not measured here: {labels}."))
    return blocks


def _remark(text: str) -> Note:
    return Note(text=text, style="quiet note")


def _unmeasured(gate: Record, verdict: Record) -> bool:
    return bool(gate["code"] == "C14" and verdict.get("reason") == "not_applicable")


def _with_its_parts(verdict: Record) -> list[Record]:
    return [verdict, *(verdict.get("sub_results") or {}).values()]


def _part(verdict: Record) -> Row:
    judged = judged_of(verdict)
    value, passes = number_line(judged)
    known, drawing = judged.value is not None, strip(judged)
    because = "" if judged.reason == "degenerate" else judged.because
    cautions = [warning(str(code)) for code in verdict.get("warnings") or ()]
    return Row(
        cells=[
            judged.label,
            value if known else "",
            Cell(drawing=drawing) if drawing else Span(passes if known else "", "quiet"),
            Cell(status=judged.state, mark=KINDS.get(judged.state, KINDS["none"])[0]),
            sign(KINDS.get(judged.published, KINDS["none"])),
            Cell(text=" ".join(each for each in (because, *cautions) if each), style="quiet"),
        ]
    )


def sign(kind: tuple[str, str]) -> Text:
    """Mark and word of a verdict; the mark is not read out."""
    mark, word = kind
    return (Span(mark, "sign"), " ", word)


def numbers(gate: Record, document: Record) -> Iterator[Block]:
    """Everything that a gate computed."""
    yield from _heat(gate)
    builder = _BUILDERS.get(str(gate["code"]))
    if builder:
        yield from builder(gate["verdict"], gate["verdict"].get("details") or {}, document)
    if facts := _facts(gate["verdict"]):
        yield Heading(text="Numbers and limits")
        yield Facts(facts=facts)


# ------------------------------------------------------------------------------------------ tables of details


def _heat(gate: Record) -> Iterator[Block]:
    """The effects of each task's circuit on each task, of C17."""
    details = gate["verdict"].get("details") or {}
    matrix, tasks = details.get("matrix"), details.get("tasks")
    if gate["code"] != "C17" or not matrix or not tasks:
        return
    names = [str(each) for each in tasks][:LISTED_TASKS]
    largest = max((abs(each) for row in matrix for each in row if _known(each)), default=0.0)
    z = details.get("z") or []
    yield Heading(text="Mean effect of each circuit on each task")
    yield HeatMap(
        corner="circuit \\ task",
        columns=names,
        rows=[
            (
                circuit,
                [
                    _effect(matrix[row][column], largest, _at(z, row, column), circuit, task)
                    for column, task in enumerate(names)
                ],
            )
            for row, circuit in enumerate(names)
        ],
        style="effects",
    )
    left = len(tasks) - len(names)
    more = f" {number(left)} tasks more are in the result." if left else ""
    yield _remark(
        f"Outlined: a circuit on its own task, which should be far larger than the rest of its row.{more}"
    )


def _effect(value: Any, largest: float, z: float | None, circuit: str, task: str) -> HeatCell:
    beside = "" if z is None else f"; {number(z, 1)} standard deviations from as many random heads"
    share = abs(value) / largest if _known(value) and largest > 0 else 0.0
    sign = "minus" if _known(value) and value < 0 else "plus"
    return HeatCell(
        text=_or_blank(value),
        ink=round(6 + 74 * share),
        style=sign + (" deep" if share > 0.7 else "") + (" found" if circuit == task else ""),
        title=f"circuit of {circuit}, effect on {task}: {number(value)}{beside}",
    )


def _at(table: Sequence[Sequence[Any]], row: int, column: int) -> float | None:
    value = table[row][column] if row < len(table) and column < len(table[row]) else None
    return float(value) if value is not None and _known(value) else None


def _known(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, most: int, note: str = ""
) -> list[Block]:
    """A table under a heading; nothing without rows. Columns whose name begins with `#` hold numbers."""
    left = max(0, len(rows) - most)
    more = f"{number(left)} more {'is' if left == 1 else 'are'} in the result. " if left else ""
    table = Table(
        columns=[Column(name=name.removeprefix("#"), numeric=name.startswith("#")) for name in columns],
        rows=rows[:most],
        note=more + note,
        style="gate-table",
    )
    return [Heading(text=title), table] if rows else []


def _of_circuit(document: Record, columns: Sequence[int]) -> list[str]:
    heads = circuit_heads(document)
    return [head_name(int(at), heads) for at in columns]


def _of_model(document: Record, columns: Sequence[int]) -> list[str]:
    """Names of heads by their place among all, where the model's shape is known."""
    per_layer = (document.get("model") or {}).get("n_heads")
    if isinstance(per_layer, int) and per_layer > 0:
        return [f"a{at // per_layer}.h{at % per_layer}" for at in columns]
    return [f"head {at + 1}" for at in columns]


def _methods(verdict: Record, details: Record, document: Record) -> list[Block]:
    rho, p = details.get("pairs") or {}, details.get("p_values") or {}
    top, jaccard = details.get("rho_top") or {}, details.get("jaccard") or {}
    return _table(
        "Pairs of methods",
        ("pair", "#rank correlation", "#p", "#among the best heads", "#overlap of the best"),
        [
            [
                pair_name(name),
                number(rho[name]),
                _p(p.get(name)),
                _or_blank(top.get(name)),
                _or_blank(jaccard.get(name)),
            ]
            for name in rho
        ],
        most=LISTED_PAIRS,
    )


def _groups(verdict: Record, details: Record, document: Record) -> list[Block]:
    scores, sizes = details.get("groups") or {}, details.get("sizes") or []
    found = details.get("largest_difference") or {}
    note = ""
    if found.get("pair"):
        note = (
            f"Largest difference {number(found['difference'])} "
            f"{interval(found.get('low'), found.get('high'))}, an interval that holds for all pairs at once."
        )
    rows = [
        [str(name), number(score), number(int(sizes[at])) if at < len(sizes) else ""]
        for at, (name, score) in enumerate(scores.items())
    ]
    return _table("Score by group", ("group", "#score", "#prompts"), rows, most=LISTED_PAIRS, note=note)


def _roles(verdict: Record, details: Record, document: Record) -> list[Block]:
    rows = [
        [str(each["role"]), number(float(each["mean_layer"]), 1), str(each["depth"])]
        for each in details.get("roles") or ()
    ]
    return _table("Roles", ("role", "#mean layer", "#place along the pathways"), rows, most=LISTED_PAIRS)


def _raters(verdict: Record, details: Record, document: Record) -> list[Block]:
    rho, kappa = details.get("pairs") or {}, details.get("kappa_pairs") or {}
    return _table(
        "Pairs of raters",
        ("pair", "#rank correlation", "#agreement on the best (κ)"),
        [[pair_name(name), number(rho[name]), _or_blank(kappa.get(name))] for name in rho],
        most=LISTED_PAIRS,
    )


def _claims(verdict: Record, details: Record, document: Record) -> list[Block]:
    found = sorted(details.get("results") or (), key=lambda each: (not each["claimed"], each["p"]))
    tasks = any(each.get("task") for each in found)
    without = details.get("without_p") or 0
    note = (
        "Adjusted p-values; a claim survives with a Benjamini-Hochberg one of at most 0.05. "
        "Benjamini-Yekutieli holds however the results depend on each other."
    )
    if without:
        many = "results" if without > 1 else "result"
        note += f" Not counted: {number(int(without))} {many} without a p-value."
    return _table(
        "All that was tested",
        (
            "result",
            *(("task",) if tasks else ()),
            "claimed",
            "#p",
            "#Benjamini-Hochberg",
            "#Benjamini-Yekutieli",
            "#Holm",
            "#Bonferroni",
            "survives",
        ),
        [
            [
                claim_name(each["name"]),
                *((str(each["task"]),) if tasks else ()),
                "yes" if each["claimed"] else "",
                *(_p(each.get(name)) for name in ("p", "bh", "by", "holm", "bonferroni")),
                ("yes" if each["bh"] <= verdict["thresholds"].get("alpha", 0.05) else "no")
                if each["claimed"]
                else "",
            ]
            for each in found
        ],
        most=LISTED_CLAIMS,
        note=note,
    )


def _ablations(verdict: Record, details: Record, document: Record) -> list[Block]:
    values = verdict.get("values") or {}
    scores = [[str(name), number(values.get(name))] for name in details.get("methods") or ()]
    pairs = []
    for name, each in (details.get("pairs") or {}).items():
        found = each.get("interval") or {}
        shown = interval(found.get("low"), found.get("high"))
        pairs.append([name.replace(" - ", " less "), number(each.get("difference")), shown])
    return [
        *_table("Score by ablation", ("ablation", "#score"), scores, most=LISTED_PAIRS),
        *_table(
            "Paired differences",
            ("pair", "#difference", f"{percent(0.9)} interval"),
            pairs,
            most=LISTED_PAIRS,
            note="Student’s intervals; the verdict also allows for skewness and for the number of pairs.",
        ),
    ]


def _certified(verdict: Record, details: Record, document: Record) -> list[Block]:
    labels = details.get("labels") or []
    places = range(len(labels))
    names = _of_circuit(document, places)
    needed = details.get("n_to_certify") or [None] * len(labels)
    negligible = details.get("negligible") or [False] * len(labels)
    rows = [
        [
            names[at],
            str(labels[at]),
            str((details.get("published_labels") or [""] * len(labels))[at]),
            number(_of(details, "mean_effects", at), 3),
            _p(_of(details, "p", at)),
            _p(_of(details, "adjusted_p", at)),
            "yes" if negligible[at] else "no",
            "" if needed[at] is None else number(int(needed[at])),
        ]
        for at in places
    ]
    return _table(
        "Head by head",
        (
            "head",
            "with confidence",
            "published",
            "#mean effect",
            "#p",
            "#p, adjusted",
            "negligible",
            "#prompts to certify",
        ),
        rows,
        most=LISTED_HEADS,
        note="Certified: its effect is above 0, allowing for the number of heads. Contingent: likely, "
        "not proven. Unstable: no effect above 0. Negligible: below the smallest effect that counts. The "
        "verdict tests majorities of heads as a whole, not these labels.",
    )


def _stable(verdict: Record, details: Record, document: Record) -> list[Block]:
    columns = details.get("columns") or []
    names = _of_circuit(document, columns)
    stable, passing = details.get("stable") or [], details.get("passing") or []
    rows = [
        [
            names[at],
            "yes" if stable[at] else "no",
            "yes" if passing[at] else "no",
            _or_infinite(_of(details, "relative_error_mean", at)),
            _or_infinite(_of(details, "relative_error_variance", at)),
            number(_of(details, "cv_mean", at)),
            number(_of(details, "cv_variance", at)),
        ]
        for at in range(min(len(names), len(stable), len(passing)))
    ]
    return _table(
        "Head by head",
        (
            "head",
            "stable",
            "published",
            "#error of the mean",
            "#error of the variance",
            "#mean over parts",
            "#variance over parts",
        ),
        rows,
        most=LISTED_HEADS,
        note="Relative errors on all prompts, upper ends, and relative spreads over random parts of them "
        "as published; both are to be below 0.20.",
    )


def _direct(verdict: Record, details: Record, document: Record) -> list[Block]:
    found = details.get("per_head") or {}
    means = found.get("mean") or []
    order = sorted((at for at, each in enumerate(means) if _known(each)), key=lambda at: -abs(means[at]))
    names = _of_model(document, order[:HEADS_SHOWN])
    rows = [
        [
            name,
            number(means[at], 3),
            interval(_of(found, "mean_low", at), _of(found, "mean_high", at), 3),
            number(_of(found, "variance", at), 3),
            number(_of(found, "skewness", at)),
            number(_of(found, "kurtosis", at)),
            percent(_of(found, "sparsity", at)),
        ]
        for at, name in zip(order, names, strict=False)
    ]
    return _table(
        "Heads of the largest direct effect",
        (
            "head",
            "#mean",
            f"{percent(0.95)} interval",
            "#variance",
            "#skewness",
            "#kurtosis",
            "#near zero",
        ),
        rows,
        most=HEADS_SHOWN,
    )


def _samples(verdict: Record, details: Record, document: Record) -> list[Block]:
    seeds, scores = details.get("seeds") or [], details.get("scores") or []
    rows = [[str(seed), number(score, 3)] for seed, score in zip(seeds, scores, strict=False)]
    return _table("Score by seed", ("seed", "#score"), rows, most=LISTED_PAIRS)


def _precision(verdict: Record, details: Record, document: Record) -> list[Block]:
    rows = [
        [f"\N{PLUS-MINUS SIGN} {width}", number(int(needed))]
        for width, needed in (details.get("n_for_half_width") or {}).items()
    ]
    found = details.get("interval") or {}
    shown = interval(found.get("low"), found.get("high"))
    note = f"Interval of the score ({percent(found.get('level') or 0.95)}): {shown}." if shown else ""
    return _table("Prompts for a precision", ("of the score", "#prompts"), rows, most=LISTED_PAIRS, note=note)


def _items(verdict: Record, details: Record, document: Record) -> list[Block]:
    alpha = ((verdict.get("sub_results") or {}).get("cronbach_alpha") or {}).get("details") or {}
    columns = [int(each) for each in alpha.get("columns") or ()]
    erratic = set(alpha.get("erratic") or ())
    names = _of_circuit(document, columns)
    rows = [
        [
            name,
            number(_of(alpha, "item_rest", at)),
            "opposing" if _of(alpha, "signs", at) == -1 else "",
            "goes its own way" if columns[at] in erratic else "",
        ]
        for at, name in enumerate(names)
    ]
    return _table(
        "Each head against the rest",
        ("head", "#correlation", "sign", "remark"),
        rows,
        most=LISTED_HEADS,
        note="Below 0.2 a head does not move with the others over prompts.",
    )


def _of(found: Record, name: str, at: int) -> float | None:
    values = found.get(name) or []
    return float(values[at]) if at < len(values) and _known(values[at]) else None


def _or_blank(value: Any) -> str:
    return number(value) if _known(value) else ""


def _p(value: Any) -> str:
    """A p-value; below a thousandth its size says no more."""
    if not _known(value):
        return ""
    return "< 0.001" if value < 0.001 else number(float(value), 3)


def _or_infinite(value: float | None) -> str:
    """An upper bound that JSON has no number for."""
    return "unbounded" if value is None else number(value)


_BUILDERS: Mapping[str, Callable[[Record, Record, Record], list[Block]]] = {
    "C11": _precision,
    "C12": _methods,
    "C13": _groups,
    "C16": _items,
    "C23": _roles,
    "C30": _samples,
    "F59": _raters,
    "S1": _direct,
    "S3": _stable,
    "M93": _claims,
    "M98": _ablations,
    "E1b": _ablations,
    "M3b": _certified,
}


# ------------------------------------------------------------------------------------------------- all values


def _facts(verdict: Record) -> list[tuple[str, Text]]:
    """Every number of a verdict by name, then its limits."""
    values, limits = verdict.get("values") or {}, verdict.get("thresholds") or {}
    return [
        *((_plain(name), _fact(each)) for name, each in values.items()),
        *((f"limit: {_plain(name)}", _fact(each)) for name, each in limits.items() if each is not None),
    ]


_NAMES = {
    "auroc": "AUROC",
    "auroc_p": "AUROC, p",
    "brown_forsythe_p": "Brown-Forsythe p",
    "chi_square": "χ²",
    "d_prime": "d′",
    "epsilon_squared": "ε²",
    "eta_squared": "η²",
    "expected_eta_squared": "η² by chance",
    "icc_2_1": "ICC(2,1)",
    "icc_2_k": "ICC(2,k)",
    "kruskal_wallis_p": "Kruskal-Wallis p",
    "m": "results tested",
    "n_bh": "Benjamini-Hochberg",
    "n_bonferroni": "Bonferroni",
    "n_by": "Benjamini-Yekutieli",
    "n_claimed": "claims",
    "n_e_bh": "e-BH",
    "n_holm": "Holm",
    "n_nominal": "p below 0.05",
    "n_survivors": "claims that survive",
    "omega_squared": "ω²",
    "p_chi_square": "χ², p",
    "w": "W",
    "welch_f": "Welch’s F",
    "welch_p": "Welch’s p",
}


def _plain(name: str) -> str:
    return _NAMES.get(str(name), str(name).replace("_", " "))


def _fact(value: Any) -> str:
    if not _known(value):
        return "undefined"
    return number(int(value)) if value == int(value) else number(float(value), 3)

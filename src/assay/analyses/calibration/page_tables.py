"""The numbers behind a gate as tables: its pairs, heads, groups and claims."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.analyses.calibration.names import circuit_heads, claim_name, head_name, pair_name
from assay.page.blocks import Block, Cell, Column, Facts, Note, Table, heat_map
from assay.page.text import Text, interval, number, p_value, percent


Record = Mapping[str, Any]

LISTED_CLAIMS, LISTED_HEADS, LISTED_PAIRS, LISTED_TASKS = 40, 30, 24, 12
HEADS_SHOWN = 12  # of a table over all heads of the model


def numbers(gate: Record, document: Record) -> Iterator[Block]:
    """Everything that a gate computed."""
    yield from _heat(gate)
    builder = _BUILDERS.get(str(gate["code"]))
    if builder:
        yield from builder(gate["verdict"], gate["verdict"].get("details") or {}, document)
    if facts := _facts(gate["verdict"]):
        yield Note(text="Numbers and limits", style="heading")
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
    z = details.get("z")
    rows: list[list[Cell | Text]] = [
        [
            circuit,
            *(
                _effect(matrix[row][column], largest, _at(_at(z, row), column), circuit, task)
                for column, task in enumerate(names)
            ),
        ]
        for row, circuit in enumerate(names)
    ]
    title = "Mean effect of each circuit on each task"
    table = heat_map(title, corner="circuit \\ task", names=names, rows=rows, style="effects")
    note = "Outlined: a circuit on its own task, which should be far larger than the rest of its row."
    yield replace(table, note=note, left=len(tasks) - len(names))


def _effect(value: Any, largest: float, z: Any, circuit: str, task: str) -> Cell:
    beside = f"; {number(float(z), 1)} standard deviations from as many random heads" if _known(z) else ""
    share = abs(value) / largest if _known(value) and largest > 0 else 0.0
    sign = "minus" if _known(value) and value < 0 else "plus"
    return Cell(
        text=number(value) if _known(value) else "",
        ink=round(6 + 74 * share),
        style=sign + (" deep" if share > 0.7 else "") + (" found" if circuit == task else ""),
        title=f"circuit of {circuit}, effect on {task}: {number(value)}{beside}",
    )


def _known(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _table(
    title: str,
    keys: Iterable[Any],
    columns: Mapping[str, Callable[[Any], str]],
    *,
    most: int = LISTED_PAIRS,
    note: str = "",
) -> list[Block]:
    """A row for each key under a heading; nothing without keys.

    A column makes the cell of a key; columns whose name begins with `#` hold numbers.
    """
    every = list(keys)
    table = Table(
        columns=[Column(name=name.removeprefix("#"), numeric=name.startswith("#")) for name in columns],
        rows=[[show(key) for show in columns.values()] for key in every[:most]],
        left=max(0, len(every) - most),
        note=note,
        style="gate-table",
    )
    return [Note(text=title, style="heading"), table] if every else []


def _in(values: Any, show: Callable[[Any], str] = number) -> Callable[[Any], str]:
    """What stands under a key of a mapping, or at a place of a list; nothing where it is unknown."""

    def cell(key: Any) -> str:
        found = values.get(key) if isinstance(values, Mapping) else _at(values, key)
        return show(found) if _known(found) else ""

    return cell


def _at(values: Sequence[Any] | None, place: int) -> Any:
    return values[place] if values and place < len(values) else None


def _head_at(document: Record, columns: Sequence[int] | None = None) -> Callable[[int], str]:
    """Name of a head by its place in a list, of which `columns` tells the places in the circuit."""
    heads = circuit_heads(document)
    return lambda at: head_name(at if columns is None else int(columns[at]), heads)


def _pairs(title: str, details: Record, others: Mapping[str, Callable[[Any], str]]) -> list[Block]:
    rho = details.get("pairs") or {}
    columns = {"pair": pair_name, "#rank correlation": lambda name: number(rho[name])}
    return _table(title, rho, {**columns, **others})


def _methods(verdict: Record, details: Record, document: Record) -> list[Block]:
    others = {
        "#p": _in(details.get("p_values"), p_value),
        "#among the best heads": _in(details.get("rho_top")),
        "#overlap of the best": _in(details.get("jaccard")),
    }
    return _pairs("Pairs of methods", details, others)


def _raters(verdict: Record, details: Record, document: Record) -> list[Block]:
    others = {"#agreement on the best (κ)": _in(details.get("kappa_pairs"))}
    return _pairs("Pairs of raters", details, others)


def _groups(verdict: Record, details: Record, document: Record) -> list[Block]:
    scores, sizes = details.get("groups") or {}, details.get("sizes") or []
    found = details.get("largest_difference") or {}
    note = ""
    if found.get("pair"):
        note = (
            f"Largest difference {number(found['difference'])} "
            f"{interval(found.get('low'), found.get('high'))}, an interval that holds for all pairs at once."
        )
    return _table(
        "Score by group",
        scores,
        {
            "group": str,
            "#score": lambda name: number(scores[name]),
            "#prompts": _in(dict(zip(scores, sizes, strict=False)), _whole),
        },
        note=note,
    )


def _roles(verdict: Record, details: Record, document: Record) -> list[Block]:
    return _table(
        "Roles",
        details.get("roles") or (),
        {
            "role": lambda each: str(each["role"]),
            "#mean layer": lambda each: number(float(each["mean_layer"]), 1),
            "#place along the pathways": lambda each: str(each["depth"]),
        },
    )


def _claims(verdict: Record, details: Record, document: Record) -> list[Block]:
    results = details.get("results") or ()
    alpha = verdict["thresholds"].get("alpha", 0.05)
    note = (
        "Adjusted p-values; a claim survives with a Benjamini-Hochberg value of at most 0.05. "
        "Benjamini-Yekutieli holds for any dependence between the results."
    )
    if without := details.get("without_p") or 0:
        many = "results" if without > 1 else "result"
        note += f" Not counted: {number(int(without))} {many} without a p-value."

    def adjusted(name: str) -> Callable[[Any], str]:
        return lambda each: p_value(each.get(name))

    def survives(each: Record) -> str:
        return ("yes" if each["bh"] <= alpha else "no") if each["claimed"] else ""

    columns: dict[str, Callable[[Any], str]] = {"result": lambda each: claim_name(each["name"])}
    if any(each.get("task") for each in results):
        columns["task"] = lambda each: str(each["task"])
    columns["claimed"] = lambda each: "yes" if each["claimed"] else ""
    columns["#p"] = adjusted("p")
    columns |= {f"#{_NAMES[f'n_{name}']}": adjusted(name) for name in ("bh", "by", "holm", "bonferroni")}
    found = sorted(results, key=lambda each: (not each["claimed"], each["p"]))
    return _table(
        "All tested results", found, {**columns, "survives": survives}, most=LISTED_CLAIMS, note=note
    )


def _ablations(verdict: Record, details: Record, document: Record) -> list[Block]:
    values, pairs = verdict.get("values") or {}, details.get("pairs") or {}
    return [
        *_table(
            "Score by ablation",
            details.get("methods") or (),
            {"ablation": str, "#score": lambda name: number(values.get(name))},
        ),
        *_table(
            "Paired differences",
            pairs,
            {
                "pair": lambda name: name.replace(" - ", " less "),
                "#difference": lambda name: number(pairs[name].get("difference")),
                f"{percent(0.9)} interval": lambda name: _ends(pairs[name].get("interval")),
            },
            note="Student’s intervals; the verdict also allows for skewness and for the number of pairs.",
        ),
    ]


def _certified(verdict: Record, details: Record, document: Record) -> list[Block]:
    labels, negligible = details.get("labels") or [], details.get("negligible")
    return _table(
        "Head by head",
        range(len(labels)),
        {
            "head": _head_at(document),
            "with confidence": lambda at: str(labels[at]),
            "published": lambda at: str(_at(details.get("published_labels"), at) or ""),
            "#mean effect": lambda at: number(_of(details, "mean_effects", at), 3),
            "#p": _in(details.get("p"), p_value),
            "#p, adjusted": _in(details.get("adjusted_p"), p_value),
            "negligible": lambda at: _yes(_at(negligible, at)),
            "#prompts to certify": _in(details.get("n_to_certify"), _whole),
        },
        most=LISTED_HEADS,
        note="Certified: its effect is above 0, corrected for the number of heads. Contingent: likely, not "
        "established. Unstable: no effect above 0. Negligible: below the smallest effect that counts. The "
        "verdict tests majorities of heads as a whole, not these labels.",
    )


def _stable(verdict: Record, details: Record, document: Record) -> list[Block]:
    columns = details.get("columns") or []
    stable, passing = details.get("stable") or [], details.get("passing") or []
    return _table(
        "Head by head",
        range(min(len(columns), len(stable), len(passing))),
        {
            "head": _head_at(document, columns),
            "stable": lambda at: _yes(stable[at]),
            "published": lambda at: _yes(passing[at]),
            "#error of the mean": lambda at: _or_infinite(_of(details, "relative_error_mean", at)),
            "#error of the variance": lambda at: _or_infinite(_of(details, "relative_error_variance", at)),
            "#mean over parts": lambda at: number(_of(details, "cv_mean", at)),
            "#variance over parts": lambda at: number(_of(details, "cv_variance", at)),
        },
        most=LISTED_HEADS,
        note="Relative errors on all prompts, upper ends, and relative spreads over random parts of them as "
        "published; both should be below 0.20.",
    )


def _direct(verdict: Record, details: Record, document: Record) -> list[Block]:
    found = details.get("per_head") or {}
    means = found.get("mean") or []
    order = sorted((at for at, each in enumerate(means) if _known(each)), key=lambda at: -abs(means[at]))
    return _table(
        "Heads of the largest direct effect",
        order[:HEADS_SHOWN],
        {
            "head": lambda at: _of_model(document, at),
            "#mean": lambda at: number(means[at], 3),
            f"{percent(0.95)} interval": lambda at: interval(
                _of(found, "mean_low", at), _of(found, "mean_high", at), 3
            ),
            "#variance": lambda at: number(_of(found, "variance", at), 3),
            "#skewness": lambda at: number(_of(found, "skewness", at)),
            "#kurtosis": lambda at: number(_of(found, "kurtosis", at)),
            "#near zero": lambda at: percent(_of(found, "sparsity", at)),
        },
    )


def _of_model(document: Record, at: int) -> str:
    """Name of a head by its place among all, where the model's shape is known."""
    per_layer = (document.get("model") or {}).get("n_heads")
    if isinstance(per_layer, int) and per_layer > 0:
        return f"a{at // per_layer}.h{at % per_layer}"
    return f"head {at + 1}"


def _samples(verdict: Record, details: Record, document: Record) -> list[Block]:
    rows = list(zip(details.get("seeds") or [], details.get("scores") or [], strict=False))
    return _table(
        "Score by seed",
        rows,
        {"seed": lambda row: str(row[0]), "#score": lambda row: number(row[1], 3)},
    )


def _precision(verdict: Record, details: Record, document: Record) -> list[Block]:
    needed, found = details.get("n_for_half_width") or {}, details.get("interval") or {}
    shown = _ends(found)
    return _table(
        "Prompts for a precision",
        needed,
        {
            "of the score": lambda width: f"\N{PLUS-MINUS SIGN} {width}",
            "#prompts": lambda width: _whole(needed[width]),
        },
        note=f"Interval of the score ({percent(found.get('level') or 0.95)}): {shown}." if shown else "",
    )


def _items(verdict: Record, details: Record, document: Record) -> list[Block]:
    alpha = ((verdict.get("sub_results") or {}).get("cronbach_alpha") or {}).get("details") or {}
    columns = alpha.get("columns") or ()
    erratic = set(alpha.get("erratic") or ())
    return _table(
        "Each head against the rest",
        range(len(columns)),
        {
            "head": _head_at(document, columns),
            "#correlation": lambda at: number(_of(alpha, "item_rest", at)),
            "sign": lambda at: "opposing" if _of(alpha, "signs", at) == -1 else "",
            "remark": lambda at: "does not follow the others" if columns[at] in erratic else "",
        },
        most=LISTED_HEADS,
        note="Below 0.2, a head does not vary with the others over prompts.",
    )


def _of(found: Record, name: str, at: int) -> float | None:
    value = _at(found.get(name), at)
    return float(value) if _known(value) else None


def _ends(found: Record | None) -> str:
    return interval((found or {}).get("low"), (found or {}).get("high"))


def _yes(flag: Any) -> str:
    return "yes" if flag else "no"


def _whole(value: int | float) -> str:
    return number(int(value))


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

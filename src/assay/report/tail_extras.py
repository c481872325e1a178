"""The optional parts of a worst case: search, inputs from outside, explanations, as facts and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from assay.page.text import number, percent
from assay.report.tail_words import significant


LISTED_ITEMS, LISTED_LETTERS, NESTED = 12, 600, 3  # bounds of what is shown of any part
EXTRAS = (
    (
        "search",
        "What search found",
        "Pairs that were looked for, not drawn: they bound the maximum from below and play no part in the "
        "percentiles and certificates above.",
    ),
    (
        "outside",
        "Inputs from outside the grammar",
        "These prompts are not of the kind that was sampled: no number above speaks of them.",
    ),
    (
        "explanation",
        "What the circuit lacks",
        "Shares of the worst pairs’ divergence that single missing edges would take away, by integrating the "
        "gradient along the path from the circuit to the whole model.",
    ),
)


def pairs(value: Any) -> list[Mapping[str, Any]]:
    """Pairs of a part that are written down like the worst ones of a sample."""
    found = value.get("pairs") if isinstance(value, Mapping) else None
    return [each for each in found or () if _is_pair(each)]


def parts(name: str, value: Any) -> list[dict[str, Any]]:
    """Facts and tables of a part, less what is shown otherwise."""
    if isinstance(value, Mapping) and pairs(value):
        value = {key: each for key, each in value.items() if key != "pairs"}
    if name == "explanation" and isinstance(value, Mapping):
        value = {key: each for key, each in value.items() if key in ("missing", "kept") and each}
        names = {"missing": "Missing edges", "kept": "Kept edges"}
        value = {names[key]: _explained(each) for key, each in value.items()}
    return _parts(value)


def sentence(name: str, value: Any, unit: str) -> str:
    """A phrase on what a part amounts to; empty where nothing can be said."""
    if name != "explanation" or not isinstance(value, Mapping) or not value.get("missing"):
        return ""
    missing = value["missing"]
    top = [each for each in missing.get("top") or () if each.get("share") is not None][:LISTED_ITEMS]
    if not top or value.get("mean") is None:
        return ""
    gap = missing.get("completeness_gap")
    within = "" if gap is None else f" The scores add up to all of it within {percent(gap)}."
    share = percent(sum(each["share"] for each in top))
    return (
        f"On {number(value['n_pairs'])} pairs the circuit departs by {significant(value['mean'])} {unit} on "
        f"average; the {number(len(top))} missing edges below account for {share} of that.{within}"
    )


def _explained(part: Any) -> Any:
    """Edges by score and their sums; whether an edge is kept is said by the title."""
    if not isinstance(part, Mapping):
        return part
    edges = [
        {key: each for key, each in edge.items() if key != "kept"} if isinstance(edge, Mapping) else edge
        for edge in part.get("top") or ()
    ]
    return {"by score": edges} | {
        key.replace("_", " "): part[key] for key in ("by_source", "by_target", "by_layer") if part.get(key)
    }


def _is_pair(found: object) -> bool:
    return isinstance(found, Mapping) and {"clean", "corrupted", "divergence", "top"} <= set(found)


def _parts(value: Any, title: str = "", depth: int = 0) -> list[dict[str, Any]]:
    """Any plain JSON as titled facts and tables, cut to a bounded size."""
    if isinstance(value, Mapping):
        facts = [(str(name), each) for name, each in value.items() if _is_fact(each)]
        found = [_facts(title, facts)] if facts else []
        nested = [(name, each) for name, each in value.items() if not _is_fact(each) and each]
        for name, each in nested[:LISTED_ITEMS] if depth < NESTED else ():
            found += _parts(each, f"{title} {name}".strip().replace("_", " "), depth + 1)
        return found
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        flat = [_flat(each) for each in value[:LISTED_ITEMS]]
        columns = list(dict.fromkeys(name for each in flat for name in each))
        rows = [[_shown(each.get(name)) for name in columns] for each in flat]
        return [{"title": title, "columns": columns, "rows": rows, "left": len(value) - len(flat)}]
    return [_facts(title, [("", value)])]


def _is_fact(value: Any) -> bool:
    """A scalar, or a list of scalars, which fits on a line once it is cut."""
    return not isinstance(value, Mapping) and not (
        isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value)
    )


def _facts(title: str, facts: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {
        "title": title,
        "facts": [(name, _shown(each)) for name, each in facts[:LISTED_ITEMS]],
        "left": max(0, len(facts) - LISTED_ITEMS),
    }


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a record, those of its own records after a dot; longer lists are left out."""
    found: dict[str, Any] = {}
    for name, each in record.items():
        if isinstance(each, Mapping):
            found |= {
                f"{name}.{inner}": value
                for inner, value in each.items()
                if not isinstance(value, Mapping | list)
            }
        elif not isinstance(each, list):
            found[str(name)] = each
    return found


def _shown(value: Any) -> str:
    if isinstance(value, list):
        more = f", and {number(len(value) - LISTED_ITEMS)} more" if len(value) > LISTED_ITEMS else ""
        return ", ".join(_shown(each) for each in value[:LISTED_ITEMS]) + more
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, float):
        return significant(value)
    return number(value) if isinstance(value, int) else str(value)[:LISTED_LETTERS]

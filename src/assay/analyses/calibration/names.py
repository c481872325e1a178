"""Names of methods, raters, claims and heads as the words and tables of calibrations use them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from assay.page.text import listed


LISTED = 4  # names in a row

# Methods go by the code of their publication in results, which reads like the code of a gate.
METHODS = {
    "C2": "patching",
    "C5": "mediation",
    "C7": "causation entropy",
    "C10": "learning coefficients",
    "drop-effect": "drop effect",
    "dla": "direct effect",
    "ov-norm": "weights",
}
_CODE = "C(?:2|5|7|10)"
_PAIR = re.compile(rf"\b{_CODE}/{_CODE}\b")


def method_name(name: object) -> str:
    """A method's or rater's name for readers; its key where it has none."""
    return METHODS.get(str(name), str(name))


def pair_name(pair: str) -> str:
    """Both names of a pair such as `C2/C5`, for readers."""
    return " and ".join(method_name(each) for each in pair.split("/"))


def compared(details: Mapping[str, Any]) -> list[str]:
    """The methods or raters that a verdict compares in pairs, by name, each once."""
    pairs = details.get("pairs") or {}
    return list(dict.fromkeys(method_name(name) for pair in pairs for name in str(pair).split("/")))


def claim_name(name: object) -> str:
    """A claim with the names of the methods that it compares; the code of its gate stays."""
    return _PAIR.sub(lambda found: pair_name(found[0]), str(name))


def head_name(at: int, heads: Sequence[Sequence[int]]) -> str:
    """A head of the circuit by its place in the table, `a9.h6` where the heads are listed."""
    if at < len(heads) and len(heads[at]) == 2:
        return f"a{heads[at][0]}.h{heads[at][1]}"
    return f"head {at + 1} of the circuit"


def circuit_heads(document: Mapping[str, Any]) -> list[list[int]]:
    """(layer, head) of the circuit's heads where the document lists them."""
    return list((document.get("circuit") or {}).get("heads") or [])


def sentence(text: str) -> str:
    """Text with a capital and a full stop."""
    text = text.strip()
    if not text:
        return ""
    return f"{text[0].upper()}{text[1:]}{'' if text[-1] in '.?!' else '.'}"


def named(names: Sequence[object]) -> str:
    """Names in a row: a, b and c; the rest counted."""
    words = [str(each) for each in names]
    return listed(words if len(words) <= LISTED else [*words[:LISTED], f"{len(words) - LISTED} more"])

"""Text of pages: pieces with a style, numbers for reading, and limits that keep a page small."""

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.core.record import plain


MINUS, NARROW = "\N{MINUS SIGN}", "\N{NARROW NO-BREAK SPACE}"
TEXT_LIMIT = 1_000  # characters of a name or a prompt
RECORD_LIMIT = 20_000  # characters of a record behind an id
EDGES_LIMIT = 5_000  # edges that a page draws and lists

_PICTURE = "data:image/"

# ------------------------------------------------------------------------------------------------ pieces


@dataclass(frozen=True)
class Span:
    """A piece of text with a style.

    Attributes:
        text: What it says; pieces may lie inside pieces.
        style: `quiet`, `code`, `b`, `i`, `mark`, `sign` (not read out) or a class of the style sheet.
        title: What a pointer over it shows.
        link: Page of the site that it leads to, where one is served.
    """

    text: "Text"
    style: str
    title: str = ""
    link: str = ""


Text = str | Span | Sequence[Any]  # a piece, or several in a row, each a piece or several


def bold(text: Text) -> Span:
    """Text in heavier type."""
    return Span(text, "b")


def italic(text: Text) -> Span:
    """A name used as a word."""
    return Span(text, "i")


def code(text: str) -> Span:
    """A command, an id, a token."""
    return Span(text, "code")


def quiet(text: Text, title: str = "") -> Span:
    """What matters less."""
    return Span(text, "quiet", title)


def model_text(model: Mapping[str, Any], shape: str = "") -> Text:
    """A model as the foot of a page names it: id, what its numbers depend on, hash of the weights."""
    facts = (
        shape,
        f"revision {model['revision'][:12]}" if model.get("revision") else "",
        model.get("dtype"),
        f"norms behind branches {model['post_norm']}" if model.get("post_norm") else "",
        "hash of the weights",
    )
    return _identity(model.get("id"), facts, model.get("weight_hash"))


def task_text(task: Mapping[str, Any], drawn: str = "") -> Text:
    """A task as the foot of a page names it: its name, how it was drawn and begins, hash of the data."""
    bos = task.get("bos", (task.get("config") or {}).get("bos"))
    facts = (drawn, "prompts begin with BOS" if bos else "", "hash of the data")
    return _identity(task.get("name"), facts, task.get("data_hash"))


def _identity(name: Any, facts: Sequence[Any], identity: Any) -> Text:
    return f"{name or ''} ", quiet(", ".join(filter(None, facts))), " ", code(str(identity or "")[:16])


def identity(document: Mapping[str, Any], size: str, drawn: str) -> list[tuple[str, Text]]:
    """Which result about a circuit it is: its id, the circuit of some size, the model and the task."""
    circuit = document["circuit"]
    return [
        ("result", code(str(document.get("id", "")))),
        ("circuit", (f"{circuit.get('name') or ''} ", quiet(size), " ", code(circuit["hash"]))),
        ("model", model_text(document["model"])),
        ("task", task_text(document["task"], drawn)),
    ]


def result_link(identity: str) -> Span:
    """The id of a stored result; a link where the site shows it."""
    return Span(identity, "code", link=f"/result/{identity}")


def plain_text(text: Text) -> str:
    """The text without its styles."""
    if isinstance(text, str):
        return text
    if isinstance(text, Span):
        return plain_text(text.text)
    return "".join(plain_text(piece) for piece in text)


def listed(words: Sequence[str]) -> str:
    """A list for the middle of a sentence: a, b and c."""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def plural(n: int, word: str) -> str:
    """A count with its noun: 1 batch, 2 batches."""
    ending = "" if n == 1 else "es" if word.endswith("ch") else "s"
    return f"{number(n)} {word}{ending}"


def kept(circuit: Mapping[str, Any]) -> str:
    """What a circuit keeps, of how many where its document tells: `12 of 73 nodes`, `200 edges`."""
    level = circuit.get("level", "edge")
    n, total = circuit[f"n_{level}s"], circuit.get(f"n_graph_{level}s")
    return plural(n, level) if total is None else f"{number(n)} of {plural(total, level)}"


# ------------------------------------------------------------------------------------------------ numbers


def number(value: float | int | None, digits: int = 2) -> str:
    """A number for reading: two decimals near 1, two significant digits when small, `n/a` when undefined."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "n/a"
    if isinstance(value, int):
        return f"{value:,}".replace("-", MINUS)
    size = abs(value)
    if 0 < size < 10 ** -(digits + 2):
        return f"{value:.1e}".replace("-", MINUS)
    if size >= 1000:
        digits = 0
    elif 0 < size < 10**-digits:
        digits += -1 - math.floor(math.log10(size))
    return f"{value:,.{digits}f}".replace("-", MINUS)


def rounded(value: float, digits: int = 2) -> str:
    """So many decimals whatever the size, and no minus before zero: for sentences."""
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", MINUS)


def percent(fraction: float | None) -> str:
    """A share as a percentage, one decimal below 10 %."""
    if fraction is None or not math.isfinite(fraction):
        return "n/a"
    value = 100 * fraction
    digits = 2 if 0 < value < 0.1 else 1 if value < 99.95 and value % 1 else 0
    return f"{value:.{digits}f}{NARROW}%"


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """`[low, high]` with as many decimals at both ends, or nothing where there is none."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{', '.join(_alike((low, high), digits))}]"


def estimate(value: float | int | None, low: float | None, high: float | None) -> tuple[str, str]:
    """A number, `n/a` where undefined, and its interval as of `interval`; all with as many decimals."""
    digits = precision(low, high)
    between = interval(low, high, digits)
    if value is None or low is None or high is None or not (between and math.isfinite(value)):
        return number(value, digits), between
    shown, *ends = _alike((value, low, high), digits)
    return shown, f"[{', '.join(ends)}]"


def _alike(values: Sequence[float | int], digits: int) -> list[str]:
    """Numbers with the decimals that the largest needs; powers of ten where all are tiny."""
    largest = max(map(abs, values))
    if 0 < largest < 1e-5:
        return [f"{value:.1e}".replace("-", MINUS) for value in values]
    if 0 < largest < 10**-digits:
        digits = 1 - math.floor(math.log10(largest))
    return [rounded(value, 0 if largest >= 1000 else digits) for value in values]


def precision(low: float | None, high: float | None) -> int:
    """Decimals that tell the ends of an interval apart: 2, or more where it is narrow."""
    if low is None or high is None or not 0 < high - low < math.inf:
        return 2
    return min(6, max(2, -math.floor(math.log10(high - low))))


def p_value(value: float | None) -> str:
    """A p-value for reading; empty where undefined."""
    if value is None or not math.isfinite(value):
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


# ------------------------------------------------------------------------------------------------ limits


def cut_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text, or its beginning and how long it was."""
    if not text.isascii():  # JSON can hold half of a surrogate pair, a page cannot
        text = text.encode("utf-8", "replace").decode()
    if len(text) <= limit or text.startswith(_PICTURE):
        return text
    return f"{text[:limit]}\N{HORIZONTAL ELLIPSIS} (the first {limit:,} of {len(text):,} characters)"


def bounded(value: Any, *, limit: int = TEXT_LIMIT) -> Any:
    """A document whose texts are cut to a length; pictures and numbers are as they were."""
    if isinstance(value, str):
        return cut_text(value, limit)
    if isinstance(value, Mapping):
        return {bounded(key, limit=limit): bounded(item, limit=limit) for key, item in value.items()}
    if isinstance(value, list | tuple):
        # Most long lists are numbers, which need no look at each.
        if value and all(type(item) is float or type(item) is int for item in value):
            return value
        return [bounded(item, limit=limit) for item in value]
    return value


def subject_of(document: Mapping[str, Any]) -> tuple[str, str]:
    """The model and the task that a document names, for a heading."""
    return document["model"].get("id", "a model"), document["task"].get("name", "its task")


def record_text(record: Any) -> str:
    """A record as indented JSON, at most `RECORD_LIMIT` characters of it."""
    return cut_text(json.dumps(plain(record), indent=2, sort_keys=True, ensure_ascii=False), RECORD_LIMIT)


def packed(text: str) -> str:
    """A long text compressed (zlib), in base64; the script of the page unpacks it."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()

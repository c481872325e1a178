"""Questions about results: texts such as `metric = kl` or `payload.value >= 0.5`.

Conditions on columns become SQL (`columns.py`); those on a document are answered here, from what is read.
"""

import json
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from assay.core.errors import InputError, UnknownNameError, unknown_name
from assay.core.untrusted import is_json
from assay.store.about import COLUMNS, COUNTS, NUMBERS


COMPARISONS = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~")
DOCUMENTS = ("provenance", "payload")
ALIASES = {"verdict": "status"}  # what tables and pages call a column
Scalar = str | int | float | bool | None

_SEGMENT = r'(?:"[^"]*+"|[^\s."=!<>~]++)'
# Possessive (`++`, `*+`): a long text that fits nothing is given up at once, not tried at every length.
_BEGINNING = re.compile(
    rf"(?P<key>{_SEGMENT}(?:\.{_SEGMENT})*+)\s*+(?P<operator>!=|<=|>=|==|=|<|>|~)",
)
_OPERATOR_LETTERS = "=!<>~"
# What cannot be one value: the beginning of a second condition is in it.
_JOINED = re.compile(
    r"(?:\s(?:and|or)\s++(?:not\s++)?+|\s(?:&&|\|\|)\s++|[;,]\s*+)"
    r'(?:"[^"]*+"|[^\s."=!<>~;,]++)(?:\.(?:"[^"]*+"|[^\s."=!<>~;,]++))*+\s*+(?:!=|[=<>~])',
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[-+]?(\d++(\.\d*+)?|\.\d++)([eE][-+]?\d++)?")
MANY = 2**63  # integers from here on are compared as floats


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition: a column or a path into a document, an operator, a value.

    Attributes:
        path: One name for a column, several for a path.
        operator: One of `OPERATORS`.
        value: None asks whether there is anything at all.
    """

    path: tuple[str, ...]
    operator: str
    value: Scalar

    @property
    def in_document(self) -> bool:
        """Whether a document must be read for it."""
        return len(self.path) > 1

    @property
    def key(self) -> str:
        """What it asks about, as a condition has it: a column, or `payload.details."a.b"`."""
        return ".".join(part if re.fullmatch(r'[^\s."=!<>~]+', part) else f'"{part}"' for part in self.path)

    def holds(self, documents: Mapping[Any, Any]) -> bool:
        """Whether it is true of a result, by its provenance and payload."""
        found: Any = documents
        for key in self.path:
            found = found.get(key) if isinstance(found, Mapping) else None
        if self.operator == "!=":
            return found is not None and not _compare(found, "=", self.value)
        return _compare(found, self.operator, self.value)


def _compare(found: Any, sign: str, wanted: Scalar) -> bool:
    """Values of one type compare; a container is never equal to one."""
    if wanted is None:
        return found is None
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, str) and isinstance(wanted, str) and sign == "~":
        return lowered(wanted) in lowered(found)
    alike = isinstance(found, str if isinstance(wanted, str) else int | float)
    return alike and bool(COMPARISONS[sign](found, wanted))


def lowered(text: str) -> str:
    """Text with A to Z in small letters and all others as they are."""
    return re.sub("[A-Z]", lambda letter: letter[0].lower(), text)


def parse_where(where: str | Iterable[str]) -> list[Condition]:
    """Read conditions; all must hold.

    Raises:
        InputError: A text that is not a condition, or a value that the column cannot have.
        UnknownNameError: No such column; near matches are named.
    """
    return [_parse(text) for text in ([where] if isinstance(where, str) else where)]


def provenance_filter(key: str, value: object) -> Condition:
    """The condition of a keyword of `find`: `task__name="ioi"`."""
    if not isinstance(value, str | int | float | bool):
        raise InputError(f"filter {key!r} must be text, a number or a boolean, got {value!r}")
    return Condition(path=_checked(("provenance", *key.split("__"))), operator="=", value=value)


# ---- reading ------------------------------------------------------------------------------------


def _parse(text: str) -> Condition:
    stripped = text.strip()
    found = _BEGINNING.match(stripped)
    written = "" if found is None else stripped[found.end() :].lstrip()
    if found is None or not written:
        raise InputError(
            f"cannot read the condition {text!r}; write KEY OP VALUE with OP one of {' '.join(OPERATORS)}, "
            "e.g. 'metric = kl', 'value >= 0.5', 'task ~ ioi', 'provenance.task.n = 200', 'status != null'"
        )
    path = tuple(part.strip('"') for part in re.findall(_SEGMENT, found["key"]))
    operator = "=" if found["operator"] == "==" else found["operator"]
    _check_single(written, text, close=stripped[found.end()] in _OPERATOR_LETTERS)
    if len(path) == 1:
        path = (ALIASES.get(path[0], path[0]),)
        if path[0] in DOCUMENTS:
            raise InputError(f"{path[0]} is a document; name a field inside it, e.g. {path[0]}.seed")
        if path[0] not in COLUMNS:
            raise _unknown_column(path[0])
    elif path[0] not in DOCUMENTS:
        raise unknown_name("document", path[0], DOCUMENTS)
    # In a column of text 8056198544e01753 is an id, not a number beyond all numbers.
    textual = len(path) == 1 and path[0] not in (*NUMBERS, *COUNTS)
    value = _value(written, textual=textual)
    if len(path) == 1:
        value = _for_column(path[0], value, written)
    condition = Condition(path=_checked(path), operator=operator, value=value)
    _check_operator(condition, text)
    return condition


def _check_single(written: str, text: str, *, close: bool) -> None:
    """Refuse operators and conditions that would be taken for a part of the value, and so find nothing.

    Args:
        written: The value.
        text: The condition.
        close: The value begins with a letter of an operator, right behind the operator.
    """
    if close:
        raise InputError(
            f"{text!r} has none of the operators {' '.join(OPERATORS)}; write one of them, and a value that "
            f"begins with {written[0]} in double quotes"
        )
    if not (written.startswith('"') and is_json(written)) and _JOINED.search(written):
        raise InputError(
            f"{text!r} looks like several conditions; give each separately (--where CONDITION --where "
            "CONDITION; all must hold), or put the value in double quotes if it is one text"
        )


def _unknown_column(name: str) -> UnknownNameError:
    error = unknown_name("column", name, COLUMNS)
    return UnknownNameError(f"{error}; for other fields give the path, e.g. payload.{name}")


def _value(text: str, *, textual: bool = False) -> Scalar:
    """A JSON value where it looks like one, else the text as it stands; no numbers where `textual`."""
    if text in ("null", "true", "false"):
        return {"null": None, "true": True, "false": False}[text]
    if text.startswith('"'):
        try:
            quoted = json.loads(text)
        except ValueError as error:
            raise InputError(f"cannot read {text} as quoted text: {error}") from error
        return _storable(str(quoted), text)
    if not textual and _NUMBER.fullmatch(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise InputError(f"{text} is outside the range of numbers that can be stored")
        if not re.fullmatch(r"[-+]?\d+", text):
            return number
        digits = text.lstrip("+-").lstrip("0") or "0"  # Python reads no whole number of thousands of digits
        return -int(digits) if text.startswith("-") else int(digits)
    return _storable(text, text)


def _storable(value: str, text: str) -> str:
    """Text that a database can be asked for: no half surrogates, no NUL."""
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise InputError(f"{text!a} holds a NUL or half a character, which results cannot contain")
    return value


def _for_column(column: str, value: Scalar, text: str) -> Scalar:
    if value is None:
        return None
    if column in (*NUMBERS, *COUNTS):
        if isinstance(value, bool | str):
            raise InputError(f"{column} compares with a number or null, got {text!r}")
        return value
    return value if isinstance(value, str) else text


def _check_operator(condition: Condition, text: str) -> None:
    value, operator = condition.value, condition.operator
    if (value is None or isinstance(value, bool)) and operator not in ("=", "!="):
        shown = json.dumps(value)
        raise InputError(f"{text!r}: {shown} is only equal or not; use {shown} with = or !=")
    if operator == "~" and not isinstance(value, str):
        if condition.in_document:
            raise InputError(f"{text!r}: ~ searches text in text; quote the number to search for its digits")
        raise InputError(f"{text!r}: ~ searches text, but {condition.path[0]} is a number")


def _checked(path: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [key for key in path if not key or '"' in key or "\0" in key]:
        raise InputError(f"a path cannot contain a key such as {wrong[0]!r}, got {'.'.join(path)!r}")
    return path

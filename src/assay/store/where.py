"""Questions about results: texts such as `metric = kl` or `payload.value >= 0.5` made into SQL.

Both databases give the answer that Python would: text by code point, numbers by value, and nothing equals
what is absent. Values travel as parameters, never inside the statement.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from assay.core.errors import InputError, UnknownNameError, unknown_name
from assay.store.summary import COLUMNS, COUNTS, NUMBERS
from assay.store.tables import RESULTS, SUMMARIES


OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~")
DOCUMENTS = ("provenance", "payload")
ALIASES = {"verdict": "status"}  # what tables and pages call a column
Scalar = str | int | float | bool | None
Truth = sa.ColumnElement[bool]

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
_MANY = 2**63  # integers from here on are compared as floats


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

    def sql(self, dialect: str) -> Truth:
        """The condition in terms of the tables `summaries` and `results`."""
        if self.in_document:
            document = RESULTS.c[self.path[0]]
            kind = _SqliteJson if dialect == "sqlite" else _PostgresJson
            return _document_sql(kind(document, self.path[1:]), self.operator, self.value)
        if self.path == ("method",):
            return _method_sql(self.operator, self.value)
        return _column_sql(SUMMARIES.c[self.path[0]], self.operator, self.value)


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


def parse_order(order: str) -> list[sa.UnaryExpression[Any]]:
    """SQL of an order: a column, or `-column` for the largest first; absent values come last."""
    name = order.strip().removeprefix("-")
    name = ALIASES.get(name, name)
    if name not in COLUMNS:
        raise unknown_name("column to order by", name, COLUMNS)
    descending = order.strip().startswith("-")
    column: sa.ColumnElement[Any] = SUMMARIES.c[name]
    if name == "method":
        first = first_methods().subquery("first")
        pairs = zip((first.c.circuit, first.c.model, first.c.task), _where_found(), strict=True)
        made = sa.select(first.c.method).where(*(one == other for one, other in pairs)).scalar_subquery()
        column = sa.func.coalesce(column, sa.case((SUMMARIES.c.kind == "measurement", made), else_=None))
    directed = [column.desc() if descending else column.asc()]
    if SUMMARIES.c[name].nullable:
        directed = [sa.nulls_last(directed[0])]
    if name != "id":
        directed.append(SUMMARIES.c.id.desc() if descending else SUMMARIES.c.id.asc())
    return directed


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
            raise InputError(f"{path[0]} is a document; name something inside it, e.g. {path[0]}.seed")
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
    if not (written.startswith('"') and _is_json(written)) and _JOINED.search(written):
        raise InputError(
            f"{text!r} looks like several conditions, and one text is one condition; give several (--where "
            "CONDITION --where CONDITION; all must hold), or put the value in double quotes if it is all one "
            "text"
        )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _unknown_column(name: str) -> UnknownNameError:
    error = unknown_name("column", name, COLUMNS)
    return UnknownNameError(f"{error}; what no column holds is named by its path, e.g. payload.{name}")


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
            raise InputError(f"{text} is beyond every number that can be stored")
        if not re.fullmatch(r"[-+]?\d+", text):
            return number
        digits = text.lstrip("+-").lstrip("0") or "0"  # Python reads no whole number of thousands of digits
        return -int(digits) if text.startswith("-") else int(digits)
    return _storable(text, text)


def _storable(value: str, text: str) -> str:
    """Text that a database can be asked for: no half surrogates, no NUL."""
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise InputError(f"{text!a} holds a NUL or half a character, which no result is compared with")
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
            raise InputError(
                f"{text!r}: ~ looks for text inside text; quote the number to look for its digits"
            )
        raise InputError(f"{text!r}: ~ looks for text, and {condition.path[0]} is a number")


def _checked(path: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [key for key in path if not key or '"' in key or "\0" in key]:
        raise InputError(f"a path cannot lead through a key such as {wrong[0]!r}, got {'.'.join(path)!r}")
    return path


# ---- columns ------------------------------------------------------------------------------------


def first_methods(circuits: Iterable[str] | None = None) -> sa.Select[Any]:
    """Circuits with model and task, and of the methods that found each there the first by name.

    What was measured of a circuit is the same whichever method found the circuit, so a measurement holds no
    method of its own.
    """
    kind: sa.ColumnElement[Any] = SUMMARIES.c.kind
    if circuits is not None:
        kind = sa.func.coalesce(kind, "")  # a term without an index, so that the circuits' index is used
    found = _makers(*_where_found(), sa.func.min(SUMMARIES.c.method).label("method"), kind=kind)
    if circuits is not None:
        found = found.where(SUMMARIES.c.circuit.in_(list(circuits)))
    return found.group_by(*_where_found())


def _where_found() -> tuple[sa.ColumnElement[Any], ...]:
    """A circuit as found once: small ones, or whole graphs, are the same for many tasks."""
    nothing: sa.ColumnElement[Any] = sa.literal_column("''")  # a parameter would differ in GROUP BY
    return (
        SUMMARIES.c.circuit,
        sa.func.coalesce(SUMMARIES.c.model, nothing).label("model"),
        sa.func.coalesce(SUMMARIES.c.task, nothing).label("task"),
    )


def _makers(*columns: Any, kind: sa.ColumnElement[Any] = SUMMARIES.c.kind) -> sa.Select[Any]:
    """What found circuits: the rows that name a circuit and the method it came from."""
    named = SUMMARIES.c.circuit.is_not(None), SUMMARIES.c.method.is_not(None)
    return sa.select(*columns).where(kind.in_(["circuit", "audit"]), *named)


def _method_sql(operator: str, value: Scalar) -> Truth:
    """For a circuit that several methods found, the condition holds if it holds for one of them."""
    own = _column_sql(SUMMARIES.c.method, operator, value)
    makers = _makers(*_where_found(), SUMMARIES.c.method).subquery("makers")
    found = sa.select(makers.c.circuit, makers.c.model, makers.c.task)
    if value is not None:
        found = found.where(_column_sql(makers.c.method, operator, value))
    made = sa.and_(
        SUMMARIES.c.kind == "measurement",
        SUMMARIES.c.method.is_(None),
        SUMMARIES.c.circuit.is_not(None),
        sa.tuple_(*_where_found()).in_(found),
    )
    return sa.and_(own, sa.not_(made)) if value is None and operator == "=" else sa.or_(own, made)


def _column_sql(column: sa.ColumnElement[Any], operator: str, value: Scalar) -> Truth:
    if value is None:
        return column.is_(None) if operator == "=" else column.is_not(None)
    if isinstance(value, str):
        return _compare_text(column, operator, value)
    number = float(value) if column.key in NUMBERS or abs(value) >= _MANY else value
    kind: sa.types.TypeEngine[Any] = sa.Double() if isinstance(number, float) else sa.BigInteger()
    return _ordered(column, operator, sa.literal(number, kind))


def _compare_text(found: sa.ColumnElement[Any], operator: str, wanted: str) -> Truth:
    if operator == "~":
        return _contains(found, wanted)
    return _ordered(found, operator, sa.literal(wanted, sa.Text()))


def _contains(found: sa.ColumnElement[Any], wanted: str) -> Truth:
    # lower() of both databases changes A to Z alone: SQLite knows no others, nor does collation C.
    lowered = re.sub("[A-Z]", lambda letter: letter[0].lower(), wanted)
    return sa.func.lower(found).contains(lowered, autoescape=True)


def _ordered(found: sa.ColumnElement[Any], operator: str, wanted: sa.ColumnElement[Any]) -> Truth:
    made: Truth = {
        "=": found == wanted,
        "!=": found != wanted,
        "<": found < wanted,
        "<=": found <= wanted,
        ">": found > wanted,
        ">=": found >= wanted,
    }[operator]
    return made


# ---- documents ----------------------------------------------------------------------------------


def _document_sql(found: "_SqliteJson | _PostgresJson", operator: str, value: Scalar) -> Truth:
    if operator == "!=":
        return sa.and_(found.present, sa.not_(_document_sql(found, "=", value)))
    if value is None:
        return sa.not_(found.present)
    if isinstance(value, bool):
        return found.literal_in([json.dumps(value)])
    if isinstance(value, str):
        return sa.and_(found.is_text, _compare_text(found.text, operator, value))
    # A number is equal when it is written alike: not every database reads the last digit of a float right.
    equal = found.literal_in(_spellings(value))
    if operator == "=":
        return equal
    beyond = sa.and_(found.is_number, _ordered(found.number, operator[0], found.wanted(value)))
    if operator in ("<=", ">="):
        return sa.or_(equal, beyond)
    return sa.and_(beyond, sa.not_(equal))


def _spellings(value: int | float) -> list[str]:
    """How JSON may write a number."""
    found = {json.dumps(value)}
    if float(value).is_integer():
        found |= {json.dumps(int(value)), json.dumps(float(value))}
        if value == 0:
            found |= {"-0", "-0.0"}
    return sorted(found)


class _SqliteJson:
    """A place in a document of SQLite."""

    def __init__(self, document: sa.Column[Any], keys: tuple[str, ...]) -> None:
        # Escaped as in the stored text: older versions of SQLite compare keys as they are written.
        path = sa.literal("$" + "".join(f".{json.dumps(key)}" for key in keys), sa.Text())
        column = sa.type_coerce(document, sa.Text())
        self._type = sa.func.json_type(column, path, type_=sa.Text())
        self.text = sa.func.json_extract(column, path, type_=sa.Text())
        self.number: sa.ColumnElement[Any] = sa.func.json_extract(column, path, type_=sa.Double())
        # Two paths make a list of two, in which numbers stand as they were written.
        self._written = sa.func.json_extract(column, path, path, type_=sa.Text())
        self.present: Truth = sa.func.coalesce(self._type, "null") != "null"
        self.is_text: Truth = sa.func.coalesce(self._type, "null") == "text"
        self.is_number: Truth = sa.func.coalesce(self._type, "null").in_(["integer", "real"])

    def literal_in(self, written: list[str]) -> Truth:
        """Whether the JSON text is one of these."""
        return sa.and_(self.present, self._written.in_([f"[{each},{each}]" for each in written]))

    @staticmethod
    def wanted(value: int | float) -> sa.ColumnElement[Any]:
        """A number to compare with."""
        if isinstance(value, int) and abs(value) < _MANY:
            return sa.literal(value, sa.BigInteger())
        return sa.literal(float(value), sa.Double())


class _PostgresJson:
    """A place in a document of PostgreSQL.

    `->` fails on a document that holds a NUL or half of a surrogate pair anywhere, which JSON may; such a
    document has nothing at any path. Ours are written with these characters alone escaped.
    """

    def __init__(self, document: sa.Column[Any], keys: tuple[str, ...]) -> None:
        whole = sa.cast(document, sa.Text)
        place: sa.ColumnElement[Any] = sa.type_coerce(document, sa.Text())
        for key in keys:
            place = place.op("->", precedence=15)(sa.cast(sa.literal(key, sa.Text()), sa.Text))
        suspect = sa.or_(
            sa.func.strpos(whole, sa.literal("\\u0000", sa.Text())) > 0,
            sa.func.strpos(whole, sa.literal("\\ud", sa.Text())) > 0,
        )
        harmless = sa.not_(whole.regexp_match(r"(^|[^\\])(\\\\)*\\u(0000|d[89a-f])"))
        safe = sa.case((sa.not_(suspect), True), (harmless, True), else_=False)
        at = sa.case((safe, place), else_=None)
        self._type = sa.func.coalesce(sa.func.json_typeof(at, type_=sa.Text()), "null")
        self._written = sa.cast(at, sa.Text)
        self.present: Truth = self._type != "null"
        self.is_text: Truth = self._type == "string"
        self.is_number: Truth = self._type == "number"
        unquoted = at.op("#>>")(sa.cast(sa.literal("{}", sa.Text()), sa.ARRAY(sa.Text)))
        self.text = sa.collate(sa.case((self.is_text, sa.type_coerce(unquoted, sa.Text())), else_=None), "C")
        self.number: sa.ColumnElement[Any] = sa.case(
            (self.is_number, sa.cast(self._written, sa.Numeric)), else_=None
        )

    def literal_in(self, written: list[str]) -> Truth:
        """Whether the JSON text is one of these."""
        return sa.and_(self.present, self._written.in_(written))

    @staticmethod
    def wanted(value: int | float) -> sa.ColumnElement[Any]:
        """A number to compare with, not rounded on its way."""
        return sa.literal(Decimal(repr(value)), sa.Numeric())

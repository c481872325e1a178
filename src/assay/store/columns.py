"""Columns of results as SQL: conditions on them and orders by them.

Both databases give the answer that Python would: text by code point, numbers by value, and nothing equals
what is absent. Values travel as parameters, never inside the statement.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from assay.core.errors import check_name
from assay.store.about import COLUMNS, NUMBERS
from assay.store.tables import RESULTS, SUMMARIES
from assay.store.where import ALIASES, MANY, Condition, Scalar, lowered


Truth = sa.ColumnElement[bool]


def narrowed(
    columns: Sequence[Any], kind: str | None, conditions: Sequence[Condition], sqlite: bool = False
) -> sa.Select[Any]:
    """What conditions on columns leave; `results` takes part where a document is looked into.

    In SQLite also without documents of which a condition cannot hold.
    """
    source: sa.FromClause = SUMMARIES
    if any(condition.in_document for condition in conditions):
        source = SUMMARIES.join(RESULTS, RESULTS.c.id == SUMMARIES.c.id)
    statement = sa.select(*columns).select_from(source)
    if kind is not None:
        statement = statement.where(SUMMARIES.c.kind == kind)
    if sqlite:
        statement = statement.where(*(_could_hold(each) for each in conditions if each.in_document))
    return statement.where(*(column_condition(each) for each in conditions if not each.in_document))


def column_condition(condition: Condition) -> Truth:
    """A condition on a column in terms of the table `summaries`."""
    (name,) = condition.path
    if name == "method":
        return _method_sql(condition.operator, condition.value)
    return _column_sql(SUMMARIES.c[name], condition.operator, condition.value)


def _could_hold(condition: Condition) -> Truth:
    """What SQLite can say of a condition on a document: false only where the condition is.

    So Python need not read most documents. What the JSON functions of SQLite may see otherwise than Python is
    let through: keys and texts beyond ASCII, the last digits of numbers, a document that is no JSON.
    """
    name, *keys = condition.path
    if not all(key.isascii() and "\\" not in key for key in keys):
        return sa.true()
    document, path = _place(name, keys)
    found = sa.func.json_extract(document, path)
    sign, wanted = condition.operator, condition.value
    if wanted is None and sign == "=":
        holds: Truth = found.is_(None)
    else:
        holds = sa.and_(found.is_not(None), _could_equal(found, sign, wanted))
    return sa.case((sa.func.json_valid(document), holds), else_=sa.true())


def _could_equal(found: Any, sign: str, wanted: Scalar) -> Truth:
    if isinstance(wanted, str):
        return found == sa.literal(wanted, sa.Text()) if sign == "=" and wanted.isascii() else sa.true()
    if wanted is None or isinstance(wanted, bool) or sign == "!=":
        return sa.true()
    least, most = _around(wanted)
    bounds: dict[str, Truth] = {"=": found.between(least, most), "<": found <= most, ">": found >= least}
    return bounds[sign[0]]


def documents_to_read(conditions: Sequence[Condition], sqlite: bool) -> list[Any]:
    """Columns that conditions look into, and `sure`: SQLite knows that all hold, and gives no document."""
    if not conditions:
        return []
    sure = sa.and_(*(_surely_holds(each) for each in conditions)) if sqlite else sa.false()
    names = sorted({condition.path[0] for condition in conditions})
    return [*(sa.case((sure, None), else_=RESULTS.c[name]).label(name) for name in names), sure.label("sure")]


def _surely_holds(condition: Condition) -> Truth:
    """True only where the condition is; the counterpart of `_could_hold`."""
    name, *keys = condition.path
    sign, wanted = condition.operator, condition.value
    if not all(key.isascii() and "\\" not in key for key in keys) or isinstance(wanted, bool):
        return sa.false()
    document, path = _place(name, keys)
    found, kind = sa.func.json_extract(document, path), sa.func.json_type(document, path)
    if isinstance(wanted, str) and sign == "=" and wanted.isprintable() and wanted.isascii():
        # At a NUL a text ends for SQLite, so documents that hold one are left to Python.
        whole = sa.func.instr(document, "\\u0000") == 0
        holds: Truth = sa.and_(kind == "text", found == sa.literal(wanted, sa.Text()), whole)
    elif isinstance(wanted, int | float) and sign[0] in "<>":
        least, most = _around(wanted)
        holds = sa.and_(kind.in_(("integer", "real")), found < least if sign[0] == "<" else found > most)
    elif isinstance(wanted, int | float) and sign == "=" and abs(wanted) < 2**53:
        holds = sa.and_(kind == "integer", found == sa.literal(float(wanted), sa.Double()))
    else:
        return sa.false()
    return sa.case((sa.func.json_valid(document), sa.func.coalesce(holds, sa.false())), else_=sa.false())


def _place(name: str, keys: Sequence[str]) -> tuple[Any, Any]:
    """A column of documents as text, and a place inside them."""
    path = sa.literal("$" + "".join(f'."{key}"' for key in keys), sa.Text())
    return sa.type_coerce(RESULTS.c[name], sa.Text()), path


def _around(wanted: int | float) -> tuple[Any, Any]:
    """A number's bounds beyond what SQLite may read otherwise than Python: its last digits."""
    room = 1e-9 * abs(float(wanted))
    return tuple(sa.literal(float(wanted) + side, sa.Double()) for side in (-room, room))  # type: ignore[return-value]  # two


def parse_order(order: str) -> list[sa.UnaryExpression[Any]]:
    """SQL of an order: a column, or `-column` for the largest first; absent values come last."""
    name = order.strip().removeprefix("-")
    name = ALIASES.get(name, name)
    check_name("column to order by", name, COLUMNS)
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
        # lower() of both databases changes A to Z alone: SQLite knows no others, nor does collation C.
        if operator == "~":
            return sa.func.lower(column).contains(lowered(value), autoescape=True)
        return _ordered(column, operator, sa.literal(value, sa.Text()))
    number = float(value) if column.key in NUMBERS or abs(value) >= MANY else value
    kind: sa.types.TypeEngine[Any] = sa.Double() if isinstance(number, float) else sa.BigInteger()
    return _ordered(column, operator, sa.literal(number, kind))


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

"""The runtime type checks of the suite: every annotation of the package, checked in every test.

The import hook of jaxtyping decorates each function; the decorator here is a cheaper one than its own. It
makes the checks of a function at the first call and keeps them for its code: functions that no test calls,
and functions that another one defines again at each call, cost next to nothing.
"""

import functools
import inspect
import typing
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintPep585DeprecationWarning


jaxtyped = jaxtyping.jaxtyped


class Checks(NamedTuple):
    """What the calls of a function must pass; `shapes`: an annotation names axes, which must agree."""

    arguments: Callable[..., object]
    result: Callable[[object], object]
    shapes: bool


class Verbatim(str):
    """A default or an annotation that the text of a signature shows as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def resolved(hint: object, function: FunctionType) -> object:
    """`hint` with the names in its strings looked up; `Any` where only a static type checker knows them."""

    def bearer() -> None: ...

    bearer.__annotations__ = {"hint": hint}
    try:
        return typing.get_type_hints(bearer, function.__globals__, include_extras=True)["hint"]
    except NameError:
        return Any


def checks_of(function: FunctionType) -> Checks:
    """Two stand-ins for beartype: one takes the same arguments, the other gives back what the result is."""
    signature = inspect.signature(function)
    scope: dict[str, object] = {}
    places = []
    for at, place in enumerate(signature.parameters.values()):
        if place.annotation is not place.empty:
            scope[f"hint{at}"] = resolved(place.annotation, function)
            place = place.replace(annotation=Verbatim(f"hint{at}"))
        if place.default is not place.empty:
            scope[f"default{at}"] = place.default
            place = place.replace(default=Verbatim(f"default{at}"))
        places.append(place)
    scope["hint"] = resolved(function.__annotations__.get("return", Any), function)
    shapes = any("jaxtyping" in repr(value) for name, value in scope.items() if name.startswith("hint"))
    taken = signature.replace(parameters=places, return_annotation=signature.empty)
    exec(f"def arguments{taken}: pass\ndef result(value) -> hint: return value", scope)
    for stand_in in (scope["arguments"], scope["result"]):
        functools.update_wrapper(stand_in, function, ("__module__", "__name__", "__qualname__"), ())
        del stand_in.__wrapped__
    with warnings.catch_warnings():
        # Raised at the sight of typing.Sequence in the bases of SQLAlchemy's Row, which annotates our code.
        warnings.simplefilter("ignore", BeartypeDecorHintPep585DeprecationWarning)
        check = beartype(conf=BeartypeConf(violation_type=TypeError))
        return Checks(check(scope["arguments"]), check(scope["result"]), shapes)


_CHECKS: dict[CodeType, Checks] = {}


def checked(item: Any = None, *, typechecker: object = None) -> Any:
    """`item`, a function or a dataclass to be made, with its annotations checked at each call."""
    if item is None:
        return checked
    if isinstance(item, type):
        if is_dataclass(item) and not hasattr(item.__init__, "__wrapped__"):
            item.__init__ = checked(item.__init__)  # type: ignore[misc]
        return item
    code = item.__code__

    @functools.wraps(item)
    def call(*arguments: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return item(*arguments, **named)
        checks = _CHECKS.get(code)
        if checks is None:
            checks = _CHECKS[code] = checks_of(item)
        if not checks.shapes:
            checks.arguments(*arguments, **named)
            return checks.result(item(*arguments, **named))
        with jaxtyped("context"):
            checks.arguments(*arguments, **named)
            return checks.result(item(*arguments, **named))

    return call


def install_type_checks() -> None:
    """For every module of the package that is imported from now on."""
    jaxtyping.jaxtyped = checked
    jaxtyping.install_import_hook("assay", "beartype.beartype")


@contextmanager
def no_type_checks() -> Iterator[None]:
    """As for a user, who has no such checks: for bulk work that other tests pass through with them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)

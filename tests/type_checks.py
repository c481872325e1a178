"""The runtime type checks of the suite: the annotations of the package hold in every test.

The import hook of jaxtyping decorates each function; the decorator here is a cheaper one than its own. It
makes the checks of a function at the first call and keeps them for its code: functions that no test calls,
and functions that another one defines again at each call, cost next to nothing. Of the calls of one function
in one test the first hundred are checked, and all with ASSAY_THOROUGH.
"""

import functools
import inspect
import os
import sys
import typing
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from types import CodeType, FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintPep585DeprecationWarning


CALLS = sys.maxsize if os.environ.get("ASSAY_THOROUGH") else 100

jaxtyped = jaxtyping.jaxtyped


class Verbatim(str):
    """A default or an annotation that the text of a signature shows as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def resolved(hint: object, function: FunctionType) -> object:
    """`hint` with the names in its strings looked up; `Any` where only a static type checker knows them.

    `pd.Series[Any]` is one of these: stubs make that class generic.
    """

    def bearer() -> None: ...

    bearer.__annotations__ = {"hint": hint}
    try:
        return typing.get_type_hints(bearer, function.__globals__, include_extras=True)["hint"]
    except (NameError, TypeError):
        return Any


class Checks:
    """What the calls of a function must pass.

    Attributes:
        calls: Checked in this test.
        arguments: Takes what the function takes.
        result: Takes what it returned.
        shapes: Whether an annotation names axes, which must agree.
    """

    __slots__ = ("arguments", "calls", "result", "shapes")

    def __init__(self) -> None:
        self.calls = 0
        self.arguments: Callable[..., object] | None = None

    def make(self, function: FunctionType) -> None:
        """Two stand-ins that beartype checks: the function itself stays as it is."""
        signature = inspect.signature(function)
        scope: dict[str, Any] = {}
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
        self.shapes = any("jaxtyping" in repr(value) for name, value in scope.items() if "hint" in name)
        taken = signature.replace(parameters=places, return_annotation=signature.empty)
        exec(f"def arguments{taken}: pass\ndef result(value) -> hint: return value", scope)
        for name in ("result", "arguments"):  # the latter last: other threads look for it
            stand_in = scope[name]
            stand_in.__module__, stand_in.__name__ = function.__module__, function.__name__
            stand_in.__qualname__ = function.__qualname__
            with warnings.catch_warnings():
                # Raised at the sight of typing.Sequence in the bases of SQLAlchemy's Row.
                warnings.simplefilter("ignore", BeartypeDecorHintPep585DeprecationWarning)
                setattr(self, name, beartype(stand_in, conf=BeartypeConf(violation_type=TypeError)))


_CHECKS: dict[tuple[str, str, CodeType], Checks] = {}
_begun: list[Checks] = []


def checked(item: Any = None, *, typechecker: object = None) -> Any:
    """`item`, a function or a class, with the annotations of the function or dataclass checked at a call."""
    if item is None:
        return checked
    if isinstance(item, type):
        if is_dataclass(item) and not hasattr(item.__init__, "__wrapped__"):
            item.__init__ = checked(item.__init__)  # type: ignore[misc]
        return item
    # Code alone does not tell the initializers of two dataclasses apart that name their fields alike.
    checks = _CHECKS.setdefault((item.__module__, item.__qualname__, item.__code__), Checks())

    @functools.wraps(item)
    def call(*arguments: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        if checks.calls >= CALLS or jaxtyping.config.jaxtyping_disable:
            return item(*arguments, **named)
        if not checks.calls:
            _begun.append(checks)
            if checks.arguments is None:
                checks.make(item)
        checks.calls += 1
        if not checks.shapes:
            checks.arguments(*arguments, **named)
            return checks.result(item(*arguments, **named))
        with jaxtyped("context"):
            checks.arguments(*arguments, **named)
            return checks.result(item(*arguments, **named))

    return call


def begin_a_test() -> None:
    """The calls of each function are counted anew."""
    for checks in _begun:
        checks.calls = 0
    _begun.clear()


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

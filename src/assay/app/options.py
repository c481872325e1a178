"""What the settings of commands are made of: groups of a help page, ranges, and the call that takes them."""

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number

from assay.core.errors import InputError


Result = TypeVar("Result")


class RareGroup(Group):
    """Options that a help page lists with `--help-all` alone."""

    shown = False

    @property
    def show(self) -> bool:
        """Whether the help page at hand lists them."""
        return RareGroup.shown


def own_group(name: str, place: int = 40) -> Parameter:
    """A group of options; those of a command come after those of the inputs and of discovery."""
    return Parameter(group=Group(name, sort_key=place))


INPUTS = own_group("Model and inputs", 10)
CIRCUIT = own_group("Circuit", 20)
DISCOVERY = own_group("Discovery", 30)
FILTERS = own_group("Filters", 60)
STORED = own_group("Results", 70)
OUTPUT = own_group("Output", 80)
RUNNING = own_group("Running", 90)
RARE = Parameter(group=RareGroup("Rarer options", sort_key=100))


def at_least(low: int, most: int | None = None) -> Parameter:
    """A range."""
    return Parameter(validator=Number(gte=low, lte=most))


def _seconds(type_: Any, tokens: Sequence[Token]) -> float:
    """A duration, in the words of plans."""
    from assay.pipeline.plan import seconds_of

    del type_
    return seconds_of(tokens[0].value)


SECONDS = Parameter(converter=_seconds, validator=Number(gt=0), metavar="TIME")
DType = Literal["auto", "bfloat16", "float16", "float32", "float64"]
Count = Annotated[int, at_least(1)]
Share = Annotated[float, Parameter(validator=Number(gt=0, lt=1))]
STEPS = Parameter(metavar="COUNT|auto")
Steps = int


def parse_options(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of methods from `METHOD.NAME=VALUE`.

    Values are read as JSON where they can be (numbers, `true` or `True`, `false` or `False`, `null`), else
    they are text.

    Raises:
        InputError: If one has another form.

    Example:
        >>> parse_options(["ugs.updates=300", "ugs@warm.warm_start=eap-ig-inputs"])
        {'ugs': {'updates': 300}, 'ugs@warm': {'warm_start': 'eap-ig-inputs'}}
    """
    options: dict[str, dict[str, Any]] = {}
    for text in texts:
        match = re.fullmatch(r"([^.=]+)\.([^=]+)=(.*)", text)
        if match is None:
            raise InputError(
                f"option {text!r} is not of the form METHOD.NAME=VALUE, e.g. ugs.updates=300; `assay list "
                "methods` names the methods"
            )
        value: Any = match[3].strip()
        with contextlib.suppress(ValueError):
            value = json.loads(value.lower() if value in ("True", "False") else value)
        options.setdefault(match[1].strip(), {})[match[2].strip().replace("-", "_")] = value
    return options


# Fields that mean something else, or nothing, to the function that a command calls.
_OF_THE_COMMAND = frozenset(
    ("model", "device", "dtype", "store", "out", "save", "report", "config", "quiet", "json", "traceback")
)


def keywords(settings: object, function: Callable[..., Any], /, **more: Any) -> dict[str, Any]:
    """The settings that a function takes as keywords of the same names, and other arguments for it.

    Args:
        settings: An instance of a dataclass of this module or of a command.
        function: What will be called.
        more: Arguments under names that are not fields, or with another value.
    """
    parameters = signature(function).parameters.values()
    taken = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY} - _OF_THE_COMMAND
    return {name: value for name, value in vars(settings).items() if name in taken} | more


def call(settings: object, function: Callable[..., Result], /, *arguments: Any, **more: Any) -> Result:
    """What a function gives for arguments and for the settings that it takes as keywords; see `keywords`."""
    return function(*arguments, **keywords(settings, function, **more))

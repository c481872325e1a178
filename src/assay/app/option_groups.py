"""What an option is made of: the group it is listed in, and its range."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number


DEFAULT_STORE = Path("assay-out")

INPUTS, CIRCUIT, DISCOVERY, STORED, OUTPUT, RUNNING = (
    Parameter(group=Group(name, sort_key=place))
    for name, place in (
        ("Model and inputs", 10),
        ("Circuit", 20),
        ("Discovery", 30),
        ("Results", 70),
        ("Output", 80),
        ("Running", 90),
    )
)


def own_group(name: str, place: int = 40) -> Parameter:
    """A group of a command's own options, after those of the inputs and of discovery."""
    return Parameter(group=Group(name, sort_key=place))


def at_least(low: int, most: int | None = None) -> Parameter:
    """A range."""
    return Parameter(validator=Number(gte=low, lte=most))


def count_or(word: str) -> Parameter:
    """An option that takes a count, or a word."""

    def convert(type_: Any, tokens: Sequence[Token]) -> int | str:
        del type_
        value = tokens[0].value
        if value != word and not (value.isdecimal() and int(value) > 0):
            raise ValueError(f"{value!r} is not valid; give a count of at least 1, or {word}")
        return value if value == word else int(value)

    return Parameter(converter=convert, metavar=f"COUNT|{word}")


DType = Literal["auto", "bfloat16", "float16", "float32", "float64"]
Count = Annotated[int, at_least(1)]
STEPS = count_or("auto")
Steps = int | Literal["auto"]

# Of stored results.
KINDS = (
    "audit",
    "benchmark",
    "calibration",
    "circuit",
    "correctness",
    "domain-evaluation",
    "job",
    "measurement",
    "monitor",
    "ranking",
    "ranking-comparison",
    "scores",
    "stable-pick",
    "subset-evaluation",
    "subset-part",
    "subset-path",
    "sweep",
    "worst_case",
    "zoo",
)

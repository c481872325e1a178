"""What every argument is checked by: names, counts, fractions, and what the system refuses to write."""

import math
from pathlib import Path

import pytest

from assay.core.errors import (
    InputError,
    OutputError,
    UnknownNameError,
    check_fraction,
    check_least,
    check_name,
    writing,
)


def test_a_name_that_is_not_known_is_refused_with_those_that_are() -> None:
    check_name("rule", "sum", ("sum", "mean"))
    with pytest.raises(UnknownNameError, match="unknown rule 'summ'; did you mean 'sum'"):
        check_name("rule", "summ", ("sum", "mean"))
    with pytest.raises(UnknownNameError, match="unknown rule 7; known: mean, sum"):
        check_name("rule", 7, {"sum": 1, "mean": 2})


def test_the_first_count_below_its_least_is_named() -> None:
    check_least(2, n=2, draws=3)
    with pytest.raises(InputError, match="draws is 1; expected at least 2"):
        check_least(2, n=2, draws=1, seed=0)
    with pytest.raises(InputError, match="n is nan; expected at least 0"):
        check_least(0, n=math.nan)


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, math.nan])
def test_a_fraction_lies_strictly_between_0_and_1(value: float) -> None:
    check_fraction(level=0.95)
    with pytest.raises(InputError, match=f"level is {value}; expected a number strictly between 0 and 1"):
        check_fraction(level=value)


def test_a_percentage_is_told_the_fraction() -> None:
    with pytest.raises(InputError, match="; write 0.95 for 95 %"):
        check_fraction(level=95)


def test_what_cannot_be_written_says_why_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match="^cannot make x: Not a directory; choose another place$"),
        writing("make x", "choose another place"),
    ):
        (tmp_path / "file" / "folder").mkdir()
    with pytest.raises(OutputError, match="^inner$"), writing("write y"):
        raise OutputError("inner")
    with pytest.raises(OutputError, match="^cannot write y: out of colours$"), writing("write y"):
        raise OSError("out of colours")
    with pytest.raises(KeyError), writing("write y"):
        raise KeyError("ours")

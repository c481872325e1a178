"""The suite's own type checks: what they refuse, and how often they look."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from type_checks import CALLS, begin_a_test, checked, no_type_checks


@checked(typechecker=None)
def length(text: str, *, times: int = 1) -> int:
    return len(text) * times if text else None  # type: ignore[return-value]


@checked
def added(left: Float[Tensor, "rows columns"], right: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    return left.sum(1) + right if len(right) else left.sum(0)


@checked
@dataclass
class Words:
    first: str


@checked
@dataclass
class Numbers:
    first: int


def test_arguments_and_results_are_held_to_their_annotations() -> None:
    assert length("ab", times=2) == 4
    with pytest.raises(TypeError, match="length.*text=3"):
        length(3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'text'"):
        length()
    with pytest.raises(TypeError, match='return "None"'):
        length("")
    with no_type_checks():
        assert length("") is None
    assert added(torch.ones(2, 3), torch.ones(2)).tolist() == [4.0, 4.0]
    for other in ((torch.ones(2, 3), torch.ones(3)), (torch.ones(0, 3), torch.ones(0))):
        with pytest.raises(TypeError, match="right=|return"):
            added(*other)


def test_dataclasses_whose_fields_are_named_alike_are_told_apart() -> None:
    assert (Words("a").first, Numbers(1).first) == ("a", 1)
    with pytest.raises(TypeError, match="first=1"):
        Words(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="first='a'"):
        Numbers("a")  # type: ignore[arg-type]


def test_each_test_looks_at_the_first_calls_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("type_checks.CALLS", 3)
    assert CALLS >= 100
    for _ in range(3):
        length("a")
    assert length("") is None
    begin_a_test()
    with pytest.raises(TypeError, match='return "None"'):
        length("")

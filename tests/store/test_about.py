"""What results are found by."""

import math

import numpy as np
import pytest

from assay.core.errors import InputError
from assay.store import About, ResultSummary


def test_facts_become_what_a_column_holds() -> None:
    row = About(task="a\0b\ud800", n=int(np.int64(3)), value=math.nan, low=0.5).row()
    assert (row["task"], row["n"], row["value"], row["low"]) == ("a\ufffdb?", 3, None, 0.5)
    assert row["status"] is None


def test_a_number_beyond_every_column_is_refused() -> None:
    with pytest.raises(InputError, match=r"seed is \d+; .* below 2\^63"):
        About(seed=2**63).row()


@pytest.mark.parametrize(
    ("kind", "about", "line"),
    [
        ("measurement", About(metric="kl", task="ioi", model="mini", method="eap", name="20 edges"),
         "kl of eap, 20 edges on ioi in mini"),
        ("audit", About(metric="faithfulness-norm", method="acdc", name="7 edges", ablation="mean"),
         "acdc, 7 edges (mean ablation)"),
        ("circuit", About(method="eap", name="eap, 20 edges", task="sva"), "eap, 20 edges on sva"),
        ("scores", About(method="eap", task="ioi"), "eap on ioi"),
        ("job", About(name="measure mini"), "measure mini"),
    ],
)  # fmt: skip
def test_a_line_says_what_a_result_is_about(kind: str, about: About, line: str) -> None:
    assert ResultSummary(id="0" * 16, kind=kind, created="", **about.to_dict()).about == line

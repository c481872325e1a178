"""The command that sets published figures beside those of GPT-2, rehearsed on random weights."""

import math
import runpy
from pathlib import Path

import pytest


RUN = Path(__file__).parents[2] / "experiments" / "published" / "run.py"


@pytest.mark.slow
def test_every_published_figure_has_one_beside_it() -> None:
    names = runpy.run_path(str(RUN))
    model = names["rehearsal"]()
    result = {
        "adversarial": names["adversarial"](model, 3),
        "ioi_gpt2_wang26": names["circuit_of_wang"](model, 6),
        "mib": names["mib"](model, 6, None),
    }
    rows = names["beside"](result)
    # Four tables in two readings of eleven rows, the kept margin, and three methods with two areas.
    assert len(rows) == 4 * 2 * 11 + 1 + 3 * 2
    assert all(math.isfinite(here) and math.isfinite(there) for _, here, there in rows)
    assert len({name for name, _, _ in rows}) == len(rows)
    assert result["ioi_gpt2_wang26"]["D05"]["id"] == "D05.acc_at_K"
    assert len(result["ioi_gpt2_wang26"]["calibrations"]) == 16

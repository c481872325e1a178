"""The picture of a training run: what is drawn, and what cannot be."""

import math
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import InputError, OutputError
from assay.report.dynamics import dynamics_data, dynamics_figure, plot_dynamics


def document() -> dict[str, Any]:
    readings = [
        {"step": 0, "deep": 0.0, "shallow": 0.0, "depth_bias": None, "scores": {"validation": 0.2}},
        {
            "step": 100,
            "deep": 0.2,
            "shallow": 0.1,
            "depth_bias": 0.69,
            "low": 0.5,
            "high": 0.9,
            "scores": {"validation": 0.8, "sketch": 0.4},
        },
    ]
    return {
        "schema": "assay-dynamics/1",
        "images": {"n": 32},
        "shallow_blocks": [0, 2],
        "deep_blocks": [9, 9],
        "readings": readings,
    }


def test_undefined_values_are_gaps_and_blocks_are_named() -> None:
    data = dynamics_data({"schema": "assay-finetune/1", "dynamics": document()})
    assert data.steps == (0, 100)
    assert math.isnan(data.depth_bias[0])
    assert (data.low[1], data.high[1]) == (0.5, 0.9)
    assert math.isnan(data.scores["sketch"][0])
    assert data.scores["validation"] == (0.2, 0.8)
    assert (data.shallow_blocks, data.deep_blocks) == ("blocks 0 to 2", "block 9")


def test_a_column_per_run_with_titles_and_both_sides(tmp_path: Path) -> None:
    data = dynamics_data(document())
    figure = plot_dynamics({"plain": data, "lambda 0.1": data})
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    assert titles == ["plain", "lambda 0.1"]
    below = figure.axes[-1]
    assert below.get_yscale() == "log"
    legend = below.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["deep: block 9", "shallow: blocks 0 to 2"]
    assert [list(line.get_ydata())[1] for line in below.get_lines()] == [0.2, 0.1]
    written = dynamics_figure({"plain": document(), "lambda 0.1": document()}, tmp_path / "two.svg")
    text = written.read_text()
    assert all(word in text for word in ("plain", "lambda 0.1", "depth bias", "circuits of 32 images"))
    again = dynamics_figure({"plain": document(), "lambda 0.1": document()}, tmp_path / "again.svg")
    assert again.read_text() == text
    assert dynamics_figure(document(), tmp_path / "one.png").stat().st_size > 5000


def test_what_is_no_course_of_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"schema None, expected 'assay-dynamics/1'"):
        dynamics_data({"readings": []})
    with pytest.raises(InputError, match=r"cannot write 'x.jpg': give a name ending in .png or .svg"):
        dynamics_figure(document(), tmp_path / "x.jpg")
    with pytest.raises(InputError, match="got 5 runs; a figure holds 1 to 4"):
        plot_dynamics({str(number): dynamics_data(document()) for number in range(5)})
    with pytest.raises(OutputError, match="cannot write"):
        dynamics_figure(document(), tmp_path / "missing" / "x.png")

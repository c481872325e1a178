import re
import subprocess
import sys
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from synthetic import audit_of

from assay.metrics.plots import plot_curve
from assay.page import draw
from assay.page.matrix import plot_matrix
from assay.pipeline import audit_plots as figures


Document = dict[str, Any]


def test_the_curve_data_are_the_document_s(document: Document) -> None:
    data = figures.curve_data(audit_of(document))
    assert data.values == tuple(document["curve"]["values"])
    assert data.random_values == tuple(document["curve"]["random"]["values"])
    assert data.chosen == document["circuit"]["size"] / document["graph"]["n_edges"]
    assert (data.target, data.chosen_value, data.n) == (0.9, 0.921, 200)


def test_missing_numbers_become_nan_not_zero(document: Document) -> None:
    document["curve"]["values"][0] = None
    document["curve"]["random"] = None
    data = figures.curve_data(audit_of(document))
    assert np.isnan(data.values[0])
    assert data.random_values == ()
    assert np.isnan(figures.agreement_data(audit_of(document)).tau[0])


def test_layer_shares_add_up_and_leave_impossible_pairs_out(document: Document) -> None:
    data = figures.layer_data(audit_of(document))
    assert np.nansum(data.values) == pytest.approx(1)
    assert data.rows[0] == "input"
    assert data.columns[-1] == "logits"
    # Layer 1 writes after layer 0 has read; the MLP of a layer reads its own heads.
    assert np.isnan(data.values[2, 0])
    assert not np.isnan(data.values[1, 0])


def test_heads_are_rows_and_layers_columns_in_forward_order(document: Document) -> None:
    data = figures.head_data(audit_of(document))
    assert data.values.shape == (8, 4)
    assert data.values[3, 1] == document["per_head"][1][3]


@pytest.mark.slow
def test_drawing_leaves_no_global_state(document: Document) -> None:
    before = dict(mpl.rcParams)
    draw.to_svg(plot_curve(figures.curve_data(audit_of(document))), key="k", label="x")
    assert dict(mpl.rcParams) == before
    code = "import assay.page.html, assay.pipeline.audit_page, sys; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_svg_is_trimmed_themed_and_repeatable(document: Document) -> None:
    data = figures.curve_data(audit_of(document))
    svg = draw.to_svg(plot_curve(data), key="one", label='a "quoted" <label>')
    assert svg.startswith("<svg")
    assert svg.endswith("</svg>")
    assert 'aria-label="a &quot;quoted&quot; &lt;label&gt;"' in svg
    assert "metadata" not in svg
    assert "xlink" not in svg
    assert "var(--supports)" in svg
    assert not re.search("|".join((draw.INK, draw.SUPPORTS, draw.MUTED)), svg)
    assert all(name.startswith("one-") for name in re.findall(r' id="([^"]+)"', svg))
    assert svg == draw.to_svg(plot_curve(data), key="one", label='a "quoted" <label>')
    assert "random edges" in svg, "text stays text"


def test_small_head_values_are_printed_in_a_common_unit(document: Document) -> None:
    document["per_head"] = [[1e-4 * (layer + head + 1) for head in range(8)] for layer in range(4)]
    ax = plot_matrix(figures.head_data(audit_of(document)))
    assert "units of 0.001" in ax.get_xlabel()
    assert "1.10" in {text.get_text() for text in ax.texts}

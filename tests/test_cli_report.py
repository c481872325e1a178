"""`assay report`: a page of a result or a sweep, and two results in one table."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest


sys.path.insert(0, str(Path(__file__).resolve().parent / "report"))
from command_line import invoke
from synthetic_store import Filled, fill

from assay.store import Store


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Filled]:
    place = tmp_path_factory.mktemp("filled") / "store"
    return place, fill(Store(place))


@pytest.fixture
def report(filled: tuple[Path, Filled], tmp_path: Path) -> Any:
    """`report(*arguments)` -> the result and the page."""

    def call(*arguments: str) -> tuple[Any, str]:
        out = tmp_path / "made" / "page.html"
        given = ["report", *arguments, "--store", str(filled[0]), "--save", str(out)]
        result = invoke(*given)
        return result, out.read_text() if out.exists() else ""

    return call


def test_sweeps_results_and_comparisons_are_written(report: Any, filled: tuple[Path, Filled]) -> None:
    ids = filled[1]
    for arguments, title in (
        (("--sweep", "methods"), "<h1>Sweep methods</h1>"),
        (("--sweep", ids.sweep[:10]), "<h1>Sweep methods</h1>"),
        ((ids.sweep,), "<h1>Sweep methods</h1>"),
        ((ids.measurement,), "<h1>Measurement: faithfulness on ioi in mini</h1>"),
        (("--compare", *ids.audits), "What both measured"),
    ):
        result, page = report(*arguments)
        assert result.exit_code == 0, result.stderr
        assert title in page


def test_a_comparison_is_printed_as_a_table_or_as_json(filled: tuple[Path, Filled]) -> None:
    asked = ("report", "--compare", *filled[1].audits, "--store", str(filled[0]))
    result = invoke(*asked)
    assert "What both measured" in result.stdout
    assert "faithfulness" in result.stdout
    rows = json.loads(invoke(*asked, "--json").stdout)
    numbers = {f"{side}{end}" for side in ("a", "b", "difference") for end in ("", "_low", "_high")}
    assert {"measure"} | numbers == set(rows[0])
    assert not (filled[0] / "report.html").exists()


def test_without_an_id_the_newest_audit_is_shown(report: Any, filled: tuple[Path, Filled]) -> None:
    result, page = report("--json")
    assert json.loads(result.stdout)["id"] == filled[1].audits[1]
    assert "circuit audit" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sweep", "a", "--compare", "b", "c"), "--sweep and --compare select different pages"),
        (("--sweep", "none"), "no sweep 'none'"),
        (("--compare", "0123456789abcdef", "0123456789abcdef"), "no result in"),
        (("--compare", "nope", "x"), "a result id is up to 16 hex digits, got 'nope'"),
    ],
)
def test_wrong_usage_is_told(report: Any, arguments: tuple[str, ...], message: str) -> None:
    result, page = report(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert page == ""

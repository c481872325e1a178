"""`assay report`: a page of a result, a model, a task, a sweep, or of two that are compared."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest


sys.path.insert(0, str(Path(__file__).resolve().parent / "report"))
from command_line import invoke
from synthetic_store import Filled, fill

from assay.circuits import NodeRoles
from assay.graph import build_graph
from assay.page.circuit import graph_of
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


def test_overviews_and_comparisons_are_written(report: Any, filled: tuple[Path, Filled]) -> None:
    ids = filled[1]
    for arguments, title in (
        (("--model", "mini"), "<h1>Model mini</h1>"),
        (("--task", "ioi"), "<h1>Task ioi</h1>"),
        (("--sweep", "methods"), "<h1>Sweep methods</h1>"),
        (("--sweep", ids.sweep[:10]), "<h1>Sweep methods</h1>"),
        ((ids.sweep,), "<h1>Sweep methods</h1>"),
        ((ids.measurement,), "<h1>Measurement: faithfulness on ioi in mini</h1>"),
        (("--compare", *ids.audits), "The circuits share"),
    ):
        result, page = report(*arguments)
        assert result.exit_code == 0, result.stderr
        assert title in page


def test_without_an_id_the_newest_audit_is_shown(report: Any, filled: tuple[Path, Filled]) -> None:
    result, page = report("--json")
    assert json.loads(result.stdout)["id"] == filled[1].audits[1]
    assert "circuit audit" in page


def test_the_model_of_other_commands_does_not_turn_the_page_into_an_overview(
    report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_MODEL", "mini")
    monkeypatch.setenv("ASSAY_TASK", "ioi")
    (tmp_path / "options.toml").write_text('model = "mini"\ntask = "ioi"\n')
    result, page = report("--config", str(tmp_path / "options.toml"))
    assert result.exit_code == 0
    assert "circuit audit" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "mini", "--task", "ioi"), "--model and --task select different pages"),
        (("--model", "minnie"), "did you mean 'mini'"),
        (("--sweep", "none"), "no sweep 'none'"),
        (("--compare", "0123456789abcdef", "0123456789abcdef"), "no result in"),
        (
            ("--compare", "nope.safetensors", "x"),
            "nope.safetensors does not exist; give a circuit file, the id",
        ),
        (("--compare", "folder/nope", "x"), "folder/nope does not exist"),
        (("--compare", "nope", "x"), "a result id is up to 16 hex digits, got 'nope'"),
    ],
)
def test_wrong_usage_is_told(report: Any, arguments: tuple[str, ...], message: str) -> None:
    result, page = report(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert page == ""


def test_roles_of_a_file_are_shown_in_the_circuit_or_refused(
    report: Any, filled: tuple[Path, Filled], tmp_path: Path
) -> None:
    stored = Store(filled[0]).get(filled[1].audits[0])
    roles = NodeRoles(graph=graph_of(stored.payload["graph"]), roles={"name movers": ("a3.h0",)})
    fitting = roles.save(tmp_path / "roles.json")
    for arguments in ((stored.id,), ("--compare", *filled[1].audits)):
        result, page = report(*arguments, "--roles", str(fitting))
        assert result.exit_code == 0, result.stderr
        assert '"name movers": ["a3.h0"]' in page
    other = NodeRoles(graph=build_graph(9, 2)).save(tmp_path / "other.json")
    result, _ = report(stored.id, "--roles", str(other))
    assert result.exit_code == 2
    assert "belongs to another graph (9 layers of 2 heads" in result.stderr
    result, _ = report("--model", "mini", "--roles", str(fitting))
    assert "this page has none" in result.stderr

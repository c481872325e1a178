"""The pages say what the committed results on PACS say, and these follow from the committed models."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


REPOSITORY = Path(__file__).resolve().parent.parent
EXPERIMENT = REPOSITORY / "experiments" / "pacs64"
# Numbers are committed with eight digits.
TOLERANCE = 1e-4


def results(name: str) -> Any:
    return json.loads((EXPERIMENT / "results" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pacs64_run", EXPERIMENT / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_of_the_tables_stands_on_its_page(script: ModuleType) -> None:
    tables = {
        "howto/rank.md": script.predictors(results("correlations")),
        "theory/circuit-shift.md": script.monitoring(),
    }
    for name, rows in tables.items():
        page = (REPOSITORY / "docs" / name).read_text(encoding="utf-8").splitlines()
        for row in rows:
            assert row in page, (name, row)


def test_the_correlations_follow_from_the_models(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "DRAWS", 5)  # the intervals are those of the seed
    models = results("models")
    assert all(len({row["key"] for row in rows}) == len(rows) == 15 for rows in models.values())
    found, committed = script.correlations(models)["predictors"], results("correlations")["predictors"]
    assert found.keys() == committed.keys()
    for name, row in committed.items():
        assert found[name]["average"]["value"] == pytest.approx(row["average"]["value"], abs=TOLERANCE), name
        for task, cells in row["tasks"].items():
            for key in ("r2", "srcc", "krcc"):
                value = found[name]["tasks"][task][key]["value"]
                assert value == pytest.approx(cells[key]["value"], abs=TOLERANCE), (name, task, key)

"""The page on PACS says what the committed results say, and these follow from the committed models."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from assay.analyses.generalization import alarm_curve, correlate, summarize_correlations


REPOSITORY = Path(__file__).resolve().parent.parent
EXPERIMENT = REPOSITORY / "experiments" / "pacs64"
# Numbers are committed with eight digits.
TOLERANCE = 1e-4


def results(name: str) -> Any:
    return json.loads((EXPERIMENT / "results" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXPERIMENT)
    spec = importlib.util.spec_from_file_location("pacs64_tables", EXPERIMENT / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop("figures")  # a sibling of the script, no module of the tests
    return module


def test_every_row_of_the_tables_stands_on_the_page(tables: ModuleType) -> None:
    page = (REPOSITORY / "docs" / "pacs64.md").read_text(encoding="utf-8").splitlines()
    for name, table in tables.TABLES.items():
        for row in table():
            assert row in page, (name, row)


def test_each_domain_with_a_zoo_has_twelve_models_or_more() -> None:
    models = results("models")
    assert len(models) == 2
    for rows in models.values():
        assert len({row["key"] for row in rows}) == len(rows) >= 12


def test_the_correlations_follow_from_the_models() -> None:
    models, found = results("models"), results("correlations")["predictors"]
    for name, row in found.items():
        every = []
        for task, cells in row["tasks"].items():
            domain, target = task.split("-")
            columns = [each["targets"][target] for each in models[domain]]
            value = correlate([each[name] for each in columns], [each["accuracy"] for each in columns])
            every.append(value)
            for key in ("r2", "srcc", "krcc"):
                assert getattr(value, key) == pytest.approx(cells[key]["value"], abs=TOLERANCE), (name, task)
                low, high = cells[key]["interval"]
                assert low <= high
        average = summarize_correlations({"pacs64": every}).average
        assert average == pytest.approx(row["average"]["value"], abs=TOLERANCE)


def test_the_alarm_follows_from_the_scores_of_the_domains() -> None:
    found = results("monitoring")
    known, new = (
        [row for name, row in found["domains"].items() if name.startswith(prefix)]
        for prefix in ("known/", "new/")
    )
    assert (len(known), len(new)) == (39, 9)
    due = [sum(row["accuracy"] < delta for row in new) for delta in found["deltas"]]
    assert due == found["due"]
    for name in ("CSS spearman", "CSS jaccard", "CSS cosine", "ATC", "AC"):
        curve = alarm_curve(
            [row[name] for row in known],
            [row["accuracy"] for row in known],
            [row[name] for row in new],
            [row["accuracy"] for row in new],
            deltas=found["deltas"],
            higher_is_shift=name.startswith("CSS"),
        )
        mean = [np.nan if each is None else each for each in found["scores"][name]["alarm_f1"]["mean"]]
        np.testing.assert_allclose(np.nanmean(curve, axis=1), mean, atol=TOLERANCE)


def test_the_patterns_over_domains_are_of_the_monitored_model_and_as_the_page_says() -> None:
    found, watched = results("motif_domains"), results("monitoring")["domains"]
    positive = {}
    for kind, n in (("new", 9), ("known", 39)):
        part = found[kind]
        accuracy = [watched[name]["accuracy"] for name in part["domains"]]
        assert len(accuracy) == n
        # 300 drawn images here, all images of the domain there
        np.testing.assert_allclose(part["accuracy"], accuracy, atol=0.05)
        loadings = np.array(part["loadings"])
        assert np.abs(loadings).max() <= 1
        positive[kind] = (int((loadings > 0).sum()), part["varying_cells"])
    assert positive == {"new": (45, 52), "known": (52, 52)}
    page = (REPOSITORY / "docs" / "pacs64.md").read_text(encoding="utf-8")
    for pair in found["agreement"].values():
        assert f"{pair['srcc']:.2f}" in page
    for kind in ("new", "known"):
        srcc = found[kind]["depth_bias"]["ddb-output"]["srcc"]
        assert f"{srcc:.2f}".replace("-", "\N{MINUS SIGN}") in page

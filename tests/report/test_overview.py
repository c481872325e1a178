"""What the store holds about a model, a task, a sweep: the document, and that it stays small."""

from pathlib import Path
from typing import Any

import pytest
from synthetic_store import Filled, fill, measurement, put_measurement

from assay.core.errors import InputError, UnknownNameError
from assay.page.blocks import Cell, Section, Table
from assay.page.text import plain_text
from assay.report import overview_document, save_report
from assay.report.overview import _setting
from assay.report.overview_page import overview_page, verdict
from assay.report.save import render
from assay.store import Store


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Filled]:
    store = Store(tmp_path_factory.mktemp("store"))
    return store, fill(store)


def test_a_model_is_every_measurement_of_it_and_nothing_else(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    put_measurement(store, measurement("kl", model="other"))
    document = overview_document(store, model="mini")
    rows = document["measurements"]
    assert {row["model"] for row in rows} == {"mini"}
    assert document["n_measurements"] == len(rows) == 7
    assert ids.measurement in {row["id"] for row in rows}
    assert {metric["key"]: metric["unit"] for metric in document["metrics"]} == {
        "faithfulness": "nats",
        "kl": "nats",
    }
    assert [each["id"] for each in document["gates"]] == [ids.calibration]
    others = {row["kind"] for row in document["others"]}
    assert others >= {"audit", "scores", "worst_case", "calibration"}
    assert "measurement" not in others


def table_of(document: dict[str, Any]) -> Table:
    """The table of every metric at a glance."""
    sections: dict[str, Section] = {each.title: each for each in overview_page(document).sections}
    (table,) = sections["Every metric at a glance"].blocks
    assert isinstance(table, Table)
    return table


def test_the_newest_value_stands_in_a_cell_with_the_range_of_all(filled: tuple[Store, Filled]) -> None:
    store, _ = filled
    document = overview_document(store, task="ioi")
    glance = table_of(document)
    names = [plain_text(column.name) for column in glance.columns]
    rows = {row[0]: row for row in glance.rows if isinstance(row, list)}
    cell = rows["mini"][names.index("faithfulness")]
    assert isinstance(cell, Cell)
    values = [
        row["value"]
        for row in document["measurements"]
        if row["metric"] == "faithfulness" and row["model"] == "mini"
    ]
    assert cell.value == values[0]
    assert len(values) == 3
    assert "newest of 3" in plain_text(cell.below)


def test_a_sweep_names_methods_of_its_jobs_and_those_that_failed(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    for given in ("methods", ids.sweep, ids.sweep[:8]):
        document = overview_document(store, sweep=given)
        assert document["id"] == ids.sweep
    assert {row["method"] for row in document["measurements"]} == {"eap", "acdc"}
    assert document["jobs"]["statuses"] == {"done": 4, "failed": 1}
    assert [job["name"] for job in document["jobs"]["failed"]] == [ids.failed]
    text = render(document)
    assert "needs more than 4 GiB" in text
    assert "4 done and 1 failed" in verdict(document)


def test_methods_are_counted_and_not_their_jobs_or_sizes(filled: tuple[Store, Filled]) -> None:
    store, _ = filled
    document = overview_document(store, sweep="methods")
    row = document["measurements"][0]
    names = [f"measure planted:x t eap {size} edges" for size in (20, 30, 40)]
    document["measurements"] = [{**row, "method": name, "found_by": "eap"} for name in names]
    assert "1 method" in verdict(document)
    assert len(table_of(document).rows) == 3  # the table keeps sizes apart
    assert {row["found_by"] for row in overview_document(store, sweep="methods")["measurements"]} == {
        "eap",
        "acdc",
    }


def test_nothing_of_a_name_is_an_error_with_near_names(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    with pytest.raises(UnknownNameError, match="no results about the model 'minni'; did you mean 'mini'"):
        overview_document(store, model="minni")
    with pytest.raises(UnknownNameError, match="no sweep 'no such sweep'"):
        overview_document(store, sweep="no such sweep")
    with pytest.raises(InputError, match=r"is a scores, not a sweep"):
        overview_document(store, sweep=ids.scores)
    with pytest.raises(InputError, match="exactly one of model, task and sweep; got 2"):
        overview_document(store, model="mini", task="ioi")


def test_a_name_is_a_value_not_a_condition(filled: tuple[Store, Filled]) -> None:
    store, _ = filled
    for name in ('mini" OR "1" = "1', "mini' OR 1=1 --", "*", "%", "mini; kind = audit"):
        with pytest.raises(UnknownNameError, match="holds no results about"):
            overview_document(store, model=name)


def test_payloads_are_read_only_where_they_are_shown(
    filled: tuple[Store, Filled], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = filled
    read: list[str] = []
    get = Store.get
    monkeypatch.setattr(Store, "get", lambda self, key: (read.append(key), get(self, key))[1])
    document = overview_document(store, model="mini")
    assert len(read) == len(document["metrics"]) + len(document["gates"])


def test_the_page_is_cut_and_says_of_how_many(filled: tuple[Store, Filled], tmp_path: Path) -> None:
    store, _ = filled
    document = overview_document(store, model="mini")
    row = document["measurements"][0]
    document["measurements"] = [
        {
            **row,
            "task": f"task {i % 900}",
            "method": f"m{i % 40}",
            "metric": f"metric{i % 30}",
            "id": f"{i:016x}",
        }
        for i in range(2_000)
    ]
    metric = document["metrics"][0]
    document["metrics"] = [{**metric, "key": f"metric{i}"} for i in range(24)]
    document |= {"n_measurements": 100_000, "n_results": 120_000}
    place = save_report(tmp_path / "page.html", document)
    assert place.stat().st_size < 3_000_000
    text = place.read_text()
    assert "the newest 2,000 of 100,000 measurements" in text
    assert "The first 25 of 66, newest first; all of them with" in text
    assert "Every metric at a glance" in text


def test_jobs_whose_models_go_by_other_names_keep_their_sizes_apart() -> None:
    row = {"model": "planted-induction", "task": "planted", "method": "eap"}
    names = [f"measure planted:induction planted eap {size} edges" for size in (30, 40)]
    assert [_setting({"kind": "measure", "name": name}, row) for name in names] == names
    assert _setting(
        {"kind": "measure", "name": "measure m t eap 30 edges"}, {**row, "model": "m", "task": "t"}
    ) == ("eap 30 edges")

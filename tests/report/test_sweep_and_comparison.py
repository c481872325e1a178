"""The jobs of a sweep as a table and a page, and two results in one table."""

from pathlib import Path
from typing import Any

import pytest
from synthetic_store import Filled, fill, measurement, put_measurement

from assay.core.errors import InputError, UnknownNameError
from assay.metrics import difference
from assay.pipeline.compare import compare_page, compare_rows
from assay.report.save import render
from assay.report.sweep import ROWS, jobs_page, sweep_frame, sweep_rows
from assay.store import Store


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Filled]:
    store = Store(tmp_path_factory.mktemp("store"))
    return store, fill(store)


def test_a_sweep_is_found_by_its_name_its_id_or_the_beginning_of_it(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    for given in ("methods", ids.sweep, ids.sweep[:8]):
        frame = sweep_frame(store, given)
        assert len(frame) == 5
        assert list(frame["status"]) == ["done"] * 4 + ["failed"]
    with pytest.raises(UnknownNameError, match="no sweep is called 'other'"):
        sweep_frame(store, "other")
    with pytest.raises(InputError, match="is a scores, not a sweep"):
        sweep_frame(store, ids.scores)


def test_a_row_holds_what_the_store_has_of_a_result(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    first = sweep_frame(store, ids.sweep).iloc[0]
    stored = store.get(first["result"])
    assert first["job"] == "measure mini greater-than eap"
    assert (first["measure"], first["model"], first["task"]) == ("faithfulness", "mini", "greater-than")
    assert (first["value"], first["n"]) == (stored.payload["value"], stored.payload["n"])
    interval = stored.payload["interval"]
    assert (first["low"], first["high"]) == (interval["low"], interval["high"])


def test_a_sweep_of_thousands_of_jobs_is_cut_and_says_so(filled: tuple[Store, Filled]) -> None:
    jobs = [{"name": f"job {n}", "kind": "measure", "results": []} for n in range(2 * ROWS)]
    text = render(jobs_page("large", sweep_rows(filled[0], jobs)))
    assert "The first 1,000 of 2,000 rows." in text
    assert len(text.encode()) < 3_000_000


def test_two_results_meet_in_the_measures_that_both_have(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = [measurement(seed=seed, shift=0.03 * seed) for seed in (0, 1)]
    (row,) = compare_rows(store, *(put_measurement(store, each) for each in made))
    one, two = made
    assert row["measure"] == "kl"
    assert (row["a"], row["b"]) == (one.value, two.value)
    assert row["difference"] == pytest.approx(two.value - one.value, abs=1e-15)
    ends: Any = [each.interval() for each in made]
    for side, interval in zip("ab", ends, strict=True):
        assert (row[f"{side}_low"], row[f"{side}_high"]) == (interval.low, interval.high)
    paired = difference(one, two).interval()
    assert (row["difference_low"], row["difference_high"]) == (paired.low, paired.high)
    assert 0.02 < paired.low < two.value - one.value < paired.high
    assert paired.high - paired.low < ends[0].high - ends[0].low


def test_results_on_other_examples_have_no_paired_interval(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = [measurement(), measurement(task="greater-than"), measurement(n=39)]
    first, *others = (put_measurement(store, each) for each in made)
    for other, one in zip(others, made[1:], strict=True):
        (row,) = compare_rows(store, first, other)
        assert row["difference"] == one.value - made[0].value
        assert row["difference_low"] is None


def test_swapped_sides_change_the_sign(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    one, other = (compare_rows(store, *pair) for pair in (ids.audits, ids.audits[::-1]))
    assert len(one) > 5
    assert any(row["difference"] for row in one)
    assert all((a["difference"] or 0) == -(b["difference"] or 0) for a, b in zip(one, other, strict=True))


def test_two_sweeps_meet_by_the_names_of_their_jobs(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    rows = compare_rows(store, "methods", ids.sweep)
    assert [row["difference"] for row in rows] == [0.0] * 4
    assert rows[0]["measure"] == "measure mini greater-than eap: faithfulness"


def test_an_undefined_value_has_no_difference(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ids = [
        store.put("measurement", {"side": side}, {"name": "kl", "value": value, "interval": None})
        for side, value in (("a", None), ("b", 0.5))
    ]
    (row,) = compare_rows(store, *ids)
    assert row["difference"] is None
    assert "n/a" in render(compare_page(store, *ids))


def test_results_with_nothing_in_common_are_refused_in_a_sentence(filled: tuple[Store, Filled]) -> None:
    store, ids = filled
    message = "have no measurement in common; give audits, measurements or sweeps"
    for pair in ((ids.worst_case, ids.audits[0]), (ids.measurement, ids.scores)):
        with pytest.raises(InputError, match=message):
            compare_rows(store, *pair)

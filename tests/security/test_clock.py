"""A clock that is set back and forth while things run: durations stay, orders stay, nothing fails."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from store_content import content

import assay
from assay.store import Store


JUMPS = (0.0, -86_400.0, 3.0e8, -3.0e8, 1.0, -1.0)  # seconds that the clock is off, in turn


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Every look at the wall clock finds it set anew; the monotonic clocks go on. Counts the looks."""
    usual, looks = time.time, 0

    def jumped() -> float:
        nonlocal looks
        looks += 1
        return usual() + JUMPS[looks % len(JUMPS)]

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromtimestamp(0, tz or UTC) + timedelta(seconds=jumped())

    monkeypatch.setattr(time, "time", jumped)
    monkeypatch.setattr(time, "time_ns", lambda: int(jumped() * 1e9))
    for module in ("assay.pipeline.audit", "assay.store.store"):
        monkeypatch.setattr(f"{module}.datetime", Jumping, raising=False)
    return lambda: looks


def seconds(document: Any) -> list[float]:
    """Everything that a document calls a duration."""
    if isinstance(document, list):
        return [each for part in document for each in seconds(part)]
    if not isinstance(document, dict):
        return []
    own = [
        each for key, each in document.items() if key.endswith("seconds") and isinstance(each, int | float)
    ]
    return own + seconds(list(document.values()))


@pytest.mark.slow
def test_an_audit_and_its_store(tmp_path: Path, jumping: Callable[[], int]) -> None:
    command = ["audit", "--model", "mini", "--task", "ioi", "--n", "8", "--steps", "1", "--n-random", "1"]
    places = ["--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    for _ in range(2):
        outcome = invoke(*command, "--quiet", "--json", *places)
        assert outcome.exit_code == 0, outcome.output
    assert jumping() > 0
    assert all(0 <= each < 3600 for each in seconds(json.loads(outcome.stdout)))
    store = Store(tmp_path / "store", create=False)
    assert store.count("audit") == 1  # the second was taken from the store
    assert store.verify() == []
    assert {each.id for each in store.query()} == {each.id for each in store.query(order="-created")}


def test_results_do_not_depend_on_the_clock(tmp_path: Path, jumping: Callable[[], int]) -> None:
    for place in ("one", "two"):
        store = Store(tmp_path / place)
        for number in range(8):
            store.put("measurement", {"number": number}, {"value": number, "seconds": time.time()})
    assert content(Store(tmp_path / "one")) == content(Store(tmp_path / "two"))
    assert jumping() > 0


def test_discovery_states_durations_that_cannot_be_negative(jumping: Callable[[], int]) -> None:
    model = assay.load_model("mini")
    scores = assay.discover(model, assay.load_task("ioi", model, n=4, seed=0), "eap")
    durations = seconds(dict(scores.details))
    assert durations
    assert all(0 <= each < 3600 for each in durations)

"""A clock that is set back and forth while things run: durations stay, orders stay, nothing fails."""

import itertools
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from store_content import content

import assay
from assay.pipeline.image_stream import Watch, batches
from assay.store import Store
from assay.tasks import EvalTransform


JUMPS = (0.0, -86_400.0, 3.0e8, -3.0e8, 1.0, -1.0)  # seconds that the clock is off, in turn


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Every look at the wall clock finds it set anew; the monotonic clocks go on. Counts the looks."""
    looks = itertools.count()
    usual = time.time
    count = 0

    def jumped() -> float:
        nonlocal count
        count += 1
        return usual() + JUMPS[next(looks) % len(JUMPS)]

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromtimestamp(0, tz or UTC) + timedelta(seconds=jumped())

    monkeypatch.setattr(time, "time", jumped)
    monkeypatch.setattr(time, "time_ns", lambda: int(jumped() * 1e9))
    import assay.pipeline.audit
    import assay.store.store

    for module in (assay.pipeline.audit, assay.store.store):
        if hasattr(module, "datetime"):
            monkeypatch.setattr(module, "datetime", Jumping)
    return lambda: count


def seconds(document: Any, path: str = "") -> dict[str, float]:
    """Everything that a document calls a duration."""
    found: dict[str, float] = {}
    if isinstance(document, dict):
        for key, each in document.items():
            if key.endswith("seconds") and isinstance(each, int | float):
                found[f"{path}.{key}"] = float(each)
            found |= seconds(each, f"{path}.{key}")
    elif isinstance(document, list):
        for place, each in enumerate(document):
            found |= seconds(each, f"{path}[{place}]")
    return found


@pytest.mark.slow
def test_an_audit_and_its_store(tmp_path: Path, jumping: Callable[[], int]) -> None:

    from command_line import invoke

    small = ["--n", "8", "--steps", "1", "--n-random", "1"]
    command = ["audit", "--model", "mini", "--task", "ioi", *small, "--quiet", "--json"]
    places = ["--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    first = invoke(*command, *places)
    assert first.exit_code == 0, first.output
    assert jumping() > 0
    again = invoke(*command, *places)
    assert again.exit_code == 0, again.output
    durations = seconds(json.loads(first.stdout))
    assert all(0 <= each < 3600 for each in durations.values()), durations
    store = Store(tmp_path / "store", create=False)
    assert store.count("audit") == 1  # the second was taken from the store
    assert store.verify() == []

    assert [each.id for each in store.query()] == [each.id for each in store.query()]
    assert {each.id for each in store.query()} == {each.id for each in store.query(order="-created")}


def test_results_do_not_depend_on_the_clock(tmp_path: Path, jumping: Callable[[], int]) -> None:
    for place in ("one", "two"):
        store = Store(tmp_path / place)
        for number in range(8):
            store.put("measurement", {"number": number}, {"value": number, "seconds": time.time()})
    assert content(Store(tmp_path / "one")) == content(Store(tmp_path / "two"))
    assert jumping() > 0


def test_a_watched_folder(tmp_path: Path, jumping: Callable[[], int]) -> None:
    """Files whose times lie in the future or long ago are taken once they stay as they are."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number, stamp in enumerate((time.time(), 1.7e9 + 3e8, 1.7e9 - 3e8, 1.0)):
        path = folder / f"{number}.png"
        Image.new("RGB", (8, 8), (number, 0, 0)).save(path)
        os.utime(path, (stamp, stamp))
    elapsed = itertools.count()
    watch = Watch(transform=EvalTransform(resize=(8, 8)), size=4, follow=True, order="name")
    found = next(batches(str(folder), watch, wait=lambda _: False, clock=lambda: float(next(elapsed))))
    assert [Path(name).name for name in found.inputs.fields["path"]] == ["0.png", "1.png", "2.png", "3.png"]
    assert jumping() > 0


def test_discovery_states_durations_that_cannot_be_negative(jumping: Callable[[], int]) -> None:
    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=4, seed=0)
    scores = assay.discover(model, task, "eap")
    durations = seconds(dict(scores.details))
    assert durations
    assert all(0 <= each < 3600 for each in durations.values())

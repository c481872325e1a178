"""A monitor that runs: its alarms, its files, killed and stopped."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from PIL import Image
from processes import CommandProcess

from assay.app.monitor import watch
from assay.app.monitor.settings import MonitorOptions
from assay.app.monitor.watch import MonitorRun
from assay.core.errors import OutputError
from assay.pipeline.monitor_directory import held
from assay.tasks import draw_shapes


QUICK = {"threshold": 0.0, "known_batches": 0, "window": 4, "reference_n": 4, "steps": 1}
FOLLOWING = (
    *("--images", "in", "--out", "out", "--follow", "--poll", "0.05"),
    *("--threshold", "0", "--known-batches", "0", "--window", "4", "--reference-n", "4"),
    *("--steps", "1"),
)

Start = Callable[..., CommandProcess]


def fill(folder: Path, n: int, *, start: int = 0) -> None:
    """Drawn images as files, old enough to be taken at once."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, pixels in enumerate(draw_shapes("neon", n, start=start).pixels):
        path = folder / f"{start + place:05}.png"
        Image.fromarray(pixels).save(path)
        changed = time.time() - 1000 + place
        os.utime(path, (changed, changed))


def options(folder: Path, **more: Any) -> MonitorOptions:
    settings: dict[str, Any] = {**QUICK, "out": folder / "out", "images": (str(folder / "in"),), **more}
    return MonitorOptions(**settings)


def observe(chosen: MonitorOptions, heard: list[str] | None = None) -> int:
    """One run to its end; how many batches it observed."""
    with MonitorRun(chosen, tell=print if heard is None else heard.append) as run:
        run.start()
        n = len(list(run.observe()))
        run.finish()
    return n


def readings(out: Path) -> list[dict[str, Any]]:
    """Those of whole lines of the file of readings."""
    journal = out / "readings.jsonl"
    lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
    return [each for each in map(json.loads, lines) if each["kind"] == "reading"]


# --------------------------------------------------------------------------------------------------- alarms


def test_each_reading_that_raises_the_alarm_is_handed_to_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "in", 8)
    command = f"cat >> '{tmp_path / 'told'}'; echo >> '{tmp_path / 'told'}'; echo said"
    heard: list[str] = []
    assert observe(options(tmp_path, on_alarm=command), heard) == 2
    readings = json.loads((tmp_path / "out" / "monitor.json").read_text())["readings"]
    assert [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()] == readings
    assert heard == []
    assert capfd.readouterr() == ("", "said\nsaid\n")
    fill(tmp_path / "in", 4, start=100)
    assert observe(options(tmp_path, on_alarm=command, threshold=2.0, out=tmp_path / "calm")) == 3
    assert len((tmp_path / "told").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("exit 3", "ended with status 3"),
        ("no-such-command-here", "ended with status 127"),
        ("sleep 60", "did not end within 0.2 s"),
    ],
)
def test_a_command_that_fails_is_told_and_the_monitor_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, problem: str
) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 0.2)
    fill(tmp_path / "in", 8)
    heard: list[str] = []
    assert observe(options(tmp_path, on_alarm=command), heard) == 2
    assert heard == [f"the command of --on-alarm {problem} at batch {batch}" for batch in (1, 2)]


# --------------------------------------------------------------------------------------- files and processes


def test_one_process_at_a_time_writes_to_a_directory(tmp_path: Path) -> None:
    fill(tmp_path / "in", 4)
    with MonitorRun(options(tmp_path), tell=print) as run:
        run.start()
        with pytest.raises(OutputError, match="in use by another monitor"), held(tmp_path / "out"):
            pass
    with held(tmp_path / "out"):
        pass


def test_broken_uploads_are_passed_over_and_counted_by_default_when_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "in", 4)
    broken = tmp_path / "in" / "broken.png"
    broken.write_bytes(b"\x89PNG broken")
    os.utime(broken, (0, 0))
    outcome = invoke("monitor", *FOLLOWING, "--idle-timeout", "0.5", "--metrics-file", "state.prom")
    assert outcome.exit_code == 0, outcome.stderr
    assert "skipped in/broken.png: it cannot be decoded" in outcome.stderr
    assert len(readings(tmp_path / "out")) == 1
    assert re.search(r"unreadable_files_total\{.*\} 1\.0", (tmp_path / "state.prom").read_text())
    assert "1 image file could not be read" in (tmp_path / "out" / "monitor.html").read_text()


# ------------------------------------------------------------------------------------------ kills and stops


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`assay monitor --follow` as a process of its own, on `in`, keeping in `out`."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as running:

        def begin(name: str, *more: str) -> CommandProcess:
            return running.enter_context(CommandProcess(tmp_path / name, "monitor", *FOLLOWING, *more))

        yield begin


def test_a_signal_to_stop_is_a_clean_end_and_a_kill_costs_no_reading(tmp_path: Path, start: Start) -> None:
    fill(tmp_path / "in", 8)
    process = start("first")
    until_there(lambda: len(readings(tmp_path / "out")) == 2, process)
    process.end(signal.SIGKILL)
    # What a kill in the middle of a line leaves: the reading does not count, its images do.
    journal = tmp_path / "out" / "readings.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    process = start("second")
    until_there(lambda: len(readings(tmp_path / "out")) == 2, process)
    outcome = process.end(signal.SIGTERM)
    assert outcome.exit_code == 0, outcome.stderr
    assert "is incomplete and is ignored" in outcome.stderr
    assert "Stopped. Run the same command again" in outcome.stderr
    assert "report   out/monitor.html" in outcome.stdout
    document = json.loads((tmp_path / "out" / "monitor.json").read_text())
    names = [name for each in document["readings"] for name in each["sources"]]
    assert len(names) == len(set(names)) == 8


def until_there(condition: Callable[[], object], process: CommandProcess) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.alive, process.end()
        assert time.monotonic() < deadline, "nothing happened for two minutes"
        time.sleep(0.05)


def test_a_full_disk_ends_it_with_a_message_and_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED: a full disk; no tmpfs can be mounted here ({done.stderr.strip()})")
    try:
        fill(tmp_path / "in", 4)
        chosen = options(tmp_path, out=disk / "out")
        assert observe(chosen) == 1
        fill(tmp_path / "in", 8, start=100)
        with (disk / "filler").open("wb", buffering=0) as filler:
            leave = (disk / "out" / "readings.jsonl").stat().st_size % 4096
            assert leave  # the last page of the file has room for a part of a line
            fill_up(filler)
        with pytest.raises(OutputError, match="No space left on device"):
            observe(chosen)
        (disk / "filler").unlink()
        assert observe(chosen) == 2
        document = json.loads((disk / "out" / "monitor.json").read_text())
        names = [name for each in document["readings"] for name in each["sources"]]
        assert len(names) == len(set(names)) == 12
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill_up(file: Any) -> None:
    """Write until nothing more fits."""
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        return


def test_readings_outlast_a_jump_of_the_wall_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes back makes times of readings go back, and nothing else."""
    fill(tmp_path / "in", 4)
    chosen = options(tmp_path, follow=True, poll=0.01, idle_timeout=0.05)
    assert observe(chosen) == 1
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 10 * 86400)
    fill(tmp_path / "in", 4, start=100)
    assert observe(dataclasses.replace(chosen, idle_timeout=1.5, poll=0.1)) == 1
    assert len(json.loads((tmp_path / "out" / "monitor.json").read_text())["readings"]) == 2

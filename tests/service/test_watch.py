"""A monitor that runs: its options from a file, beside a service, in another process, killed and stopped."""

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
from starlette.testclient import TestClient

from assay.app.cli.monitor import MonitorSettings
from assay.app.monitor import watch
from assay.app.monitor.metrics import metrics_text
from assay.app.monitor.settings import MonitorOptions
from assay.app.monitor.watch import MonitorRun
from assay.app.monitor.watched import OF_THE_COMMAND, WatchedMonitor, read_options, watched
from assay.app.site.web import create_app
from assay.core.errors import FileFormatError, InputError, OutputError, UnknownNameError
from assay.pipeline.monitor_directory import held
from assay.store import Store
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


def options_text(folder: Path, **more: Any) -> str:
    """The same as a TOML file."""
    settings = {**QUICK, "out": str(folder / "out"), **more}
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())


def observe(chosen: MonitorOptions, heard: list[str] | None = None) -> int:
    """One run to its end; how many batches it observed."""
    with MonitorRun(chosen, tell=print if heard is None else heard.append) as run:
        run.start()
        n = len(list(run.observe()))
        run.finish()
    return n


def until(condition: Callable[[], object], monitor: WatchedMonitor) -> None:
    """Wait for what a thread or another process does; a monitor that died ends the wait."""
    deadline = time.monotonic() + 120
    while not condition():
        assert monitor.error is None, monitor.error
        assert time.monotonic() < deadline, "nothing happened for two minutes"
        time.sleep(0.05)


def n_readings(monitor: WatchedMonitor) -> int:
    return len((monitor.document or {"readings": ()})["readings"])


def problem(monitor: WatchedMonitor) -> str:
    return monitor.error or ""


# -------------------------------------------------------------------------------------------------- options


def test_the_options_are_those_of_the_command() -> None:
    of_command, here = (
        {each.name for each in dataclasses.fields(settings)} for settings in (MonitorSettings, MonitorOptions)
    )
    tables = {"evaluate"}  # `[monitor.evaluate]` of a file that serves both commands
    assert of_command - here == OF_THE_COMMAND - tables | {"config"}


def test_a_file_of_options_may_spell_them_either_way(tmp_path: Path) -> None:
    path = tmp_path / "door.toml"
    path.write_text(
        'images = "in"\nknown-batches = 3\non_alarm = "mail me"\nquiet = true\njson = true\n'
        '[monitor]\nwindow = 8\nout = "kept"\nsteps = "auto"\n'
    )
    found = read_options(path)
    assert found == MonitorOptions(
        images=("in",), known_batches=3, on_alarm="mail me", window=8, out=Path("kept"), steps="auto"
    )


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("windo = 8", UnknownNameError, "did you mean 'window'"),
        ("on-alar = 'x'", UnknownNameError, "did you mean 'on-alarm'"),
        ("[moniter]\nwindow = 8", UnknownNameError, "unknown option of a monitor"),
        ("window = 'eight'", InputError, "window in .*: .*integer"),
        ("monitor = 3", InputError, "must be a table"),
        ("window = ", FileFormatError, "is not a TOML file of options"),
        ("\x00", FileFormatError, "is not a TOML file of options"),
    ],
)
def test_a_wrong_file_of_options_is_refused(
    tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    path = tmp_path / "door.toml"
    path.write_text(text)
    with pytest.raises(error, match=message):
        watched(path)


def test_a_missing_file_of_options_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="does not exist"):
        watched(tmp_path / "none.toml")


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


# ------------------------------------------------------------------------------------------- beside a service


def test_it_observes_in_a_thread_and_stops_when_asked(tmp_path: Path) -> None:
    fill(tmp_path / "in", 4)
    path = tmp_path / "door.toml"
    path.write_text(options_text(tmp_path, images=[str(tmp_path / "in")], poll=0.05))
    monitor = watched(path, tell=print)
    assert (monitor.name, monitor.document, monitor.error) == ("door", None, None)
    monitor.start()
    try:
        until(lambda: n_readings(monitor) == 1, monitor)
        fill(tmp_path / "in", 4, start=100)
        until(lambda: n_readings(monitor) == 2, monitor)
        assert monitor.document is not None
        text = metrics_text([monitor.document]).decode()
        assert 'assay_monitor_batches_total{distance="spearman"' in text
        assert 'monitor="door"} 2.0' in text
        # Another process may look on, and may not write.
        other = watched(tmp_path / "out")
        assert n_readings(other) == 2
        with pytest.raises(OutputError, match="in use by another monitor"), held(tmp_path / "out"):
            pass
    finally:
        monitor.stop()
    assert monitor.error is None
    assert (tmp_path / "out" / "monitor.html").exists()


def test_a_monitor_that_dies_says_why(tmp_path: Path) -> None:
    path = tmp_path / "door.toml"
    path.write_text(options_text(tmp_path, images=[str(tmp_path / "none")]))
    heard: list[str] = []
    monitor = watched(path, tell=heard.append)
    monitor.start()
    while monitor.running:
        time.sleep(0.01)
    assert "not a folder" in problem(monitor)
    assert heard[-1] == f"door: error: {monitor.error}"


def test_the_directory_of_another_process_is_read_as_it_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monitor = watched(out)
    monitor.start()
    assert n_readings(monitor) == 0
    assert "monitor.json does not exist" in problem(monitor)
    fill(tmp_path / "in", 8)
    assert observe(options(tmp_path)) == 2
    assert n_readings(monitor) == 2
    assert not problem(monitor)
    document = monitor.document
    assert document is not None
    assert document["name"] == "out"
    kept = json.loads((out / "monitor.json").read_text())
    assert {name: document[name] for name in kept} == kept
    journal = out / "readings.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"kind": "reading", "ind')  # being written
    assert n_readings(monitor) == 2
    assert not problem(monitor)
    journal.write_bytes(whole + b"not JSON\n")
    assert n_readings(monitor) == 2  # the last good state stays
    assert "as the directory of a monitor" in problem(monitor)
    journal.write_bytes(whole)
    assert not problem(monitor)
    (out / "monitor.json").write_text('{"schema": "assay-monitor/99"}')
    assert "assay-monitor/99" in problem(monitor)


@pytest.mark.slow
def test_a_monitor_that_has_ended_is_not_running(tmp_path: Path, start: Start) -> None:
    """Beside the service, in another process that was killed, and after a clean end."""
    fill(tmp_path / "in", 4)
    (tmp_path / "out").mkdir()
    elsewhere = watched(tmp_path / "out")
    assert not elsewhere.running
    process = start("run")
    until_there(lambda: n_readings(elsewhere) == 1, process)
    assert elsewhere.running
    process.end(signal.SIGKILL)
    assert not elsewhere.running
    assert elsewhere.error is None  # what it kept is whole
    settings = tmp_path / "door.toml"
    settings.write_text(
        f'images = "{tmp_path / "in"}"\nout = "{tmp_path / "here"}"\nwindow = 4\nsteps = 1\nthreshold = 0\n'
        "reference-n = 4\nknown-batches = 0\nmax-batches = 1\n"
    )
    here = watched(settings)
    here.start()
    assert here.running
    until(lambda: not here.running, here)
    assert here.error is None
    page = TestClient(
        create_app(Store(tmp_path / "store"), monitors=[here, elsewhere]), base_url="http://127.0.0.1"
    )
    assert page.get("/monitors").text.count("nothing is observed any more") == 2
    assert re.findall(r"^assay_monitor_up.* (\S+)$", page.get("/metrics").text, re.MULTILINE) == [
        "0.0",
        "0.0",
    ]


def test_broken_uploads_are_passed_over_and_counted_by_default_when_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "in", 4)
    broken = tmp_path / "in" / "broken.png"
    broken.write_bytes(b"\x89PNG broken")
    os.utime(broken, (0, 0))
    outcome = invoke("monitor", *FOLLOWING, "--idle-timeout", "0.5")
    assert outcome.exit_code == 0, outcome.stderr
    assert "skipped in/broken.png: it cannot be decoded" in outcome.stderr
    monitor = watched(tmp_path / "out")
    assert n_readings(monitor) == 1
    assert "assay_monitor_unreadable_files_total" in metrics_text([monitor.document]).decode()
    assert re.search(r"unreadable_files_total\{.*\} 1\.0", metrics_text([monitor.document]).decode())
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
    (tmp_path / "out").mkdir()
    monitor = watched(tmp_path / "out")
    process = start("first")
    until_there(lambda: n_readings(monitor) == 2, process)
    process.end(signal.SIGKILL)
    # What a kill in the middle of a line leaves: the reading does not count, its images do.
    journal = tmp_path / "out" / "readings.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    process = start("second")
    until_there(lambda: n_readings(monitor) == 2, process)
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

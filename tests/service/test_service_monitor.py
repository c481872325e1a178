"""A monitor that runs: its alarms and metrics, its files, killed and stopped; the example of alert rules."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from generalization.small_vits import untrained_vit
from processes import CommandProcess
from tiny_classifier import draw_files

from assay.analyses.generalization.alarms import AlarmRules, Calibration
from assay.analyses.generalization.monitor import Monitor, Reading
from assay.app import watch
from assay.app.cli.monitor import MonitorSettings
from assay.app.watch import MonitorRun
from assay.core.errors import OutputError
from assay.discovery.edges import discover
from assay.models import Model, load_model
from assay.pipeline.monitoring import held, metrics_text
from assay.tasks import EvalTransform, draw_shapes


ALERTS = Path(__file__).resolve().parents[2] / "examples" / "alerts"
QUICK = {"threshold": 0.0, "known_batches": 0, "window": 4, "reference_n": 4, "steps": 1}
FOLLOWING = (
    *("--images", "in", "--out", "out", "--follow", "--threshold", "0"),
    *("--known-batches", "0", "--window", "4", "--reference-n", "4", "--steps", "1"),
)
Start = Callable[..., CommandProcess]


def options(folder: Path, **more: Any) -> MonitorSettings:
    settings: dict[str, Any] = {**QUICK, "out": folder / "out", "images": (str(folder / "in"),), **more}
    return MonitorSettings(**settings)


def observe(chosen: MonitorSettings, heard: list[str] | None = None) -> int:
    """One run to its end; how many batches it observed."""
    run = MonitorRun(chosen, tell=print if heard is None else heard.append)
    with run.started():
        return len(list(run.observe()))


def readings(out: Path) -> list[dict[str, Any]]:
    """Those of whole lines of the file of readings."""
    journal = out / "readings.jsonl"
    lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
    return [each for each in map(json.loads, lines) if each["kind"] == "reading"]


# ---- alarms -------------------------------------------------------------------------------------


def test_each_reading_with_an_alarm_is_handed_to_a_command(tmp_path: Path, capfd: Any) -> None:
    draw_files(tmp_path / "in", "neon", 8)
    there = f"test -f '{tmp_path / 'out' / 'monitor.html'}'"  # the page that the reading names
    command = f"{there} && cat >> '{tmp_path / 'told'}' && echo said"
    heard: list[str] = []
    assert observe(options(tmp_path, on_alarm=command), heard) == 2
    kept = json.loads((tmp_path / "out" / "monitor.json").read_text())["readings"]
    assert [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()] == kept
    assert heard == []
    assert capfd.readouterr() == ("", "said\nsaid\n")
    assert observe(options(tmp_path, on_alarm=command, threshold=2.0, out=tmp_path / "calm")) == 2
    assert len((tmp_path / "told").read_text().splitlines()) == 2


def test_a_command_that_fails_is_told_and_all_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(watch, "PATIENCE", 0.2)
    draw_files(tmp_path / "in", "neon", 8)
    problems = {"exit 3": "ended with status 3", "sleep 60": "did not end within 0.2 s"}
    for command, problem in problems.items():
        heard: list[str] = []
        assert observe(options(tmp_path, on_alarm=command, out=tmp_path / problem[:3]), heard) == 2
        assert heard == [f"the command of --on-alarm at batch {batch} {problem}" for batch in (1, 2)]


# ---- metrics and alert rules --------------------------------------------------------------------


def watched(n: int, name: str = "vit") -> Monitor:
    """So many readings, the second of them an alarm."""
    small = draw_shapes("flat", 4).with_transform(EvalTransform())
    module = load_model(untrained_vit())
    model = Model(module.module, module.family, name=name)
    monitor = Monitor(model, discover(model, small, steps=1))
    known = Calibration(shifts=(0.25, 0.1, 0.1), output_shifts=(0.625, 0.1, 0.1), n=10)
    monitor.rules = AlarmRules(alpha=0.5).calibrated(known)
    for place in range(n):
        numbers = {"shift": 0.5, "p_value": 0.05, "output_shift": 0.75, "output_p_value": 0.025, "n": 10}
        facts = {"index": place, "time": "1970-01-01T00:01:40.000+00:00", "alarm": place == 1}
        record = {**facts, **numbers, "skipped": ["x.png"], "baselines": {name: 0.9}}
        monitor.readings.append(Reading.from_dict(record))
    return monitor


def samples(text: bytes) -> dict[str, tuple[dict[str, str], float]]:
    """Name -> labels and value, read by the grammar of the format."""
    found = {}
    for line in text.decode().split("\n")[:-1]:
        if not line.startswith("#"):
            sample = re.fullmatch(r'(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\} (\S+)', line)
            assert sample is not None, line
            pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', sample[2])
            escaped = partial(re.sub, r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1])
            labels = {key: escaped(value) for key, value in pairs}
            found[sample[1].removeprefix("assay_monitor_")] = (labels, float(sample[3]))
    return found


def test_every_number_has_its_name_type_and_labels() -> None:
    text = metrics_text(watched(3), "door")
    label = {"monitor": "door", "model": "vit", "distance": "spearman"}
    totals = {"batches": 3.0, "images": 30.0, "unreadable_files": 3.0, "alarms": 1.0}
    counted = {f"{name}_total": value for name, value in totals.items()}
    last = {"shift": 0.5, "alarm": 0.0, "p_value": 0.05, "output_shift": 0.75, "output_p_value": 0.025}
    last |= {"last_reading_timestamp_seconds": 100.0, "conformal_limit": 0.25, "output_limit": 0.625}
    plain = {name: (label, value) for name, value in (counted | last).items()}
    assert samples(text) == {**plain, "baseline": ({**label, "baseline": "vit"}, 0.9)}
    lines = text.decode().splitlines()
    names = {line.split("{")[0] for line in lines if not line.startswith("#")}
    assert {line.split()[2] for line in lines if line.startswith("#")} == names
    kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    counters = {name for name, kind in kinds.items() if kind == "counter"}
    assert counters == {name for name in names if name.endswith("_total")}
    assert set(samples(metrics_text(watched(0), "door"))) == {*counted, "conformal_limit", "output_limit"}
    for name in ('quote " brace } # HELP', "line\nassay_monitor_alarm 1", "a\\n", "ü ☠", "\r\x00"):
        hostile = samples(metrics_text(watched(1, name), name))
        assert hostile["baseline"] == ({**label, "monitor": name, "model": name, "baseline": name}, 0.9)
        assert set(hostile) == {*plain, "baseline"}


def promtool(*arguments: str) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("NOT TESTED: alert rules; there is no promtool (Debian: apt-get install prometheus)")
    command = ["promtool", *arguments]
    done = subprocess.run(command, cwd=ALERTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_name_metrics_that_a_monitor_writes_and_each_is_tested(tmp_path: Path) -> None:
    rules, tests = ((ALERTS / f"assay.rules.{end}").read_text() for end in ("yml", "test.yml"))
    for alert in re.findall(r"alert: (\w+)", rules):
        assert re.search(rf"alertname: {alert}\n\s+exp_alerts:", tests), alert
        assert re.search(rf"alertname: {alert}\n(?!\s+exp_alerts:)", tests), alert
    draw_files(tmp_path / "in", "neon", 4)
    assert observe(options(tmp_path, metrics_file=tmp_path / "door.prom")) == 1
    text = (tmp_path / "door.prom").read_text()
    written, named = (set(re.findall(r"assay_monitor_\w+", each)) for each in (text, rules + tests))
    assert named <= written
    assert "SUCCESS" in promtool("check", "rules", "assay.rules.yml")
    assert "SUCCESS" in promtool("test", "rules", "assay.rules.test.yml")


# ---- files and processes ------------------------------------------------------------------------


def test_one_process_at_a_time_writes_to_a_directory(tmp_path: Path) -> None:
    draw_files(tmp_path / "in", "neon", 4)
    again = pytest.raises(OutputError, match="in use by another monitor")
    with MonitorRun(options(tmp_path), tell=print).started(), again, held(tmp_path / "out"):
        pass
    with held(tmp_path / "out"):
        pass


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`assay monitor --follow` as a process of its own, on `in`, keeping in `out`."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as running:

        def begin(name: str, *more: str) -> CommandProcess:
            return running.enter_context(CommandProcess(tmp_path / name, "monitor", *FOLLOWING, *more))

        yield begin


def until_there(condition: Callable[[], object], process: CommandProcess) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.alive, process.end()
        assert time.monotonic() < deadline, "nothing happened for two minutes"
        time.sleep(0.05)


def test_broken_uploads_are_named_once_and_counted_when_following(tmp_path: Path, start: Start) -> None:
    draw_files(tmp_path / "in", "neon", 4)
    broken = tmp_path / "in" / "broken.png"
    broken.write_bytes(b"\x89PNG broken")
    os.utime(broken, (0, 0))
    process = start("first", "--metrics-file", "state.prom")
    until_there(lambda: '"skipped", "name": "in/broken.png"' in read("out/readings.jsonl"), process)
    outcome = process.end(signal.SIGTERM)
    assert "skipped in/broken.png: it cannot be decoded" in outcome.stderr
    assert re.search(r"unreadable_files_total\{.*\} 1\.0", read("state.prom"))
    # It is known to the next run, with --follow or without.
    again = invoke("monitor", *(each for each in FOLLOWING if each != "--follow"))
    assert again.exit_code == 0, again.stderr
    assert "1 unreadable image file was left out" in again.stdout
    assert json.loads(read("out/monitor.json"))["skipped"] == ["in/broken.png"]


def read(path: str) -> str:
    """A file, which may not be there yet."""
    return Path(path).read_text() if Path(path).exists() else ""


def test_a_signal_to_stop_is_a_clean_end_and_a_kill_costs_no_reading(tmp_path: Path, start: Start) -> None:
    draw_files(tmp_path / "in", "neon", 8)
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
    assert "Stopped. Run the same command again" in outcome.stderr
    kept = json.loads((tmp_path / "out" / "monitor.json").read_text())
    names = [name for each in kept["readings"] for name in each["sources"]]
    assert len(names) == len(set(names)) == 8

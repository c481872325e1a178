"""`assay monitor`: rows, files, exit codes, going on, following, and what it refuses."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from tiny_classifier import draw_files, tiny_classifier

from assay.circuits import load_scores
from assay.models import load_model
from assay.pipeline import monitoring
from assay.pipeline.monitor_plan import MonitorPlan


Run = Callable[..., Any]
KNOWN = ("--reference", "shapes:flat", "--window", "8", "--reference-n", "8", "--steps", "1", "--quiet")
FEW = (*KNOWN, "--known-batches", "4", "--alpha", "0.2")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model directory as save_pretrained writes it."""
    return str(tiny_classifier(tmp_path_factory.mktemp("models") / "vit"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str) -> Run:
    """The command in an empty directory, on the model."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Any:
        return invoke("monitor", "--model", directory, *arguments)

    return call


def rows(stdout: str) -> list[list[str]]:
    lines = stdout.splitlines()
    return [line.split() for line in lines if line[:5].strip().isdigit()]


def test_a_row_per_batch_and_everything_is_kept(run: Run, tmp_path: Path) -> None:
    found = run(*FEW, "--images", "shapes:flat", "--images", "shapes:stripes", "--n", "24")
    assert found.exit_code == 0, found.output
    shown = rows(found.stdout)
    assert [row[:3] for row in shown] == [
        [str(place + 1), "flat" if place < 3 else "stripes", "8"] for place in range(6)
    ]
    out = tmp_path / "assay-monitor"
    assert {each.name for each in out.iterdir()} == {
        ".lock",
        "readings.jsonl",
        "monitor.json",
        "monitor.html",
        "reference.safetensors",
    }
    document = json.loads((out / "monitor.json").read_text())
    assert len(document["calibration"]["shifts"]) == 4
    assert [f"{each['shift']:.3f}" for each in document["readings"]] == [row[3] for row in shown]
    assert document["rule"] == "conformal"
    assert "Shift over time" in (out / "monitor.html").read_text()


def test_the_same_command_goes_on_with_what_is_new(run: Run, tmp_path: Path) -> None:
    arguments = (*FEW, "--images", str(tmp_path / "new"))
    draw_files(tmp_path / "new", "flat", 20)
    first = run(*arguments)
    assert len(rows(first.stdout)) == 2
    nothing = run(*arguments)
    assert nothing.exit_code == 0
    assert "no new batch" in nothing.stdout
    assert "2 readings" in nothing.stdout
    draw_files(tmp_path / "new", "flat", 4, start=500)
    second = run(*arguments)
    assert [row[0] for row in rows(second.stdout)] == ["3"]
    lines = (tmp_path / "assay-monitor/readings.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["monitor", "calibration", "reading", "reading", "reading"]
    other = run(*arguments, "--distance", "cosine")
    assert other.exit_code == 2
    assert "another monitor (different: distance)" in other.stderr


def test_an_alarm_is_exit_code_3_with_gate(run: Run) -> None:
    arguments = (*KNOWN, "--known-batches", "0", "--images", "shapes:stripes", "--n", "16")
    fired = run(*arguments, "--threshold", "0.0", "--gate", "--out", "a")
    assert fired.exit_code == 3
    assert "2 batch(es) raised the alarm" in fired.stderr
    assert fired.stdout.count("ALARM") == 2
    assert run(*arguments, "--threshold", "0.0", "--out", "b").exit_code == 0
    quiet = run(*arguments, "--threshold", "1.9", "--gate", "--out", "c")
    assert quiet.exit_code == 0
    assert "No alarm in 2 batches" in quiet.stdout


def test_json_is_one_document_or_a_line_per_batch(run: Run, tmp_path: Path) -> None:
    found = run(*FEW, "--images", "shapes:flat", "--n", "16", "--json")
    document = json.loads(found.stdout)
    assert document["kind"] == "monitor"
    assert len(document["readings"]) == 2
    draw_files(tmp_path / "new", "flat", 16)
    followed = run(
        *FEW, "--images", str(tmp_path / "new"), "--follow", "--poll", "0.01", "--idle-timeout", "0.01",
        "--json", "--out", "other",
    )  # fmt: skip
    assert [json.loads(line)["index"] for line in followed.stdout.splitlines()] == [0, 1]


def test_following_stops_at_the_first_alarm_or_after_enough_batches(run: Run, tmp_path: Path) -> None:
    draw_files(tmp_path / "new", "stripes", 32)
    follow = ("--images", str(tmp_path / "new"), "--follow", "--poll", "0.01", "--known-batches", "0")
    stopped = run(*KNOWN, *follow, "--threshold", "0.0", "--gate")
    assert stopped.exit_code == 3
    assert len(rows(stopped.stdout)) == 1
    enough = run(*KNOWN, *follow, "--threshold", "0.0", "--max-batches", "2", "--out", "b")
    assert enough.exit_code == 0
    assert len(rows(enough.stdout)) == 2


def test_the_state_for_prometheus_is_written_after_each_batch(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.app.monitor import watch

    seen: list[tuple[Path, bytes]] = []
    with monkeypatch.context() as patch:
        patch.setattr(watch, "write_atomically", lambda path, text: seen.append((path, text)))
        found = run(*FEW, "--images", "shapes:flat", "--n", "16", "--metrics-file", "door.prom")
    assert found.exit_code == 0
    assert [path for path, _ in seen] == [Path("door.prom")] * 3
    totals = [re.findall(rb"^assay_monitor_batches_total.* (\S+)$", text, re.MULTILINE) for _, text in seen]
    assert totals == [[b"0.0"], [b"1.0"], [b"2.0"]]
    nowhere = run(*FEW, "--images", "shapes:flat", "--metrics-file", str(tmp_path))
    assert nowhere.exit_code == 1
    assert str(tmp_path) in nowhere.stderr


def test_a_target_calibrates_on_the_corrupted_domains(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.analyses.generalization import domain_shifts

    monkeypatch.setattr(
        domain_shifts, "CORRUPTIONS", {key: domain_shifts.CORRUPTIONS[key] for key in ("fog-1", "solarize")}
    )
    arguments = (*KNOWN, "--known-batches", "1", "--target", "0.3", "--images", "shapes:flat")
    found = run(*arguments, "--n", "8")
    assert found.exit_code == 0, found.output
    document = json.loads((tmp_path / "assay-monitor/monitor.json").read_text())
    assert document["threshold"]["domain"] in ("fog-1", "solarize")
    assert document["rule"] == "threshold"
    kept = tmp_path / "assay-monitor/domains.json"
    assert {each["domain"] for each in json.loads(kept.read_text())["known"]} == {"fog-1", "solarize"}
    written = kept.stat().st_mtime_ns
    assert run(*arguments, "--n", "16").exit_code == 0
    assert kept.stat().st_mtime_ns == written  # measured once
    assert "What a shift means" in (tmp_path / "assay-monitor/monitor.html").read_text()


def test_a_reference_without_a_floor_is_said_with_the_reason(run: Run, tmp_path: Path) -> None:
    loud = tuple(each for each in FEW if each != "--quiet")
    found = run(*loud, "--images", "shapes:flat", "--n", "8")
    reason = "the reference holds 1 batches of 8 inputs"
    assert f"shifts are not corrected for noise: {reason}" in found.stderr
    assert f"none: {reason}" in (tmp_path / "assay-monitor/monitor.html").read_text()


def test_a_stored_reference_is_discovered_once(directory: str, tmp_path: Path) -> None:
    draw_files(tmp_path / "id", "flat", 24, by_class=True)
    plan = MonitorPlan(
        reference=str(tmp_path / "id"), window=8, reference_n=16, steps=1, known_batches=1, rule="sequential"
    )
    stages: list[str] = []
    for _ in range(2):
        monitoring.start_monitor(
            load_model(directory), plan, out=tmp_path / "out", progress=lambda stage, *_: stages.append(stage)
        )
    assert stages.count("reference") == 2  # its start and its end


def test_a_file_of_scores_is_a_reference_too(run: Run, tmp_path: Path) -> None:
    run(*FEW, "--images", "shapes:flat", "--n", "8")
    stored = tmp_path / "assay-monitor/reference.safetensors"
    found = run(
        "--reference", str(stored), "--known", "shapes:flat", "--known-batches", "4", "--alpha", "0.2",
        "--window", "8", "--images", "shapes:flat", "--n", "8", "--out", "again", "--quiet",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    document = json.loads((tmp_path / "again/monitor.json").read_text())
    assert document["reference"] == json.loads(json.dumps(dict(load_scores(stored).provenance)))
    given = ("--reference", str(stored), "--images", "shapes:flat", "--window", "8", "--out", "third")
    refused = run(*given, "--ablation", "zero")
    assert refused.exit_code == 2
    assert "ablation is zero, but the circuit of" in refused.stderr
    assert not (tmp_path / "third/readings.jsonl").exists()


def test_unreadable_images_fail_or_are_counted(run: Run, tmp_path: Path) -> None:
    paths = draw_files(tmp_path / "new", "flat", 18)
    changed = paths[3].stat().st_mtime
    paths[3].write_bytes(paths[3].read_bytes()[:60])
    os.utime(paths[3], (changed, changed))
    arguments = (*FEW, "--images", str(tmp_path / "new"))
    failed = run(*arguments)
    assert failed.exit_code == 1
    assert "00003.png" in failed.stderr
    passed = run(*arguments, "--skip-bad")
    assert passed.exit_code == 0
    assert len(rows(passed.stdout)) == 2
    assert "1 unreadable" in passed.stdout
    assert "1 image file could not be read" in (tmp_path / "assay-monitor/monitor.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*KNOWN,), "needs --reference"),
        ((*KNOWN, "--images", "shapes:flatt"), "unknown style of shapes"),
        ((*KNOWN, "--images", "shapes:flat", "--follow"), "--follow watches one folder"),
        ((*KNOWN, "--images", "shapes:flat", "--distance", "spear"), "unknown distance"),
        ((*KNOWN, "--images", "shapes:flat", "--rule", "both"), "unknown rule"),
        ((*KNOWN, "--images", "shapes:flat", "--threshold", "1", "--target", "0.5"), "exclude each other"),
        ((*FEW[:-1], "0.01", "--images", "shapes:flat"), "needs at least 99"),
    ],
)
def test_wrong_use_is_exit_code_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2, found.output
    assert message in found.stderr


def test_places_that_do_not_exist_are_exit_code_1(run: Run) -> None:
    found = run(*FEW, "--images", "nowhere")
    assert found.exit_code == 1
    assert "not a folder" in found.stderr
    found = run("--reference", "none.safetensors", "--images", "shapes:flat")
    assert found.exit_code == 1
    assert "none.safetensors" in found.stderr


def test_a_model_of_text_is_refused() -> None:
    found = invoke("monitor", "--model", "mini", "--reference", "x", "--images", "y")
    assert found.exit_code == 2
    assert "reads text" in found.stderr


def test_without_arguments_it_watches_the_embedded_zoo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = [
        "--window",
        "12",
        "--reference-n",
        "48",
        "--known-batches",
        "4",
        "--alpha",
        "0.2",
        "--steps",
        "1",
        "--n",
        "12",
        "--quiet",
    ]
    found = invoke("monitor", *small)
    assert found.exit_code == 0, found.output
    assert [row[1] for row in rows(found.stdout)] == ["flat", "sketch", "neon"]
    document = json.loads((tmp_path / "assay-monitor/monitor.json").read_text())
    assert document["statistic"] == "excess"
    assert len(document["calibration"]["excess"]) == 4
    assert all(each["excess"]["interval"]["low"] is not None for each in document["readings"])

"""`assay monitor`: rows, files, exit codes, going on, following, and what it refuses."""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import invoke
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

from assay.circuits import load_scores
from assay.discovery.edges import discover
from assay.models import load_model
from assay.pipeline import monitoring
from assay.pipeline.monitor_plan import MonitorPlan
from assay.tasks import SHAPE_CLASSES, draw_shapes
from assay.zoo import Zoo


Run = Callable[..., Any]
KNOWN = ("--reference", "shapes:flat", "--window", "8", "--reference-n", "8", "--steps", "1", "--quiet")
FEW = (*KNOWN, "--known-batches", "4", "--alpha", "0.2")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model directory as save_pretrained writes it."""
    path = tmp_path_factory.mktemp("models") / "vit"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = ViTConfig(
            hidden_size=24,
            num_hidden_layers=3,
            num_attention_heads=3,
            intermediate_size=48,
            image_size=32,
            patch_size=8,
            id2label=dict(enumerate(SHAPE_CLASSES)),
            label2id={name: place for place, name in enumerate(SHAPE_CLASSES)},
            initializer_range=0.2,
        )
        ViTForImageClassification(config).eval().save_pretrained(path)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return str(path)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str) -> Run:
    """The command in an empty directory, on the model."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Any:
        return invoke("monitor", "--model", directory, *arguments)

    return call


def fill(folder: Path, domain: str, n: int, *, start: int = 0, by_class: bool = False) -> list[Path]:
    """Drawn images as files, older with each, so that they arrive in order."""
    found = []
    drawn = draw_shapes(domain, n, start=start)
    assert drawn.labels is not None
    for place, pixels in enumerate(drawn.pixels):
        parent = folder / SHAPE_CLASSES[drawn.labels[place]] if by_class else folder
        parent.mkdir(parents=True, exist_ok=True)
        path = parent / f"{start + place:05}.png"
        Image.fromarray(pixels).save(path)
        changed = time.time() - 1000 + place
        os.utime(path, (changed, changed))
        found.append(path)
    return found


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


def test_a_streamed_model_reads_the_same(run: Run, tmp_path: Path) -> None:
    watched = (
        *KNOWN,
        "--known-batches",
        "0",
        "--threshold",
        "9",
        "--images",
        "shapes:neon",
        "--n",
        "16",
        "--json",
    )
    held, streamed = (
        run(*watched, "--out", name, *more)
        for name, more in (("held", ()), ("streamed", ("--device-map", "stream")))
    )
    assert streamed.exit_code == 0, streamed.stderr
    shifts = [[each["shift"] for each in json.loads(out.stdout)["readings"]] for out in (held, streamed)]
    assert shifts[0] == shifts[1]
    assert len(shifts[0]) == 2
    both = run(*watched, "--out", "both", "--device", "cpu", "--device-map", "balanced")
    assert both.exit_code == 2
    assert "both say where the model goes" in both.stderr


def test_the_same_command_goes_on_with_what_is_new(run: Run, tmp_path: Path) -> None:
    arguments = (*FEW, "--images", str(tmp_path / "new"))
    fill(tmp_path / "new", "flat", 20)
    first = run(*arguments)
    assert len(rows(first.stdout)) == 2
    nothing = run(*arguments)
    assert nothing.exit_code == 0
    assert "no new batch" in nothing.stdout
    assert "2 readings" in nothing.stdout
    fill(tmp_path / "new", "flat", 4, start=500)
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
    fill(tmp_path / "new", "flat", 16)
    followed = run(
        *FEW, "--images", str(tmp_path / "new"), "--follow", "--poll", "0.01", "--idle-timeout", "0.01",
        "--json", "--out", "other",
    )  # fmt: skip
    assert [json.loads(line)["index"] for line in followed.stdout.splitlines()] == [0, 1]


def test_following_stops_at_the_first_alarm_or_after_enough_batches(run: Run, tmp_path: Path) -> None:
    fill(tmp_path / "new", "stripes", 32)
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


@pytest.mark.slow
def test_the_smallest_drop_is_stated_before_the_first_batch(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.analyses.generalization import domain_shifts

    monkeypatch.setattr(
        domain_shifts, "CORRUPTIONS", {key: domain_shifts.CORRUPTIONS[key] for key in ("fog-1", "solarize")}
    )
    found = run(
        "--reference", "shapes:flat", "--window", "8", "--reference-n", "35", "--steps", "1",
        "--alpha", "0.2", "--known-batches", "4", "--target", "0.3", "--images", "shapes:flat", "--n", "8",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "a batch of 8 images" in found.stderr.lower()
    assert "by the threshold rule (0 of 4 known batches lie above it)" in found.stderr
    assert "by the conformal rule" not in found.stderr
    document = json.loads((tmp_path / "assay-monitor/monitor.json").read_text())
    assert [each["power"] for each in document["detectable"]] == [0.5, 0.8]
    assert {each["limit"] for each in document["detectable"]} == {document["threshold"]["value"]}
    assert document["reference"]["task"]["n"] == 32  # whole windows
    # 32 known images: 8 to learn from, 24 to corrupt.
    assert {each["n_labelled"] for each in document["domains"]["known"]} == {24}
    assert document["threshold"]["method"] == "isotonic"
    page = (tmp_path / "assay-monitor/monitor.html").read_text()
    assert "What it can detect" in page
    assert document["detectable"][0]["statement"] in page
    assert "beyond the floor" in page


def test_a_reference_without_a_floor_is_said_with_the_reason(run: Run, tmp_path: Path) -> None:
    loud = tuple(each for each in FEW if each != "--quiet")
    found = run(*loud, "--images", "shapes:flat", "--n", "8")
    reason = "the reference holds 1 batches of 8 inputs"
    assert f"shifts are not corrected for noise: {reason}" in found.stderr
    page = (tmp_path / "assay-monitor/monitor.html").read_text()
    assert f"none: {reason}" in page
    assert (
        run(*loud, "--images", "shapes:flat", "--n", "8", "--weights", "signed", "--out", "signed").exit_code
        == 0
    )
    page = (tmp_path / "signed/monitor.html").read_text()
    assert "none: only the usual comparison of circuits has a noise floor" in page


@pytest.mark.parametrize("n", [8, 16])
def test_a_stored_reference_is_discovered_once(directory: str, tmp_path: Path, n: int) -> None:
    fill(tmp_path / "id", "flat", 24, by_class=True)
    model = load_model(directory)
    plan = MonitorPlan(
        reference=str(tmp_path / "id"), window=8, reference_n=n, steps=1, known_batches=1, rule="sequential"
    )
    stages: list[str] = []
    for _ in range(2):
        monitoring.start_monitor(
            model, plan, out=tmp_path / "out", progress=lambda stage, _, __: stages.append(stage)
        )
    assert stages.count("reference") == 2  # its start and its end


def test_too_few_images_to_corrupt_are_counted(run: Run, tmp_path: Path) -> None:
    fill(tmp_path / "known", "flat", 6, start=500, by_class=True)
    found = run(
        "--reference", "shapes:flat", "--window", "8", "--reference-n", "32", "--steps", "1", "--quiet",
        "--known", str(tmp_path / "known"), "--target", "0.3", "--images", "shapes:flat",
    )  # fmt: skip
    assert found.exit_code == 2, found.output
    assert "would hold 6 images (window 8, 6 known images)" in found.stderr
    assert "the noise floor of the reference is that of 8; give a window of 8" in found.stderr


def test_folders_serve_as_reference_and_known_images(run: Run, tmp_path: Path) -> None:
    fill(tmp_path / "id", "flat", 48, by_class=True)
    fill(tmp_path / "new", "flat", 8, start=900)
    found = run(
        "--reference", str(tmp_path / "id"), "--images", str(tmp_path / "new"), "--window", "8", "--steps",
        "1", "--alpha", "0.3", "--quiet",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    document = json.loads((tmp_path / "assay-monitor/monitor.json").read_text())
    assert len(document["calibration"]["shifts"]) == 3  # what alpha 0.3 needs; the reference has the rest
    assert document["reference"]["task"]["n"] == 24
    assert document["reference"]["batches"] == 3
    assert "atc" in document["readings"][0]["baselines"]


def test_baselines_learn_from_all_classes_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "id", "flat", 48, by_class=True)
    zoo = Zoo.embedded()
    model = zoo.load(zoo.keys[0])
    reference = discover(model, draw_shapes("flat", 8, start=5000).task(), steps=1)
    reference.save(tmp_path / "reference.safetensors")
    learned = []
    monkeypatch.setattr(monitoring, "MOST_LABELLED", 12)
    for seed in (0, 0, 1):
        plan = MonitorPlan(
            reference=str(tmp_path / "reference.safetensors"), known=str(tmp_path / "id"), window=8,
            known_batches=0, seed=seed,
        )  # fmt: skip
        known = monitoring.start_monitor(model, plan, out=tmp_path / "out").monitor._known
        assert known is not None
        assert len(known.labels) == 12
        assert len(set(known.labels.tolist())) >= 4  # in the order of the folder all would be of 2 or 3
        learned.append(known.outputs.logits)
    assert torch.equal(learned[0], learned[1])
    assert not torch.equal(learned[0], learned[2])


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
    for setting, asked in (("steps", "7"), ("method", "eap"), ("ablation", "zero")):
        refused = run(*given, f"--{setting}", asked)
        assert refused.exit_code == 2
        assert f"{setting} is {asked}, but the circuit of" in refused.stderr
    assert not (tmp_path / "third/readings.jsonl").exists()


def test_unreadable_images_fail_or_are_counted(run: Run, tmp_path: Path) -> None:
    paths = fill(tmp_path / "new", "flat", 18)
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
        (("--images", "shapes:flat"), "needs --reference"),
        ((*KNOWN,), "needs --reference"),
        ((*KNOWN, "--images", "shapes:flatt"), "unknown style of shapes"),
        ((*KNOWN, "--images", "shapes:flat", "--follow"), "--follow watches one folder"),
        ((*KNOWN, "--images", "shapes:flat", "--distance", "spear"), "unknown distance"),
        ((*KNOWN, "--images", "shapes:flat", "--order", "size"), "unknown order"),
        ((*KNOWN, "--images", "shapes:flat", "--rule", "both"), "unknown rule"),
        ((*KNOWN, "--images", "shapes:flat", "--threshold", "1", "--target", "0.5"), "exclude each other"),
        ((*KNOWN, "--images", "shapes:flat", "--target", "50"), "target is 50"),
        ((*FEW, "--images", "shapes:flat", "--alpha", "0.01"), "needs at least 99"),
        ((*KNOWN, "--images", "shapes:flat", "--known", "shapes:flat"), "remove known"),
        ((*KNOWN, "--images", "shapes:flat", "--reference-n", "4"), "less than the window of 8"),
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


def test_pixels_of_files_are_those_drawn(tmp_path: Path) -> None:
    """The helper of this module: what it writes is what it drew."""
    (path, *_) = fill(tmp_path, "flat", 2)
    np.testing.assert_array_equal(np.asarray(Image.open(path)), draw_shapes("flat", 1).pixels[0])


def test_without_arguments_it_watches_the_embedded_zoo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = (
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
    )
    found = invoke("monitor", *small)
    assert found.exit_code == 0, found.output
    assert [row[1] for row in rows(found.stdout)] == ["flat", "sketch", "neon"]
    document = json.loads((tmp_path / "assay-monitor/monitor.json").read_text())
    assert document["statistic"] == "excess"
    assert len(document["calibration"]["excess"]) == 4
    assert all(each["excess"]["interval"]["low"] is not None for each in document["readings"])
    assert set(document["readings"][0]["drift"]) == {"ks", "mmd", "c2st"}
    assert document["reference"]["task"]["domain"] == "flat"

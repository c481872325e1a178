"""Commands on image classifiers: monitor, evaluate, rank, zoo; files, going on, exit codes."""

import csv
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Outcome, invoke
from generalization.small_vits import untrained_vit
from PIL import Image
from small_runs import GRID, ZOO_OPTIONS, trained_zoo
from tiny_classifier import draw_files, tiny_classifier
from type_checks import no_type_checks

from assay.analyses.generalization import domains
from assay.analyses.generalization.inspection import DEFAULT_METRICS
from assay.app import watch as watching
from assay.app.cli.monitor import MonitorSettings
from assay.circuits import load_scores
from assay.models import load_model
from assay.pipeline import evaluation
from assay.pipeline.monitoring import KnownImages, parted
from assay.tasks import draw_shapes, find_domains
from assay.zoo import Zoo


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with no_type_checks():  # the parts are checked in their own tests
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained classifiers, one alone and three as a zoo; drawn images as DOMAIN/CLASS/IMAGE."""
    root = tmp_path_factory.mktemp("images")
    tiny_classifier(root / "model")
    for seed in range(3):
        tiny_classifier(root / "models" / f"model-{seed}", layers=2, seed=seed)
    for style in ("flat", "neon", "sketch", "stripes"):
        draw_files(root / "styles" / style, style, 36, start=1000, by_class=True)
    for domain in ("flat", "neon"):
        draw_files(root / "pictures" / domain, domain, 18, start=90, by_class=True)
    return root


def run(*arguments: object, code: int = 0) -> Outcome:
    outcome = invoke(*arguments)
    assert outcome.exit_code == code, outcome.output
    return outcome


def document(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


# ---- monitor ------------------------------------------------------------------------------------

KNOWN = ("--reference", "shapes:flat", "--window", "8", "--reference-n", "8", "--steps", "1", "--quiet")
FEW = (*KNOWN, "--known-batches", "4", "--alpha", "0.2")


def watch(made: Path, *arguments: object, code: int = 0) -> Outcome:
    return run("monitor", "--model", made / "model", *arguments, code=code)


def rows(outcome: Outcome) -> list[list[str]]:
    return [line.split() for line in outcome.stdout.splitlines() if line[:5].strip().isdigit()]


def test_a_row_per_batch_and_everything_is_kept(made: Path) -> None:
    loud = tuple(each for each in FEW if each != "--quiet")
    found = watch(made, *loud, "--images", "shapes:flat", "--images", "shapes:stripes", "--n", "24")
    shown = rows(found)
    origins = ["flat"] * 3 + ["stripes"] * 3
    assert [row[:3] for row in shown] == [[str(at + 1), each, "8"] for at, each in enumerate(origins)]
    out = Path("assay-monitor")
    names = {".lock", "cache", "readings.jsonl", "monitor.json", "monitor.html"}
    assert {each.name for each in out.iterdir()} == names
    kept = json.loads((out / "monitor.json").read_text())
    assert len(kept["calibration"]["shifts"]) == 4
    assert [f"{each['shift']:.3f}" for each in kept["readings"]] == [row[3] for row in shown]
    assert kept["rule"] == "conformal"


def test_the_same_command_goes_on_with_what_is_new(made: Path, tmp_path: Path) -> None:
    arguments = (*FEW, "--images", "new")
    draw_files(tmp_path / "new", "flat", 20)
    assert len(rows(watch(made, *arguments))) == 2
    assert "no new batch: fewer new images than one batch needs (2 readings" in watch(made, *arguments).stdout
    draw_files(tmp_path / "new", "flat", 4, start=500)
    assert [row[0] for row in rows(watch(made, *arguments))] == ["3"]
    lines = Path("assay-monitor/readings.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["monitor", "calibration", "reading", "reading", "reading"]
    other = watch(made, *arguments, "--seed", "1", code=2)
    assert "another monitor (different: reference" in other.stderr


def test_an_alarm_is_exit_code_3_with_gate_also_where_nothing_new_came_and_as_state(
    made: Path, tmp_path: Path
) -> None:
    draw_files(tmp_path / "new", "stripes", 16)
    arguments = (*KNOWN, "--known-batches", "0", "--images", "new", "--threshold")
    fired = watch(made, *arguments, "0.0", "--gate", code=3)
    assert "2 batch(es) raised the alarm" in fired.stderr
    assert fired.stdout.count("ALARM") == 2
    again = watch(made, *arguments, "0.0", "--gate", code=3)
    assert "gate: the alarm is on" in again.stderr
    watch(made, *arguments, "0.0")
    told = run("monitor", "status", "assay-monitor", code=3).stdout
    assert re.match(r"alarm on: circuit shift 0\.\d+ of batch 2, limit 0 \(2 batches, the last 20\d\d-", told)
    assert len(told.splitlines()) == 1
    state = json.loads(run("monitor", "status", "assay-monitor", "--json", code=3).stdout)
    assert (state["alarm"], state["batches"], state["last"]["index"]) == (True, 2, 1)
    quiet = watch(made, *arguments, "1.9", "--gate", "--out", "quiet")
    assert "No alarm in 2 batches" in quiet.stdout
    assert run("monitor", "status", "quiet").stdout.startswith("alarm off: circuit shift")
    assert "holds no readings" in run("monitor", "status", "nowhere", code=2).stderr
    # The first alarm ends following.
    lines = watch(made, *arguments, "0.0", "--gate", "--follow", "--out", "e", "--json", code=3).stdout
    assert [json.loads(line)["index"] for line in lines.splitlines()] == [0]


def test_an_unfilled_batch_is_closed_and_compared_with_known_ones_of_its_size(
    made: Path, tmp_path: Path
) -> None:
    draw_files(tmp_path / "new", "flat", 13)
    settings = {"reference": "shapes:flat", "window": 8, "reference_n": 8, "steps": 1, "known_batches": 4}
    settings |= {"alpha": 0.2, "images": ("new",), "follow": True, "flush_after": 0.1, "out": Path("out")}
    follow = watching.MonitorRun(MonitorSettings(model=str(made / "model"), **settings), tell=print)
    with follow.started():
        for reading in follow.observe():
            if reading.index:
                follow.stop.set()
    lines = [json.loads(line) for line in Path("out/readings.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["monitor", "calibration", "reading", "calibration", "reading"]
    assert (lines[3]["n"], len(lines[3]["shifts"]), len(lines[3]["output_shifts"])) == (5, 4, 4)
    assert (lines[4]["n"], lines[4]["page"]) == (5, "out/monitor.html")
    assert lines[4]["p_value"] is not None
    few = ("--reference", "new", *KNOWN[2:], "--known-batches", "0", "--images", "new", "--out", "few")
    assert "new holds the known images" in watch(made, *few).stderr
    assert "give --follow, too" in watch(made, *few, "--flush-after", "1h", code=2).stderr


def test_known_outputs_leave_the_batches_that_calibration_needs() -> None:
    for images, outputs in ((42, 0), (82, 4), (120, 24)):
        found, rest = parted(draw_shapes("flat", images, size=16), 78, 0)
        assert (0 if found is None else found.n, rest.n) == (outputs, images - outputs)


def test_a_target_calibrates_on_the_corrupted_domains(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {key: domains.CORRUPTIONS[key] for key in ("fog-1", "solarize")}
    monkeypatch.setattr(domains, "CORRUPTIONS", few)
    arguments = (*KNOWN, "--known-batches", "1", "--target", "0.3", "--images", "shapes:flat")
    watch(made, *arguments, "--n", "8")
    found = json.loads(Path("assay-monitor/monitor.json").read_text())
    assert found["threshold"]["domain"] in few
    kept = {path: path.stat().st_mtime_ns for path in Path("assay-monitor/cache").iterdir()}
    watch(made, *arguments, "--n", "16")
    assert kept == {path: path.stat().st_mtime_ns for path in Path("assay-monitor/cache").iterdir()}
    assert "where performance is" in Path("assay-monitor/monitor.html").read_text()


def test_a_file_of_scores_is_a_reference_too(made: Path) -> None:
    images = ("--images", made / "styles" / "flat", "--n", "8", "--steps", "1", "--top", "20")
    run("discover", "--model", made / "model", *images, "--scores-out", "scores.safetensors", "--quiet")
    stored = Path("scores.safetensors")
    given = ("--reference", stored, "--images", "shapes:flat", "--window", "8", "--quiet")
    known = ("--known", "shapes:flat", "--known-batches", "4", "--alpha", "0.2")
    watch(made, *given, *known, "--n", "8", "--out", "again")
    found = json.loads(Path("again/monitor.json").read_text())
    assert found["reference"] == json.loads(json.dumps(dict(load_scores(stored).provenance)))
    for arguments, message in (
        ((*given, "--steps", "3"), "steps is 3, but the circuit of"),
        ((*given, "--known-batches", "4"), "give --known"),
        ((*given, "--target", "0.5"), "give --known"),
        ((*given, "--known", stored), "known and reference are both"),
        ((*FEW[:-1], "0.01", "--images", "shapes:flat"), "but 99 are needed"),
        ((*given[:2],), "your own model needs --reference"),
    ):
        assert message in watch(made, *arguments, "--out", "third", code=2).stderr
    assert not Path("third/readings.jsonl").exists()


def test_images_that_are_turned_are_told_of_and_can_be_left_as_stored(made: Path, tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    (tmp_path / "new").mkdir()
    for place, pixels in enumerate(draw_shapes("flat", 8, start=700).pixels):
        Image.fromarray(pixels).save(tmp_path / "new" / f"{place}.jpg", exif=turned)
    arguments = (*FEW, "--images", "new")
    assert "8 images of new were turned as their EXIF orientation says" in watch(made, *arguments).stderr
    stored = watch(made, *arguments, "--exif", "ignore", "--out", "stored")
    assert "turned" not in stored.stderr
    first, other = (json.loads(Path(out, "monitor.json").read_text()) for out in ("assay-monitor", "stored"))
    assert first["readings"][0]["shift"] != other["readings"][0]["shift"]


def test_without_arguments_it_watches_the_embedded_zoo() -> None:
    small = "--window 12 --reference-n 48 --known-batches 4 --alpha 0.2 --steps 1 --n 12 --quiet"
    assert [row[1] for row in rows(run("monitor", *small.split()))] == ["flat", "sketch", "neon"]


# ---- monitor evaluate ---------------------------------------------------------------------------

RATED = ("--n", "8", "--rated", "16", "--least", "8", "--steps", "1", "--quiet")


def evaluate(made: Path, *arguments: object, reference: object = None, code: int = 0) -> Outcome:
    given = ("--model", made / "model", "--reference", reference or made / "styles" / "flat")
    return run("monitor", "evaluate", *given, *RATED, *arguments, code=code)


def test_folders_of_domains_give_a_document_and_a_table(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("--images", made / "styles", "--corruptions", "fog-1,fog-5,solarize", "--parts", "2", "--json")
    found = json.loads(evaluate(made, *asked, "--out", "out").stdout)
    # The reference's own folder is not a test domain; every other one is cut into two parts.
    assert [each["domain"] for each in found["test"]] == [
        f"{style}/{part}" for style in ("neon", "sketch", "stripes") for part in (1, 2)
    ]
    assert [each["domain"] for each in found["known"]] == ["flat+fog-1", "flat+fog-5", "flat+solarize"]
    # 28 images are left besides the reference: 8 to learn from, 20 to corrupt.
    assert found["own"]["n_labelled"] == found["known"][0]["n_labelled"] == 20
    assert found["alarm_f1"] is None or "always" in found["alarm_f1"]
    assert json.loads(Path("out/evaluation.json").read_text()) == found
    assert "What goes with performance" in Path("out/report.html").read_text()
    table = list(csv.DictReader(Path("out/domains.csv").read_text().splitlines()))
    assert [row["use"] for row in table] == ["in distribution", *["calibration"] * 3, *["test"] * 6]
    assert float(table[-1]["spearman"]) == found["test"][-1]["shifts"]["spearman"]
    assert all(all(row.values()) for row in table)

    monkeypatch.setattr(domains, "_measured", lambda *a, **b: pytest.fail("measured again"))
    assert json.loads(evaluate(made, *asked).stdout) == found


def test_domains_are_severities_or_columns_of_a_table(made: Path, tmp_path: Path) -> None:
    for severity, n in ((1, 16), (4, 16), (5, 4)):
        draw_files(tmp_path / "corrupted" / "fog" / str(severity), "neon", n, by_class=True)
    found = json.loads(evaluate(made, "--images", "corrupted", "--corruptions", "none", "--json").stdout)
    assert [each["domain"] for each in found["test"]] == ["fog/1", "fog/4"]
    assert found["left_out"] == [{"domain": "fog/5", "n": 4}]
    lines = ["path,label,camera,season"]
    for camera, style in enumerate(("neon", "sketch")):
        for place, path in enumerate(draw_files(tmp_path / style, style, 20, by_class=True)):
            lines.append(f"{path.relative_to(tmp_path)},{path.parent.name},{camera},{'ab'[place % 2]}")
    Path("list.csv").write_text("\n".join(lines))
    by = ("--images", "list.csv:season=a", "--domains-by", "camera,season", "--corruptions", "none")
    names = [each["domain"] for each in json.loads(evaluate(made, *by, "--json").stdout)["test"]]
    assert names == ["camera 0/a", "camera 1/a"]


def test_bad_input_is_named_before_a_model_runs(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KnownImages, "reference", lambda *a, **b: pytest.fail("the model ran"))
    draw_files(tmp_path / "other" / "neon", "neon", 12, by_class=True)
    draw_files(tmp_path / "other" / "neon" / "giraffe", "neon", 1)
    (tmp_path / "unlabelled").mkdir()
    Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(tmp_path / "unlabelled" / "loose.png")
    styles = ("--images", made / "styles")
    for arguments, message in (
        (("--images", "other"), "'neon' has images of giraffe"),
        (("--images", "unlabelled"), "unlabelled has no labels"),
        (("--images", made / "styles" / "flat"), "holds no domain besides that of the reference"),
        ((*styles, "--domains-by", "slide"), "need a table"),
        ((*styles, "--corruptions", "fog1"), "did you mean 'fog-1'"),
    ):
        assert message in evaluate(made, *arguments, code=2).stderr


def test_labels_mean_the_reference_s_classes_where_the_model_names_none(tmp_path: Path) -> None:
    for style, classes in (("flat", "abc"), ("neon", "bc")):
        for name in classes:
            (tmp_path / style / name).mkdir(parents=True)
            (tmp_path / style / name / "1.png").touch()  # not decoded
    model = load_model(untrained_vit())
    model.preprocessing = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    found = evaluation.as_read_by(model, str(tmp_path / "flat"), find_domains(tmp_path / "neon"))
    assert found["neon"].labels.tolist() == [1, 2]


# ---- rank ---------------------------------------------------------------------------------------

DRAWN = ("--n", "18", "--draws", "20", "--steps", "2", "--quiet")


def test_a_zoo_is_ranked_on_a_labelled_domain(made: Path) -> None:
    pictures = made / "pictures"
    places = ("--images", pictures / "neon", "--id-images", pictures / "flat")
    given = ("rank", "--zoo", made / "models", *places)
    shown = run(*given, *DRAWN, "--store", "store", "--out", "made").stdout
    assert "Which of 3 models to deploy on neon" in shown
    assert "resamples of these images" in Path("made/report.html").read_text()
    written = json.loads(Path("made/ranking.json").read_text())
    assert [each["name"] for each in written["models"]] == ["model-0", "model-1", "model-2"]
    assert written["known"]["domain"] == "flat"
    shown = {each["key"] for each in written["metrics"] + written["absent"]}
    assert shown == {*DEFAULT_METRICS}  # those of `rank_models`
    before = sorted(Path("store/inspections").iterdir())
    assert document(*given, *DRAWN, "--store", "store") == written
    assert sorted(Path("store/inspections").iterdir()) == before


def test_several_domains_share_one_table(made: Path) -> None:
    pictures = made / "pictures"
    given = ("--zoo", made / "models", "--images", pictures, "--images", "shapes:relief", "--json", *DRAWN)
    chosen = ("--id-images", pictures / "flat", "--metrics", "ddb-output,average-confidence", "--out", "made")
    found = run("rank", *given, *chosen)
    assert "flat is the own domain of models and is not among its targets" in found.stderr
    document = json.loads(found.stdout)
    assert document == json.loads(Path("made/ranking.json").read_text())
    assert document["kind"] == "ranking-comparison"
    assert set(document["provenance"]["rankings"]) == {"shapes", "pictures"}
    assert [each["target"]["domain"] for each in document["rankings"]] == ["neon", "relief"]
    assert "Picking by" in Path("made/report.html").read_text()
    twice = ("--images", "shapes:flat", "--images", "shapes:flat", "--n", "6")
    assert "no target is left for shapes, which was trained on flat" in run("rank", *twice, code=2).stderr


def test_unreadable_images_and_unknown_classes_are_named(made: Path, tmp_path: Path) -> None:
    broken = draw_files(tmp_path / "broken", "flat", 18, by_class=True)
    broken[3].write_bytes(b"no image")
    rank = ("rank", "--zoo", made / "models", "--metrics", "average-confidence", "--draws", "20")
    shutil.copytree(made / "pictures" / "neon" / "circle", "loose")
    found = document(*rank, "--images", "loose")
    assert (found["performance"], found["target"]["labelled"]) == (None, False)
    assert found["metrics"][0]["regret"] is None
    assert broken[3].name in run(*rank, "--images", "broken", code=1).stderr
    skipped = run(*rank, "--images", "broken", "--skip-bad")
    assert f"1 files of broken were skipped: {broken[3].relative_to(tmp_path)}" in skipped.stderr
    assert "17 images" in skipped.stdout
    for name in ("dog", "cat"):
        (tmp_path / "foreign" / name).mkdir(parents=True)
        Image.fromarray(draw_shapes("flat", 1).pixels[0]).save(tmp_path / "foreign" / name / "0.png")
    assert "not among the classes" in run(*rank, "--images", "foreign", code=2).stderr


# ---- zoo ----------------------------------------------------------------------------------------


def test_train_index_and_list_work_together(tmp_path: Path) -> None:
    Path("grid.toml").write_text(GRID)
    shutil.copytree(trained_zoo().folder / "zoo", "zoo")
    trained = trained_zoo().document
    written = {path: path.stat().st_mtime_ns for path in Path("zoo").rglob("model.safetensors")}
    assert document("zoo", "train", *ZOO_OPTIONS, "--quiet") == trained
    assert len(written) == 2
    assert written == {path: path.stat().st_mtime_ns for path in written}
    listed = run("zoo", "list", "zoo").stdout
    assert "small: 2 of 2 models done, trained on flat" in listed
    assert all(model["key"] in listed for model in trained["models"])
    domains = ("--images", "shapes:sketch", "--images", "shapes:neon", "--n", "12", "--quiet")
    records = document("zoo", "index", "zoo", *domains)
    assert [record["domain"] for record in records] == ["sketch", "neon"]
    with np.load("zoo/correctness/sketch.npz", allow_pickle=False) as file:
        assert file["X"].shape == (2, 12)
        assert file["meta_id"].min() >= 36  # none of those trained on
        assert file["X"].mean(axis=1).tolist() == [model["accuracy"] for model in records[0]["models"]]
        assert file["y"].tolist() == [model["id_accuracy"] for model in trained["models"]]


def test_folders_of_images_and_plain_directories_of_models_are_read(tmp_path: Path) -> None:
    Path("grid.toml").write_text(GRID)
    train = ("zoo", "train", "grid.toml", "--out", "zoo", "--quiet", "--images")
    (tmp_path / "images" / "flat" / "circle").mkdir(parents=True)
    assert "has no image" in run(*train, "images/flat", code=2).output
    assert "holds 5 domains" in run(*train, "shapes", code=2).output
    assert "--shard is 2; give PART/PARTS" in run(*train, "shapes:flat", "--shard", "2", code=2).output
    assert not Path("zoo").exists()
    draw_files(tmp_path / "images" / "flat", "flat", 36, by_class=True)
    run(*train, "images/flat", "--shard", "2/2")
    assert [entry.status for entry in Zoo.open("zoo").entries] == ["pending", "done"]
    run(*train, "images/flat")
    zoo = Zoo.open("zoo")
    assert zoo.data["n_train"] + zoo.data["n_validation"] == 36
    plain = ("zoo", "index", "zoo/models", "--images", "images/flat", "--quiet")
    assert "in-distribution accuracy of 2 models is unknown" in run(*plain, code=2).output
    run(*plain, "--id-images", "images/flat", "--out", "matrices")
    with np.load("matrices/flat.npz", allow_pickle=False) as file:
        assert file["y"].tolist() == file["X"].mean(axis=1).tolist()
    listed = document("zoo", "list")
    assert (listed["name"], listed["id_domain"], len(listed["models"])) == ("shapes", "flat", 12)

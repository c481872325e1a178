"""Where options come from, errors, streams and the process of a command."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Outcome, invoke

import assay
from assay.app.cli import app, doctor
from assay.app.cli.doctor import GAP, LOGITS, engine_checks
from assay.app.cli.measure import MeasureSettings
from assay.app.options import keywords
from assay.app.settings import Placed
from assay.catalogue import CIRCUITS, KINDS
from assay.core.errors import install_command
from assay.core.machine import usable_cores
from assay.execution import runner
from assay.store import Store


Run = Callable[..., Outcome]
SMALL = ("--n", "8", "--steps", "1")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("ASSAY_MODEL", "ASSAY_TASK", "ASSAY_STORE", "ASSAY_OUT"):
        monkeypatch.delenv(name, raising=False)
    return invoke


# ---- where options come from --------------------------------------------------------------------


def settings_of(*arguments: str) -> Any:
    return app.parse_args(list(arguments), exit_on_error=False)[1].arguments["settings"]


def test_the_command_line_wins_over_variables_over_the_file(run: Run, monkeypatch: Any) -> None:
    tables = "[audit]\nn = 5\nsteps = 2\n[report]\nsave = 'x.html'\n[zoo.list]\njson = true\n"
    Path("a.toml").write_text(tables)
    given = ("audit", "--config", "a.toml")
    assert (settings_of(*given).n, settings_of(*given).steps) == (5, 2)
    monkeypatch.setenv("ASSAY_N", "7")
    assert settings_of(*given).n == 7
    assert settings_of(*given, "--n", "9").n == 9
    monkeypatch.setenv("ASSAY_TASK", "ioo")
    assert run(*given).exit_code == 2
    assert settings_of("store", "ls", "--limit", "3").task is None  # a filter, not what is computed
    # A table of a command below another holds for it alone.
    assert json.loads(run("zoo", "list", "--config", "a.toml").stdout)["name"] == "shapes"
    assert not run("list", "models", "--config", "a.toml").stdout.startswith("[")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[audit]\nstepps = 1", 'Unknown option: "[stepps]" from a.toml. Did you mean --steps?'),
        ("[audit]\nsteps = ", "error: cannot read a.toml: TOMLDecodeError: Invalid value"),
        ("[audit]\nsteps = 'many'", 'unable to convert "many" into int'),
        ("[audits]\nn = 4", "error: unknown command in a.toml 'audits'; did you mean 'audit'"),
        ("n = 4", "error: a.toml sets 'n' outside a table; put [audit] above it"),
    ],
)
def test_a_bad_file_is_wrong_usage(run: Run, content: str, message: str) -> None:
    Path("a.toml").write_text(content)
    result = run("audit", "--config", "a.toml")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_values_are_taken_as_they_are_typed() -> None:
    images = settings_of("rank", "--images", "[a].npz", "--images", '["b"]').images
    assert images == ("[a].npz", '["b"]')
    assert settings_of("serve", "--token", "-starts-with-a-hyphen").token == "-starts-with-a-hyphen"
    assert settings_of("store", "ls", "--order", "-created").order == "-created"


def test_auto_takes_the_first_accelerator_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    assert Placed().place(said.append) is None
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert Placed().place(said.append) is None  # it has no float64
    assert said == []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    assert Placed().place(said.append) == "cuda:0"
    assert said == ["device: cuda:0"]
    assert Placed(device="cpu").place(said.append) == "cpu"


def test_settings_become_the_keywords_of_a_function_that_it_names() -> None:
    def function(model: object, *, n: int, steps: int, device: str | None = None, top: int = 1) -> None:
        del model, n, steps, device, top

    settings = MeasureSettings(n=7, steps=3, device="cpu")
    # Neither `model` nor `device` is passed on as it was typed: a command loads the one on the other.
    assert keywords(settings, function, top=5) == {"n": 7, "steps": 3, "top": 5}


SELECTED = "for_selection log_filter progress"


@pytest.mark.parametrize(
    ("function", "settings", "named"),
    [
        (
            "pipeline.sizing:runs_of",
            "app.cli.measure:MeasureSettings",
            "objective ablation top store progress",
        ),
        ("pipeline.worst:sizes", "app.cli.attack:AttackSettings", "n_pairs"),
        ("pipeline.worst:with_findings", "app.cli.attack:AttackSettings", "explained progress"),
        ("pipeline.prompts:draw_prompts", "app.cli.calibrate:CalibrateSettings", ""),
        ("pipeline.prompts:prompts_to_measure", "app.cli.calibrate:CalibrateSettings", "drawn circuit"),
        ("pipeline.prompts:read_inputs", "app.cli.discover:DiscoverSettings", ""),
        ("analyses.subsets.files:read_data", "app.cli.select:SelectSettings", SELECTED),
    ],
)
def test_every_keyword_of_a_function_is_an_option_or_named(function: str, settings: str, named: str) -> None:
    called, options = (
        getattr(importlib.import_module(f"assay.{module}"), name)
        for module, name in (each.split(":") for each in (function, settings))
    )
    taken = {each.name for each in signature(called).parameters.values() if each.kind is each.KEYWORD_ONLY}
    assert taken - set(named.split()) <= {each.name for each in fields(options)}


# ---- errors -------------------------------------------------------------------------------------

PLANTED = ("benchmark", "discovery", "--model", "planted:induction/gpt2/bare", "--n", "4")
FEW_KNOWN = ("monitor", "--reference", "shapes:flat", "--window", "8", "--reference-n", "8", "--steps", "1")
WATCHED = ("monitor", "--reference", "shapes:flat", "--images", "shapes:flat")
SKETCH = ("rank", "--images", "shapes:sketch", "--n", "6")
NEW_ZOO = ("zoo", "train", "tiny", "--out", "new")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("audit", "--n", "2.5"), 2, 'error: Invalid value for --n: unable to convert "2.5" into int.'),
        (("audit", "--steps", "0"), 2, "steps is 0; integrated gradients need a whole number of at least 1"),
        (("audit", "--task", "iio"), 2, "error: unknown task 'iio'; did you mean 'ioi'"),
        (("discover", "--top", "5", "--greedy", "5"), 2, "give one of them"),
        (("measure", "--circuit", "none.safetensors"), 1, "error: none.safetensors does not exist"),
        (("show", "abc"), 2, "nothing was stored there yet"),
        (("audit", "--task", "none.jsonl", "--out", "new"), 1, "none.jsonl"),
        (("attack", "--protocol", "iid", "--n-corrupted", "5"), 2, "'iid' does not use --n-corrupted"),
        (("attack", "--save", "w.pt"), 2, "give NAME.safetensors, or NAME.json"),
        (("calibrate", "C17", "--circuit", "a0.h1", "--against", "ioi"), 2, "the task itself"),
        ((*PLANTED, "--methods", "eap", "--objective", "kl"), 2, "every method was rejected"),
        ((*PLANTED, "--option", "eap"), 2, "not of the form METHOD.NAME=VALUE"),
        (("export", "none.safetensors"), 2, "does not exist; give a circuit file or the id"),
        ((*WATCHED, "--follow"), 2, "--follow watches one folder"),
        ((*WATCHED, "--threshold", "1", "--target", "0.5"), 2, "give only one of the two"),
        ((*FEW_KNOWN, "--known-batches", "0", "--threshold", "1", "--images", "nowhere"), 1, "not a folder"),
        (("monitor", "--model", "mini", "--reference", "x", "--images", "y"), 2, "reads text"),
        ((*SKETCH, "--id-images", "a", "--id-images", "b"), 2, "specified multiple times"),
        (NEW_ZOO, 2, "--images requires an argument"),
        (("zoo", "index", "--images", "shapes:flat"), 2, "the embedded zoo is read-only"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_an_error_is_one_message_and_an_exit_code_and_leaves_nothing_behind(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = run(*arguments, "--quiet")
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not [path for path in tmp_path.rglob("*") if path.name == "new"]


def test_a_traceback_is_shown_on_request(run: Run) -> None:
    with pytest.raises(ValueError, match="unknown task 'iio'"):
        run("audit", "--task", "iio", "--traceback")


def test_an_unwritable_place_is_refused_before_the_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("mine")
    monkeypatch.setattr("assay.models.load_model", lambda *args, **kwargs: pytest.fail("a model was loaded"))
    result = run("audit", "--out", "file/out")
    assert result.exit_code == 1
    assert "error: cannot write to file" in result.stderr
    assert Path("file").read_text() == "mine"


# ---- commands that say what there is ------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, CIRCUITS])
def test_list_knows_every_kind(run: Run, kind: str) -> None:
    entries = json.loads(run("list", kind, "--json").stdout)
    table = run("list", kind).stdout
    assert entries
    assert all(entry["key"] in table for entry in entries)


def test_doctor_says_what_is_installed(run: Run) -> None:
    document = json.loads(run("doctor", "--json", "--quiet").stdout)
    assert document["ok"] is True
    versions = document["versions"]
    assert (versions["circuit-assay"], versions["torch"]) == (assay.__version__, torch.__version__)
    assert document["machine"]["cores"] == usable_cores()
    assert {"serve", "vision", "ray"} <= set(document["extras"])
    for extra, facts in document["extras"].items():
        assert facts["installed"] is all(facts["packages"].values())
        assert facts["command"] == install_command(extra)
    assert [each["limit"] for each in document["checks"]] == [LOGITS, LOGITS, GAP]


def test_a_wrong_engine_is_noticed_and_has_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    right = runner.CircuitRunner.logits

    def slightly_wrong(self: runner.CircuitRunner, *arguments: object, **more: object) -> torch.Tensor:
        factor = 1.001 if more.get("rows") is None else 1.0  # runs of pairs name their rows
        return right(self, *arguments, **more) * factor

    with monkeypatch.context() as patch:
        patch.setattr(runner.CircuitRunner, "logits", slightly_wrong)
        full, two_ways, gap = engine_checks()  # nothing is cut from the full circuit, so no runner runs it
    assert (full["ok"], two_ways["ok"], gap["ok"]) == (True, False, True)
    monkeypatch.setattr(doctor, "engine_checks", lambda: [{**two_ways, "value": float("nan")}])
    lacking = ["a-package-that-nobody-has>=1; extra == 'ray'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lacking)
    done = run("doctor")
    assert done.exit_code == 1
    assert "pip install 'circuit-assay[ray]'" in done.stdout
    assert done.stdout.strip().endswith("The engine is wrong here. Please report this.")
    assert json.loads(run("doctor", "--json").stdout)["checks"][0]["value"] is None


# ---- the process --------------------------------------------------------------------------------


def test_json_is_alone_on_stdout_and_stages_are_named_on_stderr(run: Run) -> None:
    done = run("discover", *SMALL, "--json")
    json.loads(done.stdout)
    assert done.stderr.split() == ["load", "...", "discover", "..."]


def test_an_interrupted_command_does_not_wait_for_its_threads(tmp_path: Path) -> None:
    """A thread may be at one part of a job for minutes, and Ctrl-C looked as if nothing had happened."""
    code = """
import sys, threading
from assay.app.cli import parsing
@parsing.command(example="assay wait")
def wait():
    threading.Thread(target=threading.Event().wait).start()
    raise KeyboardInterrupt
sys.argv = ["assay", "wait"]
parsing.main()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (130, "Interrupted. Run the same command again to resume.\n")


def test_a_reader_that_stops_reading_ends_the_command_quietly(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "assay", "list", "tasks", "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_serve_answers_until_it_is_told_to_stop(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.put("measurement", {"metric": "kl"}, {"value": 0.25})
    command = [sys.executable, "-m", "assay.app.cli", "serve", "--store", store.location, "--port", "0"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ASSAY_")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        said = process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert address is not None, said + process.stderr.read()
        with urllib.request.urlopen(address[0], timeout=30) as answer:
            assert b"1 result" in answer.read()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(30) == 0
        assert "Traceback" not in rest
    assert invoke("serve", "--store", store.location, "--host", "0.0.0.0").exit_code == 2

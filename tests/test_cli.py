import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import invoke
from small_runs import write_prompts
from tiny_classifier import draw_files

from assay.app.cli import app
from assay.app.cli.parsing import HELP_ALL, every_command
from assay.app.cli.results import LISTED
from assay.app.options import RareGroup, keywords
from assay.app.settings import OfCircuit, Placed
from assay.zoo import Zoo


Run = Callable[..., Any]
SMALL = ("--n", "8", "--steps", "1")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("ASSAY_MODEL", "ASSAY_TASK", "ASSAY_STORE", "ASSAY_OUT"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Any:
        return invoke(*arguments)

    return call


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which one small audit was made."""
    folder = tmp_path_factory.mktemp("audited")
    arguments = ["audit", *SMALL, "--n-random", "1", "--out", str(folder / "out"), "--json"]
    result = invoke(*arguments)
    assert result.exit_code == 0
    (folder / "stdout.json").write_text(result.stdout)
    return folder


# ---- the commands -------------------------------------------------------------------------------


def test_audit_writes_the_report_and_the_results(audited: Path) -> None:
    document = json.loads((audited / "stdout.json").read_text())
    assert document["schema"] == "assay-audit/1"
    names = {path.name for path in (audited / "out").iterdir()}
    assert names == {
        "arrays",
        "assay.db",
        "audit.json",
        "circuit.safetensors",
        "report.html",
        "scores.safetensors",
    }
    assert json.loads((audited / "out" / "audit.json").read_text()) == document
    assert document["provenance"]["id"] in (audited / "out" / "report.html").read_text()


def test_a_second_audit_comes_from_the_store_and_ends_with_the_verdict(audited: Path, run: Run) -> None:
    result = run("audit", *SMALL, "--n-random", "1", "--out", str(audited / "out"))
    assert result.exit_code == 0
    document = json.loads((audited / "stdout.json").read_text())
    from assay.pipeline import Audit
    from assay.report import verdict

    shown = " ".join(result.stdout.split())
    assert " ".join(verdict(Audit.from_dict(document)).split()) in shown
    assert "With confidence, C11 bootstrap stability " in shown
    (kl,) = re.findall(r"KL divergence \(nats\) .* at most 0\.1 nats", result.stdout)
    assert "D03" not in kl
    worst = document["worst_case"]["worst"][0]
    assert f"Worst pair: “{worst['clean']['text']}” with the corrupted prompt “" in shown
    assert f"result   {document['provenance']['id']} (taken from the store)" in result.stdout


def test_show_and_list_find_what_was_stored(audited: Path, run: Run) -> None:
    store = ("--store", str(audited / "out"))
    listed = json.loads(run("store", "ls", *store, "--json").stdout)
    kinds = {line["kind"] for line in listed}
    assert kinds == {"audit", "calibration", "measurement", "scores", "worst_case"}
    (found,) = json.loads(run("store", "ls", "--kind", "audit", *store, "--json").stdout)
    shown = json.loads(run("show", found["id"][:8], *store, "--json").stdout)
    assert shown["payload"] == json.loads((audited / "stdout.json").read_text())
    assert {"mini", "ioi"} <= set(run("store", "ls", *store).stdout.split())
    assert run("show", found["id"], *store).stdout.startswith(f"audit {found['id']}")
    for line in listed:
        assert run("show", line["id"], *store).exit_code == 0


def test_report_takes_every_stored_id_and_the_circuit_of_the_footer(audited: Path, run: Run) -> None:
    store = ("--store", str(audited / "out"))
    (scores,) = json.loads(run("store", "ls", "--kind", "scores", *store, "--json").stdout)
    assert run("report", scores["id"], *store, "--save", "scores.html").exit_code == 0
    assert scores["id"] in Path("scores.html").read_text()
    (audit,) = json.loads(run("store", "ls", "--kind", "audit", *store, "--json").stdout)
    assert audit["id"] in run("show", audit["circuit"], *store).stdout
    for subject in ((), (audit["circuit"],)):
        assert run("report", *subject, *store, "--save", "again.html").exit_code == 0
        assert Path("again.html").read_bytes() == (audited / "out" / "report.html").read_bytes()


@pytest.mark.parametrize("choice", [("--threshold", "0.01"), ("--greedy", "30"), ()])
def test_discover_chooses_in_other_ways_too(run: Run, tmp_path: Path, choice: tuple[str, ...]) -> None:
    result = run("discover", *SMALL, *choice, "--scores-out", "s.safetensors")
    assert result.exit_code == 0
    assert re.match(r"[\d,]+ of 1,519 edges \(", result.stdout)
    assert (tmp_path / "s.safetensors").is_file()


def test_a_broken_image_stops_discover_unless_it_is_to_be_skipped(run: Run, tmp_path: Path) -> None:
    broken = draw_files(tmp_path, "flat", 6)[2]
    broken.write_bytes(broken.read_bytes()[:80])
    zoo = Zoo.embedded()
    arguments = ("discover", "--model", str(zoo.folder(zoo.keys[0])), "--images", ".", "--steps", "1")
    refused = run(*arguments, "--save", "c.safetensors")
    assert refused.exit_code == 1
    assert re.search(r"00002\.png cannot be decoded.*--skip-bad", refused.stderr)
    assert not (tmp_path / "c.safetensors").exists()
    skipped = run(*arguments, "--skip-bad")
    assert skipped.exit_code == 0
    assert "note: 1 files of" in skipped.stderr


def test_measure_takes_several_tasks_and_metrics(run: Run) -> None:
    arguments = ("--task", "ioi", "--task", "sva", "--metric", "topk", "--metric", "D03", "--top", "50")
    result = run("measure", *SMALL, *arguments, "--json", "--save", "measured.json")
    assert result.exit_code == 0
    records = json.loads(result.stdout)
    assert [(record["task"], record["name"]) for record in records] == [
        ("ioi", "topk"),
        ("ioi", "kl"),
        ("sva", "topk"),
        ("sva", "kl"),
    ]
    assert json.loads(Path("measured.json").read_text()) == records
    assert all(record["n_edges"] <= 50 for record in records)


def test_a_result_has_one_verdict_and_its_notes_wherever_it_is_shown(run: Run, tmp_path: Path) -> None:
    write_prompts(tmp_path / "own.jsonl", 60)
    lines = (tmp_path / "own.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "seen.jsonl").write_text("".join(lines[:20]))
    run("discover", "--task", "seen.jsonl", "--method", "eap", "--top", "1200", "--save", "c.safetensors")
    asked = ("measure", "--circuit", "c.safetensors", "--metric", "kl", "--store", "store", "--quiet")
    shown = run(*asked, "--task", "seen.jsonl").stdout
    (record,) = json.loads(run(*asked, "--task", "seen.jsonl", "--json").stdout)
    assert (record["status"], record["verdict"]["reason"]) == ("inconclusive", "same_prompts")
    listed = json.loads(run("store", "ls", "--store", "store", "--json").stdout)
    assert "inconclusive" in json.dumps(listed)
    assert '"pass"' not in json.dumps(listed)
    for page in (shown, run("show", record["hash"], "--store", "store").stdout):
        assert "inconclusive found on these examples" in " ".join(page.split())
    shown = run(*asked, "--task", "own.jsonl").stdout
    (record,) = json.loads(run(*asked, "--task", "own.jsonl", "--json").stdout)
    note = "20 of the 60 prompts of 'own' are skipped, because the circuit was found on them"
    assert record["notes"] == [note]
    for page in (shown, run("show", record["hash"], "--store", "store").stdout):
        assert f"{note}." in " ".join(page.split())


@pytest.mark.parametrize("kind", LISTED)
def test_list_knows_every_kind(run: Run, kind: str) -> None:
    entries = json.loads(run("list", kind, "--json").stdout)
    table = run("list", kind).stdout
    assert entries
    assert all(entry["key"] in table for entry in entries)


# ---- where options come from --------------------------------------------------------------------


def settings_of(*arguments: str) -> Any:
    return app.parse_args(list(arguments), exit_on_error=False)[1].arguments["settings"]


def test_the_command_line_wins_over_variables_and_they_over_the_file(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a.toml").write_text("[audit]\nn = 5\nsteps = 2\n[report]\nsave = 'x.html'\n")
    given = ("audit", "--config", "a.toml")
    assert (settings_of(*given).n, settings_of(*given).steps) == (5, 2)
    monkeypatch.setenv("ASSAY_N", "7")
    assert settings_of(*given).n == 7
    assert settings_of(*given, "--n", "9").n == 9
    monkeypatch.setenv("ASSAY_TASK", "ioo")
    assert run(*given).exit_code == 2
    assert settings_of("store", "ls", "--limit", "3").task is None  # a filter, not what is computed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[audit]\nstepps = 1", 'Unknown option: "[stepps]" from a.toml. Did you mean --steps?'),
        ("[audit]\nsteps = ", "error: cannot read a.toml: TOMLDecodeError: Invalid value"),
        (
            "[audit]\nsteps = 'many'",
            "for [steps]: 'many' is not valid; give a count of at least 1, or auto (from a.toml)",
        ),
        ("[audit]\nn = 0", 'Invalid value "0" for [n] provided by a.toml. Must be >= 1.'),
        ("[audits]\nn = 4", "error: unknown command in a.toml 'audits'; did you mean 'audit'"),
        ("n = 4", "error: a.toml sets 'n' outside a table; put [audit] above it"),
    ],
)
def test_a_bad_file_is_wrong_usage(run: Run, content: str, message: str) -> None:
    Path("a.toml").write_text(content)
    result = run("audit", "--config", "a.toml")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_a_table_of_a_command_below_another_holds_for_it_alone(run: Run) -> None:
    Path("a.toml").write_text("[zoo.list]\njson = true\n")
    assert json.loads(run("zoo", "list", "--config", "a.toml").stdout)["name"] == "shapes"
    assert not run("list", "models", "--config", "a.toml").stdout.startswith("[")


def test_values_are_taken_as_they_are_typed() -> None:
    assert settings_of("rank", "--images", "[a].npz", "--images", '["b"]').images == (
        Path("[a].npz"),
        Path('["b"]'),
    )
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

    settings = OfCircuit(n=7, steps=3, device="cpu")
    # Neither `model` nor `device` is passed on as it was typed: a command loads the one on the other.
    assert keywords(settings, function, top=5) == {"n": 7, "steps": 3, "top": 5}


@pytest.mark.parametrize(
    ("function", "settings", "named"),
    [
        ("pipeline:runs_of", "app.settings:OfCircuit", "objective ablation top store progress"),
        ("pipeline:sizes", "app.cli.attack:AttackSettings", ""),
        ("pipeline:with_findings", "app.cli.attack:AttackSettings", "explained words progress"),
        ("pipeline:draw_prompts", "app.cli.calibrate:CalibrateSettings", ""),
        ("pipeline:prompts_to_measure", "app.cli.calibrate:CalibrateSettings", "drawn circuit"),
        ("pipeline.inputs:read_inputs", "app.cli.discover:DiscoverSettings", ""),
        (
            "pipeline.subset_data:read_data",
            "app.cli.select:SelectSettings",
            "at_least device folder progress",
        ),
    ],
)
def test_every_keyword_of_a_function_is_an_option_or_named_by_the_command(
    function: str, settings: str, named: str
) -> None:
    called, options = (
        getattr(importlib.import_module(f"assay.{module}"), name)
        for module, name in (each.split(":") for each in (function, settings))
    )
    asked = {each.name for each in signature(called).parameters.values() if each.kind is each.KEYWORD_ONLY}
    assert asked - set(named.split()) <= {each.name for each in fields(options)}


def test_a_model_computes_with_the_numbers_asked_for(run: Run) -> None:
    given = ("measure", *SMALL, "--circuit", "a2.h3", "--metric", "kl", "--json", "--quiet")
    found = {}
    for dtype in ("auto", "float64"):
        (record,) = json.loads(run(*given, "--dtype", dtype).stdout)
        found[record["provenance"]["model"]["dtype"]] = record["hash"]
    assert found.keys() == {"float32", "float64"}
    assert len({*found.values()}) == 2
    assert "bfloat16" in run(*given, "--dtype", "int8").stderr


# ---- help ---------------------------------------------------------------------------------------


COMMANDS = {" ".join(words): each for words, each in every_command(app)}


def test_the_overview_shows_every_command_whole_and_in_its_group(run: Run) -> None:
    page = " ".join(run("--help").stdout.split())
    for name, each in COMMANDS.items():
        first = each.help.splitlines()[0]
        assert len(first) < 60
        assert " " in name or f"{name} {first}" in page, name
    places = [page.index(f" {group} ") for group in ("Circuits", "Trust", "Image", "Subsets", "Store")]
    assert places == sorted(places)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_page_is_short_and_its_example_parses(name: str, run: Run) -> None:
    command, words = COMMANDS[name], name.split()
    page, whole = run(*words, "--help").stdout, run(*words, HELP_ALL).stdout
    options = [each for each in command.assemble_argument_collection(parse_docstring=True) if each.show]
    assert all(each.parameter.help for each in options)
    usual = [each for each in options if not isinstance(each.parameter.group[0], RareGroup)]
    assert len(usual) <= (34 if name == "select" else 25)
    assert all(each.name in page for each in usual)
    assert all(each.name in whole for each in options)
    assert ("--traceback" in page, "--traceback" in whole) == (False, True)
    program, *example = shlex.split(page.partition("Example:")[2])
    function, *_ = app.parse_args(example, exit_on_error=False)
    assert (program, function) == ("assay", command.default_command)


def test_completion_knows_commands_and_options() -> None:
    script = app.generate_completion(shell="bash")
    assert "discover" in script
    assert "--metric" in script
    assert "--dtype" in script  # one of the rarer options


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("audit", "--task", "iio"), 2, "error: unknown task 'iio'; did you mean 'ioi'"),
        (("audit", "--method", "epa"), 2, "error: unknown method 'epa'; did you mean 'eap'"),
        (
            ("discover", "--ablation", "resampel"),
            2,
            "error: unknown ablation 'resampel'; did you mean 'resample'",
        ),
        (("measure", "--metric", "top-k"), 2, "error: unknown metric 'top-k'; did you mean 'topk'"),
        (("discover", "--n", "4", "--top", "100000"), 2, "cannot keep 100000 edges: this graph has 1519"),
        (("discover", "--top", "5", "--greedy", "5"), 2, "give one of them"),
        (("audit", "--model", "./nowhere"), 1, "error: cannot load './nowhere'"),
        (("measure", "--circuit", "none.safetensors"), 1, "error: none.safetensors does not exist"),
        (("show", "abc"), 2, "nothing was stored there yet"),
        (("audit", "--device", "cuda:977"), 2, "error: device 'cuda:977' does not exist: PyTorch"),
        (("audit", "--revision", "v1"), 2, "error: revision applies only to ids of the Hugging Face Hub"),
        (("audit", "--steps", "0"), 2, "'0' is not valid; give a count of at least 1, or auto"),
        (("audits",), 2, 'error: Unknown command "audits". Did you mean "audit"?'),
        (("audit", "--modle", "mini"), 2, "error: Unknown option: --modle. Did you mean --model?"),
        (("audit", "--n", "0"), 2, 'error: Invalid value "0" for --n. Must be >= 1.'),
        (("audit", "--n", "2.5"), 2, 'error: Invalid value for --n: unable to convert "2.5" into int.'),
        (("audit", "--n", "4", "--n", "5"), 2, "error: Parameter --n specified multiple times."),
        (("audit", "ioi"), 2, "error: Unused Tokens: ['ioi']."),
        (("zoo", "train", "quick"), 2, 'error: Command "zoo train" parameter --out requires an argument.'),
        (("audit", "--model", "a" * 5000), 2, "error: file name too long: aaa"),
    ],
)
def test_errors_are_one_message_and_an_exit_code(
    run: Run, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("show",), 2), (("audit", "--task", "iio"), 2), (("audit", "--model", "./x"), 1)],
)
def test_an_error_is_a_document_where_json_is_asked_for(
    run: Run, arguments: tuple[str, ...], code: int
) -> None:
    result = run(*arguments, "--json")
    document = json.loads(result.stdout)
    assert document["code"] == result.exit_code == code
    assert result.stderr == f"error: {document['error']}\n"


def test_a_traceback_is_shown_on_request(run: Run) -> None:
    with pytest.raises(ValueError, match="unknown task 'iio'"):
        run("audit", "--task", "iio", "--traceback")


@pytest.mark.parametrize(
    "verb", [("audit", "--out", "file/out"), ("discover", "--save", "file/c.safetensors")]
)
def test_an_unwritable_place_is_refused_before_the_work(
    run: Run, verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").write_text("mine")
    monkeypatch.setattr("assay.models.load_model", lambda *args, **kwargs: pytest.fail("a model was loaded"))
    result = run(*verb)
    assert result.exit_code == 1
    assert "error: cannot write to file" in result.stderr
    assert Path("file").read_text() == "mine"


@pytest.mark.parametrize(
    "arguments",
    [
        ("audit", "--model", "./nowhere", "--out", "new"),
        ("audit", "--task", "none.jsonl", "--out", "new"),
        ("discover", "--model", "./nowhere", "--store", "new", "--save", "a/c.safetensors"),
        ("discover", "--task", "none.jsonl", "--store", "new"),
        ("measure", "--model", "./nowhere", "--store", "new"),
        ("measure", "--task", "none.jsonl", "--store", "new"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_loaded_leaves_nothing_behind(
    run: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert run(*arguments).exit_code in (1, 2)
    assert list(tmp_path.iterdir()) == []


# ---- the process --------------------------------------------------------------------------------


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
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (130, "Interrupted. Run the same command again to resume.\n")


def test_json_on_stdout_is_alone_there_and_quiet_means_quiet(run: Run) -> None:
    done = run("discover", *SMALL, "--json")
    json.loads(done.stdout)
    assert done.stderr.split() == ["load", "...", "discover", "..."]
    assert run("discover", *SMALL, "--json", "--quiet").stderr == ""


def test_a_reader_that_stops_reading_ends_the_command_quietly(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "assay", "list", "tasks", "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.slow
def test_a_terminal_that_lacks_signs_shows_the_others(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "assay", "measure", "--n", "8", "--top", "20", "--metric", "kl"]
    place = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=place, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.isascii()
    assert b"95?%" in done.stdout or b"95 % interval" in done.stdout

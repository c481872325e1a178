import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import invoke
from cyclopts import App
from PIL import Image

from assay.app.cli import app
from assay.app.options import OfCircuit
from assay.app.running import Placed, keywords
from assay.models import load_model
from assay.tasks import draw_shapes, load_task
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
    from assay.report import verdict

    assert " ".join(verdict(document).split()) in " ".join(result.stdout.split())
    for title in ("Every number", "What was not run", "How it was made"):
        assert f"\n{title}\n" in result.stdout
    assert "faithfulness norm" in result.stdout
    said = " ".join(result.stdout.split())
    assert re.search(r"Strongest heads of the circuit, by summed outgoing attribution: a\d\.h\d \(", said)
    worst = document["worst_case"]["worst"][0]
    assert f"Worst pair: “{worst['clean']['text']}” with the corrupted prompt “" in said
    assert "With confidence, C11 bootstrap stability " in said
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


def test_report_builds_the_same_page_again(audited: Path, run: Run, tmp_path: Path) -> None:
    result = run("report", "--store", str(audited / "out"), "--save", str(tmp_path / "again.html"))
    assert result.exit_code == 0
    assert (tmp_path / "again.html").read_bytes() == (audited / "out" / "report.html").read_bytes()


def test_report_takes_every_stored_id_and_the_circuit_of_the_footer(
    audited: Path, run: Run, tmp_path: Path
) -> None:
    store = ("--store", str(audited / "out"))
    (scores,) = json.loads(run("store", "ls", "--kind", "scores", *store, "--json").stdout)
    assert run("report", scores["id"], *store, "--save", str(tmp_path / "scores.html")).exit_code == 0
    assert scores["id"] in (tmp_path / "scores.html").read_text()
    (audit,) = json.loads(run("store", "ls", "--kind", "audit", *store, "--json").stdout)
    assert audit["id"] in run("show", audit["circuit"], *store).stdout
    assert run("report", audit["circuit"], *store, "--save", str(tmp_path / "c.html")).exit_code == 0
    assert f"<code>{audit['circuit']}</code>" in (tmp_path / "c.html").read_text()


def test_discover_saves_a_circuit_that_a_new_process_runs_identically(run: Run, tmp_path: Path) -> None:
    result = run("discover", *SMALL, "--top", "60", "--save", "c.safetensors", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["circuit"]["n_edges"] == len(document["circuit"]["edges"]) <= 60
    code = (
        "import assay, torch, sys\n"
        "torch.set_num_threads(1)\n"
        "model = assay.load_model('mini')\n"
        "task = assay.load_task('ioi', model, n=8)\n"
        "circuit = assay.load_circuit('c.safetensors', model.graph)\n"
        "torch.save(assay.run_circuit(model, task, circuit), 'logits.pt')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    from assay import load_circuit, load_model, load_task, run_circuit

    model = load_model("mini")
    circuit = load_circuit(tmp_path / "c.safetensors", model.graph)
    here = run_circuit(model, load_task("ioi", model, n=8), circuit)
    assert torch.equal(torch.load(tmp_path / "logits.pt"), here)


@pytest.mark.parametrize("choice", [("--threshold", "0.01"), ("--greedy", "30"), ()])
def test_discover_chooses_in_other_ways_too(run: Run, tmp_path: Path, choice: tuple[str, ...]) -> None:
    result = run("discover", *SMALL, *choice, "--scores-out", "s.safetensors")
    assert result.exit_code == 0
    assert re.match(r"[\d,]+ of 1,519 edges \(", result.stdout)
    assert (tmp_path / "s.safetensors").is_file()


def test_a_broken_image_stops_discover_unless_it_is_to_be_skipped(run: Run, tmp_path: Path) -> None:
    for place, pixels in enumerate(draw_shapes("flat", 6).pixels):
        Image.fromarray(pixels).save(tmp_path / f"{place}.png")
    (tmp_path / "2.png").write_bytes((tmp_path / "2.png").read_bytes()[:80])
    zoo = Zoo.embedded()
    arguments = ("discover", "--model", str(zoo.folder(zoo.keys[0])), "--images", ".", "--steps", "1")
    refused = run(*arguments, "--save", "c.safetensors")
    assert refused.exit_code == 1
    assert re.search(r"2\.png cannot be decoded.*--skip-bad", refused.stderr)
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


def own_lines(path: Path, n: int, **fields: list[str]) -> None:
    """A file of `n` different prompts."""
    task = load_task("ioi", load_model("mini"), n=3 * n + 40)
    names = (task.fields["IO"], task.fields["S"])
    rows = zip(task.texts or (), task.corrupted_texts or (), *names, strict=True)
    distinct = {clean: (corrupted, right, wrong) for clean, corrupted, right, wrong in rows}
    lines = [
        {"clean": clean, "corrupted": corrupted, "answers": [f" {right}"], "wrong": [f" {wrong}"]}
        | {name: values[row] for name, values in fields.items()}
        for row, (clean, (corrupted, right, wrong)) in enumerate(sorted(distinct.items())[:n])
    ]
    assert len(lines) == n
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_measure_halves_a_file_before_it_takes_as_many_as_asked_for(run: Run, tmp_path: Path) -> None:
    own_lines(tmp_path / "own.jsonl", 200)
    values = []
    for seed in ("3", "0"):
        asked = ("--task", "own.jsonl", "--n", "30", "--seed", seed, "--steps", "1", "--top", "40")
        result = run("measure", *asked, "--metric", "kl", "--json")
        assert result.exit_code == 0
        assert "found on" not in result.stderr
        (record,) = json.loads(result.stdout)
        assert record["n"] == 30
        assert "same_prompts" not in (record["warnings"] or ())
        values.append(record["provenance"]["task"]["data_hash"])
    assert values[0] != values[1]


def test_measure_marks_a_circuit_found_on_the_same_prompts(run: Run, tmp_path: Path) -> None:
    own_lines(tmp_path / "own.jsonl", 12)
    asked = ("--task", "own.jsonl", "--steps", "1", "--top", "40", "--metric", "faithfulness")
    result = run("measure", *asked, "--json", "--save", "measured.json")
    assert "measured on the prompts that it was found on" in result.stderr
    (record,) = json.loads(result.stdout)
    assert "same_prompts" in record["warnings"]
    assert record["status"] in ("inconclusive", "none")
    assert json.loads(Path("measured.json").read_text()) == [record]


def test_a_result_has_one_verdict_and_its_notes_wherever_it_is_shown(run: Run, tmp_path: Path) -> None:
    own_lines(tmp_path / "own.jsonl", 60)
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


def test_measure_takes_the_lines_of_a_file_that_are_for_it(run: Run, tmp_path: Path) -> None:
    own_lines(tmp_path / "own.jsonl", 12, split=["discover", "measure", "discover"] * 4)
    asked = ("--task", "own.jsonl", "--circuit", "a2.h3", "--metric", "kl", "--seed", "5", "--json")
    (record,) = json.loads(run("measure", *asked, "--quiet").stdout)
    assert record["n"] == 4


def test_measure_takes_a_circuit_file(run: Run) -> None:
    run("discover", *SMALL, "--top", "60", "--save", "c.safetensors")
    result = run("measure", *SMALL, "--circuit", "c.safetensors", "--metric", "kl")
    assert result.exit_code == 0
    assert re.search(r"^kl D03\.kl +[\d.]+", result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    "kind",
    [
        "methods",
        "metrics",
        "tasks",
        "ablations",
        "objectives",
        "divergences",
        "gates",
        "head-methods",
        "interventions",
        "models",
    ],
)
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[audit]\nstepps = 1", 'Unknown option: "[stepps]" from a.toml. Did you mean --steps?'),
        ("[audit]\nsteps = ", "error: cannot read a.toml: TOMLDecodeError: Invalid value"),
        (
            "[audit]\nsteps = 'many'",
            "--steps: 'many' is not valid; give a count of at least 1, or auto (from a.toml)",
        ),
        ("[audit]\nn = 0", 'Invalid value "0" for --n provided by a.toml. Must be >= 1.'),
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


def test_of_an_option_given_twice_the_last_value_counts(run: Run) -> None:
    found = run("discover", "--n=3", *SMALL, "--json", "--json", "--n", "5")
    assert json.loads(found.stdout)["provenance"]["task"]["n"] == 5


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
        ("pipeline:runs_of", "app.options:OfCircuit", "objective ablation top store progress"),
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


def test_the_output_directory_holds_every_file_under_its_usual_name(run: Run) -> None:
    assert run("discover", *SMALL, "--top", "40", "--out", "new", "--quiet").exit_code == 0
    assert {path.name for path in Path("new").iterdir()} == {"circuit.safetensors", "scores.safetensors"}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
def test_another_batch_size_changes_no_more_than_rounding(run: Run, dtype: str, tolerance: float) -> None:
    """As docs/howto/own-model.md says."""
    values = []
    for size in ("3", "12"):
        found = run(
            "measure", "--circuit", "a3.h4,a3.h6", "--n", "12", "--dtype", dtype, "--batch-size", size,
            "--metric", "faithfulness", "--metric", "kl", "--store", size, "--json",
        )  # fmt: skip
        values.append([each["value"] for each in json.loads(found.stdout)])
    assert values[0] == pytest.approx(values[1], rel=tolerance, abs=tolerance)


# ---- help ---------------------------------------------------------------------------------------


def commands(family: App, *names: str) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command and family of commands, by the words that call it."""
    for name, each in family.resolved_commands().items():
        if not name.startswith("-"):
            yield (*names, name), each
            yield from commands(each, *names, name)


def test_the_overview_shows_every_command_whole_and_in_its_group(run: Run) -> None:
    lines = [line.rstrip() for line in run("--help").stdout.splitlines()]
    for words, each in commands(app):
        first = each.help.splitlines()[0]
        assert len(first) < 60
        if len(words) == 1:
            assert any(
                line.strip("\N{BOX DRAWINGS LIGHT VERTICAL} ").split() == [*words, *first.split()]
                for line in lines
            ), words
    headings = [
        line.split(" ")[1] for line in lines if line.startswith("\N{BOX DRAWINGS LIGHT ARC DOWN AND RIGHT}")
    ]
    assert headings == ["Options", "Circuits", "Trust", "Image", "Subsets", "Store"]


def test_every_help_page_has_groups_texts_and_an_example_that_parses(run: Run) -> None:
    for words, each in commands(app):
        if each.default_command is None:
            continue
        page = run(*words, "--help").stdout
        assert "Running" in page
        first, *example = shlex.split(page[page.index("Example:") + len("Example:") :])
        assert first == "assay"
        function, *_ = app.parse_args(example, exit_on_error=False)
        assert function is each.default_command
        for argument in each.assemble_argument_collection(parse_docstring=True):
            assert argument.parameter.help or not argument.show, f"{words} {argument.name}"


def test_each_option_of_select_is_explained_in_under_80_characters() -> None:
    for words, each in commands(app):
        if words[0] == "select" and each.default_command is not None:
            for argument in each.assemble_argument_collection(parse_docstring=True):
                assert len(argument.parameter.help or "") < 80, f"{words} {argument.name}"


def test_the_help_of_n_says_whether_it_counts_a_half_or_all() -> None:
    helped = {
        " ".join(words): argument.parameter.help
        for words, each in commands(app)
        if each.default_command is not None
        for argument in each.assemble_argument_collection(parse_docstring=True)
        if argument.name == "--n"
    }
    assert {"audit", "discover", "measure", "attack", "zoo train", "monitor"} <= helped.keys()
    for name, text in helped.items():
        assert re.search("in total|in each half|of each sample", text or ""), name


def test_completion_knows_commands_and_options() -> None:
    script = app.generate_completion(shell="bash")
    assert "discover" in script
    assert "--metric" in script


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
        (("list", "method"), 2, "error: unknown kind 'method'; did you mean 'methods'"),
        (("discover", "--n", "4", "--top", "0"), 2, "cannot keep 0 edges"),
        (("discover", "--n", "4", "--top", "100000"), 2, "cannot keep 100000 edges: this graph has 1519"),
        (("discover", "--top", "5", "--greedy", "5"), 2, "give one of them"),
        (("audit", "--target", "2"), 2, "error: target is 2.0"),
        (("audit", "--n", "0"), 2, 'error: Invalid value "0" for --n. Must be >= 1.'),
        (("audit", "--model", "./nowhere"), 1, "error: cannot load './nowhere'"),
        (("measure", "--circuit", "none.safetensors"), 1, "error: none.safetensors does not exist"),
        (("report",), 2, "nothing was stored there yet"),
        (("show", "abc"), 2, "nothing was stored there yet"),
        (("audit", "--device", "cuda:977"), 2, "error: device 'cuda:977' does not exist: PyTorch"),
        (("discover", "--device", "gpu"), 2, "here has cpu"),
        (("measure", "--device", "cpuu"), 2, "error: device 'cpuu' does not exist"),
        (("audit", "--revision", "v1"), 2, "error: revision applies only to ids of the Hugging Face Hub"),
        (("benchmark", "discovery", "--revision", "v1"), 2, "error: revision applies only to ids of the"),
        (("discover", "--model", "no-such/model"), 1, "error: cannot load 'no-such/model'"),
        (("audit", "--steps", "0"), 2, "'0' is not valid; give a count of at least 1, or auto"),
        (("audit", "--frobnicate"), 2, "--frobnicate"),
        (
            ("audits",),
            2,
            'error: Unknown command "audits". Did you mean "audit"? Available commands: attack',
        ),
        (
            ("store", "compare"),
            2,
            'Unknown command "compare". Available commands: show, ls, rm, merge',
        ),
        (("audit", "--modle", "mini"), 2, "error: Unknown option: --modle. Did you mean --model?"),
        (("audit", "--model"), 2, "error: --model needs a value"),
        (("audit", "--n", "2.5"), 2, 'error: Invalid value for --n: unable to convert "2.5" into int.'),
        (("audit", "ioi"), 2, "error: unexpected argument 'ioi'"),
        (("zoo", "train", "shapes-quick"), 2, "error: `assay zoo train` needs --out"),
        (("audit", "--edges", "5"), 2, "error: Unknown option: --edges."),
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


def test_outputs_may_lie_in_directories_that_do_not_exist(run: Run) -> None:
    arguments = ("--top", "40", "--save", "a/c.safetensors", "--scores-out", "b/s.safetensors")
    assert run("discover", *SMALL, *arguments).exit_code == 0
    measured = ("--circuit", "a/c.safetensors", "--metric", "kl", "--save", "c/m.json")
    assert run("measure", *SMALL, *measured).exit_code == 0
    assert Path("b/s.safetensors").is_file()
    assert json.loads(Path("c/m.json").read_text())


def test_steps_can_be_left_to_the_method(run: Run) -> None:
    result = run("discover", "--n", "8", "--steps", "auto", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["details"]["steps"] in (3, 9)


def test_a_circuit_of_another_model_is_refused(run: Run) -> None:
    from assay.circuits import Circuit
    from assay.graph import build_graph

    Circuit.full(build_graph(2, 2)).save(Path("other.safetensors"))
    result = run("measure", "--circuit", "other.safetensors")
    assert result.exit_code == 2
    assert "belongs to another model" in result.stderr


# ---- the process --------------------------------------------------------------------------------


def test_an_interrupted_command_does_not_wait_for_its_threads(tmp_path: Path) -> None:
    """A thread may be at one part of a job for minutes, and Ctrl-C looked as if nothing had happened."""
    code = """
import inspect, threading
from assay.app.cli import parsing
def command():
    threading.Thread(target=threading.Event().wait).start()
    raise KeyboardInterrupt
parsing._parse = lambda arguments: (command, inspect.signature(command).bind())
parsing.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (130, "Interrupted. Run the same command again to resume.\n")


def process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = "from assay.app.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def test_json_on_stdout_is_alone_there_and_quiet_means_quiet(run: Run, tmp_path: Path) -> None:
    done = run("discover", *SMALL, "--json")
    json.loads(done.stdout)
    assert done.stderr.split() == ["load", "...", "discover", "..."]
    done = process("discover", *SMALL, "--json", "--quiet", cwd=tmp_path)
    assert done.returncode == 0
    json.loads(done.stdout)
    assert done.stderr == ""


def test_a_reader_that_stops_reading_ends_the_command_quietly(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "assay", "list", "tasks", "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "assay", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "assay"), done.stderr


def test_the_process_ends_with_the_documented_codes(tmp_path: Path) -> None:
    assert process("--version", cwd=tmp_path).stdout.startswith("assay ")
    wrong = process("audit", "--task", "nothing-like-it", cwd=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: unknown task")
    assert wrong.stdout == ""


@pytest.mark.slow
def test_a_terminal_that_lacks_signs_shows_the_others(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "assay", "measure", "--n", "8", "--top", "20", "--metric", "kl"]
    place = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=place, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.isascii()
    assert b"95?%" in done.stdout or b"95 % interval" in done.stdout
    done = subprocess.run(
        [*command, "--json", "--quiet"], env=place, cwd=tmp_path, capture_output=True, check=False
    )
    assert done.stderr == b""
    (record,) = json.loads(done.stdout.decode("ascii"))
    assert record["name"] == "kl"

"""Locks of circuits, and checks of models against them."""

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
import yaml
from command_line import invoke
from report.synthetic_store import made_audit
from scipy import stats as scipy_stats
from small_models import build
from type_checks import no_type_checks

import assay
from assay.core.errors import AssayError, InputError
from assay.core.random import stream
from assay.pipeline.check import ALPHA, SequentialCheck, look_sizes, part_p_values, solved_p_values
from assay.pipeline.lock import CircuitPart, LockedCircuit, Observed, _toml, fresh_prompts, lock_error
from assay.pipeline.prompts import draw_prompts
from assay.tasks.examples import describe_discovery


PAGE = Path(__file__).parents[2] / "docs" / "howto" / "check.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an audit of `mini`, its lock, and `mini` without a head of the circuit."""
    path = tmp_path_factory.mktemp("locked")
    with no_type_checks():
        made_audit().save(path / "audit")
        assay.lock("mini", [path / "audit"], path / "circuits.lock.toml", n=100)
    model = assay.load_model("mini")
    with torch.no_grad():
        model.module.transformer.h[3].attn.c_proj.weight[4 * 20 : 5 * 20] = 0
    model.module.save_pretrained(path / "checkpoint")
    model.tokenizer.save_pretrained(path / "checkpoint")
    return path


def run(*arguments: object) -> Any:
    with no_type_checks():
        return invoke(*arguments, "--quiet")


# ---- the commands -------------------------------------------------------------------------------


def test_a_model_keeps_its_own_circuit(folder: Path) -> None:
    outcome = run("check", folder / "circuits.lock.toml", "--out", folder / "kept", "--gate", "--json")
    assert outcome.exit_code == 0, outcome.output
    document = json.loads(outcome.stdout)
    assert document == json.loads((folder / "kept" / "check.json").read_text())
    (line,) = document["circuits"]
    assert (line["verdict"], line["accuracy"]) == ("kept", 1.0)
    assert line["n"] <= 200
    assert "The weights are those of the locked model." in (folder / "kept" / "report.html").read_text()
    frame = assay.check("mini", folder / "circuits.lock.toml").to_frame()
    assert frame["part"][0] == "faithfulness-norm"
    assert {"a3.h4", "a0.h3"} < {*frame["part"]}
    assert (frame["now"] > frame["threshold"]).all()


def test_the_workflow_of_the_page_stops_a_model_without_a_head(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(folder)
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (job,) = yaml.safe_load(text)["jobs"].values()
    commands = [shlex.split(step["run"]) for step in job["steps"] if step.get("run", "").startswith("assay ")]
    ((_, *words),) = commands
    assert run(*words).exit_code == 3
    (case,) = ET.parse("check.xml").getroot()
    assert case.attrib["name"] == "ioi"
    assert case[0].tag == "failure"
    assert "a3.h4 is 0.00 [0.00, 0.00]" in case[0].attrib["message"]
    assert "ioi is lost." in Path("check.html").read_text()
    assert run(*[word.replace("checkpoint", "mini") for word in words]).exit_code == 0


# ---- bad input ----------------------------------------------------------------------------------


REFUSED = {
    "margin": (("margin = 0.05", "margin = 2.0"), "margin of faithfulness-norm of circuit 'ioi' is 2"),
    "circuit": (('\nhash = "', '\nhash = "0'), "holds circuit"),
    "file": (("lock/ioi", "lock/gone"), "does not exist"),
    "place": (("circuits.lock/", "../circuits.lock/"), "outside its own folder"),
    "prompts": (('task = "ioi"', 'prompts_hash = "0"\ntask = "prompts.toml"'), "changed since it was locked"),
    "field": (("n_edges", "edges"), "n_edges"),
    "text": (("[model]", "[model"), "is not a lock by `assay lock`"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_damaged_lock_is_refused_by_name(fault: str, folder: Path) -> None:
    change, message = REFUSED[fault]
    text = (folder / "circuits.lock.toml").read_text()
    assert change[0] in text
    path = folder / f"{fault}.toml"
    path.write_text(text.replace(*change, 1))
    with pytest.raises(AssayError, match=message):
        assay.check("mini", path)


def test_another_graph_is_refused_with_what_could_be_mapped(folder: Path) -> None:
    model = assay.load_model(build("gpt2"))
    with pytest.raises(InputError, match=r"exist there: none; others: ioi \(no .*->.*\)\. Audit"):
        assay.check(model, folder / "circuits.lock.toml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('held_out": true', 'held_out": false'), "found and measured its circuit on the same prompts"),
        (("generator_version", "version"), "which is not in the working directory"),
        (('"weight_hash": "5', '"weight_hash": "0'), "is an audit of a model with weights 0"),
        (("assay-audit/1", "assay-audit/9"), "this version reads 'assay-audit/1'"),
    ],
)
def test_what_cannot_be_locked(change: tuple[str, str], message: str, folder: Path, tmp_path: Path) -> None:
    text = (folder / "audit" / "audit.json").read_text()
    assert change[0] in text
    (tmp_path / "audit.json").write_text(text.replace(*change))
    with pytest.raises(AssayError, match=message):
        assay.lock("mini", [tmp_path], tmp_path / "a.toml")


def test_margins_and_metrics_that_cannot_be_locked(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    with pytest.raises(InputError, match="is 2, but its value is 0.9"):
        assay.lock("mini", [folder / "audit"], path, n=25, margin=2.0)
    with pytest.raises(InputError, match="kl is not a mean or a ratio of sums of which more is better"):
        assay.lock("mini", [folder / "audit"], path, n=25, metric="kl")
    assert not path.exists()


def test_names_of_tasks_are_not_paths(folder: Path, tmp_path: Path) -> None:
    text = (folder / "audit" / "audit.json").read_text()
    (tmp_path / "audit.json").write_text(text.replace('"name": "ioi"', '"name": "../up: 1"', 1))
    (tmp_path / "circuit.safetensors").write_bytes((folder / "audit" / "circuit.safetensors").read_bytes())
    (line,) = assay.lock("mini", [tmp_path], tmp_path / "a.toml", n=25).circuits
    assert line.file == "a/up-1.safetensors"
    assert (tmp_path / line.file).is_file()


# ---- prompts ------------------------------------------------------------------------------------


def test_prompts_are_fresh_ones(tmp_path: Path) -> None:
    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=100, seed=5)
    pairs = dict(zip(task.texts, task.corrupted_texts, strict=True))
    rows = [
        {"clean": clean, "corrupted": other, "answers": [" Kelly"], "wrong": [" Lisa"]}
        for clean, other in pairs.items()
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    draws = draw_prompts(model, str(tmp_path / "own.jsonl"), n=None, seed=0)
    circuit = assay.discover(model, draws.discovery, "eap").top(40)
    circuit = assay.Circuit(
        graph=circuit.graph, mask=circuit.mask, provenance={"task": describe_discovery(draws.discovery)}
    )
    facts = {
        "name": "own",
        "file": "",
        "hash": "",
        "n_edges": 40,
        "objective": "logit_diff",
        "ablation": "resample",
    }
    of_file = LockedCircuit(**facts, task="own.jsonl", draws=(), n=40, parts=())
    fresh = fresh_prompts(model, circuit, of_file, tmp_path, n=400, seed=3)
    assert {*fresh.ids.tolist()} == {*draws.measured.ids.tolist()}
    drawn = LockedCircuit(**facts, task="ioi", draws=((0, 120), (1, 100)), n=40, parts=())
    fresh = fresh_prompts(model, circuit, drawn, tmp_path, n=100, seed=1)
    earlier = [
        text for seed, n in drawn.draws for text in assay.load_task("ioi", model, n=n, seed=seed).texts
    ]
    assert len({*fresh.texts}) == fresh.n == 100
    assert not {*fresh.texts} & {*earlier}


def test_a_lock_on_a_file_holds_for_its_prompts(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=60, seed=5)
    names = [[model.tokenizer.decode(row[0]) for row in each] for each in (task.answers, task.wrong)]
    keys = ("clean", "corrupted", "answers", "wrong")
    rows = [
        dict(zip(keys, row, strict=True))
        for row in zip(task.texts, task.corrupted_texts, *names, strict=True)
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    audit = json.loads((folder / "audit" / "audit.json").read_text())
    audit["provenance"]["record"]["measured"]["config"] = {"file": "own.jsonl"}
    shutil.copytree(folder / "audit", tmp_path / "audit")
    (tmp_path / "audit" / "audit.json").write_text(json.dumps(audit))
    monkeypatch.chdir(tmp_path)
    with no_type_checks():
        assay.lock(model, ["audit"], "sub/a.toml")
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
        assert assay.check(model, "sub/a.toml").circuits[0].verdict == "kept"
    file.write_text("\n".join(map(json.dumps, rows[1:])))
    with pytest.raises(AssayError, match="own.jsonl has changed since it was locked"):
        assay.check(model, "sub/a.toml")
    file.unlink()
    with pytest.raises(AssayError, match=r"cannot read the prompts .*own.jsonl: No such file"):
        assay.check(model, "sub/a.toml")


def test_a_document_becomes_toml_and_comes_back() -> None:
    document = {
        "a": 'quote " \\ \n é \x7f',
        "b": [[0, 120], [1, 2]],
        "c": 1e-7,
        "d": True,
        "e": {"f": 1, "g": {"h": "x", "of a.b": 2}, "ä b": {"c": 3, "": 4, "\x7f": 5}},
    }
    document |= {"rows": [{"x": 1.5, "of": [{"y": 2}, {"y": 3}]}, {"x": 2.0, "of": []}]}
    assert tomllib.loads(_toml(document | {"none": None})) == document


# ---- the test -----------------------------------------------------------------------------------


def part(value: float = 0.9, margin: float = 0.1, error: float = 0.0, name: str = "value") -> CircuitPart:
    return CircuitPart(name=name, value=value, low=value, high=value, error=error, margin=margin)


def seen(top: np.ndarray, bottom: np.ndarray, full: np.ndarray) -> Observed:
    return Observed(
        top=top, bottom=bottom, full=full, gain=bottom[:, 0], scores=torch.zeros(1, 1), n_scored=len(full)
    )


def test_p_values_are_those_of_a_mean_of_differences() -> None:
    noise = np.linspace(-1, 1, 40)[:, None] ** 3  # no skewness: Hall's rule is Student's up to cubes
    bottom = np.full((40, 1), 2.0)
    below, above = part_p_values([part()], seen(0.9 * bottom + noise, bottom, np.ones(40)))
    t = scipy_stats.ttest_1samp(noise[:, 0] + 0.2, 0.0, alternative="less").pvalue
    assert below[0] == pytest.approx(t, rel=0.3)
    assert above[0] < 0.05
    mirrored = part_p_values([part(-0.9)], seen(-0.9 * bottom - noise, bottom, np.ones(40)))
    assert mirrored[:, 0] == pytest.approx([below[0], above[0]])
    fallen = seen(0.7 * bottom + noise, bottom, np.ones(40))
    alone, with_error = (part_p_values([part(error=error)], fallen)[0, 0] for error in (0.0, 0.1))
    assert alone < with_error < 0.5
    solved = seen(bottom[:10], bottom[:10], np.array([1.0] * 6 + [-1.0] * 4))
    assert solved_p_values(solved)[1] == pytest.approx(0.618, abs=1e-3)  # at most 6 of 10, each at 60 %


def test_looks_spend_and_lines_share_the_error() -> None:
    assert look_sizes(400) == [25, 50, 100, 200, 400]
    assert look_sizes(60) == [25, 50, 60]
    rng = stream(0, "looks")
    bottom = np.ones((30, 1))
    good, bad, between = (
        seen(value + 0.1 * rng.standard_normal((30, 1)), bottom, np.ones(30)) for value in (1, 0.5, 0.8)
    )
    test = SequentialCheck([([part()], True)] * 3, 5)
    test.look([good, bad, between])
    assert test.verdicts == ["kept", "lost", "open"]
    p_value = part_p_values([part()], bad)[0, 0]  # the smallest of nine, at one look of five
    assert test.p_values[1][0] == pytest.approx(5 * 9 * p_value)
    test.look([good, good, between])  # decided lines stay as they are
    assert test.verdicts == ["kept", "lost", "open"]
    half_right = seen(good.top, bottom, np.array([3.0] * 15 + [-1.0] * 15))
    for signed, verdict in ((True, "open"), (False, "kept")):
        alone = SequentialCheck([([part()], signed)], 5)
        alone.look([half_right])
        assert alone.verdicts == [verdict]
    wrong = seen(np.ones((30, 1)), bottom, np.array([1.0] * 5 + [-1.0] * 25))
    test.look([good, bad, wrong])
    assert test.verdicts[2] == "unsolved"


@pytest.mark.parametrize("side", ["lost", "kept"])
def test_files_at_their_limits_are_called_wrong_no_more_often_than_promised(side: str) -> None:
    """Skewed values, locks of 25 prompts; every part its margin lower, or one exactly at its threshold."""
    wrong, n = 0, 200
    for draw in range(n):
        rng = stream(draw, f"limit {side}")
        lines, now = [], []
        for _ in range(3):
            bottom = np.repeat(rng.gamma(9.0, 1 / 9, (425, 1)), 3, axis=1)
            top = bottom * 0.9 + 0.2 * (1 - rng.exponential(size=(425, 3)))
            locked = seen(top[:25], bottom[:25], np.ones(25))
            ratios = locked.top.sum(0) / locked.bottom.sum(0)
            terms = ratios + (locked.top - ratios * locked.bottom) / locked.bottom.mean(0)
            parts = [part(value, error=lock_error(value, terms[:, at])) for at, value in enumerate(ratios)]
            fallen = np.full(3, 0.1) if side == "lost" else np.array([0.9 - parts[0].threshold, 0.0, 0.0])
            lines.append((parts, False))
            now.append((top[25:] - fallen * bottom[25:], bottom[25:]))
        looks = look_sizes(400)
        test = SequentialCheck(lines, len(looks))
        for size in looks:
            test.look([seen(top[:size], bottom[:size], np.ones(size)) for top, bottom in now])
        wrong += side in test.verdicts
    assert wrong <= scipy_stats.binom.ppf(0.999, n, ALPHA)

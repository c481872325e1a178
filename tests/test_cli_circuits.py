"""Commands on circuits: the numbers of the Python functions, files, what the store gives back."""

import base64
import csv
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bos_tokenizers import adding
from command_line import Outcome, invoke
from small_runs import write_prompts
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)
from type_checks import no_type_checks

import assay
from assay.analyses.benchmark import DiscoveryBenchmark
from assay.analyses.worst_case import WorstCase
from assay.circuits import Circuit
from assay.models import load_model
from assay.pipeline.audit_page import verdict
from assay.pipeline.audit_result import Audit
from assay.pipeline.prompts import draw_prompts
from assay.tasks import load_task


SMALL = ("--n", "8", "--steps", "1")
QUIET = ("--json", "--quiet")


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with no_type_checks():  # the parts are checked in their own tests
        yield


def run(*arguments: object, code: int = 0) -> Outcome:
    outcome = invoke(*arguments)
    assert outcome.exit_code == code, outcome.output
    return outcome


def document(*arguments: object) -> Any:
    return json.loads(run(*arguments, *QUIET).stdout)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which one small audit was made."""
    folder = tmp_path_factory.mktemp("audited")
    with no_type_checks():
        result = run("audit", *SMALL, "--n-random", "1", "--out", folder / "out", "--json")
    (folder / "stdout.json").write_text(result.stdout)
    return folder


@pytest.fixture(scope="module")
def circuit_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A circuit of `mini` that needs no discovery: all but the last MLP's edges."""
    graph = load_model("mini").graph
    mask = graph.valid.clone()
    mask[graph.mlp_source(graph.n_layers - 1)] = False
    return Circuit(graph=graph, mask=mask).save(tmp_path_factory.mktemp("circuit") / "c.safetensors")


# ---- numbers ------------------------------------------------------------------------------------


def test_numbers_are_those_of_the_python_functions() -> None:
    model = load_model("mini")
    draws = draw_prompts(model, "ioi", n=8, seed=0)
    circuit = assay.discover(model, draws.discovery, "eap-ig-inputs").top(60).connected()
    found = ("--n", "8", "--top", "60")  # a given size is ranked by eap-ig-inputs in every verb
    run("discover", *found, "--save", "c.safetensors", "--quiet")
    assert assay.load_circuit("c.safetensors") == circuit
    metrics = ("--metric", "faithfulness", "--metric", "kl", "--metric", "topk")
    for record in document("measure", *found, *metrics):
        own = assay.measure(circuit, model, draws.measured, record["name"])
        assert record["value"] == pytest.approx(own.value, rel=1e-6)
        assert record["interval"]["low"] == pytest.approx(own.interval().low, rel=1e-6)
    worst = document("attack", "--circuit", "c.safetensors", "--n-clean", "6", "--n-corrupted", "5")
    own_worst = assay.worst_case(circuit, model, "ioi", n_clean=6, n_corrupted=5)
    assert worst["summary"]["absolute"]["max"] == pytest.approx(float(own_worst.divergence.max()), rel=1e-5)
    assert worst["worst"][0]["clean_index"] == int(own_worst.divergence.max(1).argmax())


def test_levels_are_discovered_stored_and_measured() -> None:
    model = load_model("mini")
    draws = draw_prompts(model, "ioi", n=8, seed=0)
    for level, k in (("node", 12), ("neuron", 500)):
        circuit = assay.discover(model, draws.discovery, "eap", level=level).top(k)
        found = document(
            "discover", "--n", "8", "--method", "eap", "--level", level, "--top", k, "--save", "c.safetensors"
        )
        assert assay.load_circuit("c.safetensors") == circuit
        assert len(found["circuit"]["scores"]) == k
        (record,) = document(
            "measure", "--circuit", found["circuit"]["hash"], "--n", "8", "--store", "assay-out"
        )
        assert record["value"] == pytest.approx(
            assay.measure(circuit, model, draws.measured, "faithfulness-norm").value, rel=1e-5
        )
    nodes = ("discover", "--n", "8", "--method", "eap", "--level", "node")
    assert "12 of 37 nodes" in run(*nodes, "--top", "12").stdout
    assert "--greedy grows circuits of edges" in run(*nodes, "--greedy", "9", code=2).output
    assert "cannot keep 38 nodes" in run(*nodes, "--top", "38", code=2).output


# ---- audit and discover -------------------------------------------------------------------------


def test_audit_writes_files_and_the_second_comes_from_the_store(audited: Path) -> None:
    found = json.loads((audited / "stdout.json").read_text())
    out = audited / "out"
    names = {"arrays", "assay.db", "report.html", "audit.json"}
    assert {path.name for path in out.iterdir()} == {*names, "circuit.safetensors", "scores.safetensors"}
    assert json.loads((out / "audit.json").read_text()) == found
    again = run("audit", *SMALL, "--n-random", "1", "--out", out)
    shown = " ".join(again.stdout.split())
    assert " ".join(verdict(Audit.from_dict(found)).split()) in shown
    assert "With confidence, C11 bootstrap stability " in shown
    (kl,) = re.findall(r"KL divergence \(nats\) .* at most 0\.1 nats", again.stdout)
    assert "D03" not in kl
    pair = found["worst_case"]["worst"][0]["clean"]["text"]
    assert f"Worst pair: “{pair}” with the corrupted prompt “" in shown
    assert f"result   {found['provenance']['id']} (taken from the store)" in again.stdout


def test_stored_parts_of_an_audit_are_listed_shown_and_reported(audited: Path) -> None:
    store = ("--store", audited / "out")
    listed = json.loads(run("store", "ls", *store, "--json").stdout)
    kinds = {line["kind"] for line in listed}
    assert kinds == {"audit", "calibration", "measurement", "scores", "worst_case"}
    assert all(run("show", line["id"], *store).stdout for line in listed)
    (audit,) = (line for line in listed if line["kind"] == "audit")
    assert audit["id"] in run("show", audit["circuit"], *store).stdout
    for subject in ((), (audit["circuit"],)):  # without an id the newest audit
        run("report", *subject, *store, "--save", "again.html")
        assert Path("again.html").read_bytes() == (audited / "out" / "report.html").read_bytes()


def test_discover_chooses_in_other_ways_too() -> None:
    run("discover", *SMALL, "--threshold", "0.01")
    result = run("discover", *SMALL, "--greedy", "30", "--scores-out", "s.safetensors")
    assert re.match(r"[\d,]+ of 1,519 edges \(", result.stdout)
    assert Path("s.safetensors").is_file()


def test_a_result_has_one_verdict_and_its_notes_wherever_it_is_shown() -> None:
    write_prompts(Path("own.jsonl"), 60)
    lines = Path("own.jsonl").read_text().splitlines(keepends=True)
    Path("seen.jsonl").write_text("".join(lines[:20]))
    run("discover", "--task", "seen.jsonl", "--method", "eap", "--top", "1200", "--save", "c.safetensors")
    measure = ("measure", "--circuit", "c.safetensors", "--metric", "kl", "--store", "store", "--quiet")
    note = "20 of the 60 prompts of 'own' are skipped, because the circuit was found on them"
    for task, words in (("seen", "inconclusive found on these examples"), ("own", f"{note}.")):
        shown = run(*measure, "--task", f"{task}.jsonl").stdout
        (record,) = json.loads(run(*measure, "--task", f"{task}.jsonl", "--json").stdout)
        for page in (shown, run("show", record["hash"], "--store", "store").stdout):
            assert words in " ".join(page.split())
        if task == "seen":
            assert (record["status"], record["verdict"]["reason"]) == ("inconclusive", "same_prompts")
        else:
            assert record["notes"] == [note]


def test_a_printed_circuit_can_be_measured_and_scores_cannot() -> None:
    printed = run("discover", "--method", "eap", "--n", "4", "--top", "60", "--quiet").stdout
    identity = printed.splitlines()[-1].split()[1]
    (record,) = document("measure", "--circuit", identity, "--n", "4", "--metric", "kl")
    assert record["provenance"]["circuit"] == identity
    (scores,) = json.loads(run("store", "ls", "--kind", "scores", "--json").stdout)
    refused = run("measure", "--circuit", scores["id"], "--n", "4", "--metric", "kl", code=2)
    assert "is a scores and does not hold a circuit" in refused.stderr


# ---- attack and calibrate -----------------------------------------------------------------------


def test_attack_writes_what_it_found_and_finds_it_again(circuit_file: Path) -> None:
    arguments = ("attack", "--circuit", circuit_file, "--n-clean", "6", "--n-corrupted", "5")
    files = ("--save", "deep/w.safetensors", "--report", "deep/w.html", "--resume", "blocks")
    run(*arguments, *files, "--out", "all")
    loaded = WorstCase.load("deep/w.safetensors")
    with Path("all/worst-pairs.csv").open(encoding="utf-8") as lines:
        pairs = list(csv.DictReader(lines))
    assert float(pairs[0]["divergence"]) == pytest.approx(float(loaded.divergence.max()))
    assert pairs[0]["clean.text"] != pairs[0]["corrupted.text"]
    assert loaded.divergence.shape == (6, 5)
    assert Path("blocks/job.json").exists()
    assert "(taken from the store)" in run(*arguments, "--save", "w.json").stdout
    assert json.loads(Path("w.json").read_text())["n_pairs"] == 30
    assert "over 30 distinct pairs" in run("show", loaded.id).stdout
    run("report", loaded.id, "--save", "again.html")
    assert Path("again.html").read_text() == Path("deep/w.html").read_text()


def test_findings_stand_beside_the_statistics(circuit_file: Path) -> None:
    """Searched and explained pairs are reported and change nothing else."""
    plain = ("attack", "--circuit", circuit_file, "--n-clean", "6", "--n-corrupted", "5")
    extra = ("--search", "100", "--explain")
    alone = document(*plain)
    shown = run(*plain, *extra, "--save", "found.json").stdout
    found = json.loads(Path("found.json").read_text())
    assert {key for key in found if found[key] != alone[key]} == {"search", "explanation"}
    assert found["search"]["n_evaluations"] <= 100
    explained = found["explanation"]
    assert explained["missing"]["total"] == pytest.approx(explained["mean"], rel=0.2)
    for text in ("Worst pairs found by search", "What the circuit lacks"):
        assert text in shown


def test_pairs_of_a_file_single_prompts_and_images_are_attacked(circuit_file: Path) -> None:
    lines = [{"clean": [5, 6, 7], "corrupted": [8, 6, 7], "answers": [9], "kind": kind} for kind in "ab"]
    Path("own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    own = ("attack", "--task", "own.jsonl", "--circuit", circuit_file)
    found = document(*own)
    assert (found["protocol"], found["n_pairs"], found["n_distinct_clean"]) == ("file", 2, 1)
    crossed = run(*own, "--n-clean", "4", code=2)
    assert "does not use --n-clean here; it takes no count" in crossed.stderr
    single = ("attack", "--circuit", circuit_file, "--ablation", "mean")
    assert "over 60 distinct prompts" in run(*single, "--n-clean", "60").stdout
    assert "use protocol 'inputs'" in run(*single, "--protocol", "all", code=2).stderr
    images = ("attack", "--model", "colour-digits", "--top", "60", "--n", "20")
    donors = document(*images, "--images", "colour-digits:0.5", "--ablation", "resample-donor")
    assert (donors["protocol"], donors["n_pairs"]) == ("all", 400)
    assert "has no grammar" in run(*single, "--task", "own.jsonl", "--n-clean", "4", code=2).stderr


@pytest.mark.parametrize("circuit", ["a2.h3,a3.h0", "file.safetensors"])
def test_circuits_mean_the_same_in_every_verb(circuit: str) -> None:
    own = Circuit.from_heads(load_model("mini").graph, [(2, 3), (3, 0)])
    own.save("file.safetensors")
    worst = document("attack", "--circuit", circuit, "--n-clean", "2", "--n-corrupted", "2")
    (record,) = document("measure", "--circuit", circuit, "--n", "4")
    assert worst["circuit"]["hash"] == record["provenance"]["circuit"] == own.hash
    assert document("calibrate", "C11", "--circuit", circuit, "--prompts", "4")["circuit"]["k"] == 2


FEW = ("--circuit", "a0.h1,a1.h5,a2.h3", "--prompts", "14")


def test_gates_are_a_table_a_page_and_an_exit_code() -> None:
    first = run("calibrate", "C11", "certified-stability", "C23", *FEW)
    lines = first.stdout.splitlines()
    top = next(place for place, line in enumerate(lines) if "check" in line.split())
    assert [line.split()[0] for line in lines[top + 1 : top + 4]] == ["C11", "C23", "M3b"]
    assert "C23 nomological validity (the circuit’s heads have no roles) does not apply" in first.stdout
    again = run("calibrate", "C11", "M3b", "C23", *FEW)
    assert again.stdout.splitlines()[:-1] == lines[:-1]
    assert again.stdout.splitlines()[-1] == f"{lines[-1]} (taken from the store)"
    every = run("calibrate", *FEW, "--groups", "object", "--json", "--report", "new/page.html")
    found = json.loads(every.stdout)
    assert len(found["gates"]) == 16
    page = Path("new/page.html").read_text()
    assert all(gate["name"] in page for gate in found["gates"])
    assert "fail" in run("calibrate", "S1", *FEW).stdout
    assert "S1 fail" in run("calibrate", "S1", *FEW, "--gate", code=3).stderr
    run("calibrate", "C23", *FEW, "--gate")
    other = document("calibrate", "C17", *FEW, "--against", "greater-than", "--n", "8")
    assert other["against"] == ["greater-than"]
    assert other["gates"][0]["verdict"]["values"]["ratio"] is not None


def test_prompts_of_a_file_are_divided_named_apart_or_said_to_be_the_same() -> None:
    write_prompts(Path("own.jsonl"), 44)
    lines = Path("own.jsonl").read_text().splitlines(keepends=True)
    for name, part in (("few", lines[:12]), ("a", lines[:12]), ("b", lines[12:20]), ("c", lines[:20])):
        Path(f"{name}.jsonl").write_text("".join(part))
    found = ("--top", "40")

    def warned(calibration: Any) -> set[bool]:
        return {"same_prompts" in gate["verdict"].get("warnings", ()) for gate in calibration["gates"]}

    divided = document("calibrate", "C11", "M3b", "--task", "own.jsonl", "--prompts", "8", *found)
    assert (divided["table"]["n_prompts"], divided["table"]["n_pool"]) == (8, 22)
    assert warned(divided) == {False}
    small = run("calibrate", "C11", "M3b", "--task", "few.jsonl", "--gate", *found, "--json")
    assert "measured on the prompts that it was found on" in small.stderr
    assert warned(json.loads(small.stdout)) == {True}
    assert {gate["verdict"]["status"] for gate in json.loads(small.stdout)["gates"]} == {"inconclusive"}
    named = document("calibrate", "C11", "--discover-on", "a.jsonl", "--measure-on", "b.jsonl", *found)
    assert (named["task"]["name"], named["table"]["n_prompts"], warned(named)) == ("b", 8, {False})
    both = ("calibrate", "C11", "--discover-on", "a.jsonl", "--measure-on", "c.jsonl")
    assert "12 prompts to measure on are also" in run(*both, *found, code=2).stderr


# ---- benchmark and export -----------------------------------------------------------------------


def test_a_benchmark_prints_writes_and_reads_again(tmp_path: Path) -> None:
    small = ("benchmark", "discovery", "--n", "6")
    places = ("--out", "out", "--export", "sent", "--scores-dir", "scores")
    text = run(*small, "--methods", "random,eap", *places).stdout
    assert "mini, ioi: 1,519 edges; scores from 6 examples, circuits judged on 6 other examples" in text
    assert "has the highest CPR" in text
    made = DiscoveryBenchmark.load("out/benchmark.json")
    assert [row.name for row in made.rows] == ["random", "eap"]
    assert "<svg" in Path("out/report.html").read_text()
    for source in ("scores/eap.safetensors", "sent/eap"):
        again = document(*small, "--methods", "random", "--import", source)
        assert DiscoveryBenchmark.from_dict(again).row("eap").signed == made.row("eap").signed
    twice = run(*small, *(2 * ("--import", "scores/eap.safetensors")), code=2)
    assert "two imported files are named 'eap'" in twice.stderr
    (tmp_path / "file").write_text("")
    assert "cannot write to" in run(*small, "--methods", "eap", "--out", "file", code=1).stderr


def test_planted_models_are_judged_by_their_truth() -> None:
    option = ("--methods", "eap,eap-ig-inputs@two", "--option", "eap-ig-inputs@two.steps=2")
    found = document("benchmark", "discovery", "--model", "planted:induction/gpt2/bare", *option, "--n", "6")
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["eap"]["truth"]["auroc"] > 0.95
    assert found["settings"]["n_true"] == 5
    two = rows["eap-ig-inputs@two"]
    assert (two["options"], two["passes"]["backward"]) == ({"steps": 2}, 2)


def test_a_circuit_is_exported_as_a_page_and_as_a_graph() -> None:
    model = load_model("mini")
    scores = assay.discover(model, load_task("ioi", model, n=4), "eap")
    scores.save("scores.safetensors")
    scores.top(40).save("circuit.safetensors")
    given = ("--scores", "scores.safetensors", "--model", "mini", "--task", "ioi", "--prompts", "2")
    page = json.loads(run("export", "circuit.safetensors", *given, "--save", "page.html", "--json").stdout)
    assert page["n_edges"] == 40
    packed = Path("page.html").read_text().partition('class="data">')[2].partition("</script>")[0]
    data = json.loads(zlib.decompress(base64.b64decode(packed)))
    assert len(data["attention"]["prompts"]) == 2
    assert data["attention"]["heads"]
    run("export", "circuit.safetensors", *given, "--save", "graph.json")
    metadata = json.loads(Path("graph.json").read_text())["metadata"]
    assert metadata["scan"] == "mini"
    assert "".join(metadata["prompt_tokens"]) == metadata["prompt"] != ""
    for arguments, message in (
        (("--save", "c.png"), "ends in '.png'; a circuit is exported as .html or .json"),
        (("--model", "mini"), "--model and --task go together"),
    ):
        assert message in run("export", "circuit.safetensors", *arguments, code=2).stderr


# ---- how prompts begin, chats, answers of several tokens ----------------------------------------


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers whose tokenizer puts a BOS before every text and an EOS behind it."""
    path = tmp_path_factory.mktemp("llama")
    tokenizer = adding("bos-eos")
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.3, **sizes)
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("begins", [True, False])
def test_prompts_begin_as_transformers_begins_them_in_every_command(begins: bool, llama: Path) -> None:
    """Margins are those of tokenizer and model alone on the texts."""
    common = ("--model", llama, "--task", "ioi", *(() if begins else ("--no-bos",)))
    skipped = ("--skip", "attack,random,calibrate,curve")
    found = json.loads(invoke("audit", *common, "--n", "8", *skipped, *QUIET).stdout)
    tokenizer, module = AutoTokenizer.from_pretrained(llama), AutoModelForCausalLM.from_pretrained(llama)
    assert found["task"]["bos"] is begins
    for example in found["task"]["examples"]:
        ids = tokenizer(example["clean"], add_special_tokens=begins)["input_ids"]
        ids = ids[:-1] if begins else ids  # without the EOS
        with torch.no_grad():
            logits = module(torch.tensor([ids])).logits[0, -1]
        words = (f" {example[key][0]}" for key in ("answers", "wrong"))
        right, wrong = map(tokenizer.convert_tokens_to_ids, words)
        assert example["margin"] == pytest.approx(float(logits[right] - logits[wrong]), abs=1e-5)
    for command in (
        ("discover", "--n", "8", "--top", "20", "--save", "c.safetensors"),
        ("attack", "--circuit", "c.safetensors", "--n-clean", "3", "--n-corrupted", "3"),
        ("benchmark", "discovery", "--quick", "--methods", "eap", "--n", "4"),
    ):
        if command[0] == "attack" and not begins:
            continue  # it begins prompts as the tokenizer does
        assert f'"bos": {json.dumps(begins)}' in run(*command, *common, *QUIET).stdout

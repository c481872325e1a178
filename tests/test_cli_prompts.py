"""`--bos`, `--chat`, `--answer-tokens`, `--lengths`: commands run on what `load_task` makes with them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bos_tokenizers import adding
from command_line import invoke
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from assay import load_model, load_task
from assay.core.errors import InputError
from assay.models import prompted
from assay.pipeline.jobs import model_of
from assay.pipeline.plan import parse_plan
from assay.pipeline.sweep import expand
from assay.report.save import save_report


TEMPLATE = "{% for message in messages %}<user>\n{{ message['content'] }}\n{% endfor %}<assistant>\n"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, shared: Callable[[str], Path]) -> Path:
    """A random GPT-2 of two layers with GPT-2's tokenizer and a chat template."""
    path = tmp_path_factory.mktemp("chatty")
    tokenizer = AutoTokenizer.from_pretrained(shared("data/gpt2_tokenizer"))
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16)).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers whose tokenizer puts a BOS before every text and an EOS behind it."""
    path = tmp_path_factory.mktemp("llama")
    tokenizer = adding("bos-eos")
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.3, **sizes)).save_pretrained(
        path
    )
    return path


# -------------------------------------------------------------------------------------- beginning of prompts


@pytest.mark.parametrize("flag", [None, "--bos", "--no-bos"])
def test_an_audit_runs_prompts_as_transformers_does(flag: str | None, llama: Path, tmp_path: Path) -> None:
    """Margins are those of tokenizer and model alone on the texts; the page says how prompts begin."""
    common = ["--model", str(llama), "--task", "ioi", "--n", "8", "--skip", "attack,random,calibrate,curve"]
    done = invoke("audit", *common, *([flag] if flag else []), "--out", str(tmp_path), "--json")
    assert done.exit_code in (0, 3), done.stderr
    document = json.loads(done.stdout)
    tokenizer, module = AutoTokenizer.from_pretrained(llama), AutoModelForCausalLM.from_pretrained(llama)
    begins = flag != "--no-bos"
    assert document["task"]["bos"] is begins
    for example in document["task"]["examples"]:
        ids = tokenizer(example["clean"], add_special_tokens=begins)["input_ids"]
        ids = ids[:-1] if begins else ids  # without the EOS
        with torch.no_grad():
            logits = module(torch.tensor([ids])).logits[0, -1]
        right, wrong = (
            tokenizer.convert_tokens_to_ids(f" {example[key][0]}") for key in ("answers", "wrong")
        )
        assert example["margin"] == pytest.approx(float(logits[right] - logits[wrong]), abs=1e-5)
    page = (tmp_path / "report.html").read_text()
    assert ("Prompts begin with the tokenizer" in page, "prompts begin with BOS" in page) == (begins, begins)
    assert ("Prompts do not begin with the beginning-of-sequence token" in page) is not begins


def test_every_command_that_reads_prompts_takes_the_choice(llama: Path, tmp_path: Path) -> None:
    commands = ("discover", "measure", "attack", "calibrate", "benchmark discovery", "export")
    for command in commands:
        shown = invoke(*command.split(), "--help").stdout
        assert "--bos" in shown
        assert "--no-bos" in shown
    common = ["--model", str(llama), "--task", "ioi", "--json"]
    circuit = tmp_path / "c.safetensors"
    for flags, begins in (["--no-bos"], "false"), ([], "true"):
        done = invoke("discover", *common, "--n", "8", "--top", "20", "--save", str(circuit), *flags)
        assert (done.exit_code, f'"bos": {begins}' in done.stdout) == (0, True)
        sizes = ["--n-clean", "3", "--n-corrupted", "3"]
        worst = invoke("attack", *common, "--circuit", str(circuit), *sizes, *flags)
        assert (worst.exit_code, f'"bos": {begins}' in worst.stdout) == (0, True)
        text = save_report(tmp_path / "worst.html", json.loads(worst.stdout)).read_text()
        assert ("prompts begin with BOS" in text) is (begins == "true")
        judged = ["--quick", "--methods", "eap", "--n", "4"]
        done = invoke("benchmark", "discovery", *common, *judged, *flags)
        assert (done.exit_code, f'"bos": {begins}' in done.stdout) == (0, True)


def test_a_plan_says_how_prompts_begin(llama: Path) -> None:
    small = {
        "name": "small",
        "n": 6,
        "models": [str(llama)],
        "tasks": ["ioi"],
        "methods": ["eap"],
        "sizes": [9],
    }
    plans = [parse_plan({**small, **more}) for more in ({}, {"bos": True}, {"bos": False})]
    assert ["bos" in plan.record() for plan in plans] == [False, True, True]
    usual, begun, other = (expand(plan) for plan in plans)
    assert [jobs[0].record["discovery"]["config"]["bos"] for jobs in (usual, other)] == [True, False]
    assert [job.id for job in usual] == [job.id for job in begun] != [job.id for job in other]
    assert model_of(other[0]).prompt_rules == {"bos": False}


def test_a_model_carries_the_rules_of_its_prompts(directory: Path) -> None:
    model = load_model(directory)
    talked_to = prompted(prompted(model, chat=True), answer_tokens="first")
    assert (model.prompt_rules, talked_to.module is model.module) == ({}, True)
    task = load_task("capital-country", talked_to, n=6)
    told = load_task("capital-country", model, n=6, chat=True, answer_tokens="first")
    assert (task.data_hash, task.config) == (told.data_hash, told.config)
    plain = load_task("capital-country", talked_to, n=6, chat=False, answer_tokens="one")
    assert plain.data_hash == load_task("capital-country", model, n=6).data_hash
    with pytest.raises(InputError, match="colour-digits reads images, so chat do not apply"):
        prompted(load_model("colour-digits"), chat=True)


@pytest.mark.parametrize("command", ["discover", "measure"])
def test_commands_run_on_turns_of_a_chat(command: str, directory: Path, tmp_path: Path) -> None:
    flags = ["--chat", "--answer-tokens", "first"]
    common = ["--model", str(directory), "--task", "capital-country", "--n", "8", "--top", "20", "--json"]
    save = ["--save", str(tmp_path / ("c.safetensors" if command == "discover" else "m.json"))]
    done = invoke(command, *common, *save, *flags)
    assert done.exit_code == 0, done.stderr
    config = json.dumps(json.loads(done.stdout))
    assert '"chat": true' in config
    assert '"answer_tokens": "first"' in config


def test_commands_score_answers_token_by_token(directory: Path, tmp_path: Path) -> None:
    """Discovery, a worst case and an audit of answers of several tokens; gates, of one position, say so."""
    cities = [("Peru", "Bamako", "Bamaga"), ("Spain", "Bamaga", "Bamako"), ("Kenya", "Paris", "London")]
    lines = [
        {
            "clean": f"The capital of {country} is the city of",
            "corrupted": "The capital of Norway is the city of",
            "answers": [f" {city}"],
            "wrong": [f" {other}"],
        }
        for country, city, other in cities
    ]
    path = tmp_path / "cities.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    task = load_task(path, load_model(directory), answer_tokens="each")
    assert task.positions.tolist() == [[7, 8], [7, 8], [7, -1]]
    common = ["--model", str(directory), "--task", str(path), "--answer-tokens", "each"]
    circuit = tmp_path / "circuit.safetensors"
    done = invoke("discover", *common, "--top", "20", "--save", str(circuit), "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["provenance"]["task"]["data_hash"] == task.data_hash
    done = invoke("measure", *common, "--circuit", str(circuit), "--metric", "kl", "--json")
    assert done.exit_code == 0, done.stderr
    assert [each["n"] for each in json.loads(done.stdout)] == [3]
    done = invoke("attack", *common, "--circuit", str(circuit), "--explain", "--independent", "--json")
    assert done.exit_code == 0, done.stderr
    worst = json.loads(done.stdout)
    assert (worst["n_pairs"], worst["certificates"][0]["n_needed"] > 3) == (3, True)
    assert sorted(len(pair["reads"]) for pair in worst["worst"]) == [1, 2, 2]
    assert worst["explanation"]["n_pairs"] == 3
    done = invoke("audit", *common, "--skip", "random,curve", "--json")
    assert done.exit_code == 0, done.stderr
    audit = json.loads(done.stdout)
    reason = "serves prompts that are read at one position each"
    assert {each for each in json.dumps(audit).split('"') if each.startswith("serves")} == {reason}


@pytest.mark.slow
def test_commands_align_prompts_of_other_lengths(tmp_path: Path) -> None:
    """Discovery, a circuit and an audit; what exchanges prompts by position says so."""
    lines = [
        {
            "clean": f"Then, {a} and {b} went to the store. {b} gave a ring to",
            "corrupted": f"Then, {a} went to the store. {c} gave a ring to",
            "spans": {"names": [f"{a} and {b}", a]},
            "answers": [f" {a}"],
            "wrong": [f" {b}"],
        }
        for a, b, c in [("Mary", "John", "Lisa"), ("Sara", "Paul", "Eric"), ("Amy", "Mark", "Laura")]
    ]
    path = tmp_path / "lengths.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    plain = ["--model", "mini", "--task", str(path)]
    refused = invoke("discover", *plain)
    assert refused.exit_code != 0
    assert "or align the prompts with lengths='aligned'" in refused.stderr
    common = [*plain, "--lengths", "aligned"]
    save = ["--top", "20", "--save", str(tmp_path / "c.safetensors"), "--json"]
    found = invoke("discover", *common, *save)
    assert found.exit_code == 0, found.stderr
    assert '"lengths": "aligned"' in json.dumps(json.loads(found.stdout))
    circuit = ["--circuit", str(tmp_path / "c.safetensors")]
    measured = invoke("measure", *common, *circuit, "--metric", "kl", "--json")
    assert measured.exit_code == 0, measured.stderr
    audited = invoke("audit", *common, "--out", str(tmp_path / "audit"), "--json")
    assert audited.exit_code in (0, 3), audited.stderr
    left_out = json.loads((tmp_path / "audit" / "audit.json").read_text())["left_out"]
    whys = {each["stage"]: each["reason"] for each in left_out}
    assert whys["attack"] == whys["calibrate"] == "serves pairs whose prompts are of one length"
    kinds = {"attack": "a worst case", "calibrate": "a table of measurements"}
    for command, what in kinds.items():
        for flags in (circuit, []):  # before a circuit is discovered, too
            done = invoke(command, *common, *flags)
            assert done.exit_code != 0
            assert f"{what} needs clean and corrupted prompts of one length" in done.stderr
            assert "discover" not in done.stderr

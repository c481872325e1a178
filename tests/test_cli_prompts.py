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
from assay.pipeline.jobs import model_of
from assay.pipeline.plan import parse_plan
from assay.pipeline.sweep import expand


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


@pytest.mark.parametrize("flag", [None, "--no-bos"])
def test_an_audit_runs_prompts_as_transformers_does(flag: str | None, llama: Path, tmp_path: Path) -> None:
    """Margins are those of tokenizer and model alone on the texts."""
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


def test_every_command_that_reads_prompts_takes_the_choice(llama: Path, tmp_path: Path) -> None:
    common = ["--model", str(llama), "--task", "ioi", "--json"]
    circuit = tmp_path / "c.safetensors"
    for flags, begins in (["--no-bos"], "false"), ([], "true"):
        done = invoke("discover", *common, "--n", "8", "--top", "20", "--save", str(circuit), *flags)
        assert (done.exit_code, f'"bos": {begins}' in done.stdout) == (0, True)
        sizes = ["--n-clean", "3", "--n-corrupted", "3"]
        worst = invoke("attack", *common, "--circuit", str(circuit), *sizes, *flags)
        assert (worst.exit_code, f'"bos": {begins}' in worst.stdout) == (0, True)
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


def test_commands_run_on_turns_of_a_chat(directory: Path, tmp_path: Path) -> None:
    given = ["--model", str(directory), "--task", "capital-country", "--n", "8", "--top", "20", "--json"]
    more = ["--chat", "--answer-tokens", "first", "--save", str(tmp_path / "c.safetensors")]
    done = invoke("discover", *given, *more)
    assert done.exit_code == 0, done.stderr
    config = json.loads(done.stdout)["provenance"]["task"]["config"]
    assert (config["chat"], config["answer_tokens"]) == (True, "first")


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

"""`--chat`, `--answer-tokens`, `--lengths`: commands run on what `load_task` makes with the same words."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_line import invoke
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from assay import load_model, load_task
from assay.core.errors import InputError
from assay.models import prompted


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
    said = "3 of 3 pairs differ in length; aligned span by span from their ends, 6 of 45 clean and 0 of 39"
    assert said in invoke("discover", *common, "--dry-run").stdout
    forecast = json.loads(invoke("discover", *common, "--dry-run", "--json").stdout)
    assert forecast["alignment"].startswith(said)
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
    kinds = {"attack": "a worst case", "calibrate": "a table of measurements", "repair": "a repair"}
    for command, what in kinds.items():
        for flags in (circuit, ["--dry-run"], []):  # before a circuit is discovered, too
            done = invoke(command, *common, *flags)
            assert done.exit_code != 0
            assert f"{what} needs clean and corrupted prompts of one length" in done.stderr
            assert "discover" not in done.stderr

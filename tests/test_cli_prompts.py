"""`--chat` and `--answer-tokens`: what the commands run on is what `load_task` makes with the same words."""

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

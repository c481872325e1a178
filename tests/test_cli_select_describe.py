"""`assay select --encoder --phrases --endpoint --text`: what describes a subset, and failures of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chat_server import Asked, Reply, chat_server, said
from command_line import Outcome, invoke
from test_cli_select import planted
from type_checks import no_type_checks

import assay
from assay.analyses.subsets import CorrectnessData
from assay.app.cli.select import _parameters
from assay.core.errors import InputError
from assay.models.hugging_face import without_progress_bars


QUICK = ["--size", "40", "--permutations", "3", "--folds", "3", "--workers", "1", "--quiet"]
SECRET = "sk-very-secret-5678"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that are dark where better models do worse, and a text that tells the same."""
    data = planted()
    night = data.meta["light"] == "night"
    shade = np.where(night, 20, 220).astype(np.uint8)
    pictures = np.broadcast_to(shade[:, None, None, None], (data.n_examples, 8, 8, 3))
    review = np.array([f"seen at {'night' if each else 'day'} {k % 7}" for k, each in enumerate(night)])
    path = tmp_path_factory.mktemp("data") / "answers.npz"
    CorrectnessData.of(
        data.correct, data.id_accuracy, groups=data.groups, example_ids=data.example_ids,
        images=np.ascontiguousarray(pictures), meta={"review": review},
    ).save(path)  # fmt: skip
    return path


def run(archive: Path, folder: Path, *options: str) -> Outcome:
    with no_type_checks():
        return invoke(
            "select", archive, *QUICK, "--store", folder / "store", "--out", folder / "out", *options
        )


def written(folder: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((folder / "out" / "selection.json").read_text())
    return parsed


def test_an_endpoint_that_fails_leaves_the_selection_intact(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", SECRET)
    with chat_server(lambda asked: (403, f"no quota for {SECRET}".encode())) as server:
        found = run(
            archive, tmp_path, "--endpoint", server.url, "--endpoint-model", "tiny",
            "--endpoint-key", "TEST_KEY",
        )  # fmt: skip
    assert found.exit_code == 1
    assert found.stderr.count("error: ") == 1
    assert "the subset is selected, but not described" in found.stderr
    assert "status 403, 'no quota for ***'" in found.stderr
    document = written(tmp_path)
    assert document["size"] == 40
    assert document["description"] == {"failed": found.stderr.partition("described: ")[2].strip()}
    subset = assay.load_subset(tmp_path / "out" / "subset.json", CorrectnessData.load(archive))
    assert subset.indices.tolist() == document["indices"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Describing the subset failed" in page
    assert "no quota for ***" in page
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()
    # The selection was kept before; the same command is a look-up, and now describes.
    again = run_described(archive, tmp_path)
    assert again.exit_code == 0, again.output
    assert written(tmp_path)["indices"] == document["indices"]
    assert written(tmp_path)["description"]["phrases"] == ["dark", "bright"]
    assert "Phrases, not scored: dark; bright." in (tmp_path / "out" / "report.html").read_text()


def run_described(archive: Path, folder: Path) -> Outcome:
    def reply(asked: Asked) -> Reply:
        return said(
            "a square" if isinstance(asked.body["messages"][0]["content"], list) else "* dark\n* bright"
        )

    with chat_server(reply) as server:
        return run(archive, folder, "--endpoint", server.url, "--endpoint-model", "tiny")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "seen", "at", "night", "day", *"0123456"]
    core = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    with without_progress_bars():
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", model_max_length=16
    ).save_pretrained(folder)
    return folder


def test_texts_are_described_by_n_grams_sentences_and_phrases(
    archive: Path, bert: Path, tmp_path: Path
) -> None:
    found = run(archive, tmp_path, "--text", "review", "--encoder", str(bert), "--phrases", "at night; day")
    assert found.exit_code == 0, found.output
    document = written(tmp_path)
    rows = {row["attribute"]: row for row in document["ngrams"]["rows"]}
    assert rows['"night"']["significant"]
    assert rows['"day"']["difference"] < 0
    assert document["prevalence"] is None  # texts are not categories
    assert document["data"]["source"]["encoder"] == bert.name
    assert document["holdout"]["encoder"] == bert.name
    assert document["holdout"]["n_features"] == 16
    assert document["holdout"]["describable"]
    assert {each["phrase"] for each in document["description"]["scores"]} == {"at night", "day"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "is a describable kind of input" in page.replace("\n", " ")
    assert "words and phrases of the texts differ significantly" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--endpoint", "http://localhost:1/v1"), "--endpoint-model"),
        (("--endpoint-parameters", "top_p=1"), "--endpoint-parameters has no effect without --endpoint"),
        (("--phrases", "a; b"), "give --encoder"),
        (("--text", "words"), "words"),
        (("--encoder", "no/such/folder/here"), "no/such/folder/here"),
    ],
)
def test_options_that_cannot_work_are_refused_before_selecting(
    archive: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    found = run(archive, tmp_path, *options)
    assert found.exit_code == (1 if "no/such/folder/here" in options else 2)  # a file, or wrong usage
    assert message in found.stderr
    assert not (tmp_path / "out" / "selection.json").exists()


def test_values_of_parameters_are_json_or_plain_words() -> None:
    text = 'a=1, b = low,k={"a":1,"b":"c=d"},stop=["x, y", "z"],c=null'
    values = {"a": 1, "b": "low", "k": {"a": 1, "b": "c=d"}, "stop": ["x, y", "z"], "c": None}
    assert _parameters(text) == {"parameters": values}
    for wrong, message in (("a=1,x=True", "value of x in"), ("x=1,x=2", "gives x twice"), ("y", "has 'y'")):
        with pytest.raises(InputError, match=message):
            _parameters(wrong)

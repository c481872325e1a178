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
from assay.analyses.subsets import CorrectnessData, Encoder
from assay.analyses.subsets.example_files import made_from
from assay.app.cli.select import _parameters
from assay.core.errors import InputError
from assay.models.hugging_face import without_progress_bars
from assay.pipeline.subset_data import read_data
from assay.zoo import Zoo


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
        (("--endpoint-key", "TEST_KEY"), "no effect without --endpoint"),
        (("--endpoint-parameters", "top_p=1"), "--endpoint-parameters has no effect without --endpoint"),
        (
            (
                "--endpoint",
                "http://localhost:1/v1",
                "--endpoint-model",
                "m",
                "--endpoint-parameters",
                "top_p",
            ),
            "give NAME=VALUE",
        ),
        (("--phrases", "a; b"), "give --encoder"),
        (("--text", "words"), "words"),
        (("--encoder", "no/such/folder/here"), "no/such/folder/here"),
        (
            ("--endpoint", "http://localhost:1/v1", "--endpoint-model", "m", "--endpoint-key", "UNSET"),
            "UNSET",
        ),
    ],
)
def test_options_that_cannot_work_are_refused_before_selecting(
    archive: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    found = run(archive, tmp_path, *options)
    assert found.exit_code == (1 if "no/such/folder/here" in options else 2)  # a file, or wrong usage
    assert message in found.stderr
    assert not (tmp_path / "out" / "selection.json").exists()


@pytest.mark.slow
def test_parameters_of_an_endpoint_come_from_the_command(archive: Path, tmp_path: Path) -> None:
    def reply(asked: Asked) -> Reply:
        if "max_tokens" in asked.body:
            return 400, {"error": "use max_completion_tokens instead of max_tokens"}
        return said("* dark")

    with chat_server(reply) as server:
        given = ("--endpoint", server.url, "--endpoint-model", "tiny")
        failed = run(archive, tmp_path, *given)
        assert failed.exit_code == 1
        assert "names max_tokens" in failed.stderr
        assert "--endpoint-parameters" in failed.stderr
        parameters = "max_completion_tokens=64, reasoning_effort=low"
        found = run(archive, tmp_path, *given, "--endpoint-parameters", parameters)
        assert found.exit_code == 0, found.output
        sent = server.asked[-1].body
        assert (sent["max_completion_tokens"], sent["reasoning_effort"]) == (64, "low")
        run(archive, tmp_path, *given, "--endpoint-parameters", "")
        assert server.asked[-1].body.keys() == {"model", "messages"}


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("", {}),
        ("a=1, b = low ,", {"a": 1, "b": "low"}),
        ('k={"a":1,"b":"c=d"},stop=["x, y", "z"]', {"k": {"a": 1, "b": "c=d"}, "stop": ["x, y", "z"]}),
        ('a="None",b=none,c=null,d=nullable', {"a": "None", "b": "none", "c": None, "d": "nullable"}),
    ],
)  # fmt: skip
def test_values_of_parameters_are_json_or_plain_words(text: str, parameters: dict[str, Any]) -> None:
    assert _parameters(text) == {"parameters": parameters}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((f"a=1,x={value}", "value of x in") for value in ("True", ".5", "None", "007", "{'a'}", "", "a=b")),
        ("x=1 2", "the value of x in"),
        ("x=1,x=2", "gives x twice"),
        ("x=1,y", "has 'y' where a name was expected"),
    ],
)  # fmt: skip
def test_values_that_are_nearly_json_and_doubles_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _parameters(text)


@pytest.mark.slow
def test_an_encoder_and_its_embeddings_are_checked(archive: Path, bert: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "known.npy", np.random.default_rng(0).normal(size=(9, 16)).astype(np.float32))
    texts = ("--text", "review", "--encoder")
    known = ("--id-embeddings", str(tmp_path / "known.npy"))
    ran = run(archive, tmp_path, *texts, str(bert), *known)
    assert ran.exit_code == 0, ran.output
    (tmp_path / "empty").mkdir()
    (tmp_path / "no.npy").write_bytes(b"no numbers")
    refused = {
        (str(tmp_path / "typo"), *known): "neither a directory nor an id",
        (str(tmp_path / "empty"), *known): "has no config.json",
        (str(bert), "--id-embeddings", str(tmp_path / "no.npy")): "is not a file of embeddings",
    }
    for given, message in refused.items():
        found = run(archive, tmp_path, *texts, *given)
        assert (found.exit_code, found.stdout) == (1, "")
        assert message in found.stderr
    planted().save(tmp_path / "bare.npz")  # neither images nor texts
    bare = run(tmp_path / "bare.npz", tmp_path, "--encoder", str(bert))
    assert bare.exit_code == 2
    assert "the data have neither images nor a text to embed" in bare.stderr
    alone = run(archive, tmp_path, *known)
    assert alone.exit_code == 2
    assert "--embeddings or --encoder" in alone.stderr.replace("\n", " ")


@pytest.mark.slow
def test_the_images_of_a_zoo_are_embedded_at_the_size_of_the_encoder(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTModel

    from assay.tasks import ReadOptions, find_domains

    torch.manual_seed(0)
    config = ViTConfig(
        image_size=24, patch_size=8, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    with without_progress_bars():
        ViTModel(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 24, "width": 24}}')
    encoder = Encoder.load(tmp_path, device="cpu")
    data = read_data(
        Zoo.embedded().path, images="shapes:flat", id_images="shapes:sketch", encoder=encoder
    ).data
    assert data.embedding is not None
    assert data.id_embedding is not None
    assert data.embedding.shape == (data.n_examples, 16)
    assert data.images is not None
    assert data.images.shape[1:3] != (24, 24)
    (domain,) = find_domains("shapes:flat", start=0, drawn=3)
    assert domain.read(ReadOptions(transform=encoder.transform), None).image_size == (24, 24)
    assert data.source["encoder"] == tmp_path.name
    for name in ("embedding", "id_embedding"):
        rows = getattr(data, name)
        assert made_from(data.source, name, rows)
        assert made_from(data.source, name, rows + 1) is None  # given by hand

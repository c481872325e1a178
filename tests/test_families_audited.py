"""`assay audit --model DIR` on a random checkpoint of every family of decoders."""

import json
import sys
from pathlib import Path

import pytest
import transformers
from command_line import invoke
from thorough import one_of

import assay
from assay.models import FAMILIES, attention_only


sys.path.insert(0, str(Path(__file__).parent / "models"))

from test_families import CONFIGS


DECODERS = {key: family for key, family in FAMILIES.items() if family.vision is None}
MODEL_TYPES = sorted({model_type for family in DECODERS.values() for model_type in family.model_types})


def saved(model_type: str, folder: Path) -> Path:
    """A random checkpoint with the tokenizer of `mini`."""
    tokenizer = assay.load_model("mini").tokenizer
    entries = next(entries for name, entries in CONFIGS.items() if name.split()[0] == model_type)
    longer = {key: 64 for key in ("n_positions", "max_position_embeddings") if key in entries}
    attention_only.register()
    config = transformers.AutoConfig.for_model(
        model_type, **{**entries, **longer, "vocab_size": len(tokenizer)}
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model_type", one_of(MODEL_TYPES, "gpt2", "llama", "gemma2"))
def test_a_checkpoint_is_audited(model_type: str, tmp_path: Path) -> None:
    folder = saved(model_type, tmp_path / "model")
    out = tmp_path / "audit"
    result = invoke("audit", "--model", folder, "--task", "ioi", "--n", "6", "--out", out, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["model"]["family"] in DECODERS
    assert document["model"]["dtype"] == "float32"
    assert (out / "report.html").is_file()


@pytest.mark.parametrize("post_norm", ["exact", "frozen", "per-target"])
def test_norms_behind_branches_are_treated_as_asked(post_norm: str, tmp_path: Path) -> None:
    folder = saved("gemma2", tmp_path / "model")
    result = invoke(
        "measure",
        *("--model", folder, "--task", "ioi", "--n", "6", "--top", "60", "--metric", "kl"),
        *("--post-norm", post_norm, "--json", "--store", tmp_path / "store"),
    )
    assert result.exit_code == 0, result.stderr
    [record] = json.loads(result.stdout)
    assert record["provenance"]["model"]["post_norm"] == post_norm
    assert ("exact_norms" in record["details"]) == (post_norm != "exact")


def test_a_treatment_needs_norms_behind_branches() -> None:
    result = invoke("measure", "--task", "ioi", "--n", "6", "--post-norm", "frozen")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "mini has no norms behind its branches, so post_norm='frozen' does not apply" in result.stderr


def test_families_are_listed_with_what_they_read() -> None:
    listed = {each["key"]: each for each in json.loads(invoke("list", "models", "--json").stdout)}
    assert listed["gemma2"]["post_norm"] == ["exact", "frozen", "per-target", "eap-ig"]
    assert (listed["llama"]["reads"], listed["clip"]["reads"]) == ("prompts", "images")
    shown = invoke("list", "models").stdout
    assert "GPT-NeoX, Pythia (type gpt_neox)." in shown


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["mixtral", "olmoe"])
def test_experts_are_nodes_where_asked(model_type: str, tmp_path: Path) -> None:
    """Discovery, a measurement of its file, an audit and its page; the circuit fits no other form."""
    folder, kept = saved(model_type, tmp_path / "model"), tmp_path / "circuit.safetensors"
    of = ("--model", folder, "--task", "ioi", "--n", "6", "--json")
    nodes = (*of, "--experts", "nodes")
    result = invoke("discover", *nodes, "--top", "60", "--save", kept)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["graph"]["experts"] == 4
    assert any(".e" in edge["target"] for edge in found["circuit"]["edges"])
    result = invoke("measure", *nodes, "--circuit", kept, "--store", tmp_path / "store")
    assert result.exit_code == 0, result.stderr
    [record] = json.loads(result.stdout)
    assert record["provenance"]["model"]["experts"] == "nodes"
    result = invoke("measure", *of, "--circuit", kept)
    assert result.exit_code != 0
    assert "its graph is" in result.stderr
    result = invoke("audit", *nodes, "--out", tmp_path / "audit")
    assert result.exit_code == 0, result.stderr
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "a node per expert" in page
    assert "tokens go to the experts of the clean input" in page
    assert ">m1.e3<" in page


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("attack",), "assay attack"),
        (("calibrate",), "assay calibrate"),
        (("audit", "--full"), "a full audit"),
        (("discover", "--method", "acdc"), "acdc"),
    ],
)
def test_what_serves_no_expert_nodes_is_refused_by_name(
    command: tuple[str, ...], what: str, tmp_path: Path
) -> None:
    folder = saved("mixtral", tmp_path / "model")
    result = invoke(*command, "--model", folder, "--task", "ioi", "--n", "6", "--experts", "nodes")
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    assert f"{what} does not serve the experts of model as nodes" in result.stderr


def test_expert_nodes_need_a_mixture() -> None:
    result = invoke("measure", "--task", "ioi", "--n", "6", "--experts", "nodes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "mini has no mixture of experts, so experts='nodes' does not apply" in result.stderr
    listed = {each["key"]: each for each in json.loads(invoke("list", "models", "--json").stdout)}
    assert listed["olmoe"]["experts"] == ["together", "nodes"]
    assert listed["llama"]["experts"] == []

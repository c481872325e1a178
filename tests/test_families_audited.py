"""`assay audit --model DIR` on a random checkpoint of every family of decoders."""

import json
from pathlib import Path

import pytest
import transformers
from command_line import invoke
from small_models import TEXT
from thorough import one_of

import assay
from assay.models import FAMILIES, attention_only


DECODERS = {key: family for key, family in FAMILIES.items() if family.vision is None}
MODEL_TYPES = sorted({model_type for family in DECODERS.values() for model_type in family.model_types})


def saved(model_type: str, folder: Path) -> Path:
    """A random checkpoint with the tokenizer of `mini`."""
    tokenizer = assay.load_model("mini").tokenizer
    entries = next(entries for name, entries in TEXT.items() if name.split()[0] == model_type)
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


@pytest.mark.parametrize("post_norm", ["exact", "eap-ig"])
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
    result = invoke("measure", "--task", "ioi", "--n", "6", "--post-norm", "eap-ig")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "mini has no norms behind its branches, so post_norm='eap-ig' does not apply" in result.stderr

"""One sign for all scores of heads and edges: positive, where ablating the part lowers the margin."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from assay.core.errors import AssayWarning
from assay.discovery.edges import METHODS, discover
from assay.discovery.heads import HEAD_METHODS, discover_heads, load_head_scores
from assay.models import Model, load_model
from assay.tasks import PairTask


# Methods whose scores are shares, probabilities or ranks.
SIZES = ("ifr", "nested", "random", "two-target", "ugs")


@pytest.fixture(scope="module")
def model() -> Model:
    """Two heads read which token is there: a0.h0 writes the answer, a0.h1 half as much against it."""
    config = transformers.GPT2Config(
        vocab_size=4, n_positions=4, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    module = transformers.GPT2LMHeadModel(config).double().eval()
    state = {name: torch.zeros_like(value) for name, value in module.state_dict().items()}
    state |= {
        name: torch.ones_like(value) for name, value in state.items() if "ln_" in name and "weight" in name
    }
    read, written = torch.zeros(2, 8, dtype=torch.float64)
    read[:2], written[2:4] = torch.tensor([1.0, -1.0]), torch.tensor([1.0, -1.0])
    state["transformer.wte.weight"] = torch.stack([read, -read, written, -written])
    state["lm_head.weight"] = state["transformer.wte.weight"]
    values = state["transformer.h.0.attn.c_attn.weight"]
    values[:, 16], values[:, 20] = read, read  # the first channel of each head's value
    out = state["transformer.h.0.attn.c_proj.weight"]
    out[0], out[4] = written, -written / 2
    module.load_state_dict(state)
    return load_model(module)


def task(*, swapped: bool) -> PairTask:
    """Prompts of three tokens 0 or 1: most of them 0 ask for 2, else for 3; swapped, right is wrong."""
    clean = torch.cartesian_prod(*[torch.arange(2)] * 3).repeat(3, 1)
    right = 2 + (clean.sum(1, keepdim=True) > 1).long()
    wrong = 5 - right
    return PairTask(
        clean=clean,
        corrupted=1 - clean,
        answers=wrong if swapped else right,
        wrong=right if swapped else wrong,
    )


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("key", [key for key, method in HEAD_METHODS.items() if method.signed])
def test_heads_that_help_have_positive_scores(model: Model, key: str, swapped: bool) -> None:
    scores = discover_heads(model, task(swapped=swapped), key)
    helps, harms = ((0, 1), (0, 0)) if swapped else ((0, 0), (0, 1))
    assert scores[helps] > 0 > scores[harms]
    assert scores.top(1) == (helps,)
    assert scores.sign.startswith("positive = ")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("key", [key for key in METHODS if key not in SIZES])
def test_edges_that_help_have_positive_scores(model: Model, key: str, swapped: bool) -> None:
    scores = discover(model, task(swapped=swapped), key, objective="logit_diff", ablation="resample")
    first = model.graph.head_source(0)
    harms, helps = scores.values[[first, first + 1] if swapped else [first + 1, first], -1]
    assert helps > 0 > harms


def test_scores_without_a_sign_are_sizes(model: Model) -> None:
    for swapped in (False, True):
        for key in (key for key, method in HEAD_METHODS.items() if not method.signed):
            assert (discover_heads(model, task(swapped=swapped), key).values >= 0).all()
        assert (discover(model, task(swapped=swapped), "ifr").values >= 0).all()
        assert (discover(model, task(swapped=swapped), "nested", updates=2).values >= 0).all()
        with pytest.warns(AssayWarning, match="not settled"):
            assert (discover(model, task(swapped=swapped), "ugs", updates=2).values >= 0).all()


def test_saved_scores_of_the_published_sign_are_turned(model: Model, tmp_path: Path) -> None:
    scores = discover_heads(model, task(swapped=False), "attribution-patching")
    published = replace(
        scores, values=-scores.values, per_example=-scores.per_example, sign="negative = helps the margin"
    )
    found = load_head_scores(published.save(tmp_path / "old.safetensors"))
    assert found.top(2) == ((0, 0), (0, 1))
    assert (found.per_example == scores.per_example).all()
    assert found.sign == scores.sign

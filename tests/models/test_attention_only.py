"""Models of attention alone: the shape on which the published docstring circuit was found."""

import itertools
from pathlib import Path

import literal
import pytest
import torch
from torch import Tensor

from assay.analyses.worst_case import worst_case
from assay.circuits import published_circuit
from assay.core.errors import FileFormatError, ShapeError, UnsafeFileError
from assay.execution import run_circuit
from assay.models import Model, convert_attention_only, load_model
from assay.tasks import PairTask


def weights_of(
    n_layers: int = 4, n_heads: int = 8, width: int = 64, vocabulary: int = 50, positions: int = 24
) -> dict[str, Tensor]:
    """Random parameters under the names of the published checkpoint, its buffers among them."""
    draw = torch.Generator().manual_seed(0)
    inner = width // n_heads

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw) * 0.3

    found = {"embed.W_E": random(vocabulary, width), "pos_embed.W_pos": random(positions, width)}
    for layer in range(n_layers):
        at = f"blocks.{layer}"
        found |= {f"{at}.ln1.w": 1 + random(width), f"{at}.ln1.b": random(width)}
        for name in "QKV":
            found[f"{at}.attn.W_{name}"] = random(n_heads, width, inner)
            found[f"{at}.attn.b_{name}"] = random(n_heads, inner)
        found |= {f"{at}.attn.W_O": random(n_heads, inner, width), f"{at}.attn.b_O": random(width)}
        found[f"{at}.attn.mask"] = torch.ones(positions, positions).tril().bool()
        found[f"{at}.attn.IGNORE"] = torch.tensor(-1e5)
    found |= {"ln_final.w": 1 + random(width), "ln_final.b": random(width)}
    return found | {"unembed.W_U": random(width, vocabulary), "unembed.b_U": random(vocabulary)}


def by_hand(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """The forward pass written out from the parameters under their own names, float64."""
    given = {name: each.double() for name, each in weights.items()}

    def norm(x: Tensor, at: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return (
            centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * given[f"{at}.w"]
            + given[f"{at}.b"]
        )

    length = tokens.shape[1]
    stream = given["embed.W_E"][tokens] + given["pos_embed.W_pos"][:length]
    later = torch.ones(length, length).triu(1).bool()
    for layer in itertools.count():
        at = f"blocks.{layer}.attn"
        if f"{at}.W_Q" not in given:
            break
        x = norm(stream, f"blocks.{layer}.ln1")
        q, k, v = (
            torch.einsum("bpd,hdc->bhpc", x, given[f"{at}.W_{name}"]) + given[f"{at}.b_{name}"][None, :, None]
            for name in "QKV"
        )
        scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        pattern = scores.masked_fill(later, -torch.inf).softmax(-1)
        stream = stream + torch.einsum("bhpc,hcd->bpd", pattern @ v, given[f"{at}.W_O"]) + given[f"{at}.b_O"]
    return norm(stream, "ln_final") @ given["unembed.W_U"] + given["unembed.b_U"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with random weights of the shape of attn-only-4l, but for the widths."""
    return convert_attention_only(weights_of(), tmp_path_factory.mktemp("attn-only-4l"))


@pytest.fixture(scope="module")
def model(converted: Path) -> Model:
    return load_model(converted, dtype=torch.float64)


@pytest.fixture(scope="module")
def task() -> PairTask:
    clean, corrupted = torch.randint(1, 50, (2, 5, 9), generator=torch.Generator().manual_seed(1))
    answers = torch.arange(5)[:, None]
    return PairTask(clean=clean, corrupted=corrupted, answers=answers, wrong=answers + 7, name="ids")


def test_a_converted_checkpoint_computes_what_its_parameters_say(model: Model) -> None:
    tokens = torch.randint(0, 50, (3, 10), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = model.module(tokens, use_cache=False).logits
    torch.testing.assert_close(found, by_hand(weights_of(), tokens), rtol=1e-9, atol=1e-9)
    assert model.graph.n_edges == 1281
    assert model.graph.fingerprint == published_circuit("docstring_attn_only_4l").graph.fingerprint


def test_a_converted_file_is_the_converted_mapping(converted: Path, tmp_path: Path) -> None:
    stored = tmp_path / "model_final.pth"
    torch.save(weights_of(), stored)
    with pytest.raises(UnsafeFileError, match="allow_pickle=True"):
        convert_attention_only(stored, tmp_path / "refused")
    again = convert_attention_only(stored, tmp_path / "made", allow_pickle=True)
    assert (again / "model.safetensors").read_bytes() == (converted / "model.safetensors").read_bytes()


def test_the_published_docstring_circuit_runs(model: Model, task: PairTask) -> None:
    circuit = published_circuit("docstring_attn_only_4l")
    with torch.no_grad():
        _, ablated = literal.run_plain(model, task.corrupted)
        expected = literal.run_circuit(model, circuit, task.clean, ablated)[:, -1]
    torch.testing.assert_close(run_circuit(circuit, model, task), expected, rtol=1e-8, atol=1e-8)
    worst = worst_case(circuit, model, task, "file")
    assert worst.divergence.shape == (5,)
    assert worst.worst(2)[0].divergence > 0


REFUSED: list[tuple[dict[str, Tensor | None], type[Exception], str]] = [
    ({"blocks.2.attn.W_K": None}, FileFormatError, r"has no 'blocks\.2\.attn\.W_K'"),
    ({"blocks.1.mlp.W_in": torch.zeros(64, 256)}, FileFormatError, "W_in, which do not belong"),
    ({"blocks.1.attn.W_Q": torch.zeros(8, 64, 9)}, ShapeError, r"\(8, 64, 9\); expected \(8, 64, 8\)"),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSED)
def test_other_checkpoints_are_refused_by_name(
    change: dict[str, Tensor | None], error: type[Exception], message: str, tmp_path: Path
) -> None:
    weights = {name: each for name, each in (weights_of() | change).items() if each is not None}
    with pytest.raises(error, match=message):
        convert_attention_only(weights, tmp_path / "made")

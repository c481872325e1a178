"""Small float64 models of every kind that cutting edges has to serve, with examples of each."""

from collections.abc import Callable

import torch
import transformers
from small_models import image_task, randomise
from tiny_decoders import SIZES
from torch import Tensor, nn

from assay.models import Model, load_model
from assay.tasks import PairTask, Task


_VIT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 8,
    "num_labels": 5,
}


def _windowed() -> nn.Module:
    """Grouped queries, rotary positions and a sliding window of two positions."""
    config = transformers.MistralConfig(
        **SIZES,
        sliding_window=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.MistralForCausalLM(config).double().eval()


def _behind_norms() -> nn.Module:
    """Heads that depend on each other through the norm of what they write together."""
    config = transformers.Olmo2Config(**SIZES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.Olmo2ForCausalLM(config).double().eval()


_OTHERS: dict[str, Callable[[], nn.Module]] = {
    "window": _windowed,
    "post-norm": _behind_norms,
    "vit": lambda: randomise(transformers.ViTForImageClassification(transformers.ViTConfig(**_VIT))),
    "pooled": lambda: randomise(
        transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**_VIT))
    ),
}

TEXT = ("gpt2", "neox", "llama", "window")
NAMES = (*TEXT, "post-norm", "vit", "pooled")


def random_prompts(model: Model, n: int, length: int, *, ragged: bool) -> PairTask:
    """Random pairs with one answer and two wrong answers each."""
    generator = torch.Generator().manual_seed(1)

    def ids(*shape: int) -> Tensor:
        return torch.randint(1, model.n_vocab, shape, generator=generator)

    lengths = torch.randint(3, length + 1, (n,), generator=generator) if ragged else torch.full((n,), length)
    answers = ids(n, 1)
    return PairTask(
        clean=ids(n, length),
        corrupted=ids(n, length),
        answers=answers,
        wrong=(answers + 1 + torch.arange(2)) % model.n_vocab,
        lengths=lengths,
    )


def model_and_task(
    name: str, tiny_module: Callable[..., nn.Module], n: int = 4, *, ragged: bool = True
) -> tuple[Model, Task]:
    """A model by name, and examples bound to it: prompts (of several lengths, if ragged) or images."""
    model = load_model(_OTHERS[name]() if name in _OTHERS else tiny_module(name, torch.float64))
    if model.vision is not None:
        return model, model.bind(image_task(model, n))
    return model, random_prompts(model, n, 6, ragged=ragged)

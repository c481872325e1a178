"""Small float64 models of every kind that cutting edges has to serve, with examples of each."""

from collections.abc import Callable

import torch
from small_models import build, image_task
from torch import Tensor, nn

from assay.models import Model, load_model
from assay.tasks import PairTask, Task


# Heads of a post-norm model depend on each other through the norm of what they write together.
_OTHERS = {
    "window": "mistral with a window",
    "post-norm": "olmo2",
    "vit": "vit",
    "pooled": "deit with a teacher",
}

TEXT = ("gpt2", "neox", "llama", "window")
NAMES = (*TEXT, "post-norm", "vit", "pooled")


def random_prompts(
    model: Model, n: int = 4, length: int = 7, *, ragged: bool = False, seed: int = 1
) -> PairTask:
    """Random pairs with one answer and two wrong answers each."""
    generator = torch.Generator().manual_seed(seed)

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
    model = load_model(build(_OTHERS[name]) if name in _OTHERS else tiny_module(name, torch.float64))
    if model.vision is not None:
        return model, model.bind(image_task(model, n))
    return model, random_prompts(model, n, 6, ragged=ragged)

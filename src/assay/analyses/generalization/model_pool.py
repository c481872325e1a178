"""Models that are loaded once and kept while there is room for them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch

from assay.core.machine import free_memory
from assay.execution.memory import weight_bytes
from assay.models import Model


ROOM = 0.25  # of the free memory that the weights of models may take
LARGEST_GROUP = 16  # models that read a batch together: each holds sums of its own


def model_groups(loaders: Iterable[tuple[str, Callable[[], Model]]]) -> Iterator[dict[str, Model]]:
    """Models by name, as many at a time as have room together; those of a group share what they read."""
    group: dict[str, Model] = {}
    taken = 0
    for name, load in loaders:
        group[name] = load()
        taken += weight_bytes(group[name])
        if len(group) == LARGEST_GROUP or taken > ROOM * _free(group[name].device):
            yield group
            group, taken = {}, 0
    if group:
        yield group


class ModelPool:
    """Gives models by name; each is loaded when first asked for, and kept if its weights leave room.

    A model is kept if its weights are at most a quarter of what is free on its device once it is there, so
    passes keep most of it. Others are loaded again each time.
    """

    def __init__(self, loaders: Mapping[str, Callable[[], Model]]) -> None:
        self._loaders = dict(loaders)
        self._kept: dict[str, Model] = {}

    def loaders(self, names: Iterable[str] | None = None) -> dict[str, Callable[[], Model]]:
        """Functions that give models, by name; all of them, or these."""
        return {name: partial(self.model, name) for name in (self._loaders if names is None else names)}

    def model(self, name: str) -> Model:
        """The model of a name."""
        if name in self._kept:
            return self._kept[name]
        model = self._loaders[name]()
        if weight_bytes(model) <= ROOM * _free(model.device):
            self._kept[name] = model
        return model


def _free(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free_memory()

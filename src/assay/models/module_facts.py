"""What a module says of itself: number type, device, images and classes, the hash of its weights."""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.models.family import Config, Family, Vision, home_of, submodule


def hash_weights(facts: Mapping[str, Any], parameters: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over facts and parameters, in order: names, shapes, types, bytes (16 hex digits)."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, parameter in parameters:
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


_LOOKED_AT = 2**14  # numbers of each parameter


def _state(parameters: Iterable[tuple[str, Tensor]]) -> tuple[Any, ...]:
    """What differs once parameters have changed, for far less than a forward pass.

    Where each lies, its count of changes, and a checksum of its numbers (of more than 2^15 only of evenly
    spaced ones): changes through `.data` or a NumPy view are not counted.
    """
    check, places = 0, []
    for _, parameter in parameters:
        places.append((parameter.data_ptr(), parameter._version))
        some = parameter.detach().flatten()[:: parameter.numel() // _LOOKED_AT | 1]  # odd: columns differ
        check = zlib.crc32(some.cpu().contiguous().view(torch.uint8).numpy().data, check)
    return (check, *places)


class ModuleFacts:
    """Facts of a module that fits a family, read from it each time."""

    module: nn.Module
    family: Family
    id: str
    _hashed: dict[tuple[Any, ...], str]  # of the present state; shared by models of the same module

    @property
    def dtype(self) -> torch.dtype:
        """Number type of the weights."""
        return next(self.module.parameters()).dtype

    @property
    def result_dtype(self) -> torch.dtype:
        """Number type of results: float64 for a float64 model, else float32."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def device(self) -> torch.device:
        """Where the weights are; of a model on several devices, see `home_of`."""
        return home_of(self.module)

    @cached_property
    def unembed_module(self) -> nn.Module:
        """The module from the normalised stream to logits.

        Raises:
            UnsupportedModelError: If several modules share that work (a distilled classifier).
        """
        return submodule(self.module, self.family.unembed)

    @property
    def vision(self) -> Vision | None:
        """How images are run and read; None for a language model."""
        return self.family.vision

    @property
    def causal(self) -> bool:
        """Whether a position attends only to itself and earlier ones."""
        return self.vision is None

    @cached_property
    def pools(self) -> bool:
        """Whether the logits read the final stream at more positions than one."""
        return self.vision is not None and self.vision.pools(self.module)

    def _sees(self) -> Vision:
        if self.vision is None:
            raise InputError(
                f"{self.id} is a language model: images, image tokens and classes do not apply to it"
            )
        return self.vision

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images an image classifier takes."""
        return self._sees().image_size(self.module)

    @property
    def n_tokens(self) -> int:
        """Positions an image classifier makes of an image: patches and prefix tokens."""
        return self._sees().n_tokens(self.module)

    @property
    def n_classes(self) -> int:
        """Classes an image classifier tells apart."""
        return self._sees().n_classes(self.module)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, label 0 first; None if the model does not know them."""
        return self._sees().classes(self.module)

    @property
    def n_vocab(self) -> int:
        """Width of the logits: rows of the token embedding, or classes."""
        if self.vision is not None:
            return self.n_classes
        embedding = self.module.get_input_embeddings()  # type: ignore[operator]  # every pre-trained model class has it
        return int(embedding.weight.shape[0])

    @property
    def n_positions(self) -> int | None:
        """Longest prompt that can be read, for models with a table of positions; else None."""
        if not self.family.learned_positions:
            return None
        config: Config = self.module.config
        return int(config.max_position_embeddings)

    @property
    def weight_hash(self) -> str:
        """SHA-256 over the configuration and all parameters: names, shapes, types, bytes (16 hex digits).

        Made when it is first asked for, and again once parameters have changed. A change of few numbers of a
        parameter of more than 2^15 through `.data` or a NumPy view may go unseen: call `refresh` after it.
        """
        parameters = sorted(self.module.named_parameters())
        state = _state(parameters)
        if state not in self._hashed:
            self._hashed.clear()
            self._hashed[state] = hash_weights(self.family.facts(self.module), parameters)
        return self._hashed[state]

    def refresh(self) -> None:
        """Have the weights hashed anew, after a change that may go unseen (see `weight_hash`)."""
        self._hashed.clear()

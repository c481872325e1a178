"""`LossTerm`: what a training adds to the cross entropy."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn


class LossTerm(ABC):
    """A quantity added to the cross entropy of every batch, e.g. a penalty on the circuit.

    A term with a memory hands it over in `state` and takes it back in `restore`, so that a killed run goes on
    as if nothing had happened.
    """

    @abstractmethod
    def __call__(
        self,
        module: nn.Module,
        images: Float[Tensor, "batch 3 h w"],
        labels: Int[Tensor, " batch"],
        logits: Float[Tensor, "batch n_classes"],
    ) -> Float[Tensor, ""]:
        """The term of a batch, weighted as it is to be added to the mean cross entropy."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Every setting as JSON values: part of the identity of the run."""

    def readings(self) -> dict[str, float]:
        """Numbers of the last call to keep in the history of the run; the same names at every step."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """What the next call depends on."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state` handed over."""
        del state

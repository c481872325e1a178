"""Number types of the passes of a training step: half the memory and time on an accelerator."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn

from assay.core.errors import InputError, unknown_name


PRECISIONS = ("float32", "bfloat16", "float16")


@final
class Precision:
    """Passes in one number type; weights, gradients and the optimiser stay in float32.

    With a half type, `torch.autocast` runs matrix products in it and keeps sums and norms in float32. In
    `float16`, whose smallest numbers are too large for many gradients, the loss is multiplied by a factor
    that grows until a gradient overflows, and the step of an overflow is left out.

    Args:
        name: `float32`, `bfloat16` or `float16`.
        device: Where the passes run.

    Raises:
        UnknownNameError: If there is no such precision.
        InputError: For `float16` elsewhere than on CUDA, and for `bfloat16` on a GPU without it.
    """

    def __init__(self, name: str, device: str) -> None:
        if name not in PRECISIONS:
            raise unknown_name("precision", name, PRECISIONS)
        kind = torch.device(device).type
        if name == "float16" and kind != "cuda":
            raise InputError(
                f"float16 needs a CUDA device to train on, and the device is {device}; give bfloat16 or "
                "float32"
            )
        if name == "bfloat16" and kind == "cuda" and not torch.cuda.is_bf16_supported():
            raise InputError("this GPU does not compute in bfloat16; give float16 or float32")
        self.name = name
        self._kind, self._dtype = kind, getattr(torch, name)
        self._scaler = torch.amp.GradScaler(kind, enabled=name == "float16")

    def passes(self) -> AbstractContextManager[Any]:
        """Forward passes in this block use the number type."""
        if self._dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self._kind, dtype=self._dtype)

    def step(
        self,
        loss: Tensor,
        optimiser: torch.optim.Optimizer,
        parameters: list[nn.Parameter],
        clip: float | None,
    ) -> None:
        """Backward pass, clipping by the norm of the gradient, and the step of the optimiser."""
        optimiser.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()
        if clip is not None:
            self._scaler.unscale_(optimiser)
            nn.utils.clip_grad_norm_(parameters, clip)
        self._scaler.step(optimiser)
        self._scaler.update()

    def state(self) -> dict[str, Any]:
        """What the next step depends on, as JSON values."""
        return dict(self._scaler.state_dict())

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` handed over."""
        if state:
            self._scaler.load_state_dict(dict(state))

"""The experts of a mixture as nodes of their own: who is given which token, and what each adds to the stream.

Expert j of a block writes o_j,t = w_j,t FFN_j(norm(x_j,t)), with x_j the stream that its own target reads and
w_j,t the router's factor for token t, 0 where the token does not go to it. The w are those of the clean run
in every run of an example, so they are constants: no cut edge sends a token elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, eq=False)
class Routing:
    """Which experts the tokens of some examples go to in one block, and with what factors.

    Attributes:
        chosen: Numbers of the experts of each token, all different.
        weight: The factor of each one's output.
    """

    chosen: Int[Tensor, "*n chosen"]
    weight: Float[Tensor, "*n chosen"]

    def spread(
        self, values: Float[Tensor, "*n chosen d_model"], count: int
    ) -> Float[Tensor, "*n n_experts d_model"]:
        """Values of the experts that a token goes to among those of all experts; zeros elsewhere."""
        empty = values.new_zeros(*values.shape[:-2], count, values.shape[-1])
        return empty.scatter(-2, self.chosen[..., None].expand_as(values), values)


@dataclass(frozen=True, kw_only=True, eq=False)
class Experts:
    """The experts of one block.

    Attributes:
        module: The native module, from tokens `[rows, d_model]`, their experts `[rows, chosen]` and factors
            to the sum of what these give, `[rows, d_model]`.
        count: How many there are.
    """

    module: nn.Module
    count: int

    def __call__(
        self,
        streams: Sequence[tuple[int, Float[Tensor, "*n d_model"]]],
        routing: Routing,
        norm: Callable[[Tensor], Tensor],
    ) -> list[Float[Tensor, "*n d_model"]]:
        """What some experts add to the stream, each for a stream of its own, by one native call.

        Args:
            streams: The number of each expert, and what its target reads.
            routing: Of the same tokens.
            norm: The norm before the experts.
        """
        places = [routing.chosen == expert for expert, _ in streams]
        rows = torch.cat([stream[at.any(-1)] for (_, stream), at in zip(streams, places, strict=True)])
        weight = torch.cat([routing.weight[at] for at in places])
        numbers = torch.cat([routing.chosen[at] for at in places])
        given = self.module(norm(rows), numbers[:, None], weight[:, None]) if len(rows) else rows
        parts = given.to(rows.device).split([int(at.sum()) for at in places])
        added = []
        for (_, stream), at, part in zip(streams, places, parts, strict=True):
            output = torch.zeros_like(stream)
            output[at.any(-1)] = part
            added.append(output)
        return added

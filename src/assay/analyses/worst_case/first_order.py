"""Which fillers of a slot are worth evaluating: the gradient of the divergence at the inputs' embeddings."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from assay.analyses.worst_case.ascent import SIDES, Pair, prompt_key
from assay.circuits import Circuit
from assay.execution.baseline import Baseline
from assay.execution.soft import SoftPairs, SoftRunner
from assay.models import Model
from assay.tasks import Grammar, Prompt, encode_prompts


class FirstOrder:
    """Ranks variants of a prompt by the first-order change of KL(model || circuit).

    With e the stream entering block 0, a variant e' of either prompt scores the sum over positions of
    (e' - e) . dK/de, the gradient taken through model, circuit and corrupted run at the present pair.

    Args:
        model: The model.
        circuit: The edges to keep.
        grammar: Tokenises the prompts.

    Notes:
        A pair costs a run of all edges forth and back, once for all of its slots; a variant costs its
        embedding. A word's embedding lies far from another's, so the order of scores is a hint, no more.
    """

    def __init__(self, model: Model, circuit: Circuit, grammar: Grammar) -> None:
        self.model, self.grammar = model, grammar
        self.runner = SoftRunner(model)
        self.mask = circuit.mask.to(model.device, self.runner.dtype)
        self._last: tuple[object, dict[str, Tensor]] | None = None

    def __call__(self, pair: Pair, side: str, variants: Sequence[Prompt]) -> Float64[np.ndarray, " variants"]:
        key = tuple(map(prompt_key, pair))
        if self._last is None or self._last[0] != key:
            _, gradients = self.gradients(self.tokens(pair[:1]), self.tokens(pair[1:]))
            self._last = key, gradients
        now = self.embedded(self.tokens([pair[SIDES.index(side)]]))
        change = self.embedded(self.tokens(variants)) - now
        scores = (change.double() * self._last[1][side].double()).sum((1, 2))
        return np.asarray(scores.cpu().numpy())

    def tokens(self, prompts: Sequence[Prompt]) -> Int[Tensor, "prompts pos"]:
        return encode_prompts(prompts, self.grammar.tokens).ids.to(self.model.device)

    def embedded(self, tokens: Int[Tensor, "prompts pos"]) -> Float[Tensor, "prompts pos d_model"]:
        """The streams entering block 0."""
        with torch.no_grad(), self.model.tracing(until=0) as trace:
            self.model.forward(tokens)
        return trace.input

    def gradients(
        self, clean: Int[Tensor, "pairs pos"], corrupted: Int[Tensor, "pairs pos"]
    ) -> tuple[Float[Tensor, " pairs"], dict[str, Float[Tensor, "pairs pos d_model"]]]:
        """KL of each pair, read at the last position, and its gradient at the streams entering block 0."""
        read = torch.full((len(clean),), clean.shape[1] - 1, device=clean.device)
        with torch.enable_grad(), self.model.frozen():
            with self.model.tracing(gradients=True, attached=True) as of_clean:
                hidden = self.model.forward(clean)
            with self.model.tracing(gradients=True, attached=True) as of_corrupted:
                self.model.forward(corrupted)
            leaves = [of_clean.leaf, of_corrupted.leaf]
            assert leaves[0] is not None
            assert leaves[1] is not None
            pairs = SoftPairs(
                embedded=(leaves[0] - leaves[1]).to(self.runner.dtype),
                baseline=Baseline(
                    model=self.model,
                    input=leaves[1],
                    z=of_corrupted.z,
                    mlp=of_corrupted.mlp,
                    trace=of_corrupted,
                ),
                tables=self.model.tables(of_corrupted.calls),
                scale=of_clean.scale,
                read=read,
                model_logits=self.model.read(hidden, read).to(self.runner.dtype),
            )
            log_p = pairs.model_logits.log_softmax(-1)
            log_c = self.runner.logits(pairs, self.mask).log_softmax(-1)
            values = (log_p.exp() * (log_p - log_c)).sum(-1)
            both = torch.autograd.grad(values.sum(), [leaves[0], leaves[1]])
        return values.detach(), dict(zip(SIDES, both, strict=True))

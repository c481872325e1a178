"""Which fillers of a slot are worth evaluating: the gradient of the divergence at the inputs' embeddings."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from assay.analyses.worst_case.ascent import SIDES, Pair, prompt_key
from assay.circuits import Circuit
from assay.execution import Ablation, get_ablation
from assay.execution.baseline import Baseline
from assay.execution.soft import SoftPairs, SoftRunner
from assay.models import Model
from assay.tasks import Grammar, PairTask, Prompt, encode_prompts


class FirstOrder:
    """Ranks variants of a prompt by the first-order change of KL(model || circuit).

    With e the stream entering block 0, a variant e' of either prompt scores the sum over positions of
    (e' - e) . dK/de, the gradient taken through model, circuit and corrupted run at the present pair. Under
    an ablation that reads no second prompt, what cut edges carry stays as it is.

    Args:
        model: The model.
        circuit: The edges to keep.
        grammar: Tokenises the prompts.
        ablation: What cut edges carry.

    Notes:
        A pair costs a run of all edges forth and back, once for all of its slots; a variant costs its
        embedding. A word's embedding lies far from another's, so the order of scores is a hint, no more.
    """

    def __init__(
        self, model: Model, circuit: Circuit, grammar: Grammar, ablation: str | Ablation = "resample"
    ) -> None:
        self.model, self.grammar, self.ablation = model, grammar, get_ablation(ablation)
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
            baseline, leaf = self.baseline(clean, corrupted)
            assert of_clean.leaf is not None
            leaves = [each for each in (of_clean.leaf, leaf) if each is not None]
            pairs = SoftPairs(
                embedded=(of_clean.leaf - baseline.input).to(self.runner.dtype),
                baseline=baseline,
                tables=self.model.tables(of_clean.calls),
                read=read,
                model_logits=self.model.read(hidden, read).to(self.runner.dtype),
            )
            log_p = pairs.model_logits.log_softmax(-1)
            log_c = self.runner.logits(pairs, self.mask).log_softmax(-1)
            values = (log_p.exp() * (log_p - log_c)).sum(-1)
            gradients = torch.autograd.grad(values.sum(), leaves)
        return values.detach(), dict(zip(SIDES, gradients, strict=False))

    def baseline(
        self, clean: Int[Tensor, "pairs pos"], corrupted: Int[Tensor, "pairs pos"]
    ) -> tuple[Baseline, Tensor | None]:
        """What cut edges carry, and the stream of the corrupted prompts that it depends on, if any."""
        if not self.ablation.paired:
            task = PairTask(clean=clean, corrupted=clean, answers=clean[:, :1])
            batch = next(task.batches(task.n)).to(self.model.device)
            prepared = self.ablation.prepare(self.model, task, batch_size=task.n, seed=0)
            return prepared.baseline(batch), None
        with self.model.tracing(gradients=True, attached=True) as trace:
            self.model.forward(corrupted)
        assert trace.leaf is not None
        made = Baseline(model=self.model, input=trace.leaf, z=trace.z, mlp=trace.mlp, trace=trace)
        return made, trace.leaf

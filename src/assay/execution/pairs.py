"""One circuit on many pairs of a clean and a corrupted input, whose passes are made once per input."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.circuits import Circuit
from assay.core.errors import InputError, UnsupportedModelError
from assay.execution.ablation import Baseline, joined
from assay.execution.runner import CircuitRunner
from assay.models import Model, Trace


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedInputs:
    """Inputs of one side with what a pass over them left behind, one row per input.

    Attributes:
        logits: Of the model at the last position, `[n, d_vocab]`.
        trace: Of a clean input what its sources write; of a corrupted one also the streams they add up to.
    """

    logits: Float[Tensor, "n d_vocab"]
    trace: Trace

    @property
    def n(self) -> int:
        return len(self.logits)

    @property
    def nbytes(self) -> int:
        """Memory of all rows."""
        return self.logits.nbytes + self.trace.nbytes

    def rows(self, index: Int[Tensor, " k"]) -> "PreparedInputs":
        """Some of the inputs, in this order; a run of consecutive ones is a view, not a copy."""
        first, last = int(index[0]), int(index[-1]) + 1
        run = last - first == len(index) and bool((index[1:] > index[:-1]).all())
        chosen = slice(first, last) if run else index
        trace = joined([self.trace], lambda parts: parts[0][chosen])
        return PreparedInputs(logits=self.logits[chosen], trace=trace)

    @staticmethod
    def concatenate(blocks: "Iterable[PreparedInputs]") -> "PreparedInputs":
        """The inputs of several blocks, one after the other."""
        every = list(blocks)
        trace = joined([block.trace for block in every], torch.cat)
        return PreparedInputs(logits=torch.cat([block.logits for block in every]), trace=trace)


class PairRunner:
    """Runs one circuit on pairs of inputs under resample ablation, read at their last token.

    Args:
        model: The model.
        circuit: The edges to keep.

    References:
        uit de Bos and Garriga-Alonso (2024), arXiv:2407.15166, equation 1.
    """

    def __init__(self, model: Model, circuit: Circuit) -> None:
        model.check_text("running a table of pairs")
        if any(block.target_norm is not None for block in model.blocks):
            raise UnsupportedModelError(
                f"a table of pairs of {model.id} cannot run with post_norm={model.post_norm!r}, where a "
                "target does not read the sum of a clean and a corrupted part; use 'exact'"
            )
        self.model = model
        self.runner = CircuitRunner(model, circuit, resample=True)

    @torch.no_grad()
    def prepare(self, tokens: Int[Tensor, "n pos"], *, clean: bool) -> PreparedInputs:
        """One plain pass over inputs of one side."""
        model, depth = self.model, self.runner.clean_depth
        with model.tracing(streams=not clean) as trace:
            hidden = model.forward(tokens.to(model.device))
        if clean:
            del trace.z[depth:], trace.mlp[depth:]
        del trace.block_in[1:]
        return PreparedInputs(logits=model.unembed(hidden[:, -1]).to(model.result_dtype), trace=trace)

    def product(
        self, clean: PreparedInputs, corrupted: PreparedInputs
    ) -> Float[Tensor, "n_clean n_corrupted d_vocab"]:
        """Logits of every combination of a clean and a corrupted input."""
        rows = torch.cartesian_prod(torch.arange(clean.n), torch.arange(corrupted.n))
        return self.pairs(clean, corrupted, *rows.unbind(1)).view(clean.n, corrupted.n, -1)

    def pairs(
        self,
        clean: PreparedInputs,
        corrupted: PreparedInputs,
        clean_index: Int[Tensor, " pairs"],
        corrupted_index: Int[Tensor, " pairs"],
    ) -> Float[Tensor, "pairs d_vocab"]:
        """Logits of some combinations, given by row numbers of both sides."""
        if self.runner.plan.everything:
            return clean.logits[clean_index]
        one, other = clean.trace.input, corrupted.trace.input
        length = one.shape[1]
        if length != other.shape[1]:
            raise InputError(
                f"the clean inputs have {length} tokens, the corrupted ones {other.shape[1]}, but edges can "
                "only be patched between inputs of one length"
            )
        rows = clean_index.to(one.device), corrupted_index.to(one.device)
        # First positions with one token in all inputs, as the embeddings tell; one is left to be read.
        alike = torch.stack([(side == one[:1]).all(2).all(0) for side in (one, other)]).all(0)
        shared = min(int(alike.long().cumprod(0).sum()), length - 1)
        read = torch.full_like(rows[0], length - 1)
        baseline = Baseline.of(self.model, corrupted.trace)
        logits = self.runner.logits(clean.trace, baseline, read, rows=rows, shared=shared)
        return logits.to(self.model.result_dtype)

    def bytes_to_prepare(self, length: int) -> int:
        """Rough working memory of preparing one input of this length: a traced pass."""
        model = self.model
        kept = 3 * model.d_model + (model.n_heads + model.blocks[0].n_channels) * model.d_head
        return (model.n_layers * kept + 16 * model.d_model) * length * 8 + 16 * model.n_vocab

    def bytes_per_pair(self, length: int) -> int:
        """Rough working memory of one pair of this length."""
        return self.runner.bytes_per_pair(length) + 24 * self.model.n_vocab

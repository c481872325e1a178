"""Local learning coefficient of single heads: how degenerate the loss is in its value and output weights.

Two forms that are not interchangeable: `learning_coefficients` samples the definition, `fisher_count` counts
the directions in which gradients vary at all. Lower means simpler, more specialised.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from assay.core.errors import DegenerateDataWarning, InputError, check_least
from assay.core.random import torch_stream
from assay.discovery.heads.replacing import heads_of_model
from assay.discovery.heads.scores import HeadScores, provenance_of
from assay.execution.batches import choose_batch_size
from assay.models import Block, Model, Separate, Trace
from assay.objectives import Objective, get_objective
from assay.tasks import Batch, Task, map_tensors
from assay.tasks.rows import draw_rows


NOT_CONVERGED = "llc_not_converged"
_STATIONARY = 1.1  # largest split R-hat that counts as converged (Gelman et al., Bayesian Data Analysis)

# [chains, d] displacements -> losses [chains] and their gradients [chains, d]
_LossAndGradient = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Langevin:
    """Settings of the sampler.

    Attributes:
        step: Step size epsilon, > 0.
        localisation: Strength g of the pull to the start, >= 0.
        chains: Independent chains, >= 1.
        burn_in: Steps thrown away, >= 0.
        draws: Steps kept, >= 1.
        seed: Root of the noise.
    """

    step: float = 1e-5
    localisation: float = 100.0
    chains: int = 4
    burn_in: int = 200
    draws: int = 200
    seed: int = 42

    def __post_init__(self) -> None:
        if not self.step > 0 or not self.localisation >= 0:
            raise InputError(
                f"step is {self.step} and localisation {self.localisation}; give above 0 and at least 0"
            )
        if self.chains < 1 or self.burn_in < 0 or self.draws < 1:
            raise InputError(
                f"chains is {self.chains}, burn_in {self.burn_in}, draws {self.draws}; "
                "give at least 1, 0 and 1"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class LearningCoefficient:
    """An estimate from Langevin chains.

    Attributes:
        value: lambda = n b (E[L_n] - L_n(w*)), b = 1 / ln n; mean of the chains.
        chain_values: `[chains]`, one estimate each.
        losses: `[chains, draws]`, the traces.
        start_loss: L_n(w*).
        r_hat: Split R-hat of the traces; near 1 where they are stationary and agree.
        warnings: `llc_not_converged` for a negative value, an R-hat above 1.1, or a loss that is not finite.
    """

    value: float
    chain_values: Float64[np.ndarray, " chains"]
    losses: Float64[np.ndarray, "chains draws"]
    start_loss: float
    r_hat: float
    warnings: tuple[str, ...] = ()


def learning_coefficient(
    loss: Callable[[Float64[Tensor, "chains d"]], Float64[Tensor, " chains"]],
    start: Float64[Tensor, " d"],
    n: int,
    sampler: Langevin | None = None,
) -> LearningCoefficient:
    """Local learning coefficient of any loss around a minimum, by Langevin sampling.

    w <- w - (epsilon / 2) (n b grad L_n(w) + g (w - w*)) + N(0, epsilon), b = 1 / ln n.

    Args:
        loss: Differentiable; a row of parameters per chain to a loss per chain.
        start: w*, where the coefficient is taken.
        n: Examples the loss averages, >= 2.
        sampler: Its settings; default: those of `Langevin`.

    Raises:
        InputError: For n below 2, where b is undefined.

    Notes:
        lambda is d / 2 for a regular minimum in d dimensions and smaller for a degenerate one. What is
        sampled is
        the expectation at finite n: where several factors vanish together (multiplicity m > 1) it lies about
        (m - 1) / ln n below lambda, and a strong pull g lowers it further.

    References:
        Lau et al. (2023), arXiv:2308.12108; Wang et al. (2024), arXiv:2410.02984.

    Example:
        >>> fast = Langevin(step=2e-6, localisation=0.0, draws=2000)
        >>> round(learning_coefficient(lambda w: (w**2).sum(1), torch.zeros(4).double(), 100_000, fast).value)
        2
    """
    if n < 2:
        raise InputError(f"n is {n}; the inverse temperature 1 / ln n needs at least 2 examples")

    def at(displacement: Tensor) -> tuple[Tensor, Tensor]:
        w = (start + displacement).requires_grad_()
        with torch.enable_grad():
            value = loss(w)
            (gradient,) = torch.autograd.grad(value.sum(), w)
        return value.detach(), gradient

    return _sample(at, len(start), n, sampler or Langevin(), "llc")


def _sample(loss: _LossAndGradient, d: int, n: int, sampler: Langevin, name: str) -> LearningCoefficient:
    """Langevin chains of the displacement from w*."""
    tempered = n / math.log(n)
    noise = torch_stream(sampler.seed, name)
    w = torch.zeros(sampler.chains, d, dtype=torch.float64)
    current, gradient = loss(w)
    start = float(current[0])
    kept = []
    for step in range(sampler.burn_in + sampler.draws):
        drift = tempered * gradient.double().cpu() + sampler.localisation * w
        kick = torch.randn(sampler.chains, d, generator=noise, dtype=torch.float64)
        w = w - sampler.step / 2 * drift + math.sqrt(sampler.step) * kick
        current, gradient = loss(w)
        if step >= sampler.burn_in:
            kept.append(current.double().cpu())
    losses = torch.stack(kept, 1).numpy()
    values = tempered * (losses.mean(axis=1) - start)
    r_hat = _split_r_hat(losses)
    # A NaN fails both comparisons, so a chain that ran away is not converged either.
    converged = values.mean() >= 0 and (r_hat <= _STATIONARY or sampler.draws < 4)
    return LearningCoefficient(
        value=float(values.mean()),
        chain_values=values,
        losses=losses,
        start_loss=start,
        r_hat=r_hat,
        warnings=() if converged else (NOT_CONVERGED,),
    )


def _split_r_hat(traces: Float64[np.ndarray, "chains draws"]) -> float:
    """R-hat over the halves of all chains; 1 for constant traces, NaN below 4 draws."""
    half = traces.shape[1] // 2
    if half < 2:
        return math.nan
    parts = np.concatenate([traces[:, :half], traces[:, -half:]])
    within = float(parts.var(axis=1, ddof=1).mean())
    between = float(parts.mean(axis=1).var(ddof=1))
    if within == 0:
        return 1.0 if between == 0 else math.inf
    return math.sqrt((half - 1) / half + between / within)


# ---- heads ------------------------------------------------------------------------------------------


def learning_coefficients(
    model: Model,
    task: Task,
    heads: Iterable[Sequence[int]] | None = None,
    *,
    n: int = 20,
    sampler: Langevin | None = None,
    objective: str | Objective = "ce",
    batch_size: int | None = None,
) -> HeadScores:
    """Local learning coefficient of heads, with respect to (W_V, W_O) of each and everything else frozen.

    Args:
        model: The model; its weights are not touched.
        task: `n` clean inputs are used, all in every step: the first of a task drawn from its grammar, a
            random sample of any other, drawn with the seed of `sampler`.
        heads: (layer, head) pairs to score; default: all.
        n: Examples, >= 2.
        sampler: Settings of the chains.
        objective: Loss whose mean is L_n; cross-entropy of the answers unless told otherwise.
        batch_size: Examples per pass and chain; default: by free memory.

    Returns:
        NaN at heads not asked for; lower = simpler. `details` by head as `layer.head`: `chains`, `r_hat`,
        `start_loss`. Negative values and traces that are not stationary give the warning `llc_not_converged`.

    Raises:
        InputError: For fewer than 2 examples, or impossible heads.

    Notes:
        Cost per head: chains x (burn_in + draws) x n forward and backward passes through the blocks from the
        head's own on. Under grouped-query attention W_V is that of the group, so all its heads move.

    References:
        Lau et al. (2023), arXiv:2308.12108; Wang et al. (2024), arXiv:2410.02984.
    """
    sampler = sampler or Langevin()
    used = some_examples(model, task, n, sampler.seed)
    if used.n < 2:
        raise InputError(f"there is only {used.n} example; the inverse temperature 1 / ln n needs at least 2")
    chosen = heads_of_model(model, heads)
    loss = get_objective(objective)
    starts = _starts(model, used, sampler.chains, batch_size)
    values = np.full(model.n_layers * model.n_heads, np.nan)
    details: dict[str, Any] = {}
    unsettled = []
    for layer, head in chosen:
        found = _sample(
            _HeadLoss(model, starts, loss, layer, head, sampler.chains, used.n),
            2 * model.d_model * model.d_head,
            used.n,
            sampler,
            f"llc/{layer}.{head}",
        )
        values[layer * model.n_heads + head] = found.value
        details[f"{layer}.{head}"] = {
            "chains": found.chain_values.tolist(),
            "r_hat": found.r_hat,
            "start_loss": found.start_loss,
        }
        if found.warnings:
            unsettled.append((layer, head))
    if unsettled:
        warnings.warn(
            f"{NOT_CONVERGED}: traces are not stationary, or values negative, for {len(unsettled)} of "
            f"{len(chosen)} heads, {unsettled[0]} first; use more burn_in and draws, or a smaller step",
            DegenerateDataWarning,
            stacklevel=2,
        )
    return coefficient_scores(
        model,
        used,
        "llc-sgld",
        values,
        warnings=(NOT_CONVERGED,) if unsettled else (),
        details={"heads": details, "n": used.n, "not_converged": unsettled},
        settings={**vars(sampler), "objective": loss.key},
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Start:
    """A batch of examples, once per chain (chain-major), as it enters each block."""

    batch: Batch
    trace: Trace


def _starts(model: Model, task: Task, chains: int, asked: int | None) -> list[_Start]:
    extra = 40 * model.n_layers * model.d_model * task.length * 4
    size = choose_batch_size(model, task, asked=asked, bytes_per_example=chains * extra)
    starts = []
    for batch in task.batches(size):
        batch = map_tensors(batch, lambda value: value.repeat(chains, *[1] * (value.ndim - 1)))
        batch = batch.to(model.device)
        with torch.no_grad(), model.tracing() as trace:
            model.forward(batch.clean)
        trace.head_z, trace.z, trace.mlp = [], [], []
        starts.append(_Start(batch=batch, trace=trace))
    return starts


class _HeadLoss:
    """Mean loss as a function of a displacement of one head's (W_V, W_O), a row per chain."""

    def __init__(
        self, model: Model, starts: list[_Start], loss: Objective, layer: int, head: int, chains: int, n: int
    ) -> None:
        self.model, self.starts, self.loss, self.layer, self.head = model, starts, loss, layer, head
        self.chains, self.n = chains, n

    def __call__(self, displacement: Tensor) -> tuple[Tensor, Tensor]:
        model = self.model
        moved = displacement.to(model.device, model.dtype).requires_grad_()
        value, output = moved.split(model.d_model * model.d_head, dim=1)
        value = value.unflatten(1, (model.d_model, model.d_head))
        output = output.unflatten(1, (model.d_head, model.d_model))
        losses = torch.zeros(self.chains, dtype=torch.float64, device=model.device)
        gradient = torch.zeros_like(moved, dtype=torch.float64)
        with model.frozen(), torch.enable_grad():
            for start in self.starts:
                with _displaced(model.blocks[self.layer], self.head, value, output):
                    hidden = model.resume(start.trace.block_in[self.layer], start.trace, layer=self.layer)
                logits = model.read(hidden, start.batch.positions).to(model.result_dtype)
                each = self.loss(logits, logits.detach(), start.batch).double()
                losses += each.detach().unflatten(0, (self.chains, -1)).sum(1)
                gradient += torch.autograd.grad(each.sum(), moved, retain_graph=True)[0].double()
        return losses / self.n, gradient / self.n


@contextmanager
def _displaced(block: Block, head: int, value: Tensor, output: Tensor) -> Iterator[None]:
    """The block with W_V and W_O of a head displaced, by another amount for each chain of the batch."""
    module, columns = value_columns(block)
    chains = len(value)
    mine = columns[block.kv_head(head)]
    slot = slice(head * block.d_head, (head + 1) * block.d_head)

    def through(x: Tensor, weight: Tensor) -> Tensor:
        apart = x.unflatten(0, (chains, -1))
        return torch.einsum("cbti,cio->cbto", apart, weight.to(x.device)).flatten(0, 1)

    def project(layer: nn.Module, args: tuple[Any, ...], projected: Tensor) -> Tensor:
        change = through(args[0], value).to(projected.device)
        return projected.index_add(-1, mine.to(projected.device), change)

    def write(layer: nn.Module, args: tuple[Any, ...], written: Tensor) -> Tensor:
        return written + through(args[0][..., slot], output).to(written.device)

    handles = [
        block.qkv[module].register_forward_hook(project),
        block.out.register_forward_hook(write),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def value_columns(block: Block) -> tuple[int, Tensor]:
    """Which projection module makes the values, and its output columns per key/value head."""
    if isinstance(block.family.qkv, Separate):
        widths = [block.n_heads * block.d_head, *[block.n_kv_heads * block.d_head] * 2]
        module = 2
    else:
        widths, module = [block.n_channels * block.d_head], 0
    # Numbering the outputs and laying them out as channels says where each channel stands.
    numbered = block.channels([torch.arange(width, dtype=torch.float64) for width in widths])
    return module, numbered[block.n_heads + block.n_kv_heads :].long()


def some_examples(model: Model, task: Task, n: int, seed: int) -> Task:
    """The first n inputs of a task drawn from its grammar, a random sample of any other."""
    check_least(1, n=n)
    drawn = getattr(task, "grammar", None) is not None  # one prompt after the other, so in no order
    rows = np.arange(min(n, task.n)) if drawn else draw_rows(task.n, n, seed=seed, what="examples")
    return model.bind(task).subset(rows.tolist())


def coefficient_scores(
    model: Model, task: Task, name: str, values: np.ndarray, *, settings: dict[str, Any], **more: Any
) -> HeadScores:
    """Scores of weights under a loss, of which lower ones are simpler."""
    return HeadScores.from_flat(
        name,
        model.n_heads,
        values,
        sign="lower = simpler",
        provenance=provenance_of(model, task, score=name, **settings),
        **more,
    )

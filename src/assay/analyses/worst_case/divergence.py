"""How far a circuit's output is from its model's, for blocks of pairs; the model is the reference.

Everything after the logits is float64. The divergences of whole output distributions are those of
`assay.metrics`; KL has a form of its own for blocks in which many pairs share a clean input.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from assay.analyses.worst_case.sampling import PromptSet
from assay.core.errors import InconsistentRunError, InputError, ShapeError
from assay.core.registry import Registry
from assay.metrics.divergence import UNITS, divergences


# Nats below zero that rounding can explain; float64 sums over 100,000 outputs err by about 1e-11.
ROUNDING = 1e-9

Kernel = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """A distance between the model's and the circuit's output, per pair.

    Attributes:
        key: Registered name.
        kernel: `(model logits [pairs, d_vocab], circuit logits [pairs, d_vocab]) -> [pairs]`, float64; with
            `needs_answers` also the right and wrong tokens, `[pairs, n]` with -1 filling short rows.
        unit: `nats`, `fraction`, `logits` or `user`.
        needs_answers: Whether the kernel takes the tokens.
        summary: One line for lists.
    """

    key: str
    kernel: Kernel
    unit: str = "nats"
    needs_answers: bool = False
    summary: str = ""


DIVERGENCES: Registry[Divergence] = Registry("divergence", holds=Divergence)


def get_divergence(divergence: str | Divergence | Kernel) -> Divergence:
    """The divergence behind a key or a callable `(model logits, circuit logits) -> [pairs]`."""
    if isinstance(divergence, Divergence):
        return divergence
    if callable(divergence):
        key = getattr(divergence, "__name__", type(divergence).__name__)
        return Divergence(key=key, kernel=divergence, unit="user", summary="the caller's own")
    return DIVERGENCES[divergence.replace("_", "-")]


def pair_divergences(
    divergence: Divergence,
    model: Float[Tensor, "pairs d_vocab"],
    circuit: Float[Tensor, "pairs d_vocab"],
    clean: PromptSet,
) -> Float64[np.ndarray, " pairs"]:
    """Divergences of some pairs, row by row; arguments and errors are those of `table_divergences`.

    Args:
        divergence: Which one.
        model: Logits of the model on each clean input.
        circuit: Logits of a circuit on each pair.
        clean: The clean inputs, a row per pair.
    """
    return table_divergences(divergence, model, circuit[:, None], clean)[:, 0]


def table_divergences(
    divergence: Divergence,
    model: Float[Tensor, "n_clean d_vocab"],
    circuit: Float[Tensor, "n_clean n_corrupted d_vocab"],
    clean: PromptSet,
) -> Float64[np.ndarray, "n_clean n_corrupted"]:
    """Divergences of a block of pairs that share clean inputs along the first axis.

    For KL the reference distribution is made once per clean input: with h = sum p log p,
    KL(p || softmax(l)) = h - p.l + log sum exp(l), a scalar product and a log-sum-exp per pair.

    Args:
        divergence: Which one.
        model: Logits of the model on each clean input.
        circuit: Logits of the circuit on each pair.
        clean: The clean inputs, whose right and wrong tokens some divergences need.

    Raises:
        InputError: If the divergence needs tokens that are not there.
        ShapeError: If a divergence of the caller's returns another shape than one number per pair.
        InconsistentRunError: If a KL is negative beyond rounding.
    """
    if divergence.kernel is DIVERGENCES["kl"].kernel:  # not by name: a callable may bear it too
        p, entropy = _reference(model)
        logits = circuit.double()
        cross = torch.bmm(logits, p[:, :, None]).squeeze(2)
        return _kl(entropy, cross, logits.logsumexp(-1), logits)
    n_clean, n_corrupted, n_vocab = circuit.shape
    spread = model[:, None].expand(-1, n_corrupted, -1).reshape(-1, n_vocab).double()
    arguments = [spread, circuit.reshape(-1, n_vocab).double()]
    if divergence.needs_answers:
        if clean.answers is None or clean.wrong is None:
            raise InputError(
                f"divergence {divergence.key!r} needs wrong answers, but these inputs have none; choose 'kl'"
            )
        tokens = (clean.answers, clean.wrong)
        arguments += [ids.repeat_interleave(n_corrupted, 0).to(circuit.device) for ids in tokens]
    values: object = divergence.kernel(*arguments)
    if not isinstance(values, Tensor) or values.shape != (n_clean * n_corrupted,):
        came = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ShapeError(
            f"divergence {divergence.key!r} returned {came}; expected one number per pair, shape "
            f"({n_clean * n_corrupted},)"
        )
    return np.asarray(values.double().cpu().numpy().reshape(n_clean, n_corrupted))


def cross_divergences(
    divergence: Divergence,
    model: Float[Tensor, "n_clean d_vocab"],
    other: Float[Tensor, "n_corrupted d_vocab"],
    clean: PromptSet,
    *,
    at_once: int,
) -> Float64[np.ndarray, "n_clean n_corrupted"]:
    """Divergences of every output of one list from every output of another, as of the empty circuit.

    For KL the scalar products of all pairs are one matrix product.

    Args:
        divergence: Which one.
        model: Logits of the reference, the model on each clean input.
        other: Logits of the model on each corrupted input.
        clean: The clean inputs.
        at_once: Outputs, or pairs of them, that are held in float64 at a time.
    """
    table = []
    if divergence.kernel is DIVERGENCES["kl"].kernel:
        for p, entropy in map(_reference, model.split(at_once)):
            parts = (part.double() for part in other.split(at_once))
            row = [_kl(entropy, p @ part.T, part.logsumexp(-1), part) for part in parts]
            table.append(np.concatenate(row, axis=1))
        return np.concatenate(table)
    for rows in torch.arange(len(model)).split(max(1, at_once // len(other))):
        spread = other[None].expand(len(rows), -1, -1)
        table.append(table_divergences(divergence, model[rows], spread, clean.subset(rows.numpy())))
    return np.concatenate(table)


def _reference(model: Tensor) -> tuple[Tensor, Tensor]:
    """The distributions behind some logits, and their negative entropies."""
    log_p = model.double().log_softmax(-1)
    p = log_p.exp()
    return p, torch.where(p > 0, p * log_p, 0).sum(-1)


def _kl(
    entropy: Tensor, cross: Tensor, log_sum: Tensor, logits: Tensor
) -> Float64[np.ndarray, "n_clean n_corrupted"]:
    """Of h = sum p log p and p.l, the divergence h - p.l + log sum exp(l), clipped at 0."""
    values = entropy[:, None] - cross + log_sum
    # NaN passes on to whoever names the pair.
    if bool((values < -ROUNDING * (1 + logits.abs().amax())).any()):
        raise InconsistentRunError(
            f"a KL divergence is {float(values.min()):g}, more negative than rounding can explain; please "
            "report it"
        )
    clipped = torch.where(values < 0, 0.0, values)
    return np.asarray(clipped.cpu().numpy())


def _of_outputs(kind: str, model: Tensor, circuit: Tensor) -> Tensor:
    return torch.from_numpy(divergences(model.cpu().numpy(), circuit.cpu().numpy(), kinds=(kind,))[kind])


def _mean_at(logits: Tensor, ids: Tensor) -> Tensor:
    present = ids >= 0
    return logits.gather(1, ids.clamp(min=0)).where(present, 0).sum(1) / present.sum(1)


def _logit_diff_gap(model: Tensor, circuit: Tensor, answers: Tensor, wrong: Tensor) -> Tensor:
    differences = [_mean_at(logits, answers) - _mean_at(logits, wrong) for logits in (model, circuit)]
    return (differences[0] - differences[1]).abs()


for _key, _summary in {
    "kl": "KL(model || circuit) over all outputs",
    "reverse-kl": "KL(circuit || model) over all outputs",
    "js": "the Jensen-Shannon divergence",
    "tv": "the total variation distance",
}.items():
    _kernel = partial(_of_outputs, _key)
    DIVERGENCES.add(_key, Divergence(key=_key, kernel=_kernel, unit=UNITS[_key], summary=_summary))
DIVERGENCES.add(
    "logit-diff-gap",
    Divergence(
        key="logit-diff-gap",
        kernel=_logit_diff_gap,
        unit="logits",
        needs_answers=True,
        summary="|difference of the answers' and the wrong answers' mean logits, model minus circuit|",
    ),
)

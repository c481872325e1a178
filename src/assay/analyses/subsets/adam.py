"""The published optimiser of subset selection: logits of all examples, descended by Adam with restarts.

The relaxed problem lets every example be in the selection by a share s_j = sigmoid(w_j). All restarts of a
search descend side by side, so that one pass over the matrix of correctness serves all of them; gradients
are in closed form. The default solver is `assay.analyses.subsets.swap`; this one is here to compare it with.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Integer

from assay.analyses.subsets._arrays import Accuracies
from assay.analyses.subsets._descent import (
    AdamParameters,
    AdamTarget,
    Descent,
    Judge,
    Relaxation,
    descend,
    draw_parameters,
)
from assay.analyses.subsets._exchange import Pool
from assay.analyses.subsets.layouts import AnswerTable
from assay.analyses.subsets.line import EPS
from assay.analyses.subsets.objective import Found, exact_correlation, unit_probit
from assay.analyses.subsets.placement import DeviceMatrix
from assay.core.errors import InputError, check_least, check_name
from assay.core.random import stream


CHOICES: Mapping[str, tuple[str, ...]] = {
    "penalty": ("softplus", "squared"),
    "keep": ("last", "best"),
    "search": ("random",),
    "precision": ("float32", "float64"),
}
_LARGEST_BYTES = 4 * 2**30  # of the two matrices as floating-point numbers
_LARGEST_BLOCK = 2**22  # logits descended side by side: restarts times examples


def adam(
    train: AnswerTable,
    id_train: Accuracies,
    size: int,
    *,
    validation: AnswerTable,
    id_validation: Float64[np.ndarray, " v"],
    trials: int = 20,
    epochs: int = 3000,
    patience: int = 500,
    penalty: str = "softplus",
    keep: str = "last",
    objective: str = "r",
    search: str = "random",
    parameters: Mapping[str, float | int] | None = None,
    precision: str = "float32",
    seed: int = 0,
    eps: float | int = EPS,
    strata: Integer[np.ndarray, " strata"] | None = None,
    allowed: Bool[np.ndarray, " mask"] | None = None,
    must_include: Integer[np.ndarray, " k"] | None = None,
) -> Found:
    """The published optimiser: a relaxed selection descended by Adam, restarted with random settings.

    Each trial draws logits w ~ N(0, 1) and settings, and descends
    R_ridge(s) + lambda_e P(sum s - S), s = sigmoid(w), over the training models. After each epoch the S
    largest logits are scored on the validation models. The trial with the lowest score wins.

    Args:
        train: Correctness of the training models; read as a dense matrix, of the layout `accelerator` on its
            device, where all restarts then descend and are judged.
        id_train: Their in-distribution accuracy, in [0, 1].
        size: Examples to select.
        validation: Correctness of the validation models.
        id_validation: Their in-distribution accuracy.
        trials: Restarts.
        epochs: Most epochs of each.
        patience: Epochs without a new validation minimum after which a trial stops.
        penalty: `softplus` holds the mass above `size` and leaves more of it free, as in the authors' code;
            `squared` holds it at `size`, as in the paper.
        keep: Which epoch of a trial is scored and kept: the `last`, as published, or the `best`.
        objective: `r` minimises R, `r2` its square.
        search: How settings are drawn: `random`, uniformly from the published ranges.
        parameters: Settings to fix, by the names of `AdamParameters`; the others are drawn.
        precision: `float32` or `float64` for everything of the length of the examples. Sums over models are
            float64 in any case.
        seed: Root seed. Trial k is the same in every search that has it, up to rounding.
        eps: Clip of accuracies.
        strata: Stratum code (>= 0) of every example: the largest logits are then taken by quota, which the
            relaxed problem does not know of.
        allowed: Which examples may be selected; the others are left out from the start.
        must_include: Examples that are always selected: their share is 1 from the start, their score -inf.

    Returns:
        Examples by falling logit; `scores` are the logits with the sign turned, so that a low score is a
        harmful example. Correlations are exact, without the ridge of the loss. `trace` has one record per
        trial, `extras` the settings of the winner.

    Raises:
        InputError: For an unknown option, matrices of more than 4 GiB as floating-point numbers, or
            constraints that cannot be met.

    Notes:
        Each epoch costs two products of the matrix with as many vectors as trials are running. Probits, rates
        and correlations, of the length of the models or trials, are computed on the CPU in float64.

        On the CPU all layouts give the same bits. A GPU sums in another order, which a long descent can make
        visible in the set; so its selections have an identity of their own.

        The authors search by TPE, one trial after the other, the first ten of them at random.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Eq. 5, and the code published with it.
    """
    import torch

    del search  # one of `CHOICES`, as the other names: `make_settings` refuses those that are not
    check_least(1, trials=trials, epochs=epochs, patience=patience)
    whole = Pool(
        train.n_examples, size, strata=strata, allowed=allowed, locked={"must_include": must_include}
    )
    columns = np.flatnonzero(whole.allowed)
    fixed = np.flatnonzero(whole.locked[columns])
    inner = None if whole.strata is None else whole.strata[columns]
    pool = Pool(len(columns), size, strata=inner, locked={"must_include": fixed})
    for name, accuracies in (("id_train", id_train), ("id_validation", id_validation)):
        unit_probit(accuracies, eps=eps, name=name)  # refused where they are all the same
    dtype = getattr(torch, precision)
    if isinstance(train, DeviceMatrix) and train.device.type == "mps":
        raise InputError(
            "solver='adam' sums in float64, which device 'mps' cannot; remove device and layout, or use "
            "solver='swap'"
        )
    _check_size(train, validation, len(columns), dtype.itemsize)
    some = columns if len(columns) < train.n_examples else None
    held_in, held_out = (each.tensor(dtype, some) for each in (train, validation))
    target = AdamTarget.of(id_train, eps)
    problem = Relaxation(correct=held_in, target=target, size=size, penalty=penalty, objective=objective)
    judge = Judge(correct=held_out, target=AdamTarget.of(id_validation, eps), pool=pool, objective=objective)
    starts = [_start(seed, trial, len(columns), parameters) for trial in range(trials)]
    side_by_side = max(1, _LARGEST_BLOCK // len(columns))
    descents: list[Descent] = []
    for at in range(0, trials, side_by_side):
        drawn, logits = zip(*starts[at : at + side_by_side], strict=True)
        w = torch.from_numpy(np.stack(logits)).to(dtype).to(held_in.device)
        w[:, fixed] = math.inf  # share 1, and no gradient
        descents += descend(problem, judge, w, drawn, epochs=epochs, patience=patience, keep=keep)
    scored = [each.validation[each.best_epoch if keep == "best" else -1] for each in descents]
    winner = int(np.argmin(scored))
    logits = descents[winner].logits
    members_of_pool = np.flatnonzero(judge.members(torch.from_numpy(logits[None]))[0].numpy())
    order = members_of_pool[np.argsort(-logits[members_of_pool], kind="stable")]
    members = columns[order]
    return Found(
        indices=members,
        scores=-logits[order].astype(np.float64),
        r_train=exact_correlation(train, id_train, members, eps),
        r_validation=exact_correlation(validation, id_validation, members, eps),
        trace=tuple(
            {"trial": trial, **asdict(used), **each.record()}
            for trial, ((used, _), each) in enumerate(zip(starts, descents, strict=True))
        ),
        extras={"trial": winner, "parameters": asdict(starts[winner][0]), "keep": keep},
    )


def _start(
    seed: int, trial: int, n_examples: int, parameters: Mapping[str, float | int] | None
) -> tuple[AdamParameters, Float64[np.ndarray, " examples"]]:
    """Settings and first logits of a trial. What is fixed changes nothing in what is drawn for the rest."""
    generator = stream(seed, f"subset-adam-{trial}")
    random_parameters = draw_parameters(generator)
    fixed_parameters: dict[str, Any] = {}
    for name, value in (parameters or {}).items():
        check_name("parameter of solver='adam'", name, AdamParameters.__dataclass_fields__)
        whole = name in ("period", "anneal_epochs")
        if not int(whole) <= value < math.inf or (whole and value != int(value)):
            needed = "a whole number of at least 1" if whole else "a finite number of at least 0"
            raise InputError(f"parameters[{name!r}] is {value}; expected {needed}")
        fixed_parameters[name] = int(value) if whole else float(value)
    return replace(random_parameters, **fixed_parameters), generator.standard_normal(n_examples)


def _check_size(train: AnswerTable, validation: AnswerTable, n_examples: int, itemsize: int) -> None:
    n_models = train.n_models + validation.n_models
    needed = n_models * n_examples * itemsize
    if needed > _LARGEST_BYTES:
        raise InputError(
            f"solver='adam' stores {n_models} models x {n_examples} examples as floating-point numbers: "
            f"{needed / 2**30:.1f} GiB, above its limit of {_LARGEST_BYTES / 2**30:.0f} GiB. Use "
            "solver='swap', which works on packed bits, or reduce the pool with allowed="
        )

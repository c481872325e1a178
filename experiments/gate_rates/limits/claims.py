"""M93 and C23: claims of which half are true, and orders that mean nothing."""

import itertools

import numpy as np
from planted import N_LAYERS

from assay.analyses.calibration import PooledResult, multiple_comparisons
from assay.analyses.calibration.validity import nomological_validity
from assay.circuits import HeadCircuit
from assay.circuits.heads import Role
from assay.core.measurement import Verdict
from assay.stats import mean_above
from limits.cells import PROMISED, Cell, Judge, draw_heads, seed_of


def _pool(p: np.ndarray) -> list[PooledResult]:
    return [
        PooledResult(name=f"result {at}", p=float(value), p_kind="t", passed=bool(value < 0.05))
        for at, value in enumerate(p)
    ]


def _tests(shape: str, m: int, correlation: float) -> Judge:
    """Tests of means over 40 prompts that the results share; none has an effect."""

    def judge(rng: np.random.Generator) -> Verdict:
        return multiple_comparisons(_pool(mean_above(draw_heads(shape, rng, 40, m, correlation))))

    return judge


def _nulls(m: int) -> Judge:
    return lambda rng: multiple_comparisons(_pool(rng.uniform(size=m)))


def _half(n_true: int, effect: float) -> Judge:
    """As many claims without an effect as with one; p of the former uniform below 0.05, one in 20 tests."""

    def judge(rng: np.random.Generator) -> Verdict:
        real = np.full(n_true, 1e-9) if effect == 0 else 0.05 * rng.uniform(size=n_true) ** effect
        claimed, others = 0.05 * rng.uniform(size=n_true), rng.uniform(0.05, 1, 19 * n_true)
        return multiple_comparisons(_pool(np.concatenate([real, claimed, others])))

    return judge


def _m93_cells() -> list[Cell]:
    cells = [
        Cell(gate="M93", world="all nulls", shape="uniform p", n=m, truth="fail", judge=_nulls(m))
        for m in (1, 5, 50, 300)
    ]
    cells += [
        Cell(
            gate="M93",
            world=f"all nulls, correlation {correlation:g}",
            shape=shape,
            n=50,
            truth="fail",
            judge=_tests(shape, 50, correlation),
        )
        for shape in PROMISED
        for correlation in (0.0, 0.5)
    ]
    cells += [
        Cell(
            gate="M93",
            world=f"half of the claims are true, {told}",
            shape="uniform p",
            n=2 * n_true,
            truth="limit",
            judge=_half(n_true, effect),
        )
        for n_true in (1, 5, 20)
        for told, effect in (("beyond doubt", 0.0), ("weakly", 2.0))
    ]
    return cells


def _roles(n_roles: int, kind: str) -> Judge:
    """Roles in a row; their layers mean nothing."""
    names = [f"r{at}" for at in range(n_roles)]

    def judge(rng: np.random.Generator) -> Verdict:
        if kind == "permuted":
            layers = rng.permutation(np.linspace(0, N_LAYERS - 1, n_roles).astype(int))[:, None]
        else:
            layers = rng.integers(0, N_LAYERS, (n_roles, 2))
        width = layers.shape[1]
        roles = {
            name: Role(
                heads=tuple(sorted((int(layer), width * at + place) for place, layer in enumerate(row))),
                band=("early", "mid", "late")[3 * at // n_roles],
            )
            for at, (name, row) in enumerate(zip(names, layers, strict=True))
        }
        circuit = HeadCircuit(
            id="planted",
            n_layers=N_LAYERS,
            n_heads=n_roles * width,
            heads=tuple(head for role in roles.values() for head in role.heads),
            roles=roles,
            pathways=tuple(itertools.pairwise(names)),
        )
        return nomological_validity(circuit, n_perm=1000, seed=seed_of(rng))

    return judge


def _c23_cells() -> list[Cell]:
    return [
        Cell(
            gate="C23",
            world=f"roles whose layers are {kind}",
            shape="exchangeable",
            n=n_roles,
            truth="none",
            judge=_roles(n_roles, kind),
        )
        for n_roles in (4, 5, 6, 10)
        for kind in ("permuted", "uniform")
    ]


CELLS: tuple[Cell, ...] = (*_m93_cells(), *_c23_cells())

"""Correctness matrices of known structure: slopes of examples, units of models, planted inverse lines.

Model i has the skill x_i, its held-out in-distribution accuracy is a binomial share with the success
probability Phi(1 + x_i/2), and it answers example j correctly with probability

    Phi(a_j + b_j x_i + r * sum_k L_ik V_jk),

where b_j >= 0 for ordinary examples and b_j < 0 for the planted ones, and L_i are latent factors: partly the
unit's, partly the model's own. The factors are what a selection can mistake for an inverse line.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from assay.analyses.subsets.data import CorrectnessData
from assay.core.random import stream


CHUNK = 2048  # examples generated at a time; part of the definition, since every chunk has its own stream


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedModels:
    """The models of a planted matrix: skills, factors and what a user would know of them."""

    skill: np.ndarray  # [M], mean 0, variance about 1
    factors: np.ndarray  # [M, K]
    id_accuracy: np.ndarray  # [M]
    n_id: int
    families: np.ndarray  # [M], the unit of every model: family, or run when models are checkpoints


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedMatrix:
    """A generated matrix and its truth."""

    correct: np.ndarray  # uint8 [M, N]
    id_accuracy: np.ndarray  # [M]
    n_id: int
    families: np.ndarray  # int [M]
    planted: np.ndarray  # indices of the examples on the inverse line, ascending


def planted_models(
    n_models: int,
    *,
    n_families: int = 12,
    within: float = 0.5,
    n_factors: int = 6,
    n_id: int = 5000,
    seed: int = 0,
) -> PlantedModels:
    """Models in units of nearly equal size, shuffled.

    Args:
        n_models: M.
        n_families: Units; with a small `within` they are training runs and the models their checkpoints.
        within: Share of the variance of skills that lies inside a unit; of the factors half as much does.
        n_factors: K.
        n_id: In-distribution test examples behind every accuracy.
        seed: Root seed.
    """
    generator = stream(seed, "planted-subsets.models")
    families = generator.permutation(np.arange(n_models) % n_families)

    def mixed(share: float, shape: tuple[int, ...]) -> np.ndarray:
        """Normal per model: a part that its family shares and a part of its own."""
        common = generator.standard_normal((n_families, *shape))[families]
        return np.sqrt(1 - share) * common + np.sqrt(share) * generator.standard_normal((n_models, *shape))

    skill = mixed(within, ())
    skill = (skill - skill.mean()) / skill.std()
    factors = mixed(within / 2, (n_factors,))
    accuracy = generator.binomial(n_id, ndtr(1 + 0.5 * skill)) / n_id
    return PlantedModels(skill=skill, factors=factors, id_accuracy=accuracy, n_id=n_id, families=families)


def planted_examples(n_examples: int, planted: float, seed: int) -> np.ndarray:
    """The indices of the planted examples, ascending."""
    generator = stream(seed, "planted-subsets.planted")
    return np.sort(generator.choice(n_examples, round(planted * n_examples), replace=False))


def planted_columns(
    models: PlantedModels,
    n_examples: int,
    *,
    planted: float = 0.2,
    slope: float = 0.3,
    residual: float = 0.5,
    seed: int = 0,
) -> Iterator[np.ndarray]:
    """The matrix in chunks of `CHUNK` examples, uint8 [M, chunk]; see `planted_matrix`."""
    inverse = np.zeros(n_examples, bool)
    inverse[planted_examples(n_examples, planted, seed)] = True
    for start in range(0, n_examples, CHUNK):
        generator = stream(seed, f"planted-subsets.examples.{start}")
        size = min(CHUNK, n_examples - start)
        ordinary = np.abs(generator.normal(0.6, 0.3, size))
        against = -np.abs(generator.normal(slope, slope / 3, size))
        slopes = np.where(inverse[start : start + size], against, ordinary).astype(np.float32)
        level = generator.normal(0.3, 0.8, size).astype(np.float32)
        loadings = generator.standard_normal((models.factors.shape[1], size)).astype(np.float32)
        loadings *= residual / np.sqrt(len(loadings))
        logits = np.outer(models.skill.astype(np.float32), slopes) + level
        logits += models.factors.astype(np.float32) @ loadings
        yield (generator.standard_normal(logits.shape, dtype=np.float32) < logits).astype(np.uint8)


def planted_matrix(
    n_models: int,
    n_examples: int,
    *,
    planted: float = 0.2,
    slope: float = 0.3,
    n_families: int = 12,
    within: float = 0.5,
    residual: float = 0.5,
    n_id: int = 5000,
    seed: int = 0,
) -> PlantedMatrix:
    """A matrix with a planted share of inverse-slope examples; `planted=0` is a null.

    Nulls in use: 8 families, 25 families (`n_families=8`, `25`), and 40 runs of 10 checkpoints
    (`n_models=400, n_families=40, within=0.15`, every unit being one run).

    Args:
        n_models: M.
        n_examples: N.
        planted: Share of the examples with a negative slope.
        slope: Mean size of those slopes, in standard deviations of skill.
        n_families: Units of models.
        within: Share of the variance of skills inside units.
        residual: Strength of the latent factors; 0 makes models independent given their skill.
        n_id: In-distribution test examples behind every accuracy.
        seed: Root seed.
    """
    models = planted_models(n_models, n_families=n_families, within=within, n_id=n_id, seed=seed)
    columns = planted_columns(models, n_examples, planted=planted, slope=slope, residual=residual, seed=seed)
    return PlantedMatrix(
        correct=np.concatenate(list(columns), axis=1),
        id_accuracy=models.id_accuracy,
        n_id=n_id,
        families=models.families,
        planted=planted_examples(n_examples, planted, seed),
    )


def planted_embedding(seed: int, kind: str, *, n_models: int = 80, n_planted: int = 120) -> CorrectnessData:
    """600 examples with embeddings; on the planted ones better models do worse.

    Kinds: `cluster`, where the planted ones lie apart in the embedding; `weak`, where they overlap with the
    others; `ids`, where the embedding knows nothing of them; `null`, without planted ones.
    """
    rng, n = np.random.default_rng(seed), 600
    accuracy = rng.uniform(0.55, 0.95, n_models)
    embedding = rng.normal(size=(n, 8))
    planted = np.zeros(n, dtype=bool)
    if kind != "null":
        planted[rng.choice(n, n_planted, replace=False)] = True
    embedding[planted, 0] += {"cluster": 3.0, "weak": 1.0}.get(kind, 0.0)
    chance = np.where(planted, 1.45 - accuracy[:, None], accuracy[:, None])
    correct = rng.uniform(size=(n_models, n)) < chance
    return CorrectnessData.of(correct, accuracy, groups=range(n_models), embedding=embedding)

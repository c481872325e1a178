"""Inspections of models that never ran: arrays with a planted quality, for tests of rankings."""

import numpy as np
from scipy import linalg

from assay.analyses.generalization.inspection import Inspection, InspectionSettings, answers_of
from assay.graph import build_graph
from assay.stats.intervals import draw_counts


N_CLASSES = 4
GRAPH = build_graph(4, 2)


def features_of(quality: float, *, n: int = 60, seed: int = 0, width: int = 24) -> np.ndarray:
    """What the classifier of a planted model reads."""
    rng = np.random.default_rng([seed, round(1000 * quality), 1])
    return rng.normal(size=(n, width)) * np.exp(-0.1 * np.arange(width))


def planted(
    quality: float, *, n: int = 60, seed: int = 0, labelled: bool = True, draws: int = 30, width: int = 24
) -> Inspection:
    """A model that is right more often, and leans more on deep layers, the higher its quality (0 to 1).

    Images and labels depend on `n` only, the model's numbers on quality and seed.
    """
    labels = np.arange(n) % N_CLASSES
    rng = np.random.default_rng([seed, round(1000 * quality)])
    logits = rng.normal(size=(n, N_CLASSES))
    logits[np.arange(n), labels] += 4 * quality
    layers = GRAPH.source_layer.numpy()
    scale = np.where(layers > 2, np.exp(2 * quality), 1.0)
    scores = (rng.normal(1.0, 0.3, size=(n, GRAPH.n_sources)) * scale).astype(np.float32)
    matrix = np.triu(rng.uniform(0.5, 1.5, size=(6, 6)), 1)
    matrix[3:] *= np.exp(quality)
    spread = 1 + 0.05 * rng.normal(size=(draws, 6, 6))
    features = features_of(quality, n=n, seed=seed, width=width)
    return Inspection(
        graph=GRAPH,
        n_classes=N_CLASSES,
        **answers_of(logits),
        logits=logits,
        labels=labels.astype(np.int64) if labelled else None,
        ids=np.arange(n),
        classes=None,
        spectrum=linalg.svdvals(features),
        centred_spectrum=linalg.svdvals(features - features.mean(0)),
        output_scores=scores.astype(np.float64).mean(0),
        output_draws=(draw_counts(n, draws, np.random.default_rng(1)) @ scores / n).astype(np.float32),
        dependency=matrix,
        dependency_draws=(matrix * spread).astype(np.float32),
        sharpness=float(rng.uniform(0.14, 0.16)) * (1.5 - quality),
        provenance={
            "model": {"id": f"planted-{quality:g}", "weight_hash": f"{seed:04d}{round(1000 * quality):04d}"},
            "task": {"name": "planted", "domain": "target", "data_hash": "0" * 64, "n": n, "config": {}},
            "settings": SETTINGS.to_dict(),
        },
    )


SETTINGS = InspectionSettings(draws=30)


def inspected(
    targets: dict[str, Inspection], known: dict[str, Inspection] | None = None
) -> list[tuple[str, Inspection, Inspection | None]]:
    """What `rank_inspections` takes."""
    return [(name, each, known[name] if known else None) for name, each in targets.items()]

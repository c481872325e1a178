"""Which dependencies of the monitored model go with its accuracy from domain to domain; no model runs here.

    python experiments/pacs64/motif_domains.py --data DIR --work DIR

Reads what `monitor.py` left and writes `results/motif_domains.json`: a motif over the nine new domains, one
over the 39 corruptions, and how they go with each other and with the motif over models before deployment.
"""

import json
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
from analyse import write
from monitor import IMAGES, best_model, domains
from pacs import DOMAINS, RESULTS, SEED, arguments
from scipy.stats import spearmanr

from assay.analyses.generalization import correlate, dependency_depth_bias, dependency_matrix, motif
from assay.circuits import load_scores


KINDS = {"new": "new/", "known": "known/"}


def agreement(patterns: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Spearman over the cells that vary in both patterns, and the share of them with one sign."""
    found = {}
    for (first, a), (second, b) in combinations(patterns.items(), 2):
        cells = (a != 0) & (b != 0)
        found[f"{first}, {second}"] = {
            "cells": int(cells.sum()),
            "srcc": float(spearmanr(a[cells], b[cells]).statistic),
            "same_sign": float((np.sign(a[cells]) == np.sign(b[cells])).mean()),
        }
    return found


def main() -> None:
    given = arguments(__doc__).parse_args()
    id_domain, folder, _ = best_model(given.work)
    place = given.work / "monitored" / id_domain / folder.name
    shown = {}
    for name, images in domains(given.data, id_domain).items():
        drawn = images.sample(IMAGES, seed=SEED)
        scores = load_scores(place / f"{name}.safetensors")
        with np.load(place / f"{name}.npz", allow_pickle=False) as arrays:
            logits = arrays["logits"].astype(np.float64)
        accuracy = float((logits.argmax(1) == drawn.labels.numpy()).mean())
        shown[name] = (dependency_matrix(scores), accuracy)
    before = json.loads((RESULTS / "motifs.json").read_text(encoding="utf-8"))["tasks"]
    found: dict[str, Any] = {"model": folder.name, "id_domain": id_domain, "images": IMAGES}
    patterns = {
        "before": np.mean([before[f"{id_domain}-{each}"] for each in DOMAINS if each != id_domain], axis=0)
    }
    for kind, prefix in KINDS.items():
        names = [name for name in shown if name.startswith(prefix)]
        matrices, accuracy = zip(*(shown[name] for name in names), strict=True)
        over = motif(matrices, accuracy)
        biases = {
            targets: [dependency_depth_bias(each, targets=targets) for each in matrices]
            for targets in ("output", "deep", "global")
        }
        patterns[kind] = over.loadings.numpy()
        found[kind] = {
            "domains": names,
            "accuracy": list(accuracy),
            "loadings": over.loadings.tolist(),
            "canonical_correlation": over.correlation,
            "varying_cells": int(over.used.sum()),
            "depth_bias": {f"ddb-{name}": vars(correlate(each, accuracy)) for name, each in biases.items()},
        }
    found["agreement"] = agreement(patterns)
    write("motif_domains", found)


if __name__ == "__main__":
    main()

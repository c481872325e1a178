"""A hand-made document of subsets over sizes: as `assay.analyses.subsets` makes it, with invented numbers."""

import base64
import io
import math
from typing import Any

import numpy as np
from PIL import Image
from scipy.special import ndtr, ndtri


SIZES = (10, 20, 50, 100, 250, 500, 1000, 2500, 5000, 8000)
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def correlation(r: float, width: float = 0.12, n: int = 96, n_units: int = 12) -> dict[str, Any]:
    low, high = (math.tanh(math.atanh(r) + side * width) for side in (-1, 1))
    return {
        "r": r,
        "low": low,
        "high": high,
        "level": 0.95,
        "fisher_low": low + 0.02,
        "fisher_high": high - 0.02,
        "spearman": r * 0.96,
        "spearman_low": low * 0.96,
        "spearman_high": high * 0.96,
        "n": n,
        "n_units": n_units,
        "n_eff": 20.0,
        "n_degenerate": 0,
        "frac_clipped": 0.0,
        "degenerate": False,
        "caution": None,
    }


def picture(seed: int, size: int = 16) -> str:
    pixels = np.random.default_rng(seed).integers(0, 255, (size, size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def verdict(size: int, r: float, sizes: tuple[int, ...], *, supported: bool) -> dict[str, Any]:
    return {
        "status": "supported" if supported else "inconclusive",
        "aotil": supported and r <= -0.3,
        "r": r,
        "low": r - 0.07,
        "high": r + 0.09,
        "level": 0.95,
        "p_value": 0.01 if supported else 0.43,
        "p_unadjusted": 0.01 if supported else 0.2,
        "size": size,
        "sizes": list(sizes),
        "n_permutations": 99 if supported else 40,
        "kind": "group",
        "unit_kind": "family",
        "n_units": 16,
        "fold_correlations": [r - 0.05, r, None, r + 0.1, r + 0.02],
        "fold_sizes": [96, 90, 100, 98, 96],
        "spread": 0.06,
        "mean_consistency": 0.81,
        "null": [],
        "reasons": []
        if supported
        else [
            "p = 0.43, corrected for 10 sizes (0.2 for this one alone), above 0.05: 17 of 40 <selections>",
            "models of 3 families have models in more than one part of the split",
        ],
        "notes": [] if supported else ["stopped after 40 of 99 permutations"],
    }


def document(*, supported: bool = True, path: bool = True, bare: bool = False) -> dict[str, Any]:
    """A document: of a path or of one size; supported or not; with or without labels, facts, images."""
    rng = np.random.default_rng(7)
    sizes = SIZES if path else (250,)
    n_models, n_examples, headline = 480, 8000, 250
    curve = [-0.5, -0.62, -0.78, -0.84, -0.86, -0.81, -0.72, 0.1, 0.71, 0.92]
    if not supported:
        curve = [0.1, 0.05, -0.1, -0.12, -0.2, -0.05, 0.2, 0.5, 0.8, 0.92]
    values = dict(zip(SIZES, curve, strict=True))
    skill = rng.normal(0.4, 0.5, n_models)
    slope = -0.5 if supported else 0.05
    rows = [
        {
            "size": size,
            "validation": correlation(max(values[size] - 0.03, -0.98), n=100),
            "test": correlation(values[size], 0.1 + 2 / math.sqrt(size)),
            "verdict": verdict(size, values[size], sizes, supported=supported and values[size] < -0.2),
            "random": {
                "kind": "random",
                "size": size,
                "r": 0.9 - 1 / math.sqrt(size),
                "low": 0.9 - 2 / math.sqrt(size),
                "high": min(0.97, 0.95 - 0.3 / math.sqrt(size)),
                "spearman": 0.88 - 1 / math.sqrt(size),
                "spearman_low": 0.88 - 2 / math.sqrt(size),
                "spearman_high": min(0.95, 0.93 - 0.3 / math.sqrt(size)),
            },
            "hard": None if size == 10 else correlation(0.1 + 0.1 * math.log10(size)),
            "marginal": correlation(min(0.95, values[size] + 0.1)),
        }
        for size in sizes
    ]
    own = verdict(headline, values[headline], sizes, supported=supported)
    null = rng.normal(-0.05, 0.22, own["n_permutations"]).clip(-0.7, 0.7)
    part = np.array(["train", "validation", "test"])[np.minimum(np.arange(n_models) % 5, 2)]
    part[np.arange(n_models) % 5 > 2] = "train"
    found: dict[str, Any] = {
        "kind": "subset-path" if path else "subset",
        "schema": "assay-subset-path/1" if path else "assay-subset/1",
        "id": "0123456789abcdef",
        "path": "independent" if path else None,
        "size": headline,
        "level": 0.95,
        "data": {
            "n_models": n_models,
            "n_examples": n_examples,
            "n_groups": None,
            "n_families": None if bare else 16,
            "unit_kind": "model" if bare else "family",
            "labels": None if bare else list(CLASSES),
            "facts": [] if bare else ["domain"],
            "quality": {
                "n_models": n_models,
                "n_examples": n_examples,
                "n_groups": None,
                "n_families": 16,
                "id_accuracy": [0.31, 0.96],
                "accuracy": [0.22, 0.83],
                "n_all_right": 12,
                "n_all_wrong": 40,
                "n_constant_models": 0,
                "n_duplicates": 0,
                "reliability": None if bare else 0.71,
            },
            "hash": "fedcba9876543210",
            "source": {"name": "<invented>"},
        },
        "interval_units": "model" if bare else "family",
        "split": {
            "train": [],
            "validation": [],
            "test": [],
            "kind": "random" if bare else "family",
            "seed": 0,
            "compat": False,
            "unit_kind": "model" if bare else "family",
            "parts": {
                "train": {"n_models": 288, "n_units": 9},
                "validation": {"n_models": 96, "n_units": 4},
                "test": {"n_models": 96, "n_units": 3},
            },
            "straddling": 0,
        },
        "settings": {"solver": "swap", "seed": 0, "objective": "r", "options": {}},
        "full": {"validation": correlation(0.91), "test": correlation(0.92)},
        "rows": rows,
        "verdict": own,
        "null": {
            "values": null.tolist(),
            "observed": values[headline],
            "p_value": own["p_value"],
            "n": own["n_permutations"],
            "n_sizes": len(sizes),
            "kind": "group",
        },
        "largest": [
            {"rule": "val", "size": 1000, "r": -0.72, "low": -0.8, "high": -0.6, "status": own["status"]},
            {"rule": "ci", "size": 1000, "r": -0.72, "low": -0.8, "high": -0.6, "status": own["status"]},
            {"rule": "paper", "size": None},
        ]
        if path
        else None,
        "consistency": _consistency(sizes) if path else None,
        "composition": None,
        "prevalence": None,
        "replication": _replication(rng, supported=supported),
        "halves": {
            "overlap": 0.83 if supported else 0.4,
            "null": [0.3, 0.4, 0.5],
            "null_mean": 0.4,
            "p_value": 0.25,
            "n_models": [144, 144],
            "n_units": [5, 4],
            "kind": "group",
            "reason": None,
        },
        "models_needed": _models_needed(rng, n_models),
        "models": {
            "id": [f"model_{place}" for place in range(n_models)],
            "part": part.tolist(),
            "group": None,
            "family": None if bare else [f"family_{place % 16}" for place in range(n_models)],
            "id_accuracy": ndtr(skill).tolist(),
            "all": ndtr(0.8 * skill - 0.3 + rng.normal(0, 0.1, n_models)).tolist(),
            "selected": ndtr(slope * skill - 0.8 + rng.normal(0, 0.12, n_models)).tolist(),
            "rest": ndtr(0.9 * skill - 0.25 + rng.normal(0, 0.1, n_models)).tolist(),
        },
        "indices": list(range(headline)),
        "example_ids": [f"row_{place}" for place in range(headline)],
        "scores": [0.0] * headline,
        "provenance": {"library": "0", "size": headline},
    }
    found["lines"] = {name: _line(found["models"], name) for name in ("all", "selected", "rest")}
    if not bare:
        found["composition"] = _composition(sizes)
        found["prevalence"] = _prevalence()
    found["examples"] = {
        side: [
            {
                "index": place,
                "id": f"{side}/<{place}>",
                "label": None if bare else CLASSES[place % (2 if side == "selected" else 7)],
                "meta": {} if bare else {"domain": "sketch"},
                "right": 0.1 + 0.01 * place,
                "r": -0.4 + 0.01 * place,
                "image": None if bare else picture(place),
            }
            for place in range(24)
        ]
        for side in ("selected", "others")
    }
    return found


def _line(models: dict[str, Any], name: str) -> dict[str, Any]:
    test = [place for place, part in enumerate(models["part"]) if part == "test"]
    x, y = (ndtri(np.array(models[each])[test]) for each in ("id_accuracy", name))
    slope, intercept = np.polyfit(x, y, 1).tolist()
    r = float(np.corrcoef(x, y)[0, 1])
    return {"slope": slope, "intercept": intercept, "r": r, "residual_sd": 0.1, "max_residual": 0.3}


def _consistency(sizes: tuple[int, ...]) -> dict[str, Any]:
    k = len(sizes)
    values: list[list[float | None]] = [
        [round(1 - 0.07 * abs(row - column), 3) for column in range(k)] for row in range(k)
    ]
    values[0][k - 2] = values[k - 2][0] = -0.08
    for place in range(k - 1):
        values[place][k - 1] = values[k - 1][place] = None
    return {"sizes": list(sizes), "normalised": values, "mean": 0.8, "mean_adjacent": 0.93, "lowest": -0.08}


def _composition(sizes: tuple[int, ...]) -> dict[str, Any]:
    pool = np.array([0.2, 0.19, 0.19, 0.15, 0.2, 0.02, 0.05])
    rows = []
    for place, size in enumerate(sizes):
        far = 1 - place / max(1, len(sizes) - 1)
        shares = far * np.array([0.9, 0.06, 0.01, 0.01, 0.01, 0.0, 0.01]) + (1 - far) * pool
        rows.append({"size": size, "shares": shares.tolist()})
    inside = [{"label": "dog", "n": 200, "r": -0.8, "low": -0.9, "high": -0.7}]
    return {"names": list(CLASSES), "pool": pool.tolist(), "rows": rows, "per_class": inside}


def _prevalence() -> dict[str, Any]:
    def row(attribute: str, value: str, selected: float, pool: float, q: float) -> dict[str, Any]:
        return {
            "attribute": attribute,
            "value": value,
            "n_selected": round(250 * selected),
            "n_pool": round(8000 * pool),
            "selected": selected,
            "pool": pool,
            "difference": selected - pool,
            "ratio": selected / pool,
            "low": selected - pool - 0.04,
            "high": selected - pool + 0.04,
            "p_value": q,
            "q_value": q,
            "numeric": False,
            "significant": q <= 0.05,
        }

    rows = [
        row("label", name, 0.2 + 0.1 * place, 0.3, 0.2 - 0.04 * place) for place, name in enumerate(CLASSES)
    ]
    rows.append(row("domain", "<sketch>", 0.55, 0.3, 0.001))
    rows.append(row("brightness", "mean", 103.0, 120.0, 0.3) | {"numeric": True, "ratio": None})
    return {"rows": rows, "level": 0.95, "q": 0.05, "n_resamples": 1000}


def _replication(rng: np.random.Generator, *, supported: bool) -> dict[str, Any]:
    edges = np.linspace(-1, 1, 41)
    sides = {
        "selected": (250, rng.normal(-0.25 if supported else 0.02, 0.1, 250)),
        "pool": (7750, rng.normal(0.2, 0.15, 7750)),
    }
    return {
        "edges": edges.tolist(),
        "level": 0.05,
        "n_models": 96,
        "degrees_of_freedom": 18.0,
        **{
            name: {
                "n": n,
                "shares": (np.histogram(r, edges)[0] / n).tolist(),
                "negative": float((r < 0).mean()),
                "discovered": 0.7 if supported and name == "selected" else 0.0,
            }
            for name, (n, r) in sides.items()
        },
    }


def _models_needed(rng: np.random.Generator, n_models: int) -> dict[str, Any]:
    k = [*range(10, n_models, 10), n_models]
    curves = [(0.92 + rng.normal(0, 0.5) / np.array(k) ** 0.7).tolist() for _ in range(6)]
    return {
        "k": k,
        "n_used": [k] * 6,
        "curves": curves,
        "mean": np.mean(curves, axis=0).tolist(),
        "median": 130.0,
        "range": [60.0, 210.0],
        "n_never": 0,
        "tol": 0.01,
        "unit": "model",
        "n_units": n_models,
        "n_models": n_models,
        "seed": 0,
    }

"""Numbers from what was measured: no model runs here.

    python experiments/pacs64/analyse.py --data DIR --work DIR

Writes `results/models.json` (every model with every predictor), `correlations.json`, `motifs.json`,
`monitoring.json` and `dynamics.json`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monitor import best_model
from pacs import DOMAINS, ID_DOMAINS, RESULTS, SEED, arguments, read, split

from assay.analyses.generalization import (
    DISTANCES,
    alarm_curve,
    baselines,
    circuit_shifts,
    correlate,
    dependency_depth_bias,
    dependency_matrix,
    motif,
    rank_shift_map,
    ratio_ablation,
    summarize_correlations,
    universal_motif,
)
from assay.circuits import EdgeScores, load_scores
from assay.core.random import stream


DRAWS = 1000
COT_IMAGES = 1000
VARIANTS = ("output", "deep", "global")
PREDICTORS = (
    "ID accuracy",
    "Sharpness",
    "AC",
    "ANE",
    "MDE",
    "RankMe",
    "alpha-ReQ",
    "ATC",
    "DoC",
    "COT",
    "ALine-D",
    "DDB output",
    "DDB deep",
    "DDB global",
)
SHIFTS = {key: f"CSS {key}" for key in DISTANCES}
# Scores that fall with performance; the others rise with it.
FALLING = ("Sharpness", *SHIFTS.values())
LOWEST_THRESHOLD = 0.15


# ------------------------------------------------------------------------------------- before deployment


def zoo(work: Path, images: Mapping[str, Any], domain: str) -> list[dict[str, Any]]:
    """Every measured model of a domain: recipe, accuracies and predictors per target."""
    targets = [each for each in DOMAINS if each != domain]
    labels = split(images[domain])[1].labels.numpy()
    rows, predicted = [], []
    for folder in sorted((work / "measured" / domain).iterdir()):
        if not (folder / "sharpness.json").exists():
            continue
        record = json.loads((work / "zoo" / domain / "models" / folder.name / "training.json").read_text())
        arrays = np.load(folder / "outputs.npz", allow_pickle=False)
        known = arrays["validation/logits"]
        row: dict[str, Any] = {
            "key": folder.name,
            "recipe": {name: record["recipe"][name] for name in ("init", "mode", "lr", "batch_size")},
            "best_step": record["best_step"],
            "seconds": record["seconds"],
            "id_accuracy": baselines.id_accuracy(known, labels),
            "sharpness": json.loads((folder / "sharpness.json").read_text())["sharpness"],
            "targets": {},
        }
        classes = {"validation": known.argmax(1)}
        for target in targets:
            logits, features = arrays[f"{target}/logits"], arrays[f"{target}/features"]
            classes[target] = logits.argmax(1)
            scores = load_scores(folder / f"{target}.safetensors")
            drawn = images[target].sample(COT_IMAGES, seed=SEED).ids.numpy()
            row["targets"][target] = {
                "accuracy": float((classes[target] == images[target].labels.numpy()).mean()),
                "ID accuracy": row["id_accuracy"],
                "Sharpness": row["sharpness"],
                **from_outputs(known, labels, logits, features),
                "COT": baselines.cot(labels, logits[drawn]),
                **{f"DDB {each}": dependency_depth_bias(scores, targets=each) for each in VARIANTS},
            }
        rows.append(row)
        predicted.append(classes)
    for target in targets:
        (estimates,) = baselines.agreement_line(
            np.stack([each["validation"] for each in predicted]),
            labels,
            np.stack([each[target] for each in predicted]),
        )
        for row, estimate in zip(rows, estimates, strict=True):
            row["targets"][target]["ALine-D"] = float(estimate)
    return rows


def from_outputs(
    known: np.ndarray, labels: np.ndarray, logits: np.ndarray, features: np.ndarray
) -> dict[str, float]:
    """The output-based scores of one set of images."""
    return {
        "AC": baselines.average_confidence(logits),
        "ANE": baselines.average_negative_entropy(logits),
        "MDE": baselines.energy(logits),
        "RankMe": baselines.rankme(features),
        "alpha-ReQ": baselines.alpha_req(features),
        "ATC": baselines.atc(known, labels, logits),
        "DoC": baselines.doc(known, labels, logits),
    }


def circuits(work: Path, domain: str, rows: Sequence[Mapping[str, Any]], target: str) -> list[EdgeScores]:
    """Edge scores of the models of a zoo on one target, in the order of `rows`."""
    place = work / "measured" / domain
    return [load_scores(place / row["key"] / f"{target}.safetensors") for row in rows]


def correlations(zoos: Mapping[str, Sequence[Mapping[str, Any]]], work: Path) -> dict[str, Any]:
    """Every predictor on every task, averages, intervals over models, and the ablation of tau."""
    tasks = [(domain, target) for domain in zoos for target in DOMAINS if target != domain]
    columns = {
        (domain, target): {
            name: np.array([row["targets"][target][name] for row in zoos[domain]])
            for name in ("accuracy", *PREDICTORS)
        }
        for domain, target in tasks
    }
    draws = {
        domain: stream(SEED, f"pacs64/bootstrap/{domain}").integers(len(rows), size=(DRAWS, len(rows)))
        for domain, rows in zoos.items()
    }
    found: dict[str, Any] = {"draws": DRAWS, "models": {domain: len(rows) for domain, rows in zoos.items()}}
    found["predictors"] = {}
    averages = {}
    for name in PREDICTORS:
        per_task, resampled, every = {}, [], []
        for task in tasks:
            x, y = columns[task][name], columns[task]["accuracy"]
            value = correlate(x, y)
            every.append(value)
            rows = draws[task[0]]
            cells = np.array([triple(x[row], y[row]) for row in rows])
            resampled.append(cells)
            per_task["-".join(task)] = {
                key: {"value": getattr(value, key), "interval": interval(cells[:, column])}
                for column, key in enumerate(("r2", "srcc", "krcc"))
            }
        cells = np.stack(resampled)  # [tasks, draws, 3]
        summary = summarize_correlations({"pacs64": every})
        averages[name] = np.abs(cells).mean(axis=(0, 2))
        signed = np.mean([each.srcc for each in every])
        found["predictors"][name] = {
            "tasks": per_task,
            "mean": summary.per_dataset["pacs64"],
            "average": {
                "value": summary.average,
                "sem": summary.sem,
                "interval": interval(averages[name]),
            },
            "srcc_signed": {"value": float(signed), "interval": interval(cells[:, :, 1].mean(0))},
        }
    for name in PREDICTORS:
        apart = averages[name] - averages["ID accuracy"]
        found["predictors"][name]["average_minus_id_accuracy"] = {
            "value": found["predictors"][name]["average"]["value"]
            - found["predictors"]["ID accuracy"]["average"]["value"],
            "interval": interval(apart),
        }
    found["tau"] = {
        each: {
            f"{ratio:g}": summary_of(values)
            for ratio, values in transposed(
                [
                    ratio_ablation(
                        circuits(work, domain, zoos[domain], target),
                        columns[domain, target]["accuracy"],
                        targets=each,
                    )
                    for domain, target in tasks
                ]
            ).items()
        }
        for each in VARIANTS
    }
    return found


def transposed(found: Sequence[Mapping[float, Any]]) -> dict[float, list[Any]]:
    """Ratio to its value on every task."""
    return {ratio: [each[ratio] for each in found] for ratio in found[0]}


def summary_of(values: Sequence[Any]) -> dict[str, float]:
    """Mean R2, |SRCC| and |KRCC| over tasks, and the mean of the signed SRCC."""
    summary = summarize_correlations({"pacs64": list(values)}).per_dataset["pacs64"]
    return {**summary, "srcc_signed": float(np.mean([each.srcc for each in values]))}


def triple(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """R2, SRCC and KRCC of one bootstrap draw; NaN where a draw holds one model only."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan, math.nan, math.nan
    value = correlate(x, y)
    return value.r2, value.srcc, value.krcc


def interval(values: np.ndarray) -> list[float]:
    """2.5 % and 97.5 % quantiles."""
    low, high = np.nanquantile(values, [0.025, 0.975])
    return [float(low), float(high)]


def motifs(zoos: Mapping[str, Sequence[Mapping[str, Any]]], work: Path) -> dict[str, Any]:
    """Loadings of every task, and their mean."""
    found = {}
    for domain, rows in zoos.items():
        for target in DOMAINS:
            if target != domain:
                matrices = [dependency_matrix(each) for each in circuits(work, domain, rows, target)]
                found[f"{domain}-{target}"] = motif(
                    matrices, [row["targets"][target]["accuracy"] for row in rows]
                )
    return {
        "tasks": {name: each.loadings.tolist() for name, each in found.items()},
        "universal": universal_motif(list(found.values())).tolist(),
    }


# -------------------------------------------------------------------------------------- after deployment


def monitoring(work: Path, images: Mapping[str, Any]) -> dict[str, Any]:
    """Scores of the best model on 39 known and nine new domains, and the alarms they would have raised."""
    id_domain, folder, accuracy = best_model(work)
    place = work / "monitored" / id_domain / folder.name
    names = sorted(path.relative_to(place).with_suffix("").as_posix() for path in place.rglob("*.npz"))
    known = np.load(place / "id.npz", allow_pickle=False)
    validation = split(images[id_domain])[1]
    labels = validation.sample(len(known["logits"]), seed=SEED).labels.numpy()
    reference = load_scores(place / "id.safetensors")
    rows = {}
    for name in names:
        arrays = np.load(place / f"{name}.npz", allow_pickle=False)
        scores = load_scores(place / f"{name}.safetensors")
        rows[name] = {
            "accuracy": float(arrays["accuracy"]),
            "n": int(arrays["n"]),
            **from_outputs(known["logits"], labels, arrays["logits"], arrays["features"]),
            "COT": baselines.cot(labels, arrays["logits"]),
            "DDB output": dependency_depth_bias(scores),
            **{SHIFTS[key]: value for key, value in circuit_shifts(reference, scores).items()},
        }
    scores_of = [name for name in rows["id"] if name not in ("accuracy", "n")]
    old = [name for name in names if name.startswith("known/")]
    new = [name for name in names if name.startswith("new/")]
    deltas = [
        round(LOWEST_THRESHOLD + 0.01 * i, 2) for i in range(int((accuracy - LOWEST_THRESHOLD) / 0.01) + 1)
    ]
    due = [sum(rows[name]["accuracy"] < delta for name in new) for delta in deltas]
    contested = [0 < count < len(new) for count in due]
    found: dict[str, Any] = {
        "model": folder.name,
        "id_domain": id_domain,
        "id_accuracy": accuracy,
        "images": len(labels),
        "domains": rows,
        "deltas": deltas,
        "due": due,
        "always": float(np.mean([2 * each / (each + len(new)) for each in due if 0 < each < len(new)])),
        "scores": {},
    }

    def column(key: str, which: Sequence[str]) -> np.ndarray:
        return np.array([rows[name][key] for name in which])

    for key in scores_of:
        on_new = correlate(column(key, new), column("accuracy", new))
        on_known = correlate(column(key, old), column("accuracy", old))
        curve = alarm_curve(
            column(key, old),
            column("accuracy", old),
            column(key, new),
            column("accuracy", new),
            deltas=deltas,
            higher_is_shift=key in FALLING,
        )
        chosen = curve[contested]
        found["scores"][key] = {
            "new": {"r2": on_new.r2, "srcc": on_new.srcc, "krcc": on_new.krcc},
            "known": {"r2": on_known.r2, "srcc": on_known.srcc, "krcc": on_known.krcc},
            "average": summarize_correlations({"pacs64": [on_new]}).average,
            "alarm_f1": {
                "mean": rounded(np.nanmean(curve, axis=1)),
                "low": rounded(np.nanquantile(curve, 0.025, axis=1)),
                "high": rounded(np.nanquantile(curve, 0.975, axis=1)),
                "contested": float(np.nanmean(chosen)) if np.isfinite(chosen).any() else None,
                "contested_interval": interval(np.nanmean(chosen, axis=0)) if len(chosen) else None,
            },
        }
    found["rank_shift"] = {
        target: np.mean(
            [
                rank_shift_map(reference, load_scores(place / f"{name}.safetensors")).numpy()
                for name in new
                if name.startswith(f"new/{target}")
            ],
            axis=0,
        ).tolist()
        for target in DOMAINS
        if target != id_domain
    }
    return found


def rounded(values: np.ndarray) -> list[float | None]:
    """For JSON: four digits, None where undefined."""
    return [None if math.isnan(value) else round(float(value), 4) for value in values]


def main() -> None:
    given = arguments(__doc__).parse_args()
    RESULTS.mkdir(exist_ok=True)
    images = {domain: read(given.data, domain) for domain in DOMAINS}
    zoos = {domain: zoo(given.work, images, domain) for domain in ID_DOMAINS}
    write("models", zoos)
    write("correlations", correlations(zoos, given.work))
    write("motifs", motifs(zoos, given.work))
    write("monitoring", monitoring(given.work, images))


def write(name: str, content: Any) -> None:
    """A small JSON file, numbers to eight digits."""
    text = json.dumps(shortened(content), indent=1, allow_nan=False)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def shortened(content: Any) -> Any:
    """Floats to eight significant digits; NaN to None."""
    if isinstance(content, dict):
        return {key: shortened(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [shortened(value) for value in content]
    if isinstance(content, float):
        return None if math.isnan(content) else float(f"{content:.8g}")
    return content


if __name__ == "__main__":
    main()

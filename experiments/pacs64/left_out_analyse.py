"""Does the corrected shift order new domains, and does the stacked estimate beat in-distribution accuracy?

    python experiments/pacs64/left_out_analyse.py --data DIR --work DIR

Numbers from the readings of `left_out_read.py`: no model runs here. Writes `results/left_out.json`, which
`left_out_figure.py` draws.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from left_out_read import CIRCUIT_IMAGES, PARTS, corruptions
from pacs import DOMAINS, RESULTS, SEED, arguments
from scipy import stats

import assay
from assay.analyses.generalization import baselines
from assay.analyses.generalization.accuracy_estimate import AccuracyEstimator
from assay.analyses.generalization.confidence import cbpe, m_cbpe, mano
from assay.analyses.generalization.feature_closeness import feature_closeness
from assay.analyses.generalization.noise_floor import NoiseFloor, block_means
from assay.core.random import stream
from assay.graph import Graph


OUTPUT_IMAGES = 300  # of each domain, for readings of outputs
DRAWS = 2000
READINGS = ("spearman", "ac", "ane", "atc", "doc", "cot", "cbpe", "m-cbpe", "mano", "closeness")
ORDERING = ("excess", "shift", "atc", "cot", "m-cbpe", "closeness")  # those whose order is compared
KINDS = {
    "corrupted": ("corrupted",),
    "uncorrupted": ("source", "new"),
    "all": ("corrupted", "source", "new"),
}


# ---------------------------------------------------------------------------------------------- one model


def model_row(place: Path, graph: Graph) -> dict[str, Any]:
    """Every domain of one model: accuracy, readings, and what the estimator says of those it did not see."""
    arrays = {
        path.relative_to(place).with_suffix("").as_posix(): dict(np.load(path, allow_pickle=False))
        for path in sorted(place.rglob("*.npz"))
    }
    known = arrays.pop("id")
    floor = NoiseFloor(
        graph=graph,
        blocks=np.stack([block_means(batch.astype(np.float64)) for batch in known["edges"]]),
        n=CIRCUIT_IMAGES,
    )
    domains = [domain_row(name, each, known, floor) for name, each in arrays.items()]
    row: dict[str, Any] = {
        "left_out": place.parent.name,
        "seed": int(place.name.partition("-")[2]),
        "id_accuracy": float((known["logits"].argmax(1) == known["labels"]).mean()),
        "domains": domains,
    }
    estimator = fitted(domains, row["id_accuracy"])
    test = estimator.backtest
    row["backtest"] = {"error": test.error, "id_error": test.id_error, "mean_error": test.mean_error}
    row["backtest"] |= {"p_value": test.p_value, "useful": test.useful, "offered": estimator.offered}
    row["silence"] = estimator.silence
    row["order"] = {
        name: {
            what: rank_correlation(name, [each for each in domains if each["kind"] in kinds])
            for what, kinds in KINDS.items()
        }
        for name in ORDERING
    }
    for each in domains:
        if each["kind"] != "corrupted":
            each["estimate"] = estimate_row(estimator, each)
    return row


def rank_correlation(name: str, domains: Sequence[Mapping[str, Any]]) -> float:
    """Spearman's correlation of a reading with accuracy over domains."""
    return float(stats.spearmanr([d[name] for d in domains], [d["accuracy"] for d in domains]).statistic)


def domain_row(
    name: str, arrays: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray], floor: NoiseFloor
) -> dict[str, Any]:
    """Accuracy on all images of a domain and on those read, and what can be read without labels."""
    kind, _, rest = name.partition("/")
    found = floor.excess(arrays["edges"][0].astype(np.float64))
    rows = stream(SEED, f"pacs64/outputs/{name}").permutation(len(arrays["logits"]))[:OUTPUT_IMAGES]
    logits, features = arrays["logits"][rows], arrays["features"][rows]
    hits = arrays["logits"].argmax(1) == arrays["labels"]
    of_known = known["logits"], known["labels"]
    return {
        "name": rest,
        "kind": kind,
        "family": rest.rstrip("12345").rstrip("-") if kind == "corrupted" else rest,
        "n": len(arrays["labels"]),
        "accuracy": float(hits.mean()),
        "batch_accuracy": float(hits[rows].mean()),
        "floor": found.floor,
        "excess": found.value,
        "excess_interval": [found.interval.low, found.interval.high],
        "shift": 1 - (1 - found.value) * (1 - found.floor),
        "spearman": found.value,
        "ac": baselines.average_confidence(logits),
        "ane": baselines.average_negative_entropy(logits),
        "atc": baselines.atc(*of_known, logits),
        "doc": baselines.doc(*of_known, logits),
        "cot": baselines.cot(known["labels"], logits),
        "cbpe": cbpe(*of_known, logits),
        "m-cbpe": m_cbpe(*of_known, logits),
        "mano": mano(logits),
        "closeness": feature_closeness(known["features"], features),
    }


def fitted(domains: Sequence[Mapping[str, Any]], id_accuracy: float) -> AccuracyEstimator:
    """The stack of all readings, fitted on the corrupted domains."""
    used = [each for each in domains if each["kind"] == "corrupted"]
    return AccuracyEstimator(
        names=READINGS,
        readings=tuple(tuple(float(each[name]) for name in READINGS) for each in used),
        performance=tuple(each["batch_accuracy"] for each in used),
        families=tuple(each["family"] for each in used),
        id_performance=id_accuracy,
        n=OUTPUT_IMAGES,
    )


def estimate_row(estimator: AccuracyEstimator, domain: Mapping[str, Any]) -> dict[str, Any]:
    """What the estimator says of a domain."""
    found = estimator.estimate({name: domain[name] for name in READINGS}, n=OUTPUT_IMAGES)
    interval = None if found.interval is None else [found.interval.low, found.interval.high]
    return {"value": found.value, "interval": interval, "support": found.support, "reason": found.reason}


# --------------------------------------------------------------------------------------------- all models

Models = Sequence[Mapping[str, Any]]
Statistic = Callable[[Models], float]


def with_interval(models: Models, statistic: Statistic) -> dict[str, Any]:
    """A statistic and its 95 % interval over draws of left-out domains, and of seeds within each.

    Draws in which it is undefined are left out, and counted.
    """
    by_domain = {name: [each for each in models if each["left_out"] == name] for name in DOMAINS}
    by_domain = {name: each for name, each in by_domain.items() if each}
    rng = stream(SEED, "pacs64/left-out/bootstrap")
    values = []
    for _ in range(DRAWS):
        drawn = []
        for name in rng.choice(list(by_domain), size=len(by_domain)):
            own = by_domain[str(name)]
            drawn += [own[place] for place in rng.integers(len(own), size=len(own))]
        values.append(statistic(drawn))
    defined = np.array([value for value in values if not math.isnan(value)])
    value = statistic(models)
    return {
        "value": None if math.isnan(value) else value,
        "interval": None if len(defined) == 0 else np.quantile(defined, [0.025, 0.975]).tolist(),
        "undefined_draws": DRAWS - len(defined),
    }


def of_kinds(model: Mapping[str, Any], kinds: Sequence[str]) -> list[Mapping[str, Any]]:
    return [each for each in model["domains"] if each["kind"] in kinds]


def order(name: str, what: str) -> Statistic:
    """Mean over models of the rank correlation of a reading with accuracy over the domains of some kinds."""

    def statistic(models: Models) -> float:
        return float(np.mean([model["order"][name][what] for model in models]))

    return statistic


def order_of_new(name: str) -> Statistic:
    """Rank correlation over models of a reading of the left-out domain with the accuracy lost on it."""

    def statistic(models: Models) -> float:
        new = [of_kinds(model, ["new"]) for model in models]
        means = [float(np.mean([each[name] for each in parts])) for parts in new]
        lost = [
            model["id_accuracy"] - float(np.mean([each["accuracy"] for each in parts]))
            for model, parts in zip(models, new, strict=True)
        ]
        if len(set(means)) < 3:
            return math.nan
        return float(stats.spearmanr(means, lost).statistic)

    return statistic


def error(name: str) -> Statistic:
    """Mean distance from the accuracy of the parts of left-out domains; `id` is in-distribution accuracy."""

    def statistic(models: Models) -> float:
        return float(
            np.mean(
                [
                    abs((model["id_accuracy"] if name == "id" else each[name]) - each["batch_accuracy"])
                    for model in models
                    for each in of_kinds(model, ["new"])
                ]
            )
        )

    return statistic


def spoken(models: Models, kind: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return [
        (m, each) for m in models for each in of_kinds(m, [kind]) if each["estimate"]["value"] is not None
    ]


def silent(kind: str) -> Statistic:
    """Share of domains of a kind about which the estimator says nothing."""

    def statistic(models: Models) -> float:
        return 1 - len(spoken(models, kind)) / sum(len(of_kinds(model, [kind])) for model in models)

    return statistic


def error_spoken(kind: str, what: str) -> Statistic:
    """Mean error of the stack, or of ID accuracy, where the stack speaks; NaN where it never does."""

    def statistic(models: Models) -> float:
        found = [
            abs(
                (model["id_accuracy"] if what == "id" else each["estimate"]["value"]) - each["batch_accuracy"]
            )
            for model, each in spoken(models, kind)
        ]
        return float(np.mean(found)) if found else math.nan

    return statistic


def covered(kind: str) -> Statistic:
    """Share of intervals that hold the accuracy, where the stack speaks; NaN where it never does."""

    def statistic(models: Models) -> float:
        pairs = [(each["estimate"]["interval"], each["batch_accuracy"]) for _, each in spoken(models, kind)]
        return float(np.mean([low <= truth <= high for (low, high), truth in pairs])) if pairs else math.nan

    return statistic


def of_backtest(name: str) -> Statistic:
    """Mean over models of a number of the backtest over families of corruptions."""

    def statistic(models: Models) -> float:
        return float(np.mean([model["backtest"][name] for model in models]))

    return statistic


def summary(models: Models) -> dict[str, Any]:
    """Both questions, each with intervals."""
    return {
        "order": {
            name: {what: with_interval(models, order(name, what)) for what in KINDS}
            | {"left-out domains, with the loss": with_interval(models, order_of_new(name))}
            for name in ORDERING
        },
        "error on left-out domains": {
            name: with_interval(models, error(name)) for name in ("id", "atc", "doc", "cot", "cbpe", "m-cbpe")
        },
        "stack": {
            kind: {
                "silent": with_interval(models, silent(kind)),
                "error": with_interval(models, error_spoken(kind, "stack")),
                "id error": with_interval(models, error_spoken(kind, "id")),
                "coverage": with_interval(models, covered(kind)),
                "spoken": len(spoken(models, kind)),
            }
            for kind in ("source", "new")
        },
        "backtest": {
            name: with_interval(models, of_backtest(name))
            for name in ("error", "id_error", "mean_error", "useful")
        },
    }


def rounded(value: Any) -> Any:
    """The same with floats to five digits behind the point."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 5) if isinstance(value, float) else value


def main() -> None:
    given = arguments(__doc__).parse_args()
    models = []
    for place in sorted((given.work / "left_out_readings").glob("*/seed-*")):
        row = place / "row.json"  # what was computed before from complete readings
        if not row.exists() and len(list(place.rglob("*.npz"))) == 1 + PARTS + 3 + len(corruptions()):
            graph = assay.load_model(given.work / "left_out" / place.parent.name / place.name).graph
            row.write_text(json.dumps(rounded(model_row(place, graph))))
        if row.exists():
            models.append(json.loads(row.read_text()))
    content = {"circuit_images": CIRCUIT_IMAGES, "output_images": OUTPUT_IMAGES, "draws": DRAWS}
    content |= {"summary": rounded(summary(models)), "models": models}
    (RESULTS / "left_out.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

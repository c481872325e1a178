"""Train every model of the grid and keep its predictions, one small file per model; resumable.

python experiments/pacs64_subsets/train.py --data DIR --work DIR [--minutes 45]

One CPU core.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from images import ID_DOMAINS, OOD_DOMAIN, SEED, arguments, features, read, training_rows
from networks import predict_network
from recipes import NETWORKS, Recipe, recipes, rows_of

from assay.core.random import stream


def prepare(data: Path, work: Path) -> dict[str, np.ndarray]:
    """Pixels, labels, domains and features of all images; computed once, then read."""
    path = work / "features.npz"
    if not path.exists():
        domains = [read(data, domain) for domain in (*ID_DOMAINS, OOD_DOMAIN)]
        pixels = np.concatenate([each.pixels for each in domains])
        names = np.concatenate([np.repeat(each.domain, each.n) for each in domains])
        train = np.concatenate([training_rows(each) for each in domains]) & (names != OOD_DOMAIN)
        columns = {f"feature {name}": value for name, value in features(pixels, train).items()}
        labels = np.concatenate([np.asarray(each.labels) for each in domains])
        facts = {"labels": labels, "domains": names, "train": train}
        facts["paths"] = np.concatenate([np.asarray(each.fields["paths"]) for each in domains])
        facts["class_names"] = np.asarray(domains[0].classes)
        temporary = work / "features.part.npz"
        np.savez(temporary, pixels=pixels, **facts, **columns)
        temporary.rename(path)
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def estimator(recipe: Recipe, seed: int) -> Any:
    """The untrained classifier of a recipe that is not a network."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
    from sklearn.kernel_approximation import Nystroem, RBFSampler
    from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.tree import DecisionTreeClassifier

    given = recipe.settings
    match recipe.estimator:
        case "logistic":
            return LogisticRegression(C=given["C"], max_iter=150)
        case "ridge":
            return RidgeClassifier(alpha=given["alpha"])
        case "discriminant":
            return LinearDiscriminantAnalysis(solver="lsqr", shrinkage=given["shrinkage"])
        case "linear-svm":
            return SGDClassifier(alpha=given["alpha"], max_iter=given["epochs"], tol=None, random_state=seed)
        case "neighbours":
            return KNeighborsClassifier(given["k"], metric=given["metric"], algorithm="brute")
        case "naive-bayes":
            return GaussianNB(var_smoothing=given["smoothing"])
        case "tree":
            return DecisionTreeClassifier(
                max_depth=given["depth"], min_samples_leaf=given["leaf"], random_state=seed
            )
        case "forest":
            return RandomForestClassifier(given["trees"], max_depth=given["depth"], random_state=seed)
        case "extra-trees":
            return ExtraTreesClassifier(given["trees"], max_depth=given["depth"], random_state=seed)
        case "kernel":
            # Standardised features: a squared distance is about twice their number.
            width = given["width"]
            if given["map"] == "nystroem":
                mapping = Nystroem(gamma=width / given["d"], n_components=300, random_state=seed)
            else:
                mapping = RBFSampler(gamma=width / given["d"], n_components=400, random_state=seed)
            return make_pipeline(mapping, RidgeClassifier(alpha=given["alpha"]))
        case "perceptron":
            return MLPClassifier(
                (given["hidden"],), alpha=given["decay"], max_iter=given["epochs"], random_state=seed
            )
    raise ValueError(f"no such estimator: {recipe.estimator}")


def predict(recipe: Recipe, table: dict[str, np.ndarray], rows: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Predicted class of each row in `asked`, by a model trained on `rows`."""
    seed = int(stream(SEED, f"model/{recipe.name}").integers(2**31))
    if recipe.estimator in NETWORKS:
        return predict_network(recipe, table["pixels"], table["labels"], rows, asked, seed)
    values = table[f"feature {recipe.features}"]
    mean, spread = values[rows].mean(axis=0), values[rows].std(axis=0)
    # Features that hardly move in training may move a lot elsewhere; they are kept on a common scale.
    scale = np.maximum(spread, 0.05 * spread.max() + 1e-6)
    settings = {**recipe.settings, "d": values.shape[1]}
    model = estimator(Recipe(**{**_fields(recipe), "settings": settings}), seed)
    model.fit((values[rows] - mean) / scale, table["labels"][rows])
    return np.asarray(model.predict((values[asked] - mean) / scale))


def _fields(recipe: Recipe) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in Recipe.__dataclass_fields__}


def train(table: dict[str, np.ndarray], work: Path, minutes: float) -> None:
    """Every model that is not there yet, until the time is over."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning

    warnings.simplefilter("ignore", ConvergenceWarning)  # few steps are one of the settings
    folder = work / "models"
    folder.mkdir(exist_ok=True)
    # Held-out images of the three domains first, then all sketches.
    asked = np.concatenate(
        [
            np.flatnonzero(~table["train"] & (table["domains"] != OOD_DOMAIN)),
            np.flatnonzero(table["domains"] == OOD_DOMAIN),
        ]
    )
    stop = time.monotonic() + 60 * minutes
    every = recipes()
    for number, recipe in enumerate(every):
        path = folder / f"{recipe.name}.npz"
        if path.exists():
            continue
        if time.monotonic() > stop:
            break
        began = time.process_time()
        rng = stream(SEED, f"rows/{recipe.name}")
        rows = rows_of(recipe.subset, table["domains"], table["train"], rng)
        predicted = predict(recipe, table, rows, asked).astype(np.uint8)
        seconds = time.process_time() - began
        temporary = folder / f"{recipe.name}.part"
        with temporary.open("wb") as file:
            np.savez_compressed(file, predicted=predicted, rows=asked, seconds=seconds)
        temporary.rename(path)
        right = predicted == table["labels"][asked]
        held_out = table["domains"][asked] != OOD_DOMAIN
        print(
            f"{number + 1}/{len(every)} {recipe.name} {recipe.subset} id {right[held_out].mean():.3f} "
            f"ood {right[~held_out].mean():.3f} {seconds:.1f} s",
            flush=True,
        )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="start no model after this time")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    train(prepare(given.data, given.work), given.work, given.minutes)


if __name__ == "__main__":
    main()

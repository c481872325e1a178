"""The built-in demonstration: small classifiers trained on digits whose frame carries a misleading mark.

Every image of scikit-learn's `load_digits` gets a frame, one pixel wide, and noise all over. In training and
in the in-distribution test a stroke on the frame stands at the place that belongs to the digit (nearly
always), so a classifier that reads the stroke is more accurate there. Out of distribution the stroke still
`agrees` with most digits; on a part of four digits it `misleads` (it stands at the place of another digit),
on a few images it is `absent`. Runs differ in family, settings, training images and in how many training
images had their stroke erased, hence in how far they rely on it.

So the answer is known: over all examples accuracy is on the line, on the images with a misleading stroke it
is on the inverse line. Nothing is simulated: the models are trained, and their answers are what the matrix
holds.
"""

import functools
import importlib
import warnings
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import Places, Progress
from assay.core.errors import InputError
from assay.core.random import stream


CUES = ("agrees", "absent", "misleads")
AGREES, ABSENT, MISLEADS = range(len(CUES))
SIDE = 10  # of an image: 8 pixels and the frame
BRIGHTEST = 16.0
NOISE = 7.0
MARK = 10.0
STROKE = 3  # pixels of the frame that a mark brightens
N_TRAIN = N_ID = 500
FEWEST = 320  # training images of a run: this many to N_TRAIN
AGREEMENT = 0.98  # share of in-distribution images whose mark names their digit
N_MISLED = 4  # digits whose mark misleads out of distribution,
MISLED_SHARE = 0.55  # on this share of their images
ABSENT_SHARE = 0.08

# The scikit-learn class of each family, and its settings: one value of each is drawn per run.
KINDS: dict[str, tuple[str, dict[str, tuple[Any, ...]]]] = {
    "logistic regression": ("linear_model.LogisticRegression", {"C": (0.1, 1.0, 10.0), "max_iter": (60,)}),
    "ridge": ("linear_model.RidgeClassifier", {"alpha": (0.1, 1.0, 10.0)}),
    "linear support vectors": ("svm.LinearSVC", {"C": (0.001, 0.01, 0.1), "max_iter": (200,)}),
    "stochastic gradient": ("linear_model.SGDClassifier", {"alpha": (1e-4, 1e-3, 1e-2), "max_iter": (30,)}),
    "linear discriminant": (
        "discriminant_analysis.LinearDiscriminantAnalysis",
        {"solver": ("lsqr",), "shrinkage": (0.01, 0.1, 0.3, 0.5)},
    ),
    "Gaussian naive Bayes": ("naive_bayes.GaussianNB", {"var_smoothing": (0.01, 0.03, 0.1)}),
    "multinomial naive Bayes": ("naive_bayes.MultinomialNB", {"alpha": (0.1, 1.0, 10.0)}),
    "Bernoulli naive Bayes": (
        "naive_bayes.BernoulliNB",
        {"alpha": (0.1, 1.0, 10.0), "binarize": (0.3, 0.4, 0.5)},
    ),
    "nearest neighbours": (
        "neighbors.KNeighborsClassifier",
        {"n_neighbors": (1, 3, 5, 9, 15), "weights": ("uniform", "distance")},
    ),
    "nearest centroid": ("neighbors.NearestCentroid", {"shrink_threshold": (None, 0.5, 1.0)}),
    "random forest": (
        "ensemble.RandomForestClassifier",
        {"n_estimators": (40, 60), "max_depth": (8, 12, None)},
    ),
    "extra trees": ("ensemble.ExtraTreesClassifier", {"n_estimators": (40, 60), "max_depth": (8, 12, None)}),
    "gradient boosting": (
        "ensemble.HistGradientBoostingClassifier",
        {
            "max_iter": (15, 20),
            "max_leaf_nodes": (4, 8),
            "min_samples_leaf": (5, 15),
            "max_bins": (32,),
            "early_stopping": (False,),
        },
    ),
    "radial support vectors": ("svm.SVC", {"C": (1.0, 3.0, 10.0), "gamma": (0.02, 0.04, 0.08)}),
    "polynomial support vectors": ("svm.SVC", {"C": (0.3, 1.0, 10.0), "kernel": ("poly",), "degree": (2, 3)}),
    "neural network": (
        "neural_network.MLPClassifier",
        {
            "hidden_layer_sizes": ((16,), (32,), (64,)),
            "alpha": (1e-4, 1e-2, 1.0),
            "max_iter": (15, 30),
            "batch_size": (32,),
            "learning_rate_init": (0.005,),
        },
    ),
}
FAMILIES = tuple(KINDS)


def digits_data(*, n_models: int = 320, seed: int = 0, progress: Progress | None = None) -> CorrectnessData:
    """Train the demonstration's models and ask each about every out-of-distribution digit.

    500 images are for training, 500 for the in-distribution accuracy, the other 797 are out of distribution.
    Each model is a training run of its own; its family is the kind of classifier.

    Args:
        n_models: Models, at least two of every family.
        seed: Root seed: of the images' roles, noise and marks, and of the runs.
        progress: Called with `train`, the models done and all models.

    Returns:
        The matrix, with the columns `cue` (`agrees`, `absent` or `misleads`: what the mark of the image does)
        and `mark` (the digit that it names, or `none`), pixels as embeddings, and the images as models see
        them.

    Raises:
        InputError: If there are fewer than two models per family.

    Notes:
        About 20 seconds for 320 models on one core.

    References:
        Alpaydin and Kaynak (1998), UCI Optical Recognition of Handwritten Digits, as in scikit-learn.
    """
    if n_models < 2 * len(FAMILIES):
        raise InputError(f"n_models is {n_models}; expected two of each family, at least {2 * len(FAMILIES)}")
    images, runs = _Images.draw(seed), []
    for number in range(n_models):
        runs.append(_train(images, number, n_models, seed))
        if progress is not None:
            progress("train", number + 1, n_models)
    names, right, accuracies = zip(*runs, strict=True)
    outside, pixels = images.outside, images.pixels(images.outside)
    marks = images.marks[outside]
    return CorrectnessData.of(
        np.stack(right),
        np.array(accuracies),
        model_ids=names,
        groups=names,
        families=[FAMILIES[number % len(FAMILIES)] for number in range(n_models)],
        example_ids=[f"digit-{place:04d}" for place in outside],
        labels=images.digits[outside],
        label_names=range(10),
        meta={
            "cue": np.array(CUES)[images.cue[outside]],
            "mark": np.where(marks < 0, "none", marks.astype(str)),
        },
        embedding=pixels,
        id_embedding=images.pixels(images.within),
        images=np.rint(255 * pixels).astype(np.uint8).reshape(-1, SIDE, SIDE),
        source={"kind": "digits", "n_models": n_models, "seed": seed, "misled_digits": images.misled},
    )


class _Images(NamedTuple):
    """Images: pixels as shares of the brightest, bare of marks; digits, marks (-1: none), and their roles."""

    bare: Float64[np.ndarray, "n d"]
    digits: Int64[np.ndarray, " n"]
    marks: Int64[np.ndarray, " n"]
    cue: Int64[np.ndarray, " n"]
    train: Int64[np.ndarray, " n_train"]
    within: Int64[np.ndarray, " n_within"]
    outside: Int64[np.ndarray, " n_outside"]
    misled: tuple[int, ...]

    @classmethod
    def draw(cls, seed: int) -> "_Images":
        """Noise, roles and marks of all images."""
        from sklearn.datasets import load_digits

        loaded, draw = load_digits(), stream(seed, "digits/images")
        digits = loaded.target.astype(np.int64)
        bare = np.pad(loaded.images, ((0, 0), (1, 1), (1, 1))).reshape(len(digits), -1)
        bare = np.clip(bare + NOISE * draw.standard_normal(bare.shape), 0, BRIGHTEST)
        order = draw.permutation(len(digits))
        train, within, outside = (np.sort(part) for part in np.split(order, [N_TRAIN, N_TRAIN + N_ID]))
        misled = tuple(sorted(draw.choice(10, size=N_MISLED, replace=False).tolist()))
        other = (digits + draw.integers(1, 10, size=len(digits))) % 10
        chance = draw.random(len(digits))
        misleading = np.isin(digits, misled) & (chance < MISLED_SHARE)
        cue = np.where(misleading, MISLEADS, np.where(chance > 1 - ABSENT_SHARE, ABSENT, AGREES))
        marks = np.where(draw.random(len(digits)) < AGREEMENT, digits, other)
        marks[outside] = np.select([cue == AGREES, cue == MISLEADS], [digits, other], default=-1)[outside]
        return cls(bare, digits, marks, cue.astype(np.int64), train, within, outside, misled)

    def pixels(self, places: Places, marks: Places | None = None) -> Float64[np.ndarray, "k d"]:
        """Images as models see them, as shares of the brightest; with other marks than their own if given."""
        marks = self.marks[places] if marks is None else marks
        pixels, rows = self.bare[places], np.flatnonzero(marks >= 0)
        pixels[rows[:, None], strokes()[marks[rows]]] += MARK
        return np.asarray(np.clip(pixels, 0, BRIGHTEST) / BRIGHTEST)


@functools.cache
def strokes() -> Int64[np.ndarray, "10 stroke"]:
    """Pixels of the stroke of each digit, spread evenly round the frame."""
    pixels = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    ring = np.concatenate([pixels[0, :-1], pixels[:-1, -1], pixels[-1, :0:-1], pixels[:0:-1, 0]])
    starts = np.rint(np.arange(10) * len(ring) / 10).astype(np.int64)
    return np.asarray(ring[(starts[:, None] + np.arange(STROKE)) % len(ring)])


def _train(images: _Images, number: int, n_models: int, seed: int) -> tuple[str, np.ndarray, float]:
    """Name, answers and in-distribution accuracy of a run.

    Families take turns; within each the share of training images without their mark goes evenly from 0 to 1.
    """
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    place, kind = divmod(number, len(FAMILIES))
    family, draw = FAMILIES[kind], stream(seed, f"digits/run/{number}")
    path, choices = KINDS[family]
    options = {name: values[int(draw.integers(len(values)))] for name, values in choices.items()}
    erased = float(place + draw.random()) / len(range(kind, n_models, len(FAMILIES)))
    n_train, own_seed = int(draw.integers(FEWEST, N_TRAIN + 1)), int(draw.integers(2**31))
    draw = stream(own_seed, "digits/train")
    rows = images.train[np.sort(draw.permutation(N_TRAIN)[:n_train])]
    marks = np.where(draw.random(n_train) < erased, -1, images.marks[rows])
    module, _, name = path.partition(".")
    model = getattr(importlib.import_module(f"sklearn.{module}"), name)(**options)
    if "random_state" in model.get_params():
        model.set_params(random_state=own_seed)
    with warnings.catch_warnings(), threadpool_limits(limits=1):  # images this small gain by one thread
        warnings.simplefilter("ignore", ConvergenceWarning)  # few steps are part of the recipes
        model.fit(images.pixels(rows, marks), images.digits[rows])
        parts = (images.outside, images.within)
        outside, within = (model.predict(images.pixels(each)) == images.digits[each] for each in parts)
    return f"{family.lower().replace(' ', '-')}-{place:02d}", outside.astype(np.uint8), float(within.mean())

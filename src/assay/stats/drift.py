"""Two-sample tests: do two sets of outputs come from one source? Arrays in, p-values out."""

import numpy as np
import scipy
from jaxtyping import Float
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from assay.core.errors import NonFiniteError, ShapeError


PERMUTATIONS = 199  # of the labels: the smallest p-value is 0.005

Rows = Float[np.ndarray, "n d"]
OtherRows = Float[np.ndarray, "m d"]


def ks_p_value(known: Float[np.ndarray, " n"], new: Float[np.ndarray, " m"]) -> float:
    """p-value of the Kolmogorov-Smirnov test of two samples of numbers, such as confidences.

    Args:
        known: From the known source.
        new: To be compared.

    Returns:
        In [0, 1]: how often sources that are equal give distribution functions this far apart.

    Raises:
        NonFiniteError: For NaN or infinite numbers.
    """
    _finite(known[:, None], new[:, None])
    return float(scipy.stats.ks_2samp(known, new).pvalue)


def mmd_p_value(known: Rows, new: OtherRows, *, rng: np.random.Generator) -> float:
    """p-value of the maximum mean discrepancy of two samples of vectors, such as embeddings.

    The squared distance of the mean embeddings in the space of the kernel exp(-|x - y|^2 / (2 h^2)), with h
    the median distance of all pairs; against 199 permutations of which sample a vector belongs to:
    p = (1 + #{permuted >= found}) / 200.

    Args:
        known: From the known source.
        new: To be compared.
        rng: Of the permutations.

    Returns:
        In [1/200, 1]; 1 where all vectors are equal.

    Raises:
        ShapeError: For vectors of different length, or fewer than 2.
        NonFiniteError: For NaN or infinite numbers.

    References:
        Gretton et al. (2012), "A kernel two-sample test", JMLR 13.
    """
    _finite(known, new)
    rows = np.concatenate([known, new]).astype(np.float64)
    squares = scipy.spatial.distance.squareform(scipy.spatial.distance.pdist(rows, "sqeuclidean"))
    median = float(np.median(squares[np.triu_indices(len(rows), 1)]))
    if not median:
        return 1.0
    kernel = np.exp(-squares / (2 * median))
    weights = np.concatenate([np.full(len(known), 1 / len(known)), np.full(len(new), -1 / len(new))])
    signs = np.stack([weights, *(rng.permutation(weights) for _ in range(PERMUTATIONS))])
    found = np.einsum("pi,pi->p", signs @ kernel, signs)
    return float((1 + (found[1:] >= found[0] - 1e-12).sum()) / (PERMUTATIONS + 1))


def classifier_p_value(known: Rows, new: OtherRows, *, rng: np.random.Generator) -> float:
    """p-value of a classifier two-sample test on vectors, such as embeddings.

    A logistic regression learns on one half of both samples, in equal numbers, to say which is new; its
    number of right answers on the other half against a binomial distribution with probability 1/2, one-sided.

    Args:
        known: From the known source; as many as there are new ones are used.
        new: To be compared.
        rng: Of the halves.

    Returns:
        In (0, 1].

    Raises:
        ShapeError: For vectors of different length, or fewer than 2.
        NonFiniteError: For NaN or infinite numbers.

    References:
        Lopez-Paz and Oquab (2017), "Revisiting classifier two-sample tests", arXiv:1610.06545.
    """
    _finite(known, new)
    n = min(len(known), len(new))
    samples = [each[rng.permutation(len(each))[:n]] for each in (known, new)]
    half = n // 2
    train, test = (np.concatenate([each[part] for each in samples]) for part in (slice(half), slice(half, n)))
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=200))
    classifier.fit(train, np.repeat([0, 1], half))
    truth = np.repeat([0, 1], n - half)
    right = int((classifier.predict(test) == truth).sum())
    return float(scipy.stats.binom.sf(right - 1, len(truth), 0.5))


def _finite(known: Rows, new: OtherRows) -> None:
    if known.shape[1] != new.shape[1] or min(len(known), len(new)) < 2:
        raise ShapeError(
            f"the samples have shapes {known.shape} and {new.shape}; expected 2 rows or more each, of one "
            "length"
        )
    for name, rows in (("known", known), ("new", new)):
        if not np.isfinite(rows).all():
            raise NonFiniteError(f"the {name} sample holds NaN or infinity; check the model's outputs")

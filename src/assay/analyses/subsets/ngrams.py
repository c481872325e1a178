"""Texts: which words and phrases a subset has more of than its pool, and the same as features."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from assay.analyses.subsets.members import SelectedExamples
from assay.analyses.subsets.prevalence import PrevalenceShift, presence_shift
from assay.core.errors import InputError, ShapeError, check_least, check_name


if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

LONGEST, FEWEST, MOST = 2, 5, 500
_WORD = r"(?u)\b\w+\b"


class NGrams(NamedTuple):
    """Which text holds which n-gram.

    Attributes:
        names: The n-grams, in alphabetical order.
        present: `[N, k]`: 1 where a text holds one, else 0; features for `example_holdout`.
    """

    names: tuple[str, ...]
    present: Float64[np.ndarray, "n k"]


def ngram_features(
    texts: Sequence[Any] | np.ndarray, *, longest: int = LONGEST, fewest: int = FEWEST, most: int = MOST
) -> NGrams:
    """The n-grams of texts: sequences of 1 to `longest` words, in lower case.

    Args:
        texts: One per example; None and NaN count as empty.
        longest: Words of the longest n-gram.
        fewest: Texts that must hold an n-gram, and that must lack it.
        most: N-grams at most; the most frequent ones are kept.

    Raises:
        InputError: If no n-gram is held by `fewest` texts and lacked by as many.
    """
    names, held = _held(texts, longest, fewest, most)
    return NGrams(names, held.toarray())


def _held(
    texts: Sequence[Any] | np.ndarray, longest: int, fewest: int, most: int
) -> "tuple[tuple[str, ...], csr_matrix]":
    """`ngram_features` with one entry per n-gram that a text holds."""
    from sklearn.feature_extraction.text import CountVectorizer

    check_least(1, longest=longest, fewest=fewest, most=most)
    written = [text if isinstance(text, str) else "" for text in np.asarray(texts, dtype=object).tolist()]
    vectorizer = CountVectorizer(
        binary=True,
        ngram_range=(1, longest),
        token_pattern=_WORD,
        min_df=fewest,
        max_df=len(written) - fewest,
        max_features=most,
        dtype=np.float64,
    )
    try:
        held = vectorizer.fit_transform(written)
    except ValueError as error:  # too few texts, none has a word, or all n-grams are left out
        raise InputError(
            f"none of {len(written)} texts gives an n-gram that at least {fewest} of them hold and {fewest} "
            "lack; lower fewest"
        ) from error
    return tuple(vectorizer.get_feature_names_out().tolist()), held


def ngram_shift(
    selection: SelectedExamples,
    texts: str | Sequence[Any] | np.ndarray,
    *,
    longest: int = LONGEST,
    fewest: int = FEWEST,
    most: int = MOST,
    **options: Any,
) -> PrevalenceShift:
    """The share of texts that hold an n-gram, in a subset against its pool, for each n-gram.

    Args:
        selection: With its data.
        texts: One per example of the data, or the name of a column of their `meta`.
        longest: As in `ngram_features`, which looks at the texts of the pool.
        fewest: Likewise.
        most: Likewise.
        options: `n_resamples`, `level`, `q` and `seed` of `prevalence_shift`.

    Returns:
        A row per n-gram, the attribute being the n-gram in quotes and the value `present`; difference,
        interval and exact test as in `prevalence_shift`, adjusted over all n-grams.

    Raises:
        InputError: For an unknown column, or texts without a common n-gram.
        ShapeError: If there is not one text per example.
    """
    data = selection.require_data("n-grams")
    if isinstance(texts, str):
        check_name("column of the examples", texts, data.meta)
        texts = data.meta[texts]
    if len(texts) != data.n_examples:
        raise ShapeError(f"got {len(texts)} texts for {data.n_examples} examples; give one per example")
    pool = selection.pool
    names, held = _held(np.asarray(texts, dtype=object)[pool], longest, fewest, most)
    chosen = np.searchsorted(pool, selection.indices)
    counts = (np.asarray(some.sum(axis=0)).ravel().astype(int).tolist() for some in (held[chosen], held))
    holders = dict(zip((f'"{name}"' for name in names), zip(*counts, strict=True), strict=True))
    return presence_shift(chosen, len(pool), holders, **options)

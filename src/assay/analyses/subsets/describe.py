"""Words for a subset: phrases that hold more often of the selected images than of others.

Three steps, each by a callable of the user's: a *captioner* puts single images into words, a *proposer* says
in short phrases how two lists of captions differ, a *ranker* embeds images and phrases in one space, so that
each phrase has a score. None is part of the package, and none is fetched.

A phrase says what the ranker sees more of in the selected images. It does not say why models fail on them;
the authors of the method judge this step unreliable, and with good reason.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from assay.analyses.subsets.phrase_scores import PhraseScore, Ranker, score_phrases
from assay.analyses.subsets.proposals import (
    LONGEST_PHRASE,
    MOST_CHARACTERS,
    Captioner,
    Proposer,
    RefusalError,
    caption_prompt,
)
from assay.core.errors import InputError, ShapeError, check_fraction, check_least
from assay.core.random import stream
from assay.core.record import Record
from assay.core.untrusted import printable


if TYPE_CHECKING:
    from assay.analyses.subsets.members import SelectedExamples

N_IMAGES, N_CAPTIONS, N_PHRASES = 200, 25, 25
LONGEST_CAPTION = 2000  # characters of a caption that are kept

Images = np.ndarray | Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class SubsetDescription(Record):
    """Phrases for a subset, those that fit it best first.

    Attributes:
        scores: One per phrase, by descending AUROC; empty without a ranker.
        phrases: All phrases, as they were proposed or given.
        captions_selected: Shown to the proposer, in rank order.
        captions_comparison: Likewise.
        n_selected: Selected images that were scored, or sampled where there is no ranker.
        n_comparison: Comparison images likewise.
        n_failed: Images of either side without a caption; left out of everything after.
        prompt: What the captioner was asked.
        held_out: Whether phrases were scored only on images whose captions the proposer had not seen.
        level: Coverage of the intervals.
        seed: Root of sampling and resampling.
        notes: What to keep in mind.
    """

    record_kind = "subset-description"

    scores: tuple[PhraseScore, ...]
    phrases: tuple[str, ...]
    captions_selected: tuple[str, ...]
    captions_comparison: tuple[str, ...]
    n_selected: int
    n_comparison: int
    n_failed: int
    prompt: str
    held_out: bool
    level: float
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> tuple[str, ...]:
        """The phrases that significantly fit the selected images better, best first."""
        return tuple(each.phrase for each in self.scores if each.significant and each.difference > 0)


def describe_subset(
    images_selected: Images,
    images_comparison: Images,
    *,
    captioner: Captioner | None = None,
    proposer: Proposer | None = None,
    ranker: Ranker | None = None,
    phrases: Sequence[str] | None = None,
    domains: Sequence[Any] | np.ndarray | None = None,
    fixed_class: str | None = None,
    n_images: int = N_IMAGES,
    n_captions: int = N_CAPTIONS,
    n_phrases: int = N_PHRASES,
    held_out: bool = False,
    level: float = 0.95,
    q: float = 0.05,
    n_resamples: int = 1000,
    seed: int = 0,
) -> SubsetDescription:
    """Phrases for what selected images have more of than others, each with a score, an interval and a test.

    score(phrase) = mean cos(image, phrase) over the selected - mean cos(image, phrase) over the comparison.

    Args:
        images_selected: In rank order, most harmful first; an array `[n, ...]` or a sequence of whatever the
            callables take (arrays, paths, pictures). The first `n_images` are used.
        images_comparison: What to compare with, best the images of the same pool that were not selected:
            against images in distribution, the shift itself is what the phrases would be about.
        captioner: `(images, prompt) -> captions`, None where an image failed; 2000 characters of each are
            kept. Not needed with `phrases`.
        proposer: `(captions_a, captions_b, n) -> phrases` that are more true of b, the selected. See
            `text_proposer`. Not needed with `phrases`.
        ranker: Embeds images and phrases, see `Ranker`. None: phrases without scores.
        phrases: Your own phrases, instead of captioner and proposer or beside them.
        domains: Domain of each comparison image; as equal a number is sampled of each.
        fixed_class: What all images show, if they do; goes into the prompt of the captioner.
        n_images: Images of either side at most.
        n_captions: Captions of either side that the proposer sees at most; no more are asked for.
        n_phrases: Phrases that the proposer is asked for; no more are taken.
        held_out: Score only on images whose captions the proposer has not seen. The phrases were made for the
            others, so that tests on those are a little too favourable.
        level: Coverage of the intervals.
        q: Share of false discoveries that is accepted among the significant phrases.
        n_resamples: Bootstrap resamples of the images of either side.
        seed: Root seed of sampling and resampling.

    Returns:
        The phrases by descending AUROC.

    Raises:
        InputError: No images on a side; neither phrases nor what makes them; no phrase was proposed; a
            proposal that is not text.
        ShapeError: Captions or embeddings that are not one per image or text.
        NonFiniteError: Embeddings with NaN or of norm 0.

    Notes:
        Interval: percentiles over resamples of the images of either side; phrases and models stay as they
        are. A phrase whose cosines are all the same has AUROC 1/2 and p = 1. Costs at most
        2 `n_captions` captions (more where some fail), one proposal, 2 `n_images` image and `n_phrases` text
        embeddings.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, section on describing subsets, whose score is
        |difference| over the mean of the comparison (`rel_diff`). Mann and Whitney (1947),
        doi:10.1214/aoms/1177730491.
    """
    counts = {"n_images": n_images, "n_captions": n_captions, "n_phrases": n_phrases}
    _check(
        {"images_selected": images_selected, "images_comparison": images_comparison},
        (captioner, proposer, phrases),
        counts | {"n_resamples": n_resamples},
        {"level": level, "q": q},
    )
    prompt = caption_prompt(fixed_class)
    chosen = _sample(len(images_comparison), n_images, domains, seed)
    sides = (
        _CaptionedImages(_taken(images_selected, np.arange(min(n_images, len(images_selected))))),
        _CaptionedImages(_taken(images_comparison, chosen)),
    )
    proposed = list(phrases or ())
    if captioner is not None:
        for side in sides:
            side.caption(captioner, prompt, n_captions)
    if proposer is not None:
        selected, comparison = sides
        if not (selected.captions and comparison.captions):
            name = "selected" if not selected.captions else "comparison"
            raise InputError(f"the captioner failed on all {name} images, so phrases cannot be proposed")
        found = proposer(list(comparison.captions), list(selected.captions), n_phrases)
        proposed += list(found)[:n_phrases]
    listed = _distinct(proposed)
    if not listed and (phrases is not None or proposer is not None):
        raise InputError(
            "no phrases were given or proposed: a proposed phrase begins with '*' or '-' and has at most "
            f"{LONGEST_PHRASE} words or {MOST_CHARACTERS} characters"
        )
    kept, others = (side.scored(held_out=held_out) for side in sides)
    scores: tuple[PhraseScore, ...] = ()
    if ranker is not None and listed:
        rng = stream(seed, "describe.bootstrap")
        scores = score_phrases(
            listed, kept, others, ranker, level=level, q=q, n_resamples=n_resamples, rng=rng
        )
    return SubsetDescription(
        scores=scores,
        phrases=tuple(listed),
        captions_selected=tuple(sides[0].captions),
        captions_comparison=tuple(sides[1].captions),
        n_selected=len(kept),
        n_comparison=len(others),
        n_failed=sum(side.n_failed for side in sides),
        prompt=prompt,
        held_out=held_out,
        level=level,
        seed=seed,
        notes=_notes(proposed=proposer is not None, held_out=held_out, scored=bool(scores)),
    )


def describe_selection(
    selection: "SelectedExamples", images: Images | None = None, **options: Any
) -> SubsetDescription:
    """`describe_subset` of a selection against the examples of its pool that were not selected.

    Args:
        selection: From `assay.oodselect`.
        images: One per example of the pool, in its order. None: those the data hold.
        options: Further arguments of `describe_subset`.

    Raises:
        InputError: No images, or not one per example; nothing is left unselected.
    """
    data = selection.data
    given = images if images is not None or data is None else data.images
    if given is None:
        raise InputError("the data have no images; pass images, one per example of the pool, in its order")
    n_examples = len(given) if data is None else data.n_examples
    if len(given) != n_examples:
        raise InputError(f"got {len(given)} images for {n_examples} examples; give one per example")
    pool = np.arange(n_examples) if data is None else selection.pool
    rest = np.setdiff1d(pool, selection.indices)
    if not len(rest):
        raise InputError(f"all {len(pool)} examples are selected, so no example is left for comparison")
    return describe_subset(_taken(given, np.asarray(selection.indices)), _taken(given, rest), **options)


# ------------------------------------------------------------------------------------------- the parts


class _CaptionedImages:
    """The images of one side, and which of them have a caption or failed to get one."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.answers: dict[int, str | None] = {}  # by row; None where the captioner failed

    @property
    def captions(self) -> list[str]:
        return [text for text in self.answers.values() if text]

    @property
    def n_failed(self) -> int:
        return len(self.answers) - len(self.captions)

    def caption(self, captioner: Captioner, prompt: str, wanted: int) -> None:
        """Caption images in order until enough have one; failures are made up for by later images."""
        while len(self.captions) < wanted and len(self.answers) < len(self.images):
            done = len(self.answers)
            rows = np.arange(done, min(done + wanted - len(self.captions), len(self.images)))
            try:
                answers = list(captioner(_taken(self.images, rows), prompt))
            except RefusalError:
                if not self.captions:
                    raise
                answers = [None] * len(rows)  # others of this side have captions
            if len(answers) != len(rows):
                raise ShapeError(
                    f"the captioner returned {len(answers)} captions for {len(rows)} images; expected one "
                    "per image, None where it failed"
                )
            for row, answer in zip(rows.tolist(), answers, strict=True):
                self.answers[row] = _line(answer)[:LONGEST_CAPTION] if isinstance(answer, str) else None

    def scored(self, *, held_out: bool) -> Images:
        """The images that phrases are scored on."""
        left_out = {row for row, text in self.answers.items() if held_out or not text}
        rows = np.setdiff1d(np.arange(len(self.images)), list(left_out)).astype(np.int64)
        if not len(rows):
            raise InputError(
                f"no image is left to score: of {len(self.images)}, {self.n_failed} have no caption"
                + (f" and {len(self.captions)} were shown to the proposer" if held_out else "")
                + "; give more images, or fewer n_captions"
            )
        return _taken(self.images, rows)


def _taken(images: Images, rows: np.ndarray) -> Images:
    return images[rows] if isinstance(images, np.ndarray) else [images[row] for row in rows.tolist()]


def _check(
    sides: dict[str, Images],
    makers: tuple[Captioner | None, Proposer | None, Sequence[str] | None],
    counts: dict[str, int],
    shares: dict[str, float],
) -> None:
    """Raises `InputError` for what `describe_subset` cannot work with, by the name of the argument."""
    captioner, proposer, phrases = makers
    for name, images in sides.items():
        if not len(images):
            raise InputError(f"{name} is empty; give at least one image")
    if proposer is not None and captioner is None:
        raise InputError(
            "a proposer works on captions; add a captioner, or replace the proposer with phrases"
        )
    if captioner is None and phrases is None:
        raise InputError("phrases are missing: give captioner and proposer, or your own phrases")
    if isinstance(phrases, str):
        raise InputError(f"phrases is the text {phrases!r}; give a list of phrases, [{phrases!r}]")
    check_least(1, **counts)
    check_fraction(**shares)


def _sample(
    n_there: int, wanted: int, domains: Sequence[Any] | np.ndarray | None, seed: int
) -> Int64[np.ndarray, " n"]:
    """Rows of the comparison, at random; with domains as many of each as can be."""
    order: np.ndarray = stream(seed, "describe.comparison").permutation(n_there)
    if domains is not None:
        if len(domains) != n_there:
            raise ShapeError(f"domains has {len(domains)} entries for {n_there} comparison images")
        # Rank within the own domain: all firsts come before all seconds, so that domains stay equal as long
        # as each has images.
        turns: dict[str, Iterator[int]] = defaultdict(itertools.count)
        turn = [next(turns[str(domains[place])]) for place in order.tolist()]
        order = order[np.argsort(turn, kind="stable")]
    return order[:wanted].astype(np.int64)


def _distinct(phrases: Sequence[str]) -> list[str]:
    distinct: dict[str, str] = {}
    for phrase in phrases:
        if not isinstance(phrase, str):
            raise InputError(f"a phrase is {phrase!r} of type {type(phrase).__name__}; expected a text")
        if text := _line(phrase):
            distinct.setdefault(text.casefold(), text)
    return list(distinct.values())


def _line(text: str) -> str:
    """A text as one line, control characters spelled out."""
    return printable(" ".join(text.split()))


def _notes(*, proposed: bool, held_out: bool, scored: bool) -> tuple[str, ...]:
    notes = [
        "A phrase names what the ranker finds more often in the selected images, not why models fail on them."
    ]
    if scored and proposed and not held_out:
        notes.append(
            "Phrases were proposed from captions of images that they are also tested on; held_out=True "
            "tests them on the others."
        )
    return tuple(notes)

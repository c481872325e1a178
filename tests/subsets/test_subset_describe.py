"""Words for a subset, with callables that work on the pixels of small digits."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from sklearn.datasets import load_digits

from assay.analyses.subsets.describe import SubsetDescription, describe_selection, describe_subset
from assay.analyses.subsets.proposals import caption_prompt, parse_phrases, text_proposer
from assay.app.cli.select import SelectSettings
from assay.core.errors import InputError, NonFiniteError, ShapeError


CONCEPTS = ("much ink", "ink on the left", "ink at the top")


class PixelRanker:
    """Ink, its share on the left and its share at the top, in the units of their spread over all digits."""

    def __init__(self) -> None:
        self._facts = self._of(load_digits().images)
        self.images_seen = 0

    @staticmethod
    def _of(images: Any) -> np.ndarray:
        stack = np.stack([np.asarray(image, dtype=np.float64) for image in images])
        ink = stack.sum(axis=(1, 2))
        return np.stack([ink, stack[:, :, :4].sum((1, 2)) / ink, stack[:, :4].sum((1, 2)) / ink], axis=1)

    def embed_images(self, images: Any) -> np.ndarray:
        self.images_seen += len(images)
        facts = (self._of(images) - self._facts.mean(0)) / self._facts.std(0)
        return np.concatenate([facts, np.ones((len(facts), 1))], axis=1)

    def embed_texts(self, texts: Any) -> np.ndarray:
        return np.array([[float(text == each) for each in CONCEPTS] + [1e-9] for text in texts])


def caption(images: Any, prompt: str) -> list[str | None]:
    """How much ink there is, in words."""
    assert prompt
    return [f"a digit with {'much' if np.asarray(image).sum() > 310 else 'little'} ink" for image in images]


def propose(captions_a: Sequence[str], captions_b: Sequence[str], n: int) -> list[str]:
    """Word pairs that more captions of b have."""
    words = {"much ink", "little ink"}
    share = {
        word: sum(word in each for each in captions_b) / len(captions_b)
        - sum(word in each for each in captions_a) / len(captions_a)
        for word in words
    }
    return sorted((word for word in words if share[word] > 0), key=lambda word: -share[word])[:n]


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """The hundred digits of most ink, most first, and the others."""
    images = load_digits().images
    order = np.argsort(-images.sum(axis=(1, 2)), kind="stable")
    return images[order[:100]], images[order[100:]]


def test_the_property_that_was_selected_for_comes_first(digits: tuple[np.ndarray, np.ndarray]) -> None:
    found = describe_subset(
        *digits, captioner=caption, proposer=propose, ranker=PixelRanker(), phrases=CONCEPTS[1:]
    )
    first = found.scores[0]
    assert first.phrase == "much ink" == found.best[0]
    assert first.significant
    assert first.difference > first.low > 0
    assert first.auroc > first.auroc_low > 0.8
    assert found.phrases == ("ink on the left", "ink at the top", "much ink")
    assert [each.auroc for each in found.scores] == sorted((s.auroc for s in found.scores), reverse=True)
    assert (found.n_selected, found.n_comparison, found.n_failed) == (100, 200, 0)
    assert len(found.captions_selected) == len(found.captions_comparison) == 25


def test_the_score_is_the_signed_difference_of_mean_cosines_by_hand() -> None:
    ranker = SimpleNamespace(
        embed_images=lambda images: np.array([[3.0, 4.0] if image else [1.0, 0.0] for image in images]),
        embed_texts=lambda texts: np.array([[0.0, 2.0], [5.0, 0.0]]),
    )
    found = describe_subset(
        np.array([1, 1]), np.array([0, 0, 1, 0]), ranker=ranker, phrases=["up", "right"], n_resamples=50
    )
    up, right = found.scores
    assert (up.phrase, right.phrase) == ("up", "right")
    assert up.difference == pytest.approx(0.8 - 0.8 / 4)
    assert right.difference == pytest.approx(0.6 - (3 + 0.6) / 4)  # below 0: less true of the selected
    assert up.rel_diff == pytest.approx(0.6 / 0.2)
    assert right.rel_diff == pytest.approx(0.3 / 0.9)  # the published score has lost the sign
    assert up.auroc == pytest.approx((2 * 3 + 2 * 0.5) / 8)
    assert right.auroc == pytest.approx(0.5 / 4)
    expected = scipy_stats.mannwhitneyu([0.8, 0.8], [0, 0, 0.8, 0], alternative="two-sided").pvalue
    assert up.p_value == right.p_value == up.q_value == pytest.approx(expected)


def test_swapping_the_sides_turns_every_score_round(digits: tuple[np.ndarray, np.ndarray]) -> None:
    one, other = digits[0], digits[1][:100]
    found = describe_subset(one, other, ranker=PixelRanker(), phrases=CONCEPTS)
    turned = {
        each.phrase: each
        for each in describe_subset(other, one, ranker=PixelRanker(), phrases=CONCEPTS).scores
    }
    for each in found.scores:
        assert turned[each.phrase].difference == pytest.approx(-each.difference)
        assert turned[each.phrase].auroc == pytest.approx(1 - each.auroc)
        assert turned[each.phrase].p_value == pytest.approx(each.p_value)


def test_the_bootstrap_of_the_auroc_is_that_of_resampled_images() -> None:
    """Against resampling one draw at a time with the same multiplicities."""
    from assay.analyses.subsets.phrase_scores import _resampled_auroc

    rng = np.random.default_rng(4)
    one, other = rng.integers(0, 4, 6).astype(float), rng.integers(0, 4, 9).astype(float)
    weights = rng.multinomial(6, np.full(6, 1 / 6), 20), rng.multinomial(9, np.full(9, 1 / 9), 20)
    found = _resampled_auroc(one, other, *weights)
    for draw in range(20):
        a, b = np.repeat(one, weights[0][draw]), np.repeat(other, weights[1][draw])
        literal = np.mean([(x > y) + 0.5 * (x == y) for x in a for y in b])
        assert found[draw] == pytest.approx(literal)


def test_a_phrase_that_tells_nothing_apart_is_at_chance() -> None:
    ranker = SimpleNamespace(
        embed_images=lambda images: np.ones((len(images), 3)),
        embed_texts=lambda texts: np.eye(3)[: len(texts)],
    )
    (found,) = describe_subset(np.arange(5), np.arange(4), ranker=ranker, phrases=["same"]).scores
    assert (found.auroc, found.p_value, found.difference, found.significant) == (0.5, 1.0, 0.0, False)


def test_images_without_a_caption_are_replaced_by_later_ones_and_left_out() -> None:
    seen: list[list[int]] = []

    def every_third_fails(images: Any, prompt: str) -> list[str | None]:
        seen.append([int(image) for image in images])
        return [None if image % 3 == 0 else f"picture {image}" for image in images]

    scored: list[int] = []

    def embed(images: Any) -> np.ndarray:
        scored.extend(int(image) for image in images)
        return np.array([[1.0, float(image)] for image in images])

    found = describe_subset(
        np.arange(10),
        np.arange(100, 110),
        captioner=every_third_fails,
        proposer=lambda a, b, n: ["large"],
        ranker=SimpleNamespace(embed_images=embed, embed_texts=lambda texts: np.array([[0.0, 1.0]])),
        n_captions=4,
        n_resamples=10,
    )
    assert seen[:2] == [[0, 1, 2, 3], [4, 5]]  # two failed, so two more are asked for
    assert found.captions_selected == ("picture 1", "picture 2", "picture 4", "picture 5")
    assert 0 not in scored
    assert 3 not in scored
    assert {1, 2, 4, 5, 6, 9} <= set(scored)  # 6 and 9 were never asked for
    assert found.n_selected == 8
    assert found.n_failed == 20 - len(scored)


def test_held_out_scores_skip_what_the_proposer_saw(digits: tuple[np.ndarray, np.ndarray]) -> None:
    ranker = PixelRanker()
    found = describe_subset(
        *digits, captioner=caption, proposer=propose, ranker=ranker, n_captions=10, held_out=True
    )
    assert (found.n_selected, found.n_comparison) == (90, 190)
    assert ranker.images_seen == 280
    assert not any("held_out" in note for note in found.notes)
    assert found.scores[0].phrase == "much ink"
    with pytest.raises(InputError, match="10 were shown to the proposer"):
        describe_subset(
            digits[0][:10], digits[1], captioner=caption, proposer=propose, ranker=ranker, held_out=True
        )


def test_the_comparison_is_sampled_equally_from_its_domains() -> None:
    domains = ["a"] * 50 + ["b"] * 5 + ["c"] * 45
    counted: list[str] = []

    def embed(images: Any) -> np.ndarray:
        counted.extend(domains[image] for image in images if image >= 0)
        return np.ones((len(images), 2))

    describe_subset(
        np.array([-1]),
        np.arange(100),
        ranker=SimpleNamespace(embed_images=embed, embed_texts=lambda texts: np.ones((1, 2))),
        phrases=["anything"],
        domains=domains,
        n_images=25,
    )
    assert {name: counted.count(name) for name in "abc"} == {"a": 10, "b": 5, "c": 10}


def test_the_same_seed_samples_the_same_comparison(digits: tuple[np.ndarray, np.ndarray]) -> None:
    def ask(seed: int) -> dict[str, Any]:
        return describe_subset(*digits, ranker=PixelRanker(), phrases=CONCEPTS, seed=seed).to_dict()

    assert ask(3) == ask(3)
    assert ask(3)["scores"] != ask(4)["scores"]


def test_a_selection_is_compared_with_what_it_left(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images = load_digits().images
    indices = np.argsort(-images.sum(axis=(1, 2)), kind="stable")[:50]
    pool = SimpleNamespace(n_examples=len(images), images=None)
    everything = np.arange(len(images))
    selection: Any = SimpleNamespace(indices=indices, data=pool, pool=everything)
    found = describe_selection(selection, images, ranker=PixelRanker(), phrases=CONCEPTS)
    assert found.scores[0].phrase == "much ink"
    assert (found.n_selected, found.n_comparison) == (50, 200)
    with pytest.raises(InputError, match="the data have no images"):
        describe_selection(selection, ranker=PixelRanker(), phrases=CONCEPTS)
    with pytest.raises(InputError, match="7 images for 1797 examples"):
        describe_selection(selection, images[:7], phrases=CONCEPTS)
    whole: Any = SimpleNamespace(indices=everything, data=pool, pool=everything)
    with pytest.raises(InputError, match="no example is left"):
        describe_selection(whole, images, phrases=CONCEPTS)
    selection.pool = np.union1d(indices, everything[:30])  # only these could be selected
    found = describe_selection(selection, images, ranker=PixelRanker(), phrases=CONCEPTS)
    assert found.n_comparison == len(selection.pool) - 50


def test_results_survive_json(digits: tuple[np.ndarray, np.ndarray]) -> None:
    import json

    found = describe_subset(*digits, captioner=caption, proposer=propose, ranker=PixelRanker())
    again = SubsetDescription.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert again.to_dict() == found.to_dict()
    assert again.best == found.best


def test_an_undefined_relative_difference_is_null() -> None:
    ranker = SimpleNamespace(
        embed_images=lambda images: np.array([[float(image), 1 - float(image)] for image in images]),
        embed_texts=lambda texts: np.array([[1.0, 0.0]]),
    )
    (found,) = describe_subset(np.ones(3), np.zeros(3), ranker=ranker, phrases=["one"]).scores
    assert math.isnan(found.rel_diff)
    assert found.to_dict()["rel_diff"] is None
    assert math.isnan(type(found).from_dict(found.to_dict()).rel_diff)


def test_captions_alone_and_phrases_alone_are_enough(digits: tuple[np.ndarray, np.ndarray]) -> None:
    captions = describe_subset(*digits, captioner=caption)
    assert captions.phrases == captions.scores == ()
    assert captions.captions_selected[0] == "a digit with much ink"
    unscored = describe_subset(*digits, captioner=caption, proposer=propose)
    assert unscored.phrases == ("much ink",)
    assert unscored.scores == ()


# -------------------------------------------------------------------------------------------- the words


@pytest.mark.parametrize(
    ("answer", "phrases"),
    [
        ("* plain background\n- seen from above", ["plain background", "seen from above"]),
        ('Here they are:\n* "thick lines"\n* Thick Lines\n1. numbered', ["thick lines"]),
        ("*" + " word" * 12 + "\n*" + " word" * 13, ["word " * 11 + "word"]),
        ("  -  “curly quotes”.  \n-\n* ''\n", ["curly quotes"]),
        ("* **bold phrase**", ["bold phrase"]),
        ("---\n**Light**: dim\n* **Pose**: seated\n***", ["Light: dim", "Pose: seated"]),
        ("* " + "w" * 120 + "\n* " + "w" * 121, ["w" * 120]),
        ("", []),
    ],
)
def test_phrases_are_the_listed_lines(answer: str, phrases: list[str]) -> None:
    assert parse_phrases(answer) == phrases


@given(st.text(max_size=200))
def test_no_parsed_phrase_is_long_empty_or_twice_there(answer: str) -> None:
    found = parse_phrases(answer)
    assert all(each.strip() and len(each.split()) <= 12 for each in found)
    assert len({each.casefold() for each in found}) == len(found)


def test_a_language_model_is_asked_for_properties_other_than_the_class() -> None:
    asked: list[str] = []

    def generate(prompt: str) -> str:
        asked.append(prompt)
        return "* large eyes\n* indoors"

    assert text_proposer(generate)(["a {cat}"], ["a dog"], 7) == ["large eyes", "indoors"]
    assert text_proposer(generate, fixed_class="dog")(["a"], ["b"], 2) == ["large eyes", "indoors"]
    assert "- a {cat}" in asked[0]
    assert "Name 7 properties" in asked[0]
    assert "Leave out what kind of object" in asked[0]
    assert "All pictures of both groups show: dog." in asked[1]
    assert caption_prompt("dog").startswith(caption_prompt())
    assert "dog" in caption_prompt("dog")


def test_what_models_answer_is_bounded_and_printable(digits: tuple[np.ndarray, np.ndarray]) -> None:
    found = describe_subset(
        *digits,
        captioner=lambda images, prompt: ["a\x1b[2J\n" + "b" * 5000] * len(images),
        proposer=lambda a, b, n: [f"phrase\x1b {k}" for k in range(1000)],
        n_phrases=3,
    )
    assert found.phrases == tuple(f"phrase\\x1b {k}" for k in range(3))
    assert {len(each) for each in found.captions_selected} == {2000}
    assert found.captions_selected[0].startswith("a\\x1b[2J b")


# -------------------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "phrases are missing"),
        ({"proposer": propose}, "add a captioner"),
        ({"phrases": "ink"}, r"give a list of phrases, \['ink'\]"),
        ({"phrases": []}, "no phrases were given or proposed"),
        ({"phrases": ["a", 3]}, "a phrase is 3 of type int"),
        ({"phrases": ["a"], "n_images": 0}, "^n_images is 0"),
        ({"phrases": ["a"], "q": 1.5}, "q is 1.5"),
        ({"phrases": ["a"], "domains": ["x"]}, "domains has 1 entries for 4"),
        ({"captioner": lambda images, prompt: ["one"]}, "returned 1 captions for 3 images"),
        (
            {"captioner": lambda images, prompt: [None] * len(images), "proposer": propose},
            "failed on all selected images",
        ),
        ({"captioner": caption, "proposer": lambda a, b, n: []}, "no phrases were given or proposed"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_use_is_answered_with_what_to_do(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        describe_subset(np.ones((3, 2, 2)), np.ones((4, 2, 2)), **options)


def test_an_option_without_a_phrase_is_refused() -> None:
    with pytest.raises(InputError, match="there is no phrase to score"):
        SelectSettings(phrases=" ;").describer()
    assert SelectSettings().describer().phrases == ()


@pytest.mark.usefixtures("unchecked")
def test_an_empty_side_is_refused() -> None:
    with pytest.raises(InputError, match="images_comparison is empty"):
        describe_subset(np.ones((3, 2, 2)), [], phrases=["a"])


@pytest.mark.parametrize(
    ("images", "texts", "error", "message"),
    [
        (np.ones((2, 2)), np.ones((1, 2)), ShapeError, r"shape \(2, 2\); expected \(3, d\)"),
        (np.ones((3, 2)), np.ones((2, 2)), ShapeError, "returned text embeddings"),
        (np.ones((3, 3)), np.ones((1, 2)), ShapeError, "3 and texts in 2 dimensions"),
        (np.zeros((3, 2)), np.ones((1, 2)), NonFiniteError, "selected image embedding in row 0 has norm 0"),
        (np.full((3, 2), np.nan), np.ones((1, 2)), NonFiniteError, "has norm nan"),
    ],
)
def test_embeddings_are_checked(
    images: np.ndarray, texts: np.ndarray, error: type[Exception], message: str
) -> None:
    ranker = SimpleNamespace(embed_images=lambda given: images, embed_texts=lambda given: texts)
    with pytest.raises(error, match=message):
        describe_subset(np.ones(3), np.ones(3), ranker=ranker, phrases=["a"])

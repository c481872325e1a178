"""Phrases for a subset: what holds more often of the selected images than of others.

Three steps, each by a callable of the user's: a *captioner* describes single images, a *proposer* says in
short phrases how two lists of captions differ, a *ranker* embeds images and phrases in one space, so that
each phrase has a score. Nothing is fetched.

A phrase says what the ranker sees more of in the selected images. It does not say why models fail on them;
the authors of the method consider this step unreliable, and with good reason.
"""

import json
import os
import re
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Float64

from assay.analyses.subsets.coherence import rank_sum_p
from assay.core.errors import EndpointError, InputError, NonFiniteError, ShapeError
from assay.core.posting import FAILURES, failure, opener_without_redirects
from assay.core.random import stream
from assay.core.untrusted import parse_json, printable
from assay.stats import auroc, benjamini_hochberg


N_IMAGES, N_CAPTIONS, N_PHRASES = 200, 25, 25
LONGEST_PHRASE, MOST_CHARACTERS = 12, 120  # words and characters of a phrase
LONGEST_CAPTION = 2000  # characters of a caption that are kept
CAPTION_PROMPT = (
    "Describe this picture in one or two sentences: what is shown, how it is drawn or photographed, from "
    "where, in what light, before what background. Say only what can be seen."
)
PROPOSAL_PROMPT = """\
Below are descriptions of two groups of pictures.

Group A:
{captions_a}

Group B:
{captions_b}

Name {n} properties that are more common in group B than in group A. Leave out what kind of object is shown:
the classes are known already. Each property is a single concept in a few words, such as a colour, a material,
a pose, a viewpoint, a style, a background or an object beside the main one. Name the property itself: do not
begin with words for picture or text, do not mention the groups, and do not join two properties.
Answer with one property per line, each line beginning with "* ".
"""
_DIGITS = 12  # equal images must tie, in whatever order a matrix product added them up
_BATCH = 32
_LONGEST_ANSWER = 1 << 24  # bytes
_BULLET = re.compile(r"^\s*[*\-]\s*(?P<phrase>.+?)\s*$")
_QUOTES = "\"'`“”‘’«»*_ "

Images = np.ndarray | Sequence[Any]
Captioner = Callable[[Any], Sequence[str | None]]  # None where an image failed
Proposer = Callable[[Sequence[str], Sequence[str]], Sequence[str]]


@runtime_checkable
class Ranker(Protocol):
    """Images and texts in one space, in which the cosine says how well they fit each other."""

    def embed_images(self, images: Any) -> Any:
        """`[n, d]`, one row per image."""

    def embed_texts(self, texts: Any) -> Any:
        """`[k, d]`, one row per text."""


def describe_subset(
    images_selected: Images,
    images_comparison: Images,
    *,
    ranker: Ranker,
    captioner: Captioner | None = None,
    proposer: Proposer | None = None,
    phrases: Sequence[str] = (),
    level: float = 0.95,
    q: float = 0.05,
    n_resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Phrases for what selected images have more of than others, each with a score, an interval and a test.

    score(phrase) = mean cos(image, phrase) over the selected - mean cos(image, phrase) over the comparison.

    Args:
        images_selected: In rank order, most harmful first; an array `[n, ...]` or a sequence of whatever the
            callables take. The first 200 are used.
        images_comparison: What to compare with, best the images of the same pool that were not selected:
            against images in distribution, the shift itself is what the phrases would be about. A random 200
            are used.
        ranker: Embeds images and phrases; `Clip`, or your own.
        captioner: From images to captions, None where an image failed; such images are left out. It is given
            25 images of each side.
        proposer: From captions of the comparison and of the selected to phrases that are more true of the
            selected; see `text_proposer`. The first 25 are taken.
        phrases: Your own phrases, instead of captioner and proposer or beside them.
        level: Coverage of the intervals.
        q: Share of false discoveries that is accepted among the significant phrases.
        n_resamples: Bootstrap resamples of the images of either side.
        seed: Root seed of sampling and resampling.

    Returns:
        A row per phrase, those that fit the selected images best first: `phrase`; `difference`, the score,
        in [-2, 2], above 0 where the phrase is more true of the selected; `low`, `high` of its interval;
        `auroc`, 0.5 at chance; `p_value` of the rank-sum test; `q_value` (Benjamini-Hochberg); `significant`.

    Raises:
        InputError: No images on a side, or neither phrases nor what makes them.
        ShapeError: Embeddings that are not one per image or text, or not of one space.
        NonFiniteError: Embeddings with NaN or of norm 0.

    Notes:
        Phrases that were proposed from captions of images are tested on these images too, which makes them
        look slightly better.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, section on describing subsets, whose score is |difference|
        over the mean of the comparison. Mann and Whitney (1947), doi:10.1214/aoms/1177730491.
    """
    if not len(images_selected) or not len(images_comparison):
        raise InputError("a side holds no image; give at least one selected and one other")
    drawn = stream(seed, "describe.comparison").permutation(len(images_comparison))[:N_IMAGES]
    sides = [images_selected[:N_IMAGES], _taken(images_comparison, drawn.tolist())]
    proposed = list(phrases)
    if captioner is not None and proposer is not None:
        captions = [list(captioner(side[:N_CAPTIONS])) for side in sides]
        sides = [
            _taken(side, [k for k in range(len(side)) if k >= len(texts) or texts[k]])
            for side, texts in zip(sides, captions, strict=True)
        ]
        chosen, others = ([_line(text)[:LONGEST_CAPTION] for text in texts if text] for texts in captions)
        if not chosen or not others:
            raise InputError("the captioner failed on all images of a side, so phrases cannot be proposed")
        proposed += list(proposer(others, chosen))[:N_PHRASES]
    by_text: dict[str, str] = {}
    for phrase in filter(None, map(_line, proposed)):
        by_text.setdefault(phrase.casefold(), phrase)
    distinct = list(by_text.values())
    if not distinct:
        raise InputError("phrases are missing: give your own, or a captioner and a proposer that finds some")
    of_texts = _directions(ranker.embed_texts(distinct), len(distinct), "text")
    of_sides = [_directions(ranker.embed_images(side), len(side), "image") for side in sides]
    if {each.shape[1] for each in of_sides} != {of_texts.shape[1]}:
        raise ShapeError(
            f"the ranker embeds images in {of_sides[0].shape[1]} and texts in {of_texts.shape[1]} dimensions"
        )
    cosines = [np.round(rows @ of_texts.T, _DIGITS) for rows in of_sides]
    rng = stream(seed, "describe.bootstrap")
    means = [
        rng.multinomial(len(each), np.full(len(each), 1 / len(each)), size=n_resamples) @ each / len(each)
        for each in cosines
    ]
    low, high = np.quantile(means[0] - means[1], [(1 - level) / 2, (1 + level) / 2], axis=0)
    members = np.repeat([True, False], [len(each) for each in cosines])
    table = pd.DataFrame(
        {
            "phrase": distinct,
            "difference": cosines[0].mean(axis=0) - cosines[1].mean(axis=0),
            "low": low,
            "high": high,
            "auroc": [auroc(column, members).value for column in np.concatenate(cosines).T],
            "p_value": [rank_sum_p(*columns) for columns in zip(*(each.T for each in cosines), strict=True)],
        }
    )
    table["q_value"] = benjamini_hochberg(table["p_value"].to_numpy())
    table["significant"] = table["q_value"] <= q
    return table.sort_values("auroc", ascending=False, kind="stable", ignore_index=True)


def _taken(images: Images, rows: list[int]) -> Images:
    return images[rows] if isinstance(images, np.ndarray) else [images[row] for row in rows]


def _line(text: str) -> str:
    """A text as one line, control characters spelled out."""
    return printable(" ".join(text.split()))


def _directions(values: Any, n_rows: int, what: str) -> Float64[np.ndarray, "n d"]:
    """Rows of length 1."""
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != n_rows:
        raise ShapeError(
            f"the ranker returned {what} embeddings of shape {rows.shape}; expected ({n_rows}, d)"
        )
    lengths = np.linalg.norm(rows, axis=1)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise NonFiniteError(f"a row of the {what} embeddings is zero or not finite, so it has no direction")
    unit: np.ndarray = rows / lengths[:, None]
    return unit


# --------------------------------------------------------------------------------------- ready callables


def parse_phrases(text: str) -> list[str]:
    """The phrases in the answer of a language model.

    Lines that begin with `*` or `-`, without quotes, asterisks and final stops; a phrase that came before
    (case does not count), has more than 12 words or 120 characters, or no letter or digit is dropped.

    Example:
        >>> parse_phrases('Sure:\\n* "plain background"\\n- Plain Background\\n- seen from above.')
        ['plain background', 'seen from above']
    """
    phrases: dict[str, str] = {}
    for match in filter(None, map(_BULLET.match, text.splitlines())):
        phrase = match["phrase"].replace("*", "").strip(_QUOTES).rstrip(".;,").strip(_QUOTES)
        short = len(phrase) <= MOST_CHARACTERS and len(phrase.split()) <= LONGEST_PHRASE
        if short and any(map(str.isalnum, phrase)):
            phrases.setdefault(phrase.casefold(), phrase)
    return list(phrases.values())


def text_proposer(generate: Callable[[str], str]) -> Proposer:
    """A proposer from a function that answers prompts, with this package's prompt and `parse_phrases`."""

    def propose(captions_a: Sequence[str], captions_b: Sequence[str]) -> list[str]:
        first, second = ("\n".join(f"- {each}" for each in captions) for captions in (captions_a, captions_b))
        prompt = PROPOSAL_PROMPT.format(captions_a=first, captions_b=second, n=N_PHRASES)
        return parse_phrases(generate(prompt))

    return propose


def chat(
    url: str, model: str, *, key_variable: str | None = None, timeout: float = 120.0
) -> Callable[..., str]:
    """A function that asks an address of the chat protocol of OpenAI: vLLM, llama.cpp, Ollama, services.

    `ask(prompt)` makes a proposer (`text_proposer(ask)`); `ask(prompt, image)` answers about an image, so
    `lambda images: [ask(CAPTION_PROMPT, image) for image in images]` is a captioner.

    Args:
        url: Its base, as `http://localhost:8000/v1`.
        model: Name of the model there.
        key_variable: Environment variable that holds the API key. Default: no key is sent.
        timeout: Seconds to wait.

    Raises:
        EndpointError: By the function, where there is no answer, or one without a text.
    """

    def ask(prompt: str, image: Any = None) -> str:
        content: Any = prompt
        if image is not None:
            from assay.page.thumbnail import png_uri
            from assay.tasks.image_transform import picture_of

            shown = {"type": "image_url", "image_url": {"url": png_uri(picture_of(image), 512)}}
            content = [{"type": "text", "text": prompt}, shown]
        headers = {"Content-Type": "application/json"}
        if key_variable is not None:
            headers["Authorization"] = f"Bearer {os.environ[key_variable]}"
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": content}]}).encode()
        request = urllib.request.Request(f"{url.rstrip('/')}/chat/completions", body, headers)
        try:
            with opener_without_redirects().open(request, timeout=timeout) as answer:
                document: Any = parse_json(answer.read(_LONGEST_ANSWER))
            return str(document["choices"][0]["message"]["content"])
        except FAILURES as error:
            raise EndpointError(f"the endpoint of {model} failed: {failure(error)}") from error
        except (LookupError, TypeError) as error:
            raise EndpointError(f"the endpoint of {model} answered without a text") from error

    return ask


class Clip:
    """A `Ranker` from a directory of CLIP or SigLIP; its images also make embeddings of data.

    Args:
        directory: As `save_pretrained` writes it, weights as safetensors.
        device: Torch device.

    Raises:
        FileFormatError: If the files cannot be read as such a model, or weights are missing.
        InputError: If the model has no towers for images and texts.
    """

    def __init__(self, directory: str | Path, device: str = "cpu"):
        from assay.models.checkpoints import encoder_from_directory, image_processor, stored_tokenizer
        from assay.tasks.image_transform import EvalTransform

        place, self._device = Path(directory), device
        self._module: Any = encoder_from_directory(place, allow_pickle=False).to(device).eval()
        self._tokenizer: Any = stored_tokenizer(place)
        prepared = image_processor(place)
        if not hasattr(self._module, "get_text_features") or self._tokenizer is None or prepared is None:
            raise InputError(
                f"{directory} is not a model with towers for images and texts, a tokenizer and a "
                "preprocessor_config.json; give one such as CLIP"
            )
        self._transform = EvalTransform.from_config(prepared)

    def embed_images(self, images: Any) -> np.ndarray:
        """`[n, d]` float32, not normalised, of paths, Pillow images or 8-bit arrays."""
        from assay.tasks.image_transform import picture_of

        def features(some: Any) -> Any:
            pixels = np.stack([self._transform.pixels(picture_of(image)) for image in some])
            prepared = self._transform.normalised(pixels).to(self._device)
            return self._module.get_image_features(pixel_values=prepared)

        return _batched(images, features)

    def embed_texts(self, texts: Any) -> np.ndarray:
        """`[k, d]` float32, not normalised; longer texts are cut at the limit of the model."""
        config = self._module.config
        limits = (self._tokenizer.model_max_length, config.text_config.max_position_embeddings)
        padding = "max_length" if str(config.model_type).startswith("siglip") else True
        how = {"padding": padding, "truncation": True, "max_length": min(limits), "return_tensors": "pt"}

        def features(some: Any) -> Any:
            tokens = self._tokenizer(list(some), **how).to(self._device)
            inputs = ("input_ids", "attention_mask")
            return self._module.get_text_features(**{name: tokens[name] for name in inputs if name in tokens})

        return _batched(texts, features)


def _batched(items: Any, features: Callable[[Any], Any]) -> np.ndarray:
    import torch

    with torch.inference_mode():
        found = [features(items[at : at + _BATCH]) for at in range(0, len(items), _BATCH)]
    # Some versions of transformers return features inside an output.
    return np.concatenate([getattr(each, "pooler_output", each).float().cpu().numpy() for each in found])

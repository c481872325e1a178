"""Captions and proposals: the prompts of this package, and how answers to them are read."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from assay.core.errors import EndpointError


LONGEST_PHRASE = 12  # words
MOST_CHARACTERS = 120  # of a phrase

CAPTION_PROMPT = (
    "Describe this picture in one or two sentences: what is shown, how it is drawn or photographed, from "
    "where, in what light, before what background. Say only what can be seen."
)
FIXED_CLASS_PROMPT = " It shows: {fixed_class}. Do not dwell on that; describe everything else."
PROPOSAL_PROMPT = """\
Below are {things}.

Group A:
{captions_a}

Group B:
{captions_b}

Name {n} properties that are more common in group B than in group A. {about}
Each property is a single concept in a few words, such as {examples}. Name the property itself: do not begin
with words for picture or text, do not mention the groups, and do not join two properties.
Answer with one property per line, each line beginning with "* ".
"""
OF_PICTURES = {
    "what": "what kind of object is shown",
    "shown": "pictures",
    "things": "descriptions of two groups of pictures",
    "examples": "a colour, a material, a pose, a viewpoint, a style, a background or an object beside the "
    "main one",
}
OF_TEXTS = {
    "what": "the class of a text",
    "shown": "texts",
    "things": "two groups of texts",
    "examples": "a topic, a tone, a style, a length, a form of sentence or a kind of word",
}
ABOUT_ANY_CLASS = "Leave out {what}: the classes are known already."
ABOUT_ONE_CLASS = "All {shown} of both groups show: {fixed_class}. Leave that out."

Captioner = Callable[[Any, str], Sequence[str | None]]
Proposer = Callable[[Sequence[str], Sequence[str], int], Sequence[str]]


class RefusalError(EndpointError):
    """A model declined to answer, or a filter stopped its answer."""


_BULLET = re.compile(r"^\s*[*\-]\s*(?P<phrase>.+?)\s*$")
_QUOTES = "\"'`“”‘’«»*_ "


def caption_prompt(fixed_class: str | None = None) -> str:
    """What a captioner is asked, with the class that all images show if they do."""
    class_sentence = "" if fixed_class is None else FIXED_CLASS_PROMPT.format(fixed_class=fixed_class)
    return CAPTION_PROMPT + class_sentence


def parse_phrases(text: str) -> list[str]:
    """The phrases in the answer of a language model.

    Lines that begin with `*` or `-`, without quotes, asterisks and final stops; a phrase that came before
    (case does not count), has more than 12 words or 120 characters, or no letter or digit is dropped.

    Example:
        >>> parse_phrases('Sure:\\n* "plain background"\\n- Plain Background\\n- seen from above.')
        ['plain background', 'seen from above']
    """
    phrases: dict[str, str] = {}
    for line in text.splitlines():
        match = _BULLET.match(line)
        phrase = match["phrase"].replace("*", "").strip(_QUOTES) if match else ""
        phrase = phrase.rstrip(".;,").strip(_QUOTES)
        short = len(phrase) <= MOST_CHARACTERS and len(phrase.split()) <= LONGEST_PHRASE
        if short and any(map(str.isalnum, phrase)):
            phrases.setdefault(phrase.casefold(), phrase)
    return list(phrases.values())


def text_proposer(
    generate: Callable[[str], str], *, fixed_class: str | None = None, of_texts: bool = False
) -> Proposer:
    """A proposer from a language model, with this package's prompt and `parse_phrases`.

    Args:
        generate: From a prompt to the answer.
        fixed_class: What all images show, if they do; the phrases are to be about something else.
        of_texts: The examples are texts, which are their own captions.
    """
    wording = OF_TEXTS if of_texts else OF_PICTURES
    about = (ABOUT_ANY_CLASS if fixed_class is None else ABOUT_ONE_CLASS).format(
        **wording, fixed_class=fixed_class
    )

    def propose(captions_a: Sequence[str], captions_b: Sequence[str], n: int) -> list[str]:
        listed = ("\n".join(f"- {each}" for each in captions) for captions in (captions_a, captions_b))
        first, second = listed
        prompt = PROPOSAL_PROMPT.format(captions_a=first, captions_b=second, n=n, about=about, **wording)
        return parse_phrases(generate(prompt))

    return propose

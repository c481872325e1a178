"""The word-level tokenizer of `mini`: GPT-2's way of splitting text, digits in pairs, one id per piece.

Tokens carry their leading space, so decoding is concatenation and the one-token rules of the tasks hold.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from assay.tasks.grammar import fill, task_data


PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]{2}| ?[0-9]| ?[^\s\w]+|\s+(?!\S)|\s+"
SPECIAL = ("<pad>", "<unk>", "<|endoftext|>")
_EXAMPLES = {
    "name": "Mary",
    "name1": "Mary",
    "name2": "Lisa",
    "name3": "Lisa",
    "place": "store",
    "object": "ring",
    "noun": "study",
    "century": "17",
    "yy": "45",
    "noun1": "keys",
    "prep": "near",
    "noun2": "door",
    "method": "port",
    "def_args_joined_by_comma_space": "load, size",
    "method_words_joined_by_space": "oil song",
    "doc1": "load",
    "doc2": "size",
    "words1": "land site",
    "words2": "race plan",
}


def training_texts() -> Iterator[str]:
    """Every piece of text that the six grammars can produce, slots apart."""
    ioi, years, doc, other = (task_data(name) for name in ("ioi", "greater_than", "docstring", "other_tasks"))
    for entry in ioi["templates"]:
        yield fill(entry["text"], _EXAMPLES)[0]
    yield fill(years["template_long"], _EXAMPLES)[0]
    for layout in ("layout_rest", "layout_goog"):
        yield fill(doc[layout], _EXAMPLES)[0]
    agreement, pronoun = other["subject_verb_agreement"], other["gendered_pronoun"]
    yield fill(agreement["template"], _EXAMPLES)[0]
    for template in pronoun["templates"]:
        yield fill(template, _EXAMPLES)[0]
    spaced = [
        *ioi["names"],
        *ioi["places"],
        *ioi["objects"],
        *years["nouns"],
        *years["noun_variants"],
        *doc["arg_names"],
        *doc["words"],
        *agreement["preps"],
        *(form for pair in agreement["nouns"] + agreement["verbs"] for form in pair),
        *pronoun["female_names"],
        *pronoun["male_names"],
        "she",
        "he",
        *years["centuries"],
    ]
    yield from (" " + word for word in spaced)
    yield from (*doc["words"], *pronoun["female_names"], *pronoun["male_names"])
    yield from (f"{yy:02d}" for yy in range(100))
    yield from (".", ",", "?", "!", ":", ";", " (", ")", '"', "\n", "\n\n", "\n   ", "\n       ")


def build_tokenizer() -> PreTrainedTokenizerFast:
    splitter = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    pieces: dict[str, None] = dict.fromkeys(SPECIAL)
    for text in training_texts():
        pieces.update(dict.fromkeys(piece for piece, _ in splitter.pre_tokenize_str(text)))
    core = Tokenizer(models.WordLevel(vocab={piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    core.pre_tokenizer = splitter
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        padding_side="right",
        clean_up_tokenization_spaces=False,
        model_max_length=64,
    )


def save_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(directory)
    return tokenizer


if __name__ == "__main__":
    print(json.dumps(build_tokenizer().get_vocab(), indent=0))

"""Worst pairs for reading: prompts with the spaces that their tokenizer leaves to the decoder."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from assay.analyses.worst_case import worst_case
from assay.analyses.worst_case.rows import pieces_of
from assay.circuits import Circuit
from assay.models import Model, load_model
from assay.report.save import save_report
from assay.tasks import PairTask


SENTENCES = ["When Mary met John", "When John met Mary"]


def word_level() -> PreTrainedTokenizerFast:
    """Words alone; the decoder joins them with spaces."""
    words = ["[UNK]", "When", "Mary", "met", "John"]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", eos_token="[UNK]")


def sentence_piece() -> PreTrainedTokenizerFast:
    """Words that begin with the mark of a space, as in Llama and Mistral; bytes where no word fits."""
    pieces = ["<unk>", "\u2581When", "\u2581Mary", "\u2581met", "\u2581John", "\u2581", "<0xC3>", "<0xA9>"]
    made = Tokenizer(
        models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0, byte_fallback=True)
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="<unk>")


TOKENIZERS = {"word level": word_level, "sentence piece": sentence_piece}


def small_model(tokenizer: Any) -> Model:
    config = transformers.GPT2Config(
        vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    return load_model(transformers.GPT2LMHeadModel(config).eval(), tokenizer=tokenizer)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_pieces_of_a_prompt_are_its_text(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    ids = tokenizer(SENTENCES[0])["input_ids"]
    assert pieces_of(ids, tokenizer) == ("When", " Mary", " met", " John")
    assert "".join(pieces_of(ids, tokenizer)) == SENTENCES[0]


def test_a_character_of_several_tokens_comes_with_its_last() -> None:
    assert pieces_of([1, 5, 6, 7], sentence_piece()) == ("When", " ", "", "\u00e9")
    assert pieces_of([7, 8], None) == ("7", " 8")
    assert pieces_of([], sentence_piece()) == ()


@pytest.mark.parametrize("with_texts", [True, False])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_worst_pairs_are_sentences_in_the_document_and_on_the_page(
    kind: str, with_texts: bool, tmp_path: Path
) -> None:
    tokenizer = TOKENIZERS[kind]()
    model = small_model(tokenizer)
    clean, corrupted = (torch.tensor(tokenizer(lines)["input_ids"]) for lines in (SENTENCES, SENTENCES[::-1]))
    task = PairTask(
        clean=clean,
        corrupted=corrupted,
        answers=torch.tensor([[2], [4]]),
        texts=tuple(SENTENCES) if with_texts else None,
        corrupted_texts=tuple(SENTENCES[::-1]) if with_texts else None,
        tokenizer=tokenizer,
    )
    found = worst_case(Circuit.empty(model.graph), model, task, "file")
    pair = found.worst(1)[0]
    assert {pair.clean, pair.corrupted} == set(SENTENCES)
    assert "".join(pair.clean_tokens) == pair.clean
    assert pair.differs == (False, True, False, True)
    page = save_report(tmp_path / "worst.html", found).read_text()
    columns = re.findall(r'class="column"><(?:mark|span)>(.*?)</(?:mark|span)>', page)
    assert "".join(columns[:4]) in SENTENCES

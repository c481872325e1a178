"""Small language models on subject-verb agreement: which model is right on which prompt, over training.

    python experiments/text_subsets/train.py --out FILE.npz --work DIR [--runs 24]

Each run is a GPT-2 of two blocks with the tokenizer of `mini`. Runs differ in their seed alone: weights and
order of prompts. A fifth of all triples (noun, preposition, noun) gives the in-distribution accuracy, a fifth
the prompts to select from, the rest is for training.
"""

import argparse
import itertools
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from assay.analyses.subsets import CorrectnessData
from assay.core.random import stream
from assay.models.loading import MINI
from assay.tasks import Tokens
from assay.tasks.grammar import SubjectVerbAgreement


CHECKPOINTS = (40, 60, 80, 100, 120, 140, 160)  # steps
INCONGRUENT = 0.1  # share of training and in-distribution prompts whose nouns differ in number
BATCH, RATE, WARMUP = 64, 3e-4, 20
ID, OOD, N_PARTS = 0, 1, 5  # the other parts are for training
SEED = 0


class Prompts(NamedTuple):
    """All prompts of the grammar: token ids `[n, pos]`, ids of right and wrong verbs `[n, 4]`, and facts."""

    ids: Tensor
    right: Tensor
    wrong: Tensor
    incongruent: np.ndarray
    part: np.ndarray
    texts: np.ndarray
    facts: dict[str, np.ndarray]


def all_prompts(tokens: Tokens) -> Prompts:
    """Every prompt; those of one triple of nouns and preposition, in any number, are in one part."""
    grammar = SubjectVerbAgreement(tokens)
    nouns, preps = grammar.fillers["subject"], grammar.fillers["prep"]
    choices = itertools.product(nouns, (0, 1), nouns, (True, False), preps)
    values = [
        {
            "subject": subject,
            "number": number,
            "other": other,
            "number2": number if congruent else 1 - number,
            "prep": prep,
        }
        for subject, number, other, congruent, prep in choices
    ]
    prompts = [grammar.render(each) for each in values]
    encoded = tokens.encode(prompts)

    def verbs(kind: str) -> Tensor:
        rows = [[tokens.one_token(each.text, verb) for verb in getattr(each, kind)] for each in prompts]
        return torch.tensor(rows)

    triples = ["|".join((each["subject"][0], each["prep"], each["other"][0])) for each in values]
    names = ("attractor", "number", "noun1", "prep", "noun2")
    return Prompts(
        ids=torch.tensor([ids for ids, _ in encoded]),
        right=verbs("answers"),
        wrong=verbs("wrong"),
        incongruent=np.array([each.fields["attractor"] == "incongruent" for each in prompts]),
        part=np.array([zlib.crc32(triple.encode()) % N_PARTS for triple in triples]),
        texts=np.array([each.text for each in prompts]),
        facts={name: np.array([each.fields[name] for each in prompts]) for name in names},
    )


def in_distribution(prompts: Prompts) -> np.ndarray:
    """All congruent prompts of the in-distribution triples, and as many incongruent ones as training has."""
    congruent, incongruent = (
        np.flatnonzero((prompts.part == ID) & (prompts.incongruent == kind)) for kind in (False, True)
    )
    n = round(len(congruent) * INCONGRUENT / (1 - INCONGRUENT))
    chosen = stream(SEED, "text_subsets/in-distribution").choice(incongruent, n, replace=False)
    return np.concatenate([congruent, np.sort(chosen)])


def build_model(n_vocabulary: int, seed: int) -> GPT2LMHeadModel:
    """A fresh GPT-2: 2 blocks, 4 heads, width 64, tied embeddings."""
    config = GPT2Config(
        vocab_size=n_vocabulary,
        n_positions=8,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="eager",  # type: ignore[call-arg]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config)


def batches(prompts: Prompts, rng: np.random.Generator) -> Iterator[Tensor]:
    """Rows of training prompts."""
    training = prompts.part > OOD
    kinds = [torch.tensor(np.flatnonzero(training & (prompts.incongruent == kind))) for kind in (False, True)]
    while True:
        n_incongruent = int(rng.binomial(BATCH, INCONGRUENT))
        counts = (BATCH - n_incongruent, n_incongruent)
        yield torch.cat(
            [
                rows[torch.from_numpy(rng.integers(len(rows), size=count))]
                for rows, count in zip(kinds, counts, strict=True)
            ]
        )


def last_logits(model: GPT2LMHeadModel, ids: Tensor) -> Tensor:
    """Logits behind the last token of each prompt."""
    return model.lm_head(model.transformer(ids).last_hidden_state[:, -1])


@torch.no_grad()
def is_right(model: GPT2LMHeadModel, prompts: Prompts, rows: np.ndarray) -> np.ndarray:
    """Whether the best verb of the right number has a higher logit than the best of the other."""
    parts = []
    for part in torch.from_numpy(rows).split(1024):
        last = last_logits(model, prompts.ids[part])
        right, wrong = (last.gather(1, ids[part]).amax(1) for ids in (prompts.right, prompts.wrong))
        parts.append(right > wrong)
    return torch.cat(parts).numpy()


def train(prompts: Prompts, n_vocabulary: int, seed: int, asked: np.ndarray) -> Iterator[np.ndarray]:
    """Train one run; which of the asked prompts it has right, at each checkpoint."""
    model = build_model(n_vocabulary, seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.1, fused=True
    )
    drawn = batches(prompts, stream(seed, "text_subsets/batches"))
    for step in range(1, max(CHECKPOINTS) + 1):
        rows = next(drawn)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / WARMUP)
        log_p = functional.log_softmax(last_logits(model, prompts.ids[rows]), dim=-1)
        loss = -log_p.gather(1, prompts.right[rows]).mean()  # every verb that agrees is equally good
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step in CHECKPOINTS:
            yield is_right(model, prompts, asked)


def answers_of(
    prompts: Prompts, n_vocabulary: int, seed: int, asked: np.ndarray, inside: np.ndarray, work: Path
) -> np.ndarray:
    """Which asked prompts the checkpoints of a run have right, `[checkpoint, prompt]`; kept in a file."""
    path = work / f"run-{seed:02d}.npy"
    if path.exists():
        return np.load(path)
    began = time.process_time()
    answers = np.stack(list(train(prompts, n_vocabulary, seed, asked)))
    np.save(path, answers)
    # The prompts to select from are not looked at here.
    accuracies = " ".join(f"{accuracy:.3f}" for accuracy in answers[:, : len(inside)].mean(axis=1))
    print(f"run {seed}: in distribution {accuracies}, {time.process_time() - began:.1f} s", flush=True)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="archive of answers")
    parser.add_argument("--work", type=Path, required=True, help="answers of each run; not committed")
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(MINI)
    prompts = all_prompts(Tokens(tokenizer))
    inside, pool = in_distribution(prompts), np.flatnonzero(prompts.part == OOD)
    asked, seeds = np.concatenate([inside, pool]), range(given.first, given.first + given.runs)
    each = [answers_of(prompts, len(tokenizer), seed, asked, inside, given.work) for seed in seeds]
    matrix = np.concatenate(each)
    data = CorrectnessData.of(
        matrix[:, len(inside) :].astype(np.uint8),
        matrix[:, : len(inside)].mean(axis=1),
        model_ids=[f"run-{seed:02d}-step-{step}" for seed in seeds for step in CHECKPOINTS],
        groups=[f"run-{seed:02d}" for seed in seeds for _ in CHECKPOINTS],
        example_ids=prompts.texts[pool],
        meta={name: column[pool] for name, column in prompts.facts.items()},
        source={"data": "subject-verb agreement, held-out prompts", "script": "experiments/text_subsets"},
    )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    data.save(given.out)


if __name__ == "__main__":
    main()

"""Train `mini`, the embedded language model, on the six task grammars.

    python experiments/mini/train.py --out build/mini

4,000 steps take half an hour to an hour on two CPU cores. The loss is cross-entropy: weight 1 where the
grammar determines the next token (a soft target where several are right), a small weight elsewhere.
Held-out prompts (held_out.py) are never trained on; accuracy is measured on them alone, with the weights
rounded to 16 bits as they are stored.
"""

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from examples import Example, Source, sources
from safetensors.torch import save_file
from tokenizer import save_tokenizer
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from assay.core.random import stream
from assay.tasks import pair_task


ORDINARY_WEIGHT = 0.03  # of positions that the grammar leaves open
ORDINARY_STRIDE = 4  # every fourth of them per step, in turn, at four times the weight
# Prompts per step. Short and long prompts are two batches, so that little is spent on padding.
SHORT = {"ioi": 48, "greater-than": 16, "sva": 8, "gendered-pronoun": 16}
LONG = {"docstring": 48, "induction": 32}


def build_model(tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """A fresh GPT-2 of 1.6 million parameters: 4 blocks, 8 heads, width 160, tied embeddings."""
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=160,
        n_layer=4,
        n_head=8,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        # The fused attention kernel's backward pass is the slower one on a CPU.
        attn_implementation="eager",  # type: ignore[call-arg]
    )
    return GPT2LMHeadModel(config)


def batch_loss(model: GPT2LMHeadModel, examples: Sequence[Example], *, pad: int, offset: int) -> Tensor:
    """Mean over examples of the weighted cross-entropy."""
    width = max(len(e.ids) for e in examples)
    ids = torch.tensor([[*e.ids, *[pad] * (width - len(e.ids))] for e in examples])
    read: list[tuple[int, int, float, tuple[int, ...]]] = []  # row, position, weight, what may follow
    for row, e in enumerate(examples):
        others = range((row + offset) % ORDINARY_STRIDE, len(e.ids) - 1, ORDINARY_STRIDE)
        weight = ORDINARY_WEIGHT * ORDINARY_STRIDE
        read += [(row, i, weight, (e.ids[i + 1],)) for i in others if i not in e.targets]
        read += [(row, i, 1 / math.sqrt(len(e.targets)), right) for i, right in e.targets.items()]
    rows, columns, weights, targets = zip(*read, strict=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.transformer(ids).last_hidden_state
        logits = model.lm_head(hidden[list(rows), list(columns)])
    log_p = torch.log_softmax(logits.float(), dim=-1)
    which = torch.tensor([k for k, right in enumerate(targets) for _ in right])
    share = torch.tensor([weights[k] / len(right) for k, right in enumerate(targets) for _ in right])
    token = torch.tensor([i for right in targets for i in right])
    return -(log_p[which, token] * share).sum() / len(examples)


@torch.no_grad()
def held_out_accuracy(
    model: GPT2LMHeadModel, grammars: Mapping[str, Sequence[Source]], n: int
) -> dict[str, dict[str, float]]:
    """Accuracy on held-out prompts, with the weights rounded to 16 bits.

    Returns:
        For each task: how often the arg max over the vocabulary is `right`, how often the best
        `answer_over_wrong` answer, and the probability `mass` on the answers.
    """
    stored = GPT2LMHeadModel(model.config).eval()
    stored.load_state_dict({name: value.half().float() for name, value in model.state_dict().items()})
    table = {}
    for key, (source, *_) in grammars.items():
        prompts = source.prompts(n, stream(1, f"held-out {key}"), held_out=True)
        task = pair_task(prompts, prompts, source.tokens, name=key)
        logits = torch.cat([stored(ids).logits for ids in task.clean.split(256)])
        at = logits[torch.arange(n), task.positions]
        assert task.wrong is not None
        right, wrong = (
            at.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)
            for ids in (task.answers, task.wrong)
        )
        table[key] = {
            "right": float((at.argmax(1, keepdim=True) == task.answers).any(1).double().mean()),
            "answer_over_wrong": float((right.amax(1) > wrong.amax(1)).double().mean()),
            "mass": float((right - at.logsumexp(1, keepdim=True)).exp().sum(1).double().mean()),
        }
    return table


def learning_rate(step: int, steps: int, *, peak: float = 2e-3, warmup: int = 300) -> float:
    """Linear warm-up, then a cosine down to 2 % of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))))


def save(model: GPT2LMHeadModel, directory: Path) -> None:
    """Weights in 16 bits (the tied embedding once) and the configuration."""
    weights = {
        name: value.half().contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(directory)


def main() -> None:
    """Train, report held-out accuracy as it grows, and save after every report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=250)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = save_tokenizer(args.out)
    model = build_model(tokenizer)
    print(
        f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {len(tokenizer)}", flush=True
    )
    grammars = sources(tokenizer)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
    )
    rng = stream(args.seed, "training")
    started = time.monotonic()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps)
        for mixture in (SHORT, LONG):
            examples = [
                example
                for key, count in mixture.items()
                for example in grammars[key][int(rng.integers(len(grammars[key])))].examples(count, rng)
            ]
            batch_loss(model, examples, pad=int(tokenizer.pad_token_id), offset=step).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            table = held_out_accuracy(model, grammars, 300)
            save(model, args.out)
            scores = " ".join(f"{key}={row['right']:.3f}" for key, row in table.items())
            print(f"step {step + 1}, {time.monotonic() - started:.0f} s: {scores}", flush=True)
    print(json.dumps(held_out_accuracy(model, grammars, 2000), indent=1))


if __name__ == "__main__":
    main()

"""Audit your own model: any directory written by `save_pretrained`.

By default this uses a small untrained GPT-2, so the audit reports that it does not solve the task.

python examples/own_model.py [DIRECTORY]
"""

import sys
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import assay


def make_model(directory: Path) -> None:
    """A model of two blocks with random weights and the tokenizer of the embedded model."""
    tokenizer = assay.load_model("mini").tokenizer
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    GPT2LMHeadModel(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "my-model"
    if not directory.exists():
        make_model(directory)
    out = Path(tempfile.mkdtemp())
    found = assay.audit(directory, "ioi", n=20, n_random=2, out=out)
    for measurement in found.measurements:
        print(f"{measurement['name']:20} {measurement['value']} {measurement['warnings']}")
    print(f"{found.circuit}; report: {out / 'report.html'}")


if __name__ == "__main__":
    main()

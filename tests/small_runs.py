"""Small runs of commands that several files test: each happens once in a process."""

import contextlib
import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from command_line import invoke
from type_checks import no_type_checks

from assay.models import load_model
from assay.tasks import load_task


GRID = """
name = "small"
[inits.scratch]
source = "scratch"
[inits.scratch.architecture]
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 32
patch_size = 16
[axes]
lr = [0.01, 0.02]
[fixed]
steps = 4
warmup = 1
batch_size = 12
validate_every = 2
"""
ZOO_OPTIONS = ("grid.toml", "--images", "shapes:flat", "--n", "36", "--out", "zoo")


@dataclass(frozen=True)
class SmallRun:
    """What a command left.

    Attributes:
        folder: Where it ran, with all its files; copy what a test changes.
        document: What it printed with `--json`.
    """

    folder: Path
    document: Any


@cache
def _kept(name: str) -> tempfile.TemporaryDirectory[str]:
    """A directory that lasts as long as the process."""
    return tempfile.TemporaryDirectory(prefix=name)


def _ran(*arguments: str, **texts: str) -> SmallRun:
    folder = Path(_kept(arguments[0]).name)
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    with contextlib.chdir(folder), no_type_checks():
        outcome = invoke(*arguments, "--store", "store", "--json", "--quiet")
    if outcome.exit_code != 0:
        raise RuntimeError(f"assay {' '.join(arguments)} exited with {outcome.exit_code}: {outcome.output}")
    return SmallRun(folder, json.loads(outcome.stdout))


@cache
def trained_zoo() -> SmallRun:
    """Two models of two blocks, trained for four steps."""
    return _ran("zoo", "train", *ZOO_OPTIONS, grid=GRID)


def write_prompts(path: Path, n: int) -> None:
    """A file of `n` different prompts in the order of their text."""
    task = load_task("ioi", load_model("mini"), n=3 * n + 40)
    names = (task.fields["IO"], task.fields["S"])
    rows = zip(task.texts or (), task.corrupted_texts or (), *names, strict=True)
    distinct = {clean: (corrupted, right, wrong) for clean, corrupted, right, wrong in rows}
    lines = [
        {"clean": clean, "corrupted": corrupted, "answers": [f" {right}"], "wrong": [f" {wrong}"]}
        for clean, (corrupted, right, wrong) in sorted(distinct.items())[:n]
    ]
    assert len(lines) == n
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

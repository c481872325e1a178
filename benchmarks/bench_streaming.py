"""Memory and time of a model whose weights stay in its checkpoint, against the same model in memory.

A Llama-shaped checkpoint with random weights is written to a temporary folder (bfloat16; the model computes
in float32 on the CPU). Each job runs in a process of its own; memory is the peak of its resident size over
that after the imports, so it holds the weights and what discovery needs.

    python benchmarks/bench_streaming.py [--layers 16] [--batch 4] [--length 16] [--save]
"""

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


PLACES = ("in memory", "streamed")


def peak() -> float:
    """Peak resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_checkpoint(folder: str, layers: int) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def run(folder: str, place: str, batch: int, length: int) -> None:
    import torch
    import transformers

    import assay
    from assay.execution import run_circuit
    from assay.tasks import PairTask

    assert transformers.LlamaForCausalLM  # imported on first use
    before = peak()
    start = time.perf_counter()
    model = assay.load_model(folder, device="cpu", device_map="stream" if place == PLACES[1] else None)
    seconds = {"load": time.perf_counter() - start}
    loaded = peak() - before
    tokens = torch.randint(1, 8192, (2, batch, length), generator=torch.Generator().manual_seed(0))
    answers = torch.zeros(batch, 1).long()
    task = PairTask(clean=tokens[0], corrupted=tokens[1], answers=answers, wrong=answers + 1)
    start = time.perf_counter()
    scores = assay.discover(model, task, "eap", batch_size=batch)
    seconds["eap"] = time.perf_counter() - start
    circuit = scores.top(200)
    start = time.perf_counter()
    logits = run_circuit(model, task, circuit, batch_size=batch)
    seconds["circuit"] = time.perf_counter() - start
    digest = hashlib.sha256(scores.values.numpy().tobytes() + logits.numpy().tobytes()).hexdigest()[:16]
    sizes = [sum(each.nbytes for each in block.module.parameters()) for block in model.blocks]
    weights = sum(each.nbytes for each in model.module.parameters())
    found = {
        "peak MiB to load": round(loaded),
        "peak MiB": round(peak() - before),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "hash of the results": digest,
        "weights MiB": round(weights / 2**20),
        "largest block MiB": round(max(sizes) / 2**20),
    }
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--write", metavar="FOLDER")
    parser.add_argument("--run", nargs=2, metavar=("FOLDER", "PLACE"))
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.write:
        write_checkpoint(options.write, options.layers)
        return
    if options.run:
        run(*options.run, options.batch, options.length)
        return
    with tempfile.TemporaryDirectory() as folder:
        # In a process of its own: the peak of a process counts towards that of those it starts.
        write = [sys.executable, __file__, "--write", folder, "--layers", str(options.layers)]
        subprocess.run(write, check=True, capture_output=True)
        found = {}
        for place in PLACES:
            command = [sys.executable, __file__, "--run", folder, place, "--batch", str(options.batch)]
            command += ["--length", str(options.length)]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[place] = json.loads(printed.splitlines()[-1])
    held, streamed = (found[place] for place in PLACES)
    result = {
        "benchmark": "streaming",
        "shape": {
            "model": f"Llama of {options.layers} blocks, random weights, bfloat16 computed in float32",
            "batch": options.batch,
            "length": options.length,
        },
        "weights MiB": held.pop("weights MiB"),
        "largest block MiB": held.pop("largest block MiB"),
        **{
            place: {key: value for key, value in each.items() if key in held} for place, each in found.items()
        },
        "streamed over held": {
            "peak": round(streamed["peak MiB"] / held["peak MiB"], 3),
            **{name: round(value / held["seconds"][name], 2) for name, value in streamed["seconds"].items()},
        },
        "same results": held["hash of the results"] == streamed["hash of the results"],
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.save:
        (Path(__file__).parent / "results" / "streaming_cpu.json").write_text(text + "\n")


if __name__ == "__main__":
    main()

"""Peak memory of attribution against one forward and backward pass with parameter gradients.

Each job runs in a process of its own; the figure is the growth of its peak resident memory over the
loaded model. GPT-2-small shape, random weights, CPU.

    python benchmarks/bench_memory.py [--batch 10] [--length 16] [--save]
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path


JOBS = ("forward and backward with parameter gradients", "eap-ig-inputs", "eap-ig-inputs per example")


def peak() -> float:
    """Peak resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(job: str, batch: int, length: int) -> None:
    import torch
    import transformers

    from assay.discovery.edges import discover
    from assay.models import load_model
    from assay.tasks import PairTask

    torch.manual_seed(0)
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    model = load_model(module)
    tokens = torch.randint(50000, (2, batch, length))
    answers = torch.zeros(batch, 1).long()
    task = PairTask(clean=tokens[0], corrupted=tokens[1], answers=answers, wrong=answers + 1)
    with torch.no_grad():  # pages in kernels and workspaces that any use of the model needs
        module(tokens[0, :1])
    before = peak()
    if job == JOBS[0]:
        logits = module(task.clean, use_cache=False).logits[:, -1]
        (logits[:, 0] - logits[:, 1]).sum().backward()
    else:
        discover(model, task, batch_size=batch, per_example=job.endswith("per example"))
    print(peak() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--job")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.job:
        run(options.job, options.batch, options.length)
        return
    grown = {}
    for job in JOBS:
        command = [sys.executable, __file__, "--job", job, "--batch", str(options.batch)]
        command += ["--length", str(options.length)]
        grown[job] = float(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        )
    result = {
        "name": "memory",
        "shape": {
            "model": "GPT-2 small, random weights",
            "batch": options.batch,
            "length": options.length,
            "steps": 5,
        },
        "peak_mib": {job: round(value) for job, value in grown.items()},
        "goal": 1.5,
        "ratio": {job: round(value / grown[JOBS[0]], 3) for job, value in grown.items()},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.save:
        (Path(__file__).parent / "results" / f"memory_b{options.batch}_t{options.length}.json").write_text(
            text + "\n"
        )


if __name__ == "__main__":
    main()

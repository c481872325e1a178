"""Every file that the package reads: how to make a valid one, how to read it, which hashes are in the way."""

import contextlib
import functools
import hashlib
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
import store_content
import torch
from PIL import Image
from reader_guard import watched
from type_checks import no_type_checks

import assay
from assay.core.errors import AssayError
from assay.graph import build_graph


REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A reader.

    Attributes:
        name: What it reads.
        make: Writes a valid file or folder below the given folder and returns what is given to `read`.
        read: The reader.
        only: Suffixes of the files to damage; default: all.
        names: Their names; default: all.
        reseal: Makes the hashes of a damaged file right again, so that what comes after the hash sees the
            damage; may fail.
        writes: The reader may write below the folder.
    """

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    only: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    reseal: Callable[[Path], None] | None = None
    writes: bool = False


TARGETS: dict[str, Target] = {}


def target(name: str, **facts: Any) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    def register(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
        TARGETS[name] = Target(name=name, make=make, **facts)
        return make

    return register


@functools.cache
def _valid(name: str) -> tuple[str, Mapping[str, bytes]]:
    """What `read` is given, relative to the folder, and the content of all files."""
    with tempfile.TemporaryDirectory() as folder, no_type_checks(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = Path(folder)
        given = TARGETS[name].make(root)
        found = {
            p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()
        }
        return given.relative_to(root).as_posix(), found


def laid_out(name: str, root: Path) -> Path:
    """The valid files of a target, in a folder; what `read` is given."""
    given, files = _valid(name)
    for relative, content in files.items():
        (root / relative).parent.mkdir(parents=True, exist_ok=True)
        (root / relative).write_bytes(content)
    return root / given


@functools.cache
def _read_once(name: str) -> None:
    """Reading for the first time imports modules, some of which write caches of their own."""
    with tempfile.TemporaryDirectory() as folder, no_type_checks():
        TARGETS[name].read(laid_out(name, Path(folder)))


def attack(name: str, random: Random, root: Path) -> str:
    """Read one damaged file.

    Returns:
        `read`, or the name of the error of this package that came.

    Raises:
        BaseException: What must not happen: any other error, and `reader_guard.Breach`.
    """
    what = TARGETS[name]
    _, files = _valid(name)
    _read_once(name)
    shutil.rmtree(root, ignore_errors=True)
    given = laid_out(name, root)
    names = [each for each in files if not what.only or Path(each).suffix in what.only]
    names = [each for each in names if not what.names or Path(each).name in what.names]
    victim = random.choice(names)
    (root / victim).write_bytes(mutations.damage(root / victim, files[victim], random))
    if what.reseal is not None and random.randint(0, 4):
        with contextlib.suppress(Exception):  # damaged beyond what has a hash
            what.reseal(root / victim)
    try:
        with no_type_checks(), warnings.catch_warnings(), watched(root if what.writes else None):
            warnings.simplefilter("ignore")
            what.read(given)
    except AssayError as error:
        str(error).encode()  # it can be printed
        return type(error).__name__
    return "read"


# -------------------------------------------------------------------------------------- circuits and scores


def _parts(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _joined(path: Path, header: Mapping[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _reseal_arrays(path: Path) -> None:
    """Of files that `write_arrays` wrote."""
    from assay.circuits import files

    header, data = _parts(path)
    arrays = safetensors.torch.load(path.read_bytes())
    header["__metadata__"]["sha256"] = files._digest(arrays, header["__metadata__"]["assay"])
    _joined(path, header, data)


def _circuit() -> assay.Circuit:
    graph = build_graph(2, 3)
    draw = torch.rand(graph.valid.shape, generator=torch.Generator().manual_seed(0))
    return assay.Circuit(
        graph=graph,
        mask=graph.valid & (draw < 0.5),
        heads=((0, 1), (1, 2)),
        roles={"mover": ((1, 2),), "sender": ((0, 1),)},
        provenance={"method": "made", "seed": 0},
    )


def _scores() -> assay.EdgeScores:
    graph = build_graph(2, 3)
    draw = torch.randn(2, *graph.valid.shape, generator=torch.Generator().manual_seed(0))
    per_example = draw.where(graph.valid, 0)
    return assay.EdgeScores(
        graph,
        per_example.mean(0),
        per_example=per_example,
        provenance={"method": "made"},
        details={"steps": 5},
    )


@target("circuit", read=lambda path: assay.load_circuit(path), reseal=_reseal_arrays)
def _(folder: Path) -> Path:
    return _circuit().save(folder / "circuit.safetensors")


@target("scores", read=lambda path: assay.load_scores(path), reseal=_reseal_arrays)
def _(folder: Path) -> Path:
    return _scores().save(folder / "scores.safetensors")


def _spans() -> Any:
    from assay.circuits.spans import Spans

    return Spans.each(4)


@target("circuit at spans", read=lambda path: assay.load_circuit(path), reseal=_reseal_arrays)
def _(folder: Path) -> Path:
    return _circuit().everywhere(_spans()).save(folder / "circuit.safetensors")


@target("scores at spans", read=lambda path: assay.load_scores(path), reseal=_reseal_arrays)
def _(folder: Path) -> Path:
    from assay.circuits import EdgeScores
    from assay.circuits.slots import edge_slots

    slots = edge_slots(build_graph(2, 3), _spans())
    values = torch.randn(slots.shape, generator=torch.Generator().manual_seed(0)).where(slots, 0)
    return EdgeScores(build_graph(2, 3), values, spans=_spans()).save(folder / "scores.safetensors")


def _read_eap_ig(path: Path) -> object:
    from assay.circuits import read_eap_ig

    return read_eap_ig(path)


def _read_eap_ig_grouped(path: Path) -> object:
    from assay.circuits import read_eap_ig

    return read_eap_ig(path, build_graph(2, 4, 2), shared="any", partial=True)


@target("eap-ig", read=_read_eap_ig)
def _(folder: Path) -> Path:
    from assay.circuits import write_eap_ig

    return write_eap_ig(_scores(), folder / "graph.json", circuit=_circuit(), d_model=24)


@target("eap-ig grouped", read=_read_eap_ig_grouped)
def _(folder: Path) -> Path:
    from assay.circuits import write_eap_ig

    graph = build_graph(2, 4, 2)
    scores = assay.EdgeScores(graph, torch.ones(graph.valid.shape).where(graph.valid, 0))
    return write_eap_ig(scores, folder / "graph.json")


@target("eap-ig torch", read=_read_eap_ig)
def _(folder: Path) -> Path:
    from assay.circuits.graph_files import their_target

    graph = build_graph(2, 3)
    torch.save(
        {
            "cfg": {"n_layers": 2, "n_heads": 3, "parallel_attn_mlp": False, "d_model": 24},
            "src_nodes": list(graph.sources),
            "dst_nodes": [their_target(name) for name in graph.targets],
            "edges_scores": torch.ones(graph.valid.shape),
            "edges_in_graph": graph.valid.clone(),
        },
        folder / "graph.pt",
    )
    return folder / "graph.pt"


def _read_submission(path: Path) -> object:
    from assay.circuits import load_submission

    return load_submission(path)


@target("submission", read=_read_submission)
def _(folder: Path) -> Path:
    from assay.circuits import save_submission

    return save_submission({("ioi", "gpt2"): _scores(), ("mcqa", "llama3"): _scores()}, folder / "sent")


def _read_head_circuit(path: Path) -> object:
    from assay.circuits import load_head_circuit

    found = load_head_circuit(path)
    return found.to_dict(), found.depths, found.mean_layers


@target("head circuit", read=_read_head_circuit)
def _(folder: Path) -> Path:
    from assay.circuits import load_head_circuit

    content = load_head_circuit("ioi_gpt2_core15").to_dict()
    (folder / "heads.json").write_text(json.dumps(content))
    return folder / "heads.json"


# -------------------------------------------------------------------------------------- measurement tables


def _shelf(folder: Path) -> Any:
    from assay.discovery.heads.shelf import Shelf

    return Shelf(folder, "0123456789abcdef", {"model": {"id": "m"}, "seed": 0})


@target(
    "measurement table",
    read=lambda folder: _shelf(folder).read("y_drop1"),
    reseal=_reseal_arrays,
    writes=True,
)
def _(folder: Path) -> Path:
    shelf = _shelf(folder / "table")
    shelf.write("y_drop1", 0, np.arange(12.0).reshape(3, 4))
    return folder / "table"


# -------------------------------------------------------------------------------------- subsets


def _correctness(*, packed: bool = False) -> Any:
    from assay.analyses.subsets.data import CorrectnessData
    from assay.analyses.subsets.layouts import PackedMatrix

    rng = np.random.default_rng(0)
    correct = rng.integers(0, 2, (9, 12)).astype(np.uint8)
    return CorrectnessData.of(
        PackedMatrix.pack(correct) if packed else correct,
        rng.uniform(0.5, 1, 9),
        groups=[f"run{number // 2}" for number in range(9)],
        families=[f"family{number // 4}" for number in range(9)],
        example_ids=[f"image {number}" for number in range(12)],
        labels=np.arange(12) % 3,
        label_names=["cat", "dog", "=owl"],
        n_id=100,
        meta={"place": [f"p{number % 2}" for number in range(12)], "size": np.arange(12.0)},
        embedding=rng.normal(size=(12, 4)).astype(np.float32),
        id_embedding=rng.normal(size=(5, 4)).astype(np.float32),
    )


def _saved(data: Any, path: Path) -> Path:
    data.save(path)
    return path


def _read_correctness(path: Path) -> object:
    from assay.analyses.subsets.data import CorrectnessData

    return CorrectnessData.load(path)


@target("correctness npz", read=_read_correctness)
def _(folder: Path) -> Path:
    return _saved(_correctness(), folder / "data.npz")


@target("correctness bits", read=_read_correctness)
def _(folder: Path) -> Path:
    return _saved(_correctness(packed=True), folder / "data.npz")


@target("correctness parquet", read=_read_correctness)
def _(folder: Path) -> Path:
    return _saved(_correctness(), folder / "data.parquet")


def _read_predictions(folder: Path) -> object:
    from assay.analyses.subsets import load_predictions

    return load_predictions(folder, ood_env=2)


_ROWS = (
    ("env0_in", 0, 9, 1, 1),
    ("env0_out", 1, 0, 2, 1),
    ("env1_out", 2, 0, 0, 1),
    ("env2_in", 1, -1, 5, 2),
    ("env2_out", 0, 4, 4, 0),
)


@target("prediction files", read=_read_predictions)
def _(folder: Path) -> Path:
    text = "\n".join(["domain,label,p_0,p_1,p_2", *(",".join(map(str, row)) for row in _ROWS), ""])
    for run in ("alexnet/a", "alexnet/b", "vit/a", "vit/b"):
        place = folder / "runs" / run
        place.mkdir(parents=True)
        (place / "global_step_200_predictions.csv").write_text(text)
    return folder / "runs"


def _read_table(path: Path) -> object:
    from assay.pipeline.subset_data import read_data

    return read_data(path, groups="run", examples=path.with_name("examples.csv"))


@target("correctness table", read=_read_table)
def _(folder: Path) -> Path:
    lines = [
        f"m{model},e{example},{(model + example) % 2},0.{5 + model},r{model}"
        for model in range(4)
        for example in range(5)
    ]
    (folder / "table.csv").write_text("\n".join(["model,example_id,correct,id_accuracy,run", *lines, ""]))
    facts = [f"e{example},{example % 2}" for example in range(5)]
    (folder / "examples.csv").write_text("\n".join(["example_id,colour", *facts, ""]))
    return folder / "table.csv"


def _read_wide(path: Path) -> object:
    from assay.pipeline.subset_data import read_data

    return read_data(path, groups="model")


@target("correctness parquet table", read=_read_wide)
def _(folder: Path) -> Path:
    import pandas as pd

    frame = pd.DataFrame(np.arange(20).reshape(4, 5) % 2, columns=[f"e{number}" for number in range(5)])
    frame.insert(0, "model", [f"m{number}" for number in range(4)])
    frame.insert(1, "id_accuracy", [0.5, 0.6, 0.7, 0.8])
    frame.to_parquet(folder / "table.parquet")
    return folder / "table.parquet"


def _read_subset(path: Path) -> object:
    from assay.analyses.subsets import load_subset

    found = load_subset(path)
    return found.id, repr(found)


@target("subset", read=_read_subset)
def _(folder: Path) -> Path:
    from planted_subsets import planted_matrix

    planted = planted_matrix(60, 80, planted=0.2, slope=0.6, n_families=12, seed=5)
    selected = assay.oodselect(planted.correct, planted.id_accuracy, 12, families=planted.families)
    return selected.save(folder / "subset.json")


def _read_published(path: Path) -> object:
    from assay.analyses.subsets import load_published

    return load_published(path).consistency()


@target("published selections", read=_read_published)
def _(folder: Path) -> Path:
    np.savez_compressed(
        folder / "pacs.npz",
        ids=np.array([f"c{number % 2}/{number}.png" for number in range(10)]),
        labels=np.arange(10) % 2,
        sizes=np.array([2, 4]),
        offsets=np.array([0, 2, 6]),
        index=np.array([1, 2, 1, 2, 3, 4]),
        score=np.linspace(0, 1, 6, dtype=np.float32),
        universe=np.array(10),
        corrected_of_published=np.arange(10)[::-1].copy(),
    )
    return folder / "pacs.npz"


# -------------------------------------------------------------------------------------- tasks and images


def _read_pairs(path: Path) -> object:
    from assay.tasks.load import read_pairs

    return read_pairs(path)


@functools.cache
def _tokenizer() -> Any:
    return assay.load_model("mini").tokenizer


def _read_text_pairs(path: Path) -> object:
    from assay.tasks.load import read_pairs

    return read_pairs(path, _tokenizer())


@target("prompts of ids", read=_read_pairs)
def _(folder: Path) -> Path:
    lines = [
        {
            "clean": [1, 2, number],
            "corrupted": [1, 3, number],
            "answers": [[4]],
            "wrong": [[5]],
            "name": f"n{number}",
        }
        for number in range(4)
    ]
    for line in lines:
        line["answers"], line["wrong"] = [4], [5]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "prompts.jsonl"


@target("prompts", read=_read_text_pairs)
def _(folder: Path) -> Path:
    names = ("Mary", "John", "Sara", "Paul", "Amy")
    lines = [
        {
            "clean": f"Then, {a} and {b} went to the store. {b} gave a ring to",
            "corrupted": f"Then, {a} and {b} went to the store. {a} gave a ring to",
            "answers": [f" {a}"],
            "wrong": [f" {b}"],
            "subject": b,
        }
        for a, b in (names[:2], names[2:4], names[1:3])
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "prompts.jsonl"


def _pixels(n: int = 6, side: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def _read_npz(path: Path) -> object:
    from assay.tasks import read_npz

    return read_npz(path)


@target("images npz", read=_read_npz)
def _(folder: Path) -> Path:
    np.savez_compressed(
        folder / "images.npz",
        images=_pixels(),
        labels=np.arange(6) % 2,
        class_names=np.array(["a", "b"]),
        place=np.arange(6),
    )
    return folder / "images.npz"


@functools.cache
def _encoded(kind: str = "PNG", n: int = 6) -> tuple[bytes, ...]:
    import io

    found = []
    for pixels in _pixels(n):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind)
        found.append(buffer.getvalue())
    return tuple(found)


@target("encoded images npz", read=_read_npz)
def _(folder: Path) -> Path:
    files = _encoded()
    ends = np.cumsum([0, *map(len, files)])
    blob = np.frombuffer(b"".join(files), dtype=np.uint8)
    np.savez_compressed(folder / "images.npz", blob=blob, offsets=ends, labels=np.arange(6) % 2)
    return folder / "images.npz"


def _read_images_parquet(path: Path) -> object:
    from assay.tasks import read_parquet

    return read_parquet(path)


@target("images parquet", read=_read_images_parquet)
def _(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = pa.table(
        {
            "image": [{"bytes": each, "path": None} for each in _encoded()],
            "label": [number % 2 for number in range(6)],
            "place": list("abcabc"),
        }
    )
    described = {"info": {"features": {"label": {"names": ["a", "b"]}}}}
    table = table.replace_schema_metadata({b"huggingface": json.dumps(described).encode()})
    parquet.write_table(table, folder / "images.parquet")
    return folder / "images.parquet"


def _read_folder(folder: Path) -> object:
    from assay.tasks import EvalTransform, ReadOptions, read_image_folder

    return read_image_folder(folder, options=ReadOptions(transform=EvalTransform(resize=(8, 8))))


@target("image folder", read=_read_folder)
def _(folder: Path) -> Path:
    for number, kind in enumerate(("png", "gif", "webp", "tiff", "bmp", "jpeg", "ppm")):
        place = folder / "domain" / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.{kind}").write_bytes(_encoded(kind.upper(), 1)[0])
    return folder / "domain"


def _read_metadata(folder: Path) -> object:
    from assay.tasks import read_table

    return read_table(folder, "camelyon17")


@target("table of images", read=_read_metadata, only=(".csv",))
def _(folder: Path) -> Path:
    root = folder / "camelyon"
    lines = ["patient,node,x_coord,y_coord,tumor,center,split,slide"]
    for number in range(4):
        lines.append(f"00{number},1,{number},2,{number % 2},{number % 3},{number % 2},7")
        name = f"patient_00{number}_node_1"
        place = root / "patches" / name
        place.mkdir(parents=True)
        (place / f"patch_{name}_x_{number}_y_2.png").write_bytes(_encoded()[0])
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")
    return root


# -------------------------------------------------------------------------------------- worst pairs


@functools.cache
def _worst() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    from assay.analyses.worst_case import worst_case

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=61, n_positions=32, n_embd=24, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0
    )
    model = assay.load_model(GPT2LMHeadModel(config).eval())
    with tempfile.TemporaryDirectory() as folder:
        task = assay.load_task(laid_out("prompts of ids", Path(folder)), model)
        circuit = assay.Circuit.full(model.graph)
        return worst_case(circuit, model, task, n_clean=4, n_corrupted=3, thresholds=(0.5,))


def _read_worst(path: Path) -> object:
    from assay.analyses.worst_case import WorstCase

    found = WorstCase.load(path)
    return found.summary(), found.to_dict()


def _reseal_worst(path: Path) -> None:
    from assay.core.record import canonical_json

    folder = path.parent
    record = json.loads((folder / "worst.json").read_text())
    record.pop("record_sha256", None)
    record["sha256"] = hashlib.sha256((folder / "worst.safetensors").read_bytes()).hexdigest()
    record["record_sha256"] = hashlib.sha256(canonical_json(record).encode()).hexdigest()
    (folder / "worst.json").write_text(json.dumps(record))


@target("worst-case result", read=_read_worst, reseal=_reseal_worst)
def _(folder: Path) -> Path:
    _worst().save(folder / "worst.safetensors")
    return folder / "worst.safetensors"


def _blocks(folder: Path) -> Any:
    from assay.analyses.worst_case.blocks import FolderShelf

    return FolderShelf(folder, {"model": "m", "seed": 0})


def _reseal_block(path: Path) -> None:
    from assay.analyses.worst_case.blocks import _digest

    header, data = _parts(path)
    inner = json.loads(header["__metadata__"]["assay"])
    arrays = {name: value.numpy() for name, value in safetensors.torch.load(path.read_bytes()).items()}
    inner["sha256"] = _digest(arrays)
    header["__metadata__"]["assay"] = json.dumps(inner)
    _joined(path, header, data)


@target("blocks of pairs", read=lambda folder: _blocks(folder).read(0), reseal=_reseal_block, writes=True)
def _(folder: Path) -> Path:
    from assay.analyses.worst_case.blocks import PairValues

    values = np.arange(6.0).reshape(2, 3)
    _blocks(folder / "kept").write(0, PairValues(values, values + 1, values > 2), finished=0, total=1)
    return folder / "kept"


def _read_words(path: Path) -> object:
    from assay.analyses.worst_case.outside import read_words

    return read_words(path)


@target("word list", read=_read_words)
def _(folder: Path) -> Path:
    (folder / "words.txt").write_text("# words\nhammer\nbook\n")
    return folder / "words.txt"


def _toml(content: Mapping[str, Any]) -> str:
    """One line per key, so that a line can be damaged; lists of tables with their headers."""
    lines = []

    def value(each: Any) -> str:
        if isinstance(each, dict):
            return "{ " + ", ".join(f"{json.dumps(key)} = {value(held)}" for key, held in each.items()) + " }"
        return "[" + ", ".join(map(value, each)) + "]" if isinstance(each, list | tuple) else json.dumps(each)

    for key, each in content.items():
        if not isinstance(each, dict) and not (isinstance(each, list) and each and isinstance(each[0], dict)):
            lines.append(f"{key} = {value(each)}")
    for key, each in content.items():
        if isinstance(each, dict):
            lines += [f"[{key}]", *(f"{json.dumps(name)} = {value(held)}" for name, held in each.items())]
        elif isinstance(each, list) and each and isinstance(each[0], dict):
            for table in each:
                lines += [
                    f"[[{key}]]",
                    *(f"{json.dumps(name)} = {value(held)}" for name, held in table.items()),
                ]
    return "\n".join(lines) + "\n"


# -------------------------------------------------------------------------------------- sweep plans

PLAN: Mapping[str, Any] = {
    "name": "small",
    "n": 8,
    "seeds": [0, 1],
    "models": ["mini"],
    "tasks": ["ioi", "greater-than"],
    "methods": ["eap", {"method": "eap-ig-inputs", "steps": 5}],
    "sizes": [100, 200],
    "metrics": ["faithfulness"],
    "gates": ["bootstrap-stability"],
    "attack": {"protocol": "all", "n-clean": 20, "n-corrupted": 20},
    "limits": {
        "workers": 2,
        "retries": 2,
        "timeout": "10m",
        "threads": 1,
        "batch-size": 8,
    },
}


def _read_plan(path: Path) -> object:
    from assay.pipeline.plan import read_plan

    return repr(read_plan(path))


@target("sweep plan", read=_read_plan, only=(".toml",))
def _(folder: Path) -> Path:
    (folder / "plan.toml").write_text(_toml(PLAN))
    return folder / "plan.toml"


# -------------------------------------------------------------------------------------- zoos and models


def _read_zoo(folder: Path) -> object:
    from assay.zoo import Zoo

    zoo = Zoo.open(folder)
    return repr(zoo), [zoo.folder(key) for key in zoo.keys]


@target("zoo", read=_read_zoo)
def _(folder: Path) -> Path:
    entries = [
        {
            "key": f"m{number}",
            "path": f"models/m{number}",
            "status": "done",
            "id_accuracy": 0.5,
            "best_step": 3,
            "recipe": {"lr": 0.1},
            "weight_hash": "0",
            "checkpoints": [{"step": 1, "path": f"models/m{number}/checkpoints/1"}],
        }
        for number in range(3)
    ]
    content = {
        "schema": "assay-zoo/1",
        "name": "made",
        "id_domain": "flat",
        "classes": ["a", "b"],
        "data": {"n_validation": 10},
        "selection": None,
        "models": entries,
    }
    (folder / "zoo").mkdir()
    (folder / "zoo" / "zoo.json").write_text(json.dumps(content))
    return folder / "zoo"


def _read_zoo_correctness(path: Path) -> object:
    from assay.zoo import Correctness

    return Correctness.load(path)


@target("zoo correctness", read=_read_zoo_correctness)
def _(folder: Path) -> Path:
    from assay.zoo import Correctness

    return Correctness(
        correct=np.eye(3, 4, dtype=np.uint8),
        id_accuracy=np.array([0.5, 0.6, 0.7]),
        keys=("a", "b", "c"),
        families=("a", "a", "c"),
        ids=np.arange(4),
        labels=np.arange(4) % 2,
        domain="flat",
        n_id=10,
    ).save(folder / "correctness.npz")


def _read_grid(path: Path) -> object:
    from assay.zoo.grid import Grid

    return Grid.read(path).n_combinations


_GRID = {
    "name": "small",
    "inits": {"small": {"source": "scratch", "architecture": {"hidden_size": 32, "num_hidden_layers": 2}}},
    "axes": {"lr": [0.001, 0.01], "weight_decay": [0.0, 0.1]},
    "fixed": {"steps": 40, "batch_size": 4},
    "skip": [{"lr": 0.01, "weight_decay": 0.1}],
}


@target("grid", read=_read_grid)
def _(folder: Path) -> Path:
    (folder / "grid.toml").write_text(_toml(_GRID))
    return folder / "grid.toml"


@target("grid json", read=_read_grid)
def _(folder: Path) -> Path:
    (folder / "grid.json").write_text(json.dumps(_GRID))
    return folder / "grid.json"


@target("model directory", read=lambda folder: assay.load_model(folder))
def _(folder: Path) -> Path:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=61, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(folder / "model")
    return folder / "model"


def _read_with_tokenizer(folder: Path) -> object:
    return assay.load_model(folder).tokenizer("Mary and John went to the store.")


@target("tokenizer", read=_read_with_tokenizer, names=("tokenizer.json", "tokenizer_config.json"))
def _(folder: Path) -> Path:
    from assay.models.loading import MINI

    root = laid_out("model directory", folder)
    for path in MINI.glob("tokenizer*.json"):
        shutil.copy(path, root)
    return root


@target("model that asks for a kernel", read=lambda folder: assay.load_model(folder), only=(".json",))
def _(folder: Path) -> Path:
    root = laid_out("model directory", folder)
    content = json.loads((root / "config.json").read_text())
    wish = {"attn_implementation": "some/kernel", "_attn_implementation": "kernels-community/flash-attn"}
    (root / "config.json").write_text(json.dumps(content | wish))
    return root


@target("vision model directory", read=lambda folder: assay.load_model(folder))
def _(folder: Path) -> Path:
    from transformers import ViTConfig, ViTForImageClassification

    from assay.tasks import EvalTransform
    from assay.zoo import save_model

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=8,
        num_labels=2,
    )
    return save_model(
        ViTForImageClassification(config),
        folder / "model",
        transform=EvalTransform(resize=(16, 16)),
        classes=("a", "b"),
    )


# -------------------------------------------------------------------------------------- stores


def _read_store(path: Path) -> object:
    from assay.store import Store

    store = Store(path.parent, create=False)
    seen: list[object] = []
    for ask in (
        lambda: [store.get(each.id).payload for each in store.query(order="-value")],
        lambda: store.query(task="ioi", metric=["kl", "js"]),
        lambda: len(store.to_frame()),
        store.verify,
        lambda: store_content.content(store),
        store.clean,
        lambda: store.put("measurement", {"seed": 9}, {"value": 1.0}),
    ):
        with contextlib.suppress(AssayError):  # each of them, not only the first that fails
            seen.append(ask())
    return store_content.content(store), seen


@target("store", read=_read_store, only=(".db",), writes=True)
def _(folder: Path) -> Path:
    from assay.store import DATABASE_NAME, Store

    store = Store(folder / "store")
    for seed in range(6):
        provenance = {"model": {"id": "mini"}, "task": {"name": "ioi"}, "metric": {"key": "kl"}, "seed": seed}
        payload = {"name": "kl", "value": 0.25 * seed, "unit": "nats", "details": {"n": 5, "of": [[1], [2]]}}
        store.put("measurement", provenance, payload, {"values": np.arange(3.0)})
    return folder / "store" / DATABASE_NAME


# -------------------------------------------------------------------------------------- documents and logs


def _read_journal(path: Path) -> object:
    from assay.analyses.generalization.journal import Journal

    return Journal(path).read()


@target("readings", read=_read_journal)
def _(folder: Path) -> Path:
    from assay.analyses.generalization.journal import Journal

    journal = Journal(folder / "readings.jsonl")
    journal.append("monitor", {"id": "0", "rule": "threshold"})
    journal.append("reading", {"index": 0, "shift": 0.25, "alarm": False, "time": None})
    return folder / "readings.jsonl"


def _read_benchmark(path: Path) -> object:
    from assay.analyses.benchmark import DiscoveryBenchmark

    return DiscoveryBenchmark.load(path).to_dict()


@target("benchmark", read=_read_benchmark)
def _(folder: Path) -> Path:
    source = REPOSITORY / "experiments" / "discovery_benchmark" / "mini-ioi-warm.json"
    return Path(shutil.copy(source, folder / "benchmark.json"))


def _read_domains(path: Path) -> object:
    from assay.pipeline.monitoring import _read_domains

    return _read_domains(path)


@target("corrupted domains", read=_read_domains)
def _(folder: Path) -> Path:
    from assay.analyses.generalization.domain_shifts import DomainCalibration, DomainShift

    one = DomainShift(domain="noise/1", n=8, performance=0.5, shifts={"spearman": 0.5}, baselines={"ac": 0.5})
    content = DomainCalibration(known=(one,), test=(one,)).to_dict()
    assert DomainCalibration.from_dict(content)
    (folder / "domains.json").write_text(json.dumps(content))
    return folder / "domains.json"

"""Ways to damage a valid file: byte by byte, or knowing its structure, so that the damage passes the parser.

Every function takes a `random.Random`: one that hypothesis controls and shrinks, or an ordinary one.
"""

import contextlib
import copy
import io
import json
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np


# Text that JSON and TOML writers would not produce, put in after writing.
RAW = {
    "@deep@": "[" * 50_000 + "]" * 50_000,
    "@deep object@": '{"a":' * 30_000 + "1" + "}" * 30_000,
    "@huge@": "1" * 6000,
    "@nan@": "NaN",
}
HOSTILE: tuple[Any, ...] = (
    *RAW,
    *(None, True, False, 0, -1, 3, 0.5, 2**63, 10**400, 1e308, float("nan"), float("inf")),
    *("", "0", "nan", "\x00", "\ud800", "\u202e\u2066", "\x1b[2J\x1b]0;owned\x07", "x" * 5000),
    *("../../../etc/passwd", "/etc/passwd", "a/b", "=cmd|' /C calc'!A0", "<script>alert(1)</script>"),
    *([], {}, [[[0]]], {"": ""}, {"a": 1}, [1, 2, 3], [-1, 10**12], ["a", 1, None]),
    {"quant_method": "bitsandbytes", "load_in_4bit": True},
)
TOKENS = (
    b"\x00",
    b"\xff" * 8,
    b"\x80\x04\x95",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\n",
    b'"',
    b"{",
    b"9" * 9,
)


def damaged_bytes(content: bytes, random: Random) -> bytes:
    """One to four cuts, flips, insertions and copies."""
    new = bytearray(content)
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(new))
        end = at + random.choice((1, 2, 8, 64, 1024))
        put = random.choice((b"", random.choice(TOKENS), bytes(new[at:end]) * 2))
        new[at : random.choice((at, end, len(new)))] = put
        if at < len(new):
            new[at] ^= 1 << random.randint(0, 7)
    return bytes(new)


# ------------------------------------------------------------------------------------------------ text


def _hostile(random: Random) -> Any:
    """A value of its own: later damage may change it."""
    return copy.deepcopy(random.choice(HOSTILE))


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all nodes, but of long lists only to the first and last entries."""
    places = [path] if path else []
    keys = list(tree)[:60] if isinstance(tree, dict) else []
    if isinstance(tree, list):
        keys = sorted({*range(len(tree))[:3], *range(len(tree))[-2:]})
    return places + [each for key in keys for each in _places(tree[key], (*path, key))]


def damaged_tree(tree: Any, random: Random) -> str:
    """JSON with one to three nodes replaced, left out, renamed, added or changed a little."""
    tree = json.loads(json.dumps(tree, default=str))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = _places(tree)
        if not places:
            tree = _hostile(random)
            continue
        *path, last = random.choice(places)
        holder = tree
        for step in path:
            holder = holder[step]
        kind = random.randint(0, 4)
        if kind == 0:
            del holder[last]
        elif kind == 1 and isinstance(holder, dict):
            holder[str(_hostile(random))[:80]] = holder.pop(last)
        elif kind == 2 and type(holder[last]) in (int, float) and abs(holder[last]) < 1e300:
            holder[last] = random.choice((-1, 1, 2, 0.5)) * holder[last] + random.choice((-1, 0, 1))
        else:
            holder[last] = _hostile(random)
    text = json.dumps(tree)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text


def damaged_json(content: bytes, random: Random) -> bytes:
    """A document with damaged nodes; at times with a key twice."""
    text = damaged_tree(json.loads(content), random)
    return (text.replace('{"', '{"schema": 0, "', 1) if random.randint(0, 11) == 0 else text).encode()


def _damaged_line(line: str, random: Random) -> str:
    """A line of JSON, TOML or CSV with one value replaced."""
    if line.startswith("{"):
        return damaged_tree(json.loads(line), random)
    value = _hostile(random)
    if " = " in line:
        return f"{line.partition('=')[0]} = {RAW.get(str(value), json.dumps(value))}"
    cells = line.split(",")
    cells[random.randint(0, len(cells) - 1)] = str(value).encode("ascii", "ignore").decode()
    return ",".join(cells)


def damaged_lines(content: bytes, random: Random) -> bytes:
    """Lines with one damaged, cut off, repeated, moved or left out."""
    lines = content.decode().splitlines()
    at = random.randint(0, len(lines) - 1)
    line = lines.pop(at)
    repeated, cut = [line, line], [line[: random.randint(0, len(line))]]
    damaged = [_damaged_line(line, random)]
    lines[at:at] = random.choice((repeated, cut, [], damaged, damaged))
    return ("\n".join(lines) + random.choice(("\n", ""))).encode("utf-8", "surrogatepass")


# ------------------------------------------------------------------------------------------------ arrays


def damaged_safetensors(content: bytes, random: Random) -> bytes:
    """A file whose header lies, whose numbers are odd, or whose metadata are damaged."""
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    metadata = header.get("__metadata__", {})
    inner = [key for key, value in metadata.items() if value[:1] in "{["]
    name = random.choice([name for name in header if name != "__metadata__"])
    kind = random.randint(0, 3)
    if kind == 0 and inner:
        key = random.choice(inner)
        metadata[key] = damaged_tree(json.loads(metadata[key]), random)
    elif kind == 2:  # consistent, and wrong
        header[name]["shape"] = random.choice((header[name]["shape"][::-1], [1, *header[name]["shape"]]))
    elif kind == 3:
        at = random.randint(0, max(0, len(data) // 4 - 1)) * 4
        data[at : at + 4] = struct.pack("<f", random.choice((float("nan"), float("inf"), 1e38, -1.0)))
    text = (damaged_tree(header, random) if kind == 1 else json.dumps(header)).encode()
    return struct.pack("<Q", random.choice((len(text),) * 8 + (0, 2**63))) + text + data


def damaged_npz(content: bytes, random: Random) -> bytes:
    """An archive with an array replaced, renamed or left out."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    name = random.choice(sorted(arrays))
    old = arrays.pop(name)
    kind = random.randint(0, 4)
    if kind == 1:
        arrays[random.choice(("../x", "/etc/x", "images", "X", "y", "meta_"))] = old
    elif kind == 2 and old.dtype.kind == "U" and str(old)[:1] == "{":
        arrays[name] = np.array(damaged_tree(json.loads(str(old)), random))
    elif kind > 1:
        numbers = old.astype(np.float64) if old.dtype.kind in "iufb" else np.zeros(3)
        others = (
            np.where(np.arange(numbers.size).reshape(numbers.shape) == 0, np.nan, numbers),
            old.reshape(-1)[: random.randint(0, old.size)],
            np.concatenate([old.reshape(-1)] * 2),
            old[..., None],
            old.astype(str),
            np.array(random.choice(("", "nan", "{}", "\x00", 3, 0.5, -1, True, 10**12))),
            np.array([{"a": 1}, None], dtype=object),
            np.array([0], dtype=[("a", "i4"), ("b", "f8")]),
            np.array(["2020-01-01"], dtype="datetime64[s]"),
        )
        arrays[name] = random.choice(others)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def damaged_database(content: bytes, random: Random) -> bytes:
    """A SQLite file with bytes of its pages replaced, or with a cell that nobody wrote."""
    if random.randint(0, 3):
        new = bytearray(content)
        for _ in range(random.choice((1, 4, 16, 64))):
            page = random.randint(0, len(new) // 4096 - 1)
            # The beginning of a page says where everything else in it lies.
            new[4096 * page + random.randint(0, random.choice((120, 4095)))] = random.randint(0, 255)
        return bytes(new)
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(content)
        identity, payload = random.choice(database.execute("SELECT id, payload FROM results").fetchall())
        column = random.choice(("payload", "provenance", "kind", "created", "id"))
        value = random.choice((damaged_tree(json.loads(payload), random), *RAW.values(), b"\xff", 3))
        with contextlib.suppress(sqlite3.Error):
            database.execute(f"UPDATE results SET {column} = ? WHERE id = ?", (value, identity))
            database.commit()
        return database.serialize()


BY_SUFFIX: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": damaged_json,
    **dict.fromkeys((".jsonl", ".toml", ".csv"), damaged_lines),
    ".safetensors": damaged_safetensors,
    ".npz": damaged_npz,
    ".db": damaged_database,
}


def damage(path: Path, content: bytes, random: Random) -> bytes:
    """What the file holds after it was damaged in one of the ways that suit it."""
    if path.suffix not in BY_SUFFIX or random.randint(0, 2) == 0:
        return damaged_bytes(content, random)
    return BY_SUFFIX[path.suffix](content, random)

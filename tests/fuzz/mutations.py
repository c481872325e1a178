"""Ways to damage a valid file: byte by byte, or knowing its structure, so that the damage passes the parser.

Every function takes a `random.Random`: one that hypothesis controls and shrinks, or an ordinary one.
"""

import contextlib
import copy
import csv
import io
import json
import re
import sqlite3
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np


DEEP = "@deep@"
DEEP_OBJECT = "@deep object@"
HUGE_WHOLE = "@huge@"
NOT_A_NUMBER = "@nan@"
# Text that JSON and TOML writers would not produce, put in after writing.
RAW = {
    DEEP: "[" * 50_000 + "]" * 50_000,
    DEEP_OBJECT: '{"a":' * 30_000 + "1" + "}" * 30_000,
    HUGE_WHOLE: "1" * 6000,
    NOT_A_NUMBER: "NaN",
}
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    7,
    10**12,
    2**31,
    2**63,
    10**400,
    -(10**400),
    0.5,
    -0.0,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    "",
    " ",
    "0",
    "\x00",
    "\ud800",
    "\u202e\u2066",
    "\x1b[2J\x1b]0;owned\x07",
    "../../../etc/passwd",
    "/etc/passwd",
    "..",
    "a/b",
    "-rf",
    "=cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "{0.__class__}",
    "%s%n",
    "x" * 5000,
    "nan",
    [],
    {},
    [[]],
    [[[0]]],
    {"": ""},
    {"a": 1},
    [1, 2, 3],
    "quantization_config",
    "attn_implementation",
    {"quant_method": "bitsandbytes", "load_in_4bit": True},
    [[0, 0], [0, 0]],
    [-1, 10**12],
    ["a", 1, None],
    DEEP,
    DEEP_OBJECT,
    HUGE_WHOLE,
    NOT_A_NUMBER,
)


# ------------------------------------------------------------------------------------------------ bytes

_TOKENS = (
    b"\x00",
    b"\xff\xff\xff\xff",
    b"\xff" * 8,
    b"\x80\x04\x95",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\n",
    b"\r",
    b'"',
    b"{",
    b"[",
    b"}",
    b"NaN",
    b"1e999",
    b"-1",
    b"9" * 30,
    b"PK\x03\x04",
    b"\x1b[2J",
)


def damaged_bytes(content: bytes, random: Random) -> bytes:
    """One to four cuts, flips, insertions and copies."""
    found = bytearray(content)
    for _ in range(random.randint(1, 4)):
        size = len(found)
        at = random.randint(0, size)
        span = min(random.choice((1, 1, 2, 4, 8, 64, 1024)), size - at)
        kind = random.randint(0, 6)
        if kind == 0 and size:
            found[min(at, size - 1)] ^= 1 << random.randint(0, 7)
        elif kind == 1:
            del found[at : at + span]
        elif kind == 2:
            found[at:at] = random.choice(_TOKENS)
        elif kind == 3:
            found[at : at + span] = random.choice(_TOKENS)
        elif kind == 4:
            del found[at:]
        elif kind == 5:
            found[at:at] = found[at : at + span]
        elif size:
            found[min(at, size - 1)] = random.randint(0, 255)
    return bytes(found)


# ------------------------------------------------------------------------------------------------ trees


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all nodes, but of long lists only to the first and last entries."""
    found = [path]
    if isinstance(tree, dict):
        for key in list(tree)[:60]:
            found += _places(tree[key], (*path, key))
    elif isinstance(tree, list):
        for place in sorted({*range(min(3, len(tree))), *range(max(0, len(tree) - 2), len(tree))}):
            found += _places(tree[place], (*path, place))
    return found


def _hostile(random: Random, among: tuple[Any, ...]) -> Any:
    """A value of its own: later damage may change it."""
    return copy.deepcopy(random.choice(among))


def damaged_tree(tree: Any, random: Random, hostile: tuple[Any, ...] = HOSTILE) -> Any:
    """One to three nodes replaced, left out, renamed, repeated or put elsewhere."""
    tree = json.loads(json.dumps(tree, default=str))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = _places(tree)
        path = random.choice(places)
        if not path:
            if random.randint(0, 9) == 0:
                return _hostile(random, hostile)
            continue
        holder = tree
        for step in path[:-1]:
            holder = holder[step]
        last, kind = path[-1], random.randint(0, 7)
        if kind == 1:
            del holder[last]
        elif kind == 2 and isinstance(holder, dict):
            holder[str(_hostile(random, hostile))[:80]] = holder.pop(last)
        elif kind == 2 or (kind == 3 and isinstance(holder, list)):
            holder.insert(last, _hostile(random, hostile))
        elif kind == 3:
            holder[str(_hostile(random, hostile))[:80]] = _hostile(random, hostile)
        elif kind == 4:
            other: Any = tree
            for step in random.choice(places):
                try:
                    other = other[step]
                except (KeyError, IndexError, TypeError):  # gone with an earlier change
                    break
            holder[last] = json.loads(json.dumps(other))
        elif kind == 5 and isinstance(holder[last], bool | int | float) and abs(holder[last]) < 1e300:
            holder[last] = random.choice((-1, 1, 2, 0.5, -0.5)) * holder[last] + random.choice((-1, 0, 1))
        else:
            holder[last] = _hostile(random, hostile)
    return tree


def json_text(tree: Any, *, ascii_only: bool = True) -> str:
    """The tree with raw text in its place; NaN and halves of surrogate pairs stay as they are."""
    text = json.dumps(tree, ensure_ascii=ascii_only, default=str)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text


def damaged_json(content: bytes, random: Random) -> bytes:
    """A JSON document with damaged nodes; at times with a key twice."""
    tree = json.loads(content)
    text = json_text(damaged_tree(tree, random))
    if random.randint(0, 11) == 0:
        text = text.replace('{"', '{"' + random.choice(("a", "schema", "format")) + '": 0, "', 1)
    return text.encode("utf-8", "surrogatepass")


def damaged_lines(content: bytes, random: Random) -> bytes:
    """JSON lines with one damaged, cut off, repeated or left out."""
    lines = content.decode().splitlines()
    at = random.randint(0, len(lines) - 1)
    kind = random.randint(0, 5)
    if kind == 0:
        lines.insert(at, lines[at])
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        lines[at] = lines[at][: random.randint(0, len(lines[at]))]
    else:
        lines[at] = json_text(damaged_tree(json.loads(lines[at]), random))
    return ("\n".join(lines) + random.choice(("\n", ""))).encode("utf-8", "surrogatepass")


_TOML = (
    '""',
    '"\\u0000"',
    "true",
    "-1",
    "0",
    "0.5",
    "1e308",
    "nan",
    "inf",
    "9" * 30,
    "9" * 5000,
    "[]",
    "[[]]",
    "{}",
    '["a"]',
    "[1, 2]",
    "1979-05-27",
    '"../../etc/passwd"',
    '"' + "x" * 5000 + '"',
    "[" * 5000 + "]" * 5000,
    "{ a = " * 3000 + "1" + " }" * 3000,
    '"\\u001b[2J"',
    '"<script>alert(1)</script>"',
)


def damaged_toml(content: bytes, random: Random) -> bytes:
    """TOML with values replaced, lines left out or repeated, keys renamed."""
    lines = content.decode().splitlines()
    for _ in range(random.choice((1, 1, 2, 3))):
        if not lines:
            break
        at = random.randint(0, len(lines) - 1)
        key, equals, _ = lines[at].partition("=")
        kind = random.randint(0, 6)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[at])
        elif kind == 2 and equals:
            lines[at] = f"{key.strip()}x = {lines[at].partition('=')[2]}"
        elif kind == 3:
            other = random.randint(0, len(lines) - 1)
            lines[at], lines[other] = lines[other], lines[at]
        elif equals:
            lines[at] = f"{key} = {random.choice(_TOML)}"
    return "\n".join(lines).encode()


_CELLS = (
    "",
    "nan",
    "-1",
    "1e400",
    "9" * 40,
    "0.5",
    "x",
    '"',
    "\x00",
    "=1+1",
    "\ud7ff",
    "env9_in",
    "true",
    "1,2",
)


def damaged_csv(content: bytes, random: Random) -> bytes:
    """A table with cells replaced, columns or rows left out or repeated."""
    rows = list(csv.reader(io.StringIO(content.decode())))
    for _ in range(random.choice((1, 1, 2, 3))):
        if not rows:
            break
        row = random.randint(0, len(rows) - 1)
        kind = random.randint(0, 5)
        if kind == 0:
            del rows[row]
        elif kind == 1:
            rows.insert(row, rows[row])
        elif rows[row]:
            column = random.randint(0, len(rows[row]) - 1)
            if kind == 2:
                del rows[row][column]
            elif kind == 3:
                for each in rows:
                    del each[column : column + 1]
            else:
                rows[row][column] = random.choice(_CELLS)
    text = io.StringIO()
    csv.writer(text, escapechar="\\").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


# ------------------------------------------------------------------------------------------------ arrays


def damaged_safetensors(
    content: bytes, random: Random, seal: Callable[[dict[str, Any], bytes], dict[str, Any]] | None = None
) -> bytes:
    """A file whose header lies, whose numbers are odd, or whose metadata are damaged.

    Args:
        content: A valid file.
        random: Source of choices.
        seal: From header and data to a header whose hash is right again.
    """
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    kind = random.randint(0, 5)
    metadata = header.get("__metadata__", {})
    inner = [key for key, value in metadata.items() if value[:1] in "{["]
    raw = None
    if kind <= 2 and inner:
        key = random.choice(inner)
        metadata[key] = json_text(damaged_tree(json.loads(metadata[key]), random))
    elif kind == 3:
        names = [name for name in header if name != "__metadata__"]
        name = random.choice(names)
        part = random.choice(("dtype", "shape", "data_offsets", "name", "none", "more"))
        if part == "dtype":
            header[name]["dtype"] = random.choice(
                ("F64", "I64", "BF16", "F8_E4M3", "BOOL", "U8", "U64", "Q", 3)
            )
        elif part == "shape":
            header[name]["shape"] = random.choice(
                ([], [0], [-1], [10**12], [2**62, 4], [1, 1, 1], "x", [1.5])
            )
        elif part == "data_offsets":
            header[name]["data_offsets"] = random.choice(([0, 0], [0, 10**12], [-1, 4], [8, 4], [0]))
        elif part == "name":
            header[random.choice(("x", "../x", "", "\x00"))] = header.pop(name)
        elif part == "more":  # a number of its own, without an axis
            kind_of, size = random.choice((("F32", 4), ("I64", 8), ("U8", 1)))
            offsets = [len(data), len(data) + size]
            header["more"] = {"dtype": kind_of, "shape": [], "data_offsets": offsets}
            data += bytes(size)
        else:
            del header[name]
    elif kind == 4:
        numbers = bytearray(data)
        for _ in range(random.randint(1, 4)):
            at = random.randint(0, max(0, len(numbers) // 4 - 1)) * 4
            numbers[at : at + 4] = struct.pack("<f", random.choice((float("nan"), float("inf"), 1e38, -1.0)))
        data = bytes(numbers[: len(data)])
    elif random.randint(0, 1):
        # Structure kept, shape of one array turned around: consistent, and wrong.
        for each in header.values():
            if isinstance(each.get("shape"), list):
                each["shape"] = random.choice(
                    (each["shape"][::-1], [1, *each["shape"]], [int(np.prod(each["shape"]))])
                )
                break
    else:
        raw = damaged_bytes(json.dumps(header).encode(), random)
    if seal is not None and raw is None:
        header = seal(header, data)
    text = json.dumps(header).encode() if raw is None else raw
    claimed = random.choice((len(text),) * 8 + (0, 1, 2**63, 10**12))
    return struct.pack("<Q", claimed) + text + data


def _array(random: Random, old: np.ndarray) -> np.ndarray:
    """An array that does not belong there."""
    kind = random.randint(0, 9)
    with np.errstate(all="ignore"):
        if kind == 0:
            return old.reshape(-1)[: random.randint(0, old.size)]
        if kind == 1 and old.dtype.kind in "iufb" and old.size:
            found = old.astype(np.float64).copy()
            found.reshape(-1)[random.randint(0, old.size - 1)] = random.choice((np.nan, np.inf, -1, 2, 1e300))
            return found
        if kind == 2:
            return old[..., None]
        if kind == 3:
            return np.array(random.choice(("", "x", "nan", "{}", "\x00", 3, 0.5, -1, True, 10**12)))
        if kind == 4:
            return np.array([{"a": 1}, None], dtype=object)
        if kind == 5:
            return np.zeros((0, 3))
        if kind == 6:
            return old.astype("U32") if old.dtype.kind in "iub" else old.astype(str)
        if kind == 7:
            return np.array([0], dtype=[("a", "i4"), ("b", "f8")])
        if kind == 8:
            return np.array(["2020-01-01"], dtype="datetime64[s]")
        return np.concatenate([old.reshape(-1)] * 2)


def damaged_npz(content: bytes, random: Random) -> bytes:
    """An archive with an array replaced, renamed or left out, or a header that declares what is not there."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    buffer = io.BytesIO()
    name = random.choice(sorted(arrays))
    kind = random.randint(0, 5)
    lie = None
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[random.choice(("x", "../x", "/etc/x", "images", "X", "y", "meta_"))] = arrays.pop(name)
    elif kind == 2:
        lie = random.choice(
            (b"(1000000000000,)", b"(2,)", b"(-1,)", b"(0,)", b"(2**40,)", b"((1,),)", b"[" * 90)
        )
    elif kind == 3 and arrays[name].dtype.kind == "U" and arrays[name].ndim == 0:
        try:
            tree = json.loads(str(arrays[name]))
            arrays[name] = np.array(json_text(damaged_tree(tree, random)))
        except ValueError:
            arrays[name] = np.array("{")
    else:
        arrays[name] = _array(random, arrays[name])
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            part = io.BytesIO()
            np.lib.format.write_array(part, array, allow_pickle=True)
            whole = part.getvalue()
            if key == name and lie is not None:
                whole = re.sub(
                    rb"\([0-9, ]*\)",
                    lambda found: lie.ljust(len(found[0]))[: max(len(found[0]), 30)],
                    whole,
                    count=1,
                )
                # The header states its own length.
                end = whole.index(b"\n") + 1
                whole = whole[:8] + struct.pack("<H", end - 10) + whole[10:]
            archive.writestr(f"{key}.npy", whole)
            if random.randint(0, 29) == 0:
                archive.writestr(f"{key}2.npy", whole)
    return buffer.getvalue()


def damaged_parquet(content: bytes, random: Random) -> bytes:
    """A table with a column replaced, retyped or left out, or with damaged metadata."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = parquet.read_table(io.BytesIO(content))
    kind = random.randint(0, 4)
    at = random.randint(0, table.num_columns - 1)
    if kind == 0:
        table = table.remove_column(at)
    elif kind == 1 and table.schema.metadata:
        metadata = dict(table.schema.metadata)
        key = random.choice(sorted(metadata))
        try:
            metadata[key] = json_text(damaged_tree(json.loads(metadata[key]), random)).encode()
        except ValueError:
            metadata[key] = b"{"
        table = table.replace_schema_metadata(metadata)
    elif kind == 2:
        table = table.rename_columns(
            [f"{name}x" if place == at else name for place, name in enumerate(table.column_names)]
        )
    else:
        n = table.num_rows
        values = random.choice(
            (
                pa.array([None] * n),
                pa.array(["\x00"] * n),
                pa.array([b"\x00"] * n),
                pa.array([float("nan")] * n),
                pa.array([[1]] * n),
                pa.array([2**63 - 1] * n),
                pa.array([{"a": 1}] * n),
                pa.array([True] * n),
            )
        )
        table = table.set_column(at, table.column_names[at], values)
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    return sink.getvalue()


def damaged_database(content: bytes, random: Random) -> bytes:
    """A SQLite file with bytes of its pages replaced, or with a cell that nobody wrote."""
    if random.randint(0, 3):
        found = bytearray(content)
        for _ in range(random.choice((1, 4, 16, 64))):
            page = random.randint(0, len(found) // 4096 - 1)
            # The beginning of a page says where everything else in it lies.
            at = 4096 * page + random.randint(0, random.choice((120, 4095)))
            found[at] = random.randint(0, 255)
        return bytes(found)
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(content)
        rows = database.execute("SELECT id, payload FROM results ORDER BY id").fetchall()
        identity, payload = random.choice(rows)
        column = random.choice(("payload", "provenance", "kind", "created", "id"))
        text: Any = json_text(damaged_tree(json.loads(payload), random))
        value = random.choice(
            (text, text, RAW[DEEP], RAW[DEEP_OBJECT], '{"a":' * 900 + "1" + "}" * 900, b"\xff", 3)
        )
        with contextlib.suppress(sqlite3.Error):
            database.execute(f"UPDATE results SET {column} = ? WHERE id = ?", (value, identity))
            database.commit()
        return database.serialize()


BY_SUFFIX: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": damaged_json,
    ".jsonl": damaged_lines,
    ".toml": damaged_toml,
    ".csv": damaged_csv,
    ".safetensors": damaged_safetensors,
    ".npz": damaged_npz,
    ".parquet": damaged_parquet,
    ".db": damaged_database,
}


def damage(path: Path, content: bytes, random: Random, seal: Any = None) -> bytes:
    """What the file holds after it was damaged in one of the ways that suit it."""
    if random.randint(0, 2) == 0 or path.suffix not in BY_SUFFIX:
        return damaged_bytes(content, random)
    if path.suffix == ".safetensors":
        return damaged_safetensors(content, random, seal)
    return BY_SUFFIX[path.suffix](content, random)

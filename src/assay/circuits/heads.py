"""Head circuits: attention heads with roles, as papers publish them, and the files that hold them.

A file of schema `head_circuit/1` lists heads as (layer, head), gives each a role, and orders the roles by
bands of depth and by pathways. `Circuit.from_heads` turns one into edges.
"""

import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from assay.circuits.files import shipped
from assay.core.errors import AssayWarning, FileFormatError, InputError, check_name, unknown_name
from assay.core.untrusted import malformed, read_object


Head = tuple[int, int]
_NAMED = re.compile(r"a(\d+)\.h(\d+)")

SCHEMA = "head_circuit/1"
_READ = ("schema", "index_base", "id", "task", "model", "heads", "roles", "pathways")
DATA = "data/heads"

# Only their order counts: with early, mid and late alone 1, 2, 4 rank like 1, 2, 3.
_BANDS = (("very_early", "early"), ("mid_early", "early_mid", "mid"), ("midlate", "mid_late"), ("late",))
BAND_ORDINALS: Mapping[str, int] = {band: rank for rank, names in enumerate(_BANDS, 1) for band in names}


@dataclass(frozen=True, kw_only=True)
class Role:
    """Heads that do one job.

    Attributes:
        heads: The heads, zero-based, ascending.
        band: Where in the depth of the model they are said to lie (`early`, `mid`, `late`, ...); None if
            not stated.
        description: What they do.
    """

    heads: tuple[Head, ...]
    band: str | None = None
    description: str = ""

    @cached_property
    def ordinal(self) -> int | None:
        """Rank of the band, 1 (early) to 4 (late); None without. An unknown one is 2, with a warning."""
        if self.band is not None and self.band not in BAND_ORDINALS:
            text = f"unknown band {self.band!r} counts as the middle (ordinal 2); known bands: "
            warnings.warn(text + ", ".join(BAND_ORDINALS), AssayWarning, stacklevel=2)
        return None if self.band is None else BAND_ORDINALS.get(self.band, 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadCircuit:
    """A set of heads, what each is for, and which jobs feed which.

    Attributes:
        id: Name of the circuit; results say it.
        n_layers: Layers of the model.
        n_heads: Query heads per layer.
        heads: The circuit's heads as (layer, head), zero-based, ascending.
        roles: Role -> heads; empty, or every head in exactly one.
        pathways: (from role, to role).
        model_id: The model it was found in, if stated.
        task: The task it was found on, if stated.
        about: What else its file states, e.g. `source`, `variant`, `notes`.

    Raises:
        InputError: For a head that is out of range, listed twice, in two roles or in none; a pathway that
            names an unknown role; pathways that form a cycle.
    """

    id: str
    n_layers: int
    n_heads: int
    heads: tuple[Head, ...]
    roles: Mapping[str, Role] = field(default_factory=dict)
    pathways: tuple[tuple[str, str], ...] = ()
    model_id: str | None = None
    task: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = (self.n_layers, self.n_heads)
        object.__setattr__(self, "heads", check_heads(self.heads, *shape))
        roles = {name: replace(one, heads=check_heads(one.heads, *shape)) for name, one in self.roles.items()}
        object.__setattr__(self, "roles", roles)
        count = Counter(head for role in roles.values() for head in role.heads)
        for head in sorted({*count, *self.heads}) if roles else ():
            if count[head] != 1 or head not in self.heads:
                inside = "in" if head in self.heads else "not in"
                text = f"head {head} has {count[head]} roles and is {inside} `heads`"
                raise InputError(f"{self.id}: {text}; every head of the circuit belongs to exactly one role")
        for name in (name for pathway in self.pathways for name in pathway):
            check_name(f"role in the pathways of {self.id}:", name, roles)
        _ = self.depths  # a cycle is an error of the file, not of whoever asks first
        _ = [role.ordinal for role in roles.values()]  # so is an unknown band

    def __repr__(self) -> str:
        every = self.n_layers * self.n_heads
        return f"HeadCircuit({self.id!r}, {self.k} of {every} heads, {len(self.roles)} roles)"

    # ---- sets -----------------------------------------------------------------------------------

    @property
    def k(self) -> int:
        """Number of heads."""
        return len(self.heads)

    @property
    def members(self) -> Bool[np.ndarray, " H"]:
        """True at the circuit's heads, indexed by layer * n_heads + head."""
        every = ((layer, head) for layer in range(self.n_layers) for head in range(self.n_heads))
        return np.array([head in self.heads for head in every])

    @cached_property
    def head_edges(self) -> tuple[tuple[int, int, int, int], ...]:
        """(layer, head, layer, head) of each sender and receiver that a pathway joins, in a later layer."""
        pairs = (product(self.roles[one].heads, self.roles[two].heads) for one, two in self.pathways)
        return tuple(sorted({(*one, *two) for each in pairs for one, two in each if one[0] < two[0]}))

    # ---- order ----------------------------------------------------------------------------------

    @cached_property
    def depths(self) -> Mapping[str, int]:
        """Pathway depth per role: edges on the longest path of `pathways` that ends in it."""
        before = {role: {one for one, two in self.pathways if two == role} for role in self.roles}
        depths = dict.fromkeys(self.roles, 0)
        try:
            for role in TopologicalSorter(before).static_order():
                depths[role] = max((depths[sender] + 1 for sender in before[role]), default=0)
        except CycleError as error:
            raise InputError(
                f"{self.id}: the pathways form a cycle, {' -> '.join(error.args[1])}, so it has no depths; "
                "remove one of its pathways"
            ) from None
        return depths

    @property
    def mean_layers(self) -> Mapping[str, float]:
        """Mean layer of the heads of each role, 0 .. n_layers - 1; NaN for a role without heads."""
        return {
            name: math.fsum(layer for layer, _ in role.heads) / len(role.heads) if role.heads else math.nan
            for name, role in self.roles.items()
        }

    @property
    def ordinals(self) -> tuple[int, ...]:
        """Band ordinal of each head, in the order of `heads`.

        Raises:
            InputError: For a head without a role, or a role without a band.
        """
        ordinals = {head: role.ordinal for role in self.roles.values() for head in role.heads}
        found = tuple(ordinals.get(head) or 0 for head in self.heads)
        if 0 in found:
            raise InputError(
                f"{self.id}: head {self.heads[found.index(0)]} has no role with a band, so its heads have "
                "no ordinals; give each role a band"
            )
        return found

    # ---- files ----------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, document: Any, *, origin: str = "the description") -> "HeadCircuit":
        """The circuit of a `head_circuit/1` description.

        Args:
            document: What the JSON file holds.
            origin: What messages call it.

        Raises:
            FileFormatError: For another schema, an index base other than 0, or missing parts.
            InputError: As the class.
        """
        if document.get("schema") != SCHEMA or document.get("index_base") != 0:
            raise FileFormatError(
                f"{origin} is not a {SCHEMA} file with zero-based heads (schema {document.get('schema')!r}, "
                f"index_base {document.get('index_base')!r}); a file of EAP-IG is read with read_eap_ig"
            )
        with malformed(origin, f"a complete {SCHEMA} file"):
            model, roles = document["model"], {}
            for name, role in document.get("roles", {}).items():
                stated = {key: role[key] for key in ("band", "description") if key in role}
                roles[name] = Role(heads=_pairs(role["heads"]), **stated)
            return cls(
                id=document["id"],
                n_layers=model["n_layers"],
                n_heads=model["n_heads"],
                model_id=model.get("id"),
                task=document.get("task"),
                heads=_pairs(document["heads"]),
                roles=roles,
                pathways=_pairs(document.get("pathways", ())),
                about={key: value for key, value in document.items() if key not in _READ},
            )

    def to_dict(self) -> dict[str, Any]:
        """The description that `from_dict` reads, JSON-able."""
        return {
            "schema": SCHEMA,
            "index_base": 0,
            "id": self.id,
            "task": self.task,
            "model": {"id": self.model_id, "n_layers": self.n_layers, "n_heads": self.n_heads},
            "heads": self.heads,
            "roles": {name: asdict(role) for name, role in self.roles.items()},
            "pathways": self.pathways,
            **self.about,
        }


def load_head_circuit(source: str | Path) -> HeadCircuit:
    """A shipped head circuit by name, or one from a `head_circuit/1` JSON file.

    Args:
        source: A name of `published_head_circuits()`, or the path of a file.

    Raises:
        UnknownNameError: For text that is neither a shipped name nor an existing file.
        FileFormatError: For a file that cannot be read as `head_circuit/1`.
        InputError: For contradictory content; see `HeadCircuit`.

    Example:
        >>> load_head_circuit("ioi_gpt2_wang26").depths["name_mover"]
        3
    """
    known, path = shipped(DATA), Path(source)
    if source in known:
        return HeadCircuit.from_dict(json.loads(known[str(source)].read_text("utf-8")), origin=str(source))
    if len(path.parts) == 1 and path.suffix != ".json" and not path.exists():
        raise unknown_name("head circuit", source, sorted(known))
    return HeadCircuit.from_dict(read_object(path, f"a JSON file of schema {SCHEMA}"), origin=path.name)


def published_head_circuits() -> tuple[str, ...]:
    """Names of the shipped head circuits; some tasks have more than one list, so results name theirs."""
    return tuple(sorted(shipped(DATA)))


def _pairs(pairs: Iterable[Sequence[Any]]) -> tuple[tuple[Any, Any], ...]:
    return tuple((first, second) for first, second in pairs)


def heads_of(text: str) -> tuple[Head, ...] | None:
    """Heads written as `a2.h3,a3.h0` (layer, then head); None for other text.

    Example:
        >>> heads_of("a2.h3, a3.h0")
        ((2, 3), (3, 0))
    """
    matches = [_NAMED.fullmatch(part.strip()) for part in text.split(",")]
    return None if None in matches else tuple((int(each[1]), int(each[2])) for each in matches if each)


def check_heads(heads: Iterable[Sequence[int] | str], n_layers: int, n_heads: int) -> tuple[Head, ...]:
    """The heads in ascending order, once they are known to be different heads of such a model.

    Raises:
        InputError: For an entry that is neither a pair of whole numbers nor a name as `a2.h3`, out of range,
            or listed twice.
    """
    pairs: list[Head] = []
    for entry in heads:
        (pair,) = (heads_of(entry) or [None]) if isinstance(entry, str) else [tuple(entry)]
        if pair is None or len(pair) != 2 or any(type(index) is not int for index in pair):
            text = f"head {entry!r} is not a pair (layer, head) of whole numbers"
            raise InputError(f"{text}, e.g. (2, 3), or a name such as 'a2.h3'")
        if not (0 <= pair[0] < n_layers and 0 <= pair[1] < n_heads):
            raise InputError(
                f"head {pair} is out of range: the graph has {n_layers} layers of {n_heads} heads"
            )
        if pair in pairs:
            raise InputError(f"head {pair} is listed twice; list each head once")
        pairs.append(pair)
    return tuple(sorted(pairs))

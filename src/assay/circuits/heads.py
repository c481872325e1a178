"""Head circuits: attention heads with roles, as papers publish them, and the files that hold them.

A file of schema `head_circuit/1` lists heads as (layer, head), gives each a role, and orders the roles by
bands of depth and by pathways. `Circuit.from_heads` turns one into edges.
"""

import json
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from assay.core.errors import AssayWarning, FileFormatError, InputError, unknown_name
from assay.core.record import Record, same
from assay.core.untrusted import malformed, read_object


Head = tuple[int, int]
_NAMED = re.compile(r"a(\d+)\.h(\d+)")

SCHEMA = "head_circuit/1"

# Only their order counts: with early, mid and late alone 1, 2, 4 rank like 1, 2, 3.
BAND_ORDINALS: Mapping[str, int] = {
    "very_early": 1,
    "early": 1,
    "mid_early": 2,
    "early_mid": 2,
    "mid": 2,
    "midlate": 3,
    "mid_late": 3,
    "late": 4,
}
_UNKNOWN_BAND = 2


def band_ordinal(band: str) -> int:
    """Rank of a band of depth, 1 (early) to 4 (late); an unknown band is 2, with a warning."""
    if band not in BAND_ORDINALS:
        known = ", ".join(BAND_ORDINALS)
        warnings.warn(
            f"unknown band {band!r} counts as the middle (ordinal {_UNKNOWN_BAND}); known bands: {known}",
            AssayWarning,
            stacklevel=2,
        )
    return BAND_ORDINALS.get(band, _UNKNOWN_BAND)


@dataclass(frozen=True, kw_only=True)
class Role(Record):
    """Heads that do one job.

    Attributes:
        heads: The heads, zero-based, ascending.
        band: Where in the depth of the model they are said to lie (`early`, `mid`, `late`, ...); None if
            not stated.
        description: What they do.
    """

    derived = ("ordinal",)

    heads: tuple[Head, ...]
    band: str | None = None
    description: str = ""

    @cached_property
    def ordinal(self) -> int | None:
        """Rank of the band, 1 to 4; None without a band."""
        return None if self.band is None else band_ordinal(self.band)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadCircuit(Record):
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
        mlp_layers: Name -> layers of MLPs that the source names; a head circuit keeps all MLPs.
        published_baselines: Numbers of the source.
        source: Authors, year, title, arXiv id.
        status: `published`, `unreviewed` or `discovered`.
        variant: Which of several lists of the same paper.
        notes: Remarks.

    Raises:
        InputError: For a head that is out of range, listed twice, in two roles or in none; a pathway that
            names an unknown role; pathways that form a cycle.
    """

    record_schema = SCHEMA
    record_layout = {
        **same("id", "task", "variant", "status"),
        "model": {"id": "model_id", **same("n_layers", "n_heads")},
        "index_base": "index_base",
        "n_circuit_heads": "k",
        **same("sparsity", "heads", "roles", "pathways", "head_edges", "mlp_layers"),
        **same("published_baselines", "source", "notes"),
    }
    index_base = 0

    id: str
    n_layers: int
    n_heads: int
    heads: tuple[Head, ...]
    roles: Mapping[str, Role] = field(default_factory=dict)
    pathways: tuple[tuple[str, str], ...] = ()
    model_id: str | None = None
    task: str | None = None
    mlp_layers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    published_baselines: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    status: str = "discovered"
    variant: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", check_heads(self.heads, self.n_layers, self.n_heads))
        _check_roles(self)
        _ = self.depths  # a cycle is an error of the file, not of whoever asks first

    def __repr__(self) -> str:
        return (
            f"HeadCircuit({self.id!r}, {self.k} of {self.n_layers * self.n_heads} heads, "
            f"{len(self.roles)} roles)"
        )

    # ---- sets -----------------------------------------------------------------------------------

    @property
    def k(self) -> int:
        """Number of heads."""
        return len(self.heads)

    @property
    def sparsity(self) -> float:
        """Share of all heads that are in the circuit, k / H in [0, 1]."""
        return self.k / (self.n_layers * self.n_heads)

    @property
    def members(self) -> Bool[np.ndarray, " H"]:
        """True at the circuit's heads, indexed by layer * n_heads + head."""
        flags = np.zeros(self.n_layers * self.n_heads, dtype=bool)
        flags[[layer * self.n_heads + head for layer, head in self.heads]] = True
        return flags

    @cached_property
    def role_of(self) -> Mapping[Head, str]:
        """The role of each head; empty without roles."""
        return {head: name for name, role in self.roles.items() for head in role.heads}

    @cached_property
    def head_edges(self) -> tuple[tuple[int, int, int, int], ...]:
        """(layer, head, layer, head) of each sender and receiver that a pathway joins, in a later layer."""
        edges = {
            (*sender, *receiver)
            for first, second in self.pathways
            for sender in self.roles[first].heads
            for receiver in self.roles[second].heads
            if sender[0] < receiver[0]
        }
        return tuple(sorted(edges))

    # ---- order ----------------------------------------------------------------------------------

    @cached_property
    def depths(self) -> Mapping[str, int]:
        """Pathway depth per role: edges on the longest path of `pathways` that ends in it."""
        before: dict[str, set[str]] = {role: set() for role in self.roles}
        for first, second in self.pathways:
            before[second].add(first)
        try:
            order = tuple(TopologicalSorter(before).static_order())
        except CycleError as error:
            raise InputError(
                f"{self.id}: the pathways form a cycle, {' -> '.join(error.args[1])}, so it has no depths; "
                "remove one of its pathways"
            ) from None
        depths: dict[str, int] = {}
        for role in order:
            depths[role] = max((depths[sender] + 1 for sender in before[role]), default=0)
        return {role: depths[role] for role in self.roles}

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
        missing = sorted(name for name, role in self.roles.items() if role.heads and role.band is None)
        if missing or (self.heads and not self.roles):
            what = f"roles {missing} have no band" if missing else "there are no roles"
            raise InputError(f"{self.id}: {what}, so its heads have no ordinals; give each role a band")
        ordinals = {name: role.ordinal for name, role in self.roles.items()}
        return tuple(ordinal for head in self.heads if (ordinal := ordinals[self.role_of[head]]) is not None)

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
                f"index_base {document.get('index_base')!r})"
            )
        with malformed(origin, f"a complete {SCHEMA} file"):
            return cls(
                id=document["id"],
                n_layers=document["model"]["n_layers"],
                n_heads=document["model"]["n_heads"],
                heads=_pairs(document["heads"]),
                roles={
                    name: Role(
                        heads=_pairs(role["heads"]),
                        band=role.get("band"),
                        description=role.get("description", ""),
                    )
                    for name, role in document.get("roles", {}).items()
                },
                pathways=tuple((first, second) for first, second in document.get("pathways", [])),
                model_id=document["model"].get("id"),
                task=document.get("task"),
                mlp_layers={name: tuple(layers) for name, layers in document.get("mlp_layers", {}).items()},
                published_baselines=dict(document.get("published_baselines", {})),
                source=dict(document.get("source", {})),
                status=document.get("status", "discovered"),
                variant=document.get("variant", ""),
                notes=tuple(document.get("notes", ())),
            )


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
    names = published_head_circuits()
    if isinstance(source, str):
        if source in names:
            file = _shipped().joinpath(f"{source}.json")
            return HeadCircuit.from_dict(json.loads(file.read_text(encoding="utf-8")), origin=source)
        if "/" not in source and not source.endswith(".json") and not Path(source).exists():
            raise unknown_name("head circuit", source, names)
    path = Path(source)
    content = read_object(path, f"a JSON file of schema {SCHEMA}")
    return HeadCircuit.from_dict(content, origin=path.name)


def published_head_circuits() -> tuple[str, ...]:
    """Names of the shipped head circuits; some tasks have more than one list, so results name theirs."""
    names = (file.name for file in _shipped().iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def _shipped() -> Any:
    return resources.files("assay.circuits").joinpath("data", "heads")


def _pairs(heads: Iterable[Sequence[int]]) -> tuple[Head, ...]:
    return tuple((layer, head) for layer, head in heads)


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
        named = heads_of(entry) if isinstance(entry, str) else None
        if named is not None and len(named) == 1:
            (entry,) = named
        if isinstance(entry, str):
            raise InputError(f"head {entry!r} is not a name such as 'a2.h3' (layer 2, head 3)")
        if len(entry) != 2:
            raise InputError(f"head {entry!r} is not a pair (layer, head) of whole numbers, e.g. (2, 1)")
        layer, head = entry
        if not all(type(index) is int for index in (layer, head)):  # True is an int, but no layer
            raise InputError(f"head ({layer!r}, {head!r}) is not a pair of whole numbers (layer, head)")
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise InputError(
                f"head ({layer}, {head}) is out of range: the graph has {n_layers} layers of {n_heads} heads "
                "(counted from 0)"
            )
        pairs.append((layer, head))
    if len(set(pairs)) != len(pairs):
        double = next(pair for pair in pairs if pairs.count(pair) > 1)
        raise InputError(f"head {double} is listed twice; list each head once")
    return tuple(sorted(pairs))


def _check_roles(circuit: HeadCircuit) -> None:
    owners: dict[Head, str] = {}
    roles = {}
    for name, role in circuit.roles.items():
        heads = check_heads(role.heads, circuit.n_layers, circuit.n_heads)
        for head in heads:
            if head in owners:
                raise InputError(
                    f"{circuit.id}: head {head} has two roles, {owners[head]!r} and {name!r}; give it one"
                )
            owners[head] = name
        roles[name] = Role(heads=heads, band=role.band, description=role.description)
        _ = roles[name].ordinal  # warn of an unknown band here, not where it is first ranked
    if roles and set(owners) != set(circuit.heads):
        alone = sorted(set(owners) ^ set(circuit.heads))[0]
        what = (
            "has no role" if alone in circuit.heads else f"has role {owners[alone]!r} but is not in `heads`"
        )
        raise InputError(f"{circuit.id}: head {alone} {what}; every head belongs to exactly one role")
    for pathway in circuit.pathways:
        for name in pathway:
            if name not in roles:
                known = ", ".join(map(repr, roles)) or "none"
                raise InputError(
                    f"{circuit.id}: pathway {list(pathway)} names the unknown role {name!r}; roles: {known}"
                )
    object.__setattr__(circuit, "roles", roles)

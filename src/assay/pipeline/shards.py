"""Parts of one job in the store: batches of a discovery, blocks of pairs of an attack.

A part is what a run in one piece computes on its way, in the same passes; putting the parts together repeats
the sums of that run in their order. So the result has the same bytes however many jobs the parts were dealt
to.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from assay.analyses.worst_case.attack import block_record
from assay.analyses.worst_case.evaluation import PairValues
from assay.core.errors import FileFormatError, InputError
from assay.core.record import record_id
from assay.discovery.edges.method import BatchMethod
from assay.discovery.edges.running import Asked
from assay.discovery.edges.sums import BatchPart
from assay.store import Store


def dealt(part: Sequence[int]) -> tuple[int, int]:
    """First number and step of a part: of k parts the i-th (from 0) gets i, i + k, i + 2 k, ...

    Raises:
        InputError: Unless 0 <= i < k.
    """
    first, step = part
    if not 0 <= first < step:
        raise InputError(f"part {first} of {step}; parts are numbered from 0 to {step - 1}")
    return first, step


class BatchShelf:
    """Batches of one discovery, each a row of kind `scores-part`.

    Args:
        store: Where they are kept.
        scores: Id of the scores they add up to.
        whole: The discovery in one piece.
    """

    def __init__(self, store: Store, scores: str, whole: Asked) -> None:
        self._store, self._whole = store, whole
        self._of = {"scores": scores, "batch_size": whole.size}

    def _record(self, number: int) -> dict[str, Any]:
        return {**self._of, "number": number}

    def fill(self, part: tuple[int, int]) -> tuple[str, ...]:
        """Run the batches of a part that are not there yet.

        Returns:
            Ids of all batches of the part.
        """
        wanted = range(part[0], n_batches(self._whole), part[1])
        ids = {number: record_id("scores-part", self._record(number)) for number in wanted}
        missing = {number for number, identity in ids.items() if not self._store.has(identity)}
        started = time.perf_counter()
        for found in _batches(self._whole, missing):
            arrays = {"total": found.total} | ({} if found.coarse is None else {"coarse": found.coarse})
            payload = {
                "ids": found.ids.tolist(),
                "forward": found.forward,
                "backward": found.backward,
                "input_effect": found.input_effect,
                "seconds": time.perf_counter() - started,
            }
            self._store.put("scores-part", self._record(found.number), payload, arrays)
            started = time.perf_counter()
        return tuple(ids.values())

    def all(self) -> list[BatchPart]:
        """Every batch, in order.

        Raises:
            FileFormatError: If one is missing.
        """
        parts = []
        for number in range(n_batches(self._whole)):
            row = self._row(number)
            names = set(row.arrays.keys())
            parts.append(
                BatchPart(
                    number=number,
                    ids=torch.tensor(row.payload["ids"]),
                    total=row.arrays["total"],
                    coarse=row.arrays["coarse"] if "coarse" in names else None,
                    forward=row.payload["forward"],
                    backward=row.payload["backward"],
                    input_effect=row.payload["input_effect"],
                )
            )
        return parts

    def seconds(self) -> float:
        """Time that all batches took together."""
        return float(sum(self._row(number).payload["seconds"] for number in range(n_batches(self._whole))))

    def _row(self, number: int) -> Any:
        identity = record_id("scores-part", self._record(number))
        if not self._store.has(identity):
            raise FileFormatError(
                f"batch {number} of scores {self._of['scores']} is missing from {self._store!r}, though its "
                "job is done; start the sweep with another store"
            )
        return self._store.get(identity)


def n_batches(whole: Asked) -> int:
    """Batches that the examples fall into."""
    return -(-whole.task.n // whole.size)


def _batches(whole: Asked, numbers: Collection[int]) -> Any:
    method = whole.method
    if not isinstance(method, BatchMethod) or not method.divisible():
        raise InputError(
            f"method {method.key!r} decides on all examples together, so they cannot be split over several "
            "jobs. Remove discover from [shards]"
        )
    return method.parts(whole.model, whole.task, whole.settings, whole.size, numbers) if numbers else ()


class PairShelf:
    """Blocks of pairs of one attack, each a row of kind `pairs-part`; a `BlockShelf`.

    Args:
        store: Where they are kept.
        facts: Of the attack, as `facts_of` gives them.
    """

    def __init__(self, store: Store, facts: Mapping[str, Any]) -> None:
        self._store = store
        self._of = record_id("worst_case_blocks", block_record(facts))
        self._ids: list[str] = []

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the blocks read or written so far."""
        return tuple(self._ids)

    def _record(self, number: int) -> dict[str, Any]:
        return {"attack": self._of, "number": number}

    def read(self, number: int) -> PairValues | None:
        """A finished block; None where there is none."""
        identity = record_id("pairs-part", self._record(number))
        if not self._store.has(identity):
            return None
        self._ids.append(identity)
        arrays = self._store.get(identity).arrays
        return PairValues(**{name: arrays[name].numpy() for name in PairValues._fields})

    def write(self, number: int, values: PairValues, *, finished: int, total: int) -> None:
        """Keep a block."""
        del finished, total
        self._ids.append(self._store.put("pairs-part", self._record(number), {}, dict(values._asdict())))

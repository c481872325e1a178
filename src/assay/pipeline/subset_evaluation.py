"""Selections and their subsets from files and stores; other models on them, judged by gates."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.evaluation import ENDS, KIND, LEVEL, READINGS, evaluation_document
from assay.analyses.subsets.file_kinds import ENDINGS, kind_of_file
from assay.analyses.subsets.selection import Subset, read_subset
from assay.core.errors import FileFormatError, InputError
from assay.core.record import library_version, record_id
from assay.core.untrusted import parse_json
from assay.core.verdict import Interval, Rule
from assay.store import Store


DOCUMENTS = ("assay-subset/1", "assay-subset-path/1")
_ID = re.compile("[0-9a-f]{4,16}")
_GATE = re.compile(
    rf"(?P<name>{'|'.join(READINGS)})(?:\.(?P<part>{'|'.join(ENDS)}))?\s*(?P<sign>[<>]=?)\s*"
    r"(?P<limit>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
)


class SubsetGate(NamedTuple):
    """A limit for a reading of a model, or for its value or an end of its interval."""

    reading: str
    part: str
    rule: Rule


def read_gates(texts: Sequence[str]) -> dict[str, SubsetGate]:
    """Gates by their text, e.g. `accuracy >= 0.6` or `residual.low > 0`.

    A limit for a reading is judged by its interval, as other gates are: `pass` where all of it meets the
    limit, `fail` where none of it does, else `inconclusive`. A limit for `accuracy.value` is judged by the
    estimate, one for `accuracy.low` by that end.

    Raises:
        InputError: For a text that is no such limit.
    """
    gates = {}
    for text in texts:
        found = _GATE.fullmatch(text.strip())
        limit = float(found["limit"]) if found else math.nan
        share = found is not None and not found["name"].startswith("residual")
        if found is None or (share and not 0 <= limit <= 1):
            raise InputError(
                f"cannot read the gate {text!r}; write NAME OP NUMBER, e.g. 'accuracy >= 0.6': NAME is one "
                f"of {', '.join(READINGS)}, or its .value, .low or .high; OP one of < <= > >=; accuracies "
                "are shares between 0 and 1"
            )
        sign = found["sign"]
        rule = Rule(pass_at=limit, higher=sign[0] == ">", strict="=" not in sign)
        gates[text] = SubsetGate(found["name"], found["part"] or "", rule)
    return gates


def _read(
    given: str, store: Callable[[], Store], fits: Callable[[Mapping[str, Any]], bool], wanted: str
) -> dict[str, Any]:
    """The document of a file, or that of a store under an id, which must fit what is wanted.

    Raises:
        InputError: If there is neither, or it is something else.
        FileFormatError: If the file is damaged or cannot be read.
    """
    path, held = Path(given), None
    if _ID.fullmatch(given) and not path.exists():
        held = store().get(given).payload
    elif not path.exists():
        raise InputError(f"{path} does not exist; give {wanted}")
    elif not path.is_dir():
        try:
            held = parse_json(path.read_bytes())
        except OSError as error:
            raise FileFormatError(f"{path} cannot be read: {error.strerror}; give {wanted}") from error
        except ValueError as error:
            if path.suffix not in ENDINGS:
                raise FileFormatError(f"{path} cannot be read as JSON: {error}; give {wanted}") from error
    if not isinstance(held, dict) or not fits(held):
        raise InputError(f"{given} is {kind_of_file(path, held)}; give {wanted}")
    return held


def read_subsets(given: str, store: Callable[[], Store]) -> list[Subset]:
    """The subset of a file of `--subset`; or those of a stored selection, its headline first.

    Raises:
        InputError: As `_read`.
        FileFormatError: If the file is damaged or incomplete.
    """
    held = _read(
        given,
        store,
        # Another version of the file is answered by what reads it.
        lambda held: "selections" in held or str(held.get("schema")).startswith("assay-selection/"),
        "the file of --subset, subset.json, or the id of a stored selection",
    )
    subsets = [read_subset(each, given) for each in held.get("selections") or [held]]
    return sorted(subsets, key=lambda each: each.size != held["size"])


def read_selection(given: str, store: Callable[[], Store]) -> Mapping[str, Any]:
    """The document of a selection, from the file of `--save` or a store.

    Raises:
        InputError: As `_read`; a file of `--subset` does not hold what a card says.
        FileFormatError: If the file is damaged.
    """
    return _read(
        given,
        store,
        lambda held: held.get("schema") in DOCUMENTS,
        "the file of --save, selection.json, or the id of a stored selection",
    )


def evaluate_models(
    subsets: Sequence[Subset],
    data: CorrectnessData,
    gates: Mapping[str, SubsetGate] | None = None,
    *,
    order: str | None = None,
) -> dict[str, Any]:
    """`evaluation_document`, with what gates say of each model; not corrected for the number of models.

    Raises:
        InputError: As `evaluation_document`; for a gate on what is not known of any model.
    """
    document, gates = evaluation_document(subsets, data, order=order), gates or {}
    for text, gate in gates.items():
        _check_known(text, gate, document["models"], subsets[0])
    for model in document["models"]:
        model["gates"] = {text: _judged(gate, model[gate.reading]) for text, gate in gates.items()}
    found = {status for model in document["models"] for status in model["gates"].values()}
    provenance = {
        "library": library_version(),
        "subsets": [each.id for each in subsets],
        "data": data.hash,
        "models": list(data.model_ids),
        "gates": list(gates),
        "order": order,
    }
    return document | {
        "gates": list(gates),
        "status": next((each for each in ("fail", "inconclusive", "pass") if each in found), ""),
        "provenance": provenance,
        "id": record_id(KIND, provenance),
    }


def _check_known(text: str, gate: SubsetGate, models: Sequence[Mapping[str, Any]], subset: Subset) -> None:
    """Raises `InputError` for a gate that could say nothing of any model, ever."""
    ends = (gate.part,) if gate.part else ENDS[1:]
    found = [model[gate.reading] for model in models]
    if any(each is not None and any(each[end] is not None for end in ends) for each in found):
        return
    if not subset.lines:
        why = "the file of the subset holds no lines; select again"
    elif all(model["id_accuracy"] is None for model in models):
        why = "the models have no accuracies in distribution; give them (--id-accuracy)"
    elif any(found):
        why = (
            "the line of the selection's test models has no such number, because they are of fewer than "
            "three units or do not differ; select with more"
        )
    else:
        why = (
            "no accuracy is expected on all examples, because those given are not the "
            f"{subset.facts['n_examples']} that the subset was selected from; give these, or another gate"
        )
    raise InputError(f"the gate {text!r} cannot be judged for any model: {why}")


def _judged(gate: SubsetGate, reading: Mapping[str, float | None] | None) -> str:
    found = {end: math.nan if each is None else each for end, each in (reading or {}).items()}
    value, low, high = (found.get(end, math.nan) for end in ENDS)
    if gate.part:
        return gate.rule.published({"value": value, "low": low, "high": high}[gate.part])
    return gate.rule.rigorous(Interval(low=low, high=high, level=LEVEL, method=gate.reading))

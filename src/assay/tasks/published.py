"""Rows of the data sets of MIB: a prompt, its answer, and counterfactual prompts by name."""

from collections.abc import Mapping
from typing import Any

from assay.core.errors import FileFormatError, unknown_name
from assay.tasks.grammar import Prompt


# What the circuit track of MIB corrupts with, where a row has it.
USUAL = ("s2_io_flip", "symbol", "random")

_SUFFIX = "_counterfactual"
_ROW = (
    '{"prompt": "...", "choices": [" ..."] or {"label": ["A"], ...}, "answerKey": 0, '
    '"NAME_counterfactual": {"prompt": "...", ...}}, with "label" instead of choices for numbers'
)


def is_published(record: Mapping[str, Any]) -> bool:
    """Whether a row has the form of MIB."""
    return "prompt" in record and "clean" not in record


def published_pair(
    record: Mapping[str, Any],
    where: str,
    *,
    corruption: str | None = None,
    leading_space: bool | None = None,
) -> tuple[Prompt, Prompt] | None:
    """Clean and corrupted prompt of one row.

    The answer is as MIB's circuit track scores it: of a list of `choices` the one that `answerKey` names,
    against the other ones; of labelled `choices` the label, and without choices the row's `label`, against
    those of the counterfactual.

    Args:
        record: The row: `prompt`, its answer, and counterfactuals of the same form, each as
            `NAME_counterfactual` (or one as `counterfactual`).
        where: The row, for messages.
        corruption: NAME of the counterfactual. Default: MIB's choice (`s2_io_flip`, `symbol`, `random`), or
            the only one there is.
        leading_space: Whether answers begin with a space. Default: as MIB does, those of a list of choices
            only.

    Returns:
        The two prompts; None if the row has no such counterfactual but others of the file may have it.

    Raises:
        FileFormatError: If the row has another form.
        UnknownNameError: If it has no counterfactual of this name.

    References:
        Mueller et al. (2025), arXiv:2504.13151.
    """
    found = {
        "" if key == "counterfactual" else key.removesuffix(_SUFFIX): value
        for key, value in record.items()
        if key == "counterfactual" or key.endswith(_SUFFIX)
    }
    if not found:
        raise FileFormatError(f"{where}: no counterfactual; expected {_ROW}")
    name = corruption
    if name is None:
        names = [each for each in USUAL if each in found] or list(found)
        if len(names) > 1 and names[0] not in USUAL:
            raise FileFormatError(
                f"{where}: there are {len(names)} counterfactuals; choose one with corruption=, e.g. "
                f"corruption={names[0]!r} ({', '.join(names)})"
            )
        name = names[0]
    elif name.removesuffix(_SUFFIX) not in found:
        raise unknown_name(f"counterfactual of {where}", name, filter(None, found))
    other = found[name.removesuffix(_SUFFIX)]
    if other is None or (isinstance(other, Mapping) and other.get("prompt") is None):
        return None
    if not isinstance(other, Mapping):
        raise FileFormatError(f"{where}: the counterfactual is {other!r}; expected {_ROW}")
    prompts = [each.get("prompt") for each in (record, other)]
    for prompt in prompts:
        if not isinstance(prompt, str) or not prompt:
            raise FileFormatError(f"{where}: 'prompt' is {prompt!r}; expected text")
    answer, others = _answer(record, where)
    listed = isinstance(record.get("choices"), list)
    wrong = others if listed else (_answer(other, f"{where}, counterfactual {name!r}")[0],)
    space = " " if (listed if leading_space is None else leading_space) else ""
    clean = Prompt(
        text=str(prompts[0]),
        answers=(space + answer.lstrip(" "),),
        wrong=tuple(space + each.lstrip(" ") for each in wrong),
        fields=_fields(record),
    )
    return clean, Prompt(text=str(prompts[1]), fields=_fields(other))


def _answer(record: Mapping[str, Any], where: str) -> tuple[str, tuple[str, ...]]:
    """The right answer of a prompt, and the other choices."""
    choices, key = record.get("choices"), record.get("answerKey")
    if choices is None:
        if not isinstance(record.get("label"), str | int):
            raise FileFormatError(f"{where}: neither choices nor a label; expected {_ROW}")
        return str(record["label"]), ()
    texts = choices.get("label") if isinstance(choices, Mapping) else choices
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise FileFormatError(f"{where}: 'choices' is {choices!r}; expected {_ROW}")
    if isinstance(key, str):
        places = [*texts, *map(str, range(len(texts)))]
        key = places.index(key) % len(texts) if key in places else None
    if type(key) is not int or not 0 <= key < len(texts):
        raise FileFormatError(
            f"{where}: 'answerKey' is {record.get('answerKey')!r}; expected 0 to {len(texts) - 1} or one of "
            f"{', '.join(texts)}"
        )
    return texts[key], (*texts[:key], *texts[key + 1 :])


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Facts about a prompt: its plain values, and those of its metadata."""
    metadata = record.get("metadata")
    facts = {**record, **metadata} if isinstance(metadata, Mapping) else record
    return {
        name: value
        for name, value in facts.items()
        if name != "prompt" and isinstance(value, str | int | float | bool)
    }

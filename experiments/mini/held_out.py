"""Which prompts of the six grammars `mini` never saw in training."""

import zlib
from collections.abc import Callable, Iterable
from typing import Any

from assay.tasks import Prompt


def is_held_out(task: str, prompt: Prompt) -> bool:
    """Whether a prompt is kept for evaluation: a seeded share of what the grammar combines.

    IOI: a tenth of the name pairs, in either role. Greater-than: a tenth of noun and year. Docstring: a
    tenth of the argument triples. Induction: a tenth of the sequences. Agreement: a tenth of noun,
    preposition and noun. Pronoun: a third of the names, each in one of the two templates in which it
    stands inside the sentence (at its beginning it is another token).
    """
    values, fields = prompt.values, prompt.fields
    if task == "gendered-pronoun":
        code = zlib.crc32(values["name"].encode())
        return code % 3 == 0 and values["template_id"] == 2 * (code // 3 % 2)
    parts: dict[str, Callable[[], Iterable[Any]]] = {
        "ioi": lambda: sorted((values["IO"], values["S"])),
        "greater-than": lambda: (values["noun"], values["century"], values["yy"]),
        "docstring": lambda: values["M"],
        "induction": lambda: values["first"],
        "sva": lambda: (fields["noun1"], fields["prep"], fields["noun2"]),
    }
    return zlib.crc32("|".join(map(str, (task, *parts[task]()))).encode()) % 10 == 0

"""A claim as a mapping, for tests to change one place of."""

import copy
from collections.abc import Mapping
from typing import Any


CONTENT: Mapping[str, Any] = {
    "schema": "assay-claim/1",
    "claim": {
        "name": "movers",
        "statement": "They move the name.",
        "model": "mini",
        "task": "ioi",
        "n": 24,
        "seed": 3,
    },
    "heads": {"movers": ["a3.h4", [3, 6]], "brakes": {"heads": ["a1.h4"], "sign": -1}},
    "predicts": [
        {"what": "dropping", "of": "movers", "lowers_by_at_least": 0.3},
        {"what": "dropping", "of": "circuit", "lowers_by_at_least": 0.2},
        {"what": "dropping", "of": "each head", "lowers_by_at_least": 0},
        {"what": "dropping", "of": "movers", "on": "gendered_pronoun", "changes_at_most": 0.3},
    ],
    "controls": [
        {"of": "movers", "heads": "layer-matched", "draws": 2},
        {"of": "movers", "heads": ["a2.h0", "a2.h1"]},
    ],
    "rivals": [{"heads": "magnitude"}, {"name": "others", "heads": ["a2.h0", "a2.h1", "a2.h2"]}],
}


def changed(*path: str | int, to: Any = None, without: bool = False) -> dict[str, Any]:
    """The content with one place set to a value, or left out."""
    content = copy.deepcopy(dict(CONTENT))
    place: Any = content
    for step in path[:-1]:
        place = place[step]
    if without:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return content

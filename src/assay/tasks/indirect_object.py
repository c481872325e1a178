"""Indirect-object identification: two names, and the one that is not repeated."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import final

import numpy as np

from assay.core.errors import check_name
from assay.tasks.grammar import (
    TASKS,
    Grammar,
    Prompt,
    Values,
    chosen_templates,
    fill,
    one_token_words,
    pick,
    pick_distinct,
    slot_names,
    task_data,
)
from assay.tasks.tokens import Tokens


@TASKS.register("ioi")
@final
class IndirectObject(Grammar):
    """Indirect object identification: "When Mary and John went out, John gave a ring to" " Mary".

    Two distinct names, a place and an object, each uniform; the answer is the name that stands once.

    Args:
        tokens: The model's tokenizer.
        corruption: `abc` (three distinct names drawn anew), `legacy_flip`, `s2_rand`, `s2_io_flip`,
            `s1_io_flip`.
        template_ids: Templates out of the data file (0-14 base, 15-19 extra), drawn uniformly.
        templates: Own templates with the slots name1, name2, name3 and, if wanted, place and object;
            they take the place of `template_ids`.
        orders: `ABBA` (the answer stands first) and `BABA`, drawn uniformly.
        names: Names to draw from.
        places: Places to draw from.
        objects: Objects to draw from.
        avoid_clean_names: `abc` only: the three names differ from those of the clean prompt.

    Notes:
        `legacy_flip` does not force the three names apart; it is kept for comparison with results that
        used it.

    References:
        Wang et al. (2022), arXiv:2211.00593. Conmy et al. (2023), arXiv:2304.14997.
    """

    key = "ioi"
    corruptions = ("abc", "legacy_flip", "s2_rand", "s2_io_flip", "s1_io_flip")
    metadata_fields = (
        *("template_id", "order", "name1", "name2", "name3", "IO", "S", "place", "object"),
        *("answer", "wrong_answer", "n_tokens"),
    )
    heatmap_fields = (("place", "object"), ("object", "corrupted.object"), ("place", "corrupted.place"))

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        template_ids: Sequence[int] = (0,),
        templates: Sequence[str] | None = None,
        orders: Sequence[str] = ("ABBA",),
        names: Sequence[str] | None = None,
        places: Sequence[str] | None = None,
        objects: Sequence[str] | None = None,
        avoid_clean_names: bool = False,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data(self.key)
        self.templates = chosen_templates(
            self.key,
            {entry["id"]: entry["text"] for entry in data["templates"]},
            template_ids,
            templates,
            needs=_NAME_SLOTS,
            allows=("place", "object"),
        )
        for order in orders or ("",):
            check_name("IOI order", order, _ORDERS)
        self.orders = tuple(orders)
        self.avoid_clean_names = avoid_clean_names
        self.names = self._words("names", names, at_least=5 if avoid_clean_names else 3)
        self.places = self._words("places", places)
        self.objects = self._words("objects", objects)

    def _words(self, kind: str, own: Sequence[str] | None, at_least: int | None = None) -> tuple[str, ...]:
        words = task_data(self.key)[kind] if own is None else own
        return one_token_words(
            self.tokens,
            words,
            task=self.key,
            kind=kind,
            after="the",
            at_least=at_least,
            answers=kind == "names",
        )

    def choose(self, rng: np.random.Generator) -> Values:
        template_id, order = pick(rng, tuple(self.templates)), pick(rng, self.orders)
        io, subject = pick_distinct(rng, self.names, 2)
        return self._values(template_id, order, io, subject, pick(rng, self.places), pick(rng, self.objects))

    def _values(
        self, template_id: int, order: str, io: str, subject: str, place: str | None, thing: str | None
    ) -> Values:
        used = slot_names(self.templates[template_id])
        role = {"A": io, "B": subject}
        return {
            "template_id": template_id,
            "order": order,
            **{slot: role[letter] for slot, letter in zip(_NAME_SLOTS, _ORDERS[order], strict=True)},
            "IO": io,
            "S": subject,
            "place": place if "place" in used else None,
            "object": thing if "object" in used else None,
        }

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        if self.corruption == "abc":
            return _renamed(values, tuple(pick_distinct(rng, self._abc_names(values), 3)))
        if self.corruption == "legacy_flip":
            other, third, second = (
                pick(rng, self._others(values)),
                pick(rng, self.names),
                pick(rng, self.names),
            )
            return _renamed(values, _legacy_flip(values["order"], other, third, second))
        if self.corruption == "s2_rand":
            return _renamed(values, (values["name1"], values["name2"], pick(rng, self._others(values))))
        return _renamed(values, _flip(self.corruption, values))

    def _abc_names(self, values: Values) -> tuple[str, ...]:
        return self._others(values) if self.avoid_clean_names else self.names

    def _others(self, values: Values) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in (values["IO"], values["S"]))

    def render(self, values: Values) -> Prompt:
        text, slots = fill(self.templates[values["template_id"]], values)
        answer, wrong = " " + values["IO"], " " + values["S"]
        return Prompt(
            text=text,
            slots=slots,
            values=values,
            answers=(answer,),
            wrong=(wrong,),
            fields={**values, "answer": answer, "wrong_answer": wrong},
        )

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        roles = not corrupted or self.corruption in ("s2_io_flip", "s1_io_flip")
        scene = tuple(slot for slot in ("place", "object") if values[slot] is not None)
        orders = ("order",) if roles and len(self.orders) > 1 else ()
        return (*(("IO", "S") if roles else _NAME_SLOTS), *scene, *orders)

    def _varied(self, values: Values, slot: str, *, corrupted: bool) -> Iterator[Values]:
        if slot in ("place", "object"):
            words = self.places if slot == "place" else self.objects
            yield from ({**values, slot: word} for word in words if word != values[slot])
        elif slot == "order":
            other = "BABA" if values["order"] == "ABBA" else "ABBA"
            yield self._in_roles(values, order=other)
        elif slot in ("IO", "S"):
            for name in self._others(values):
                yield self._in_roles(values, **{slot: name})
        else:
            for name in self.names:
                names = tuple(name if each == slot else values[each] for each in _NAME_SLOTS)
                if name != values[slot] and self._can_be_corrupted(names):
                    yield _renamed(values, names)

    def _in_roles(self, values: Values, **changed: str) -> Values:
        """The same scene with other names in the roles, or with the roles in another order."""
        given = {**values, **changed}
        role = {"A": given["IO"], "B": given["S"]}
        return _renamed(values, tuple(role[letter] for letter in _ORDERS[given["order"]]))

    def _can_be_corrupted(self, names: tuple[str, ...]) -> bool:
        """Whether some clean prompt can get these three names."""
        name1, name2, name3 = names
        if self.corruption == "legacy_flip":
            return "BABA" in self.orders or name1 != name3 or name2 == name3
        return len(set(names)) == 3

    @property
    def population(self) -> int:
        n = len(self.names)
        return len(self.orders) * n * (n - 1) * self._scenes()

    @property
    def corrupted_population(self) -> int | None:
        n = len(self.names)
        return n * (n - 1) * (n - 2) * self._scenes() if self.corruption == "abc" else None

    def _scenes(self) -> int:
        """Distinct templates with place and object filled in."""
        return sum(len(list(self._fillings(template_id))) for template_id in self.templates)

    def _fillings(self, template_id: int) -> Iterator[tuple[str | None, str | None]]:
        used = slot_names(self.templates[template_id])
        return product(
            self.places if "place" in used else (None,), self.objects if "object" in used else (None,)
        )

    def support(self) -> Iterator[tuple[Values, float]]:
        n = len(self.names)
        for template_id in self.templates:
            fillings = list(self._fillings(template_id))
            weight = 1 / (len(self.templates) * len(self.orders) * n * (n - 1) * len(fillings))
            for order, (io, subject), filling in product(self.orders, permutations(self.names, 2), fillings):
                yield self._values(template_id, order, io, subject, *filling), weight

    def corrupted_support(self, values: Values) -> Iterator[tuple[Values, float]]:
        for names, share in self._corrupted_names(values):
            yield _renamed(values, names), share

    def _corrupted_names(self, values: Values) -> Iterator[tuple[tuple[str, ...], float]]:
        others, n = self._others(values), len(self.names)
        if self.corruption == "abc":
            pool = self._abc_names(values)
            share = 1 / (len(pool) * (len(pool) - 1) * (len(pool) - 2))
            yield from ((names, share) for names in permutations(pool, 3))
        elif self.corruption == "legacy_flip":
            counts = Counter(
                _legacy_flip(values["order"], *drawn) for drawn in product(others, self.names, self.names)
            )
            yield from ((names, count / (len(others) * n * n)) for names, count in counts.items())
        elif self.corruption == "s2_rand":
            yield from (((values["name1"], values["name2"], name), 1 / len(others)) for name in others)
        else:
            yield _flip(self.corruption, values), 1.0


_NAME_SLOTS = ("name1", "name2", "name3")


_ORDERS = {"ABBA": "ABB", "BABA": "BAB"}  # role of each name slot; A is the answer


def _legacy_flip(order: str, other: str, third: str, second: str) -> tuple[str, ...]:
    """Names of ACDC's corruption: `other` is neither clean name, `third` and `second` may be any."""
    if order == "BABA":
        return second, other, third
    return (second, third, third) if third == other else (other, second, third)


def _flip(corruption: str, values: Values) -> tuple[str, ...]:
    if corruption == "s2_io_flip":
        return values["name1"], values["name2"], values["IO"]
    return values["name2"], values["name1"], values["name3"]


def _renamed(values: Values, names: tuple[str, ...]) -> Values:
    """The same scene with other names; order and roles are read off the names (ABC: no name twice)."""
    name1, name2, name3 = names
    if name3 == name1 != name2:
        order, io, subject = "BABA", name2, name1
    elif name3 == name2 != name1:
        order, io, subject = "ABBA", name1, name2
    else:
        order, io, subject = "ABC", name1, name2
    return {**values, "name1": name1, "name2": name2, "name3": name3, "order": order, "IO": io, "S": subject}

"""Capitals of countries."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import final

import numpy as np

from assay.tasks.grammar import (
    TASKS,
    Grammar,
    Prompt,
    Values,
    before_slot,
    chosen_templates,
    fill,
    pick,
    task_data,
    usable,
)
from assay.tasks.tokens import Tokens


@TASKS.register("capital-country")
@final
class CapitalCountry(Grammar):
    """Capital of a country: "The capital of France is the city of" is continued by " Paris".

    Template and country are uniform. The wrong answer is the capital of the corrupted prompt's country.

    Args:
        tokens: The model's tokenizer.
        corruption: `other_country`: another country, uniformly drawn.
        template_ids: Templates out of the data file, drawn uniformly.
        templates: Own templates with the slot country; they take the place of `template_ids`.
        capitals: Country to capital.
    """

    key = "capital-country"
    corruptions = ("other_country",)
    contrasts = True
    metadata_fields = ("country", "capital", "template_id", "n_tokens")
    heatmap_fields = (("country", "template_id"), ("country", "corrupted.country"))

    def __init__(
        self,
        tokens: Tokens,
        *,
        corruption: str | None = None,
        template_ids: Sequence[int] = (0,),
        templates: Sequence[str] | None = None,
        capitals: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(tokens, corruption=corruption)
        data = task_data("other_tasks")["capital_country"]
        known = dict(enumerate(data["templates"]))
        self.templates = chosen_templates(self.key, known, template_ids, templates, needs=("country",))
        given = data["pairs_single_token_gpt2"] if capitals is None else capitals
        keep = [self._is_usable(country, capital) for country, capital in given.items()]
        rule = "country and capital one token each where the templates put them"
        kept = usable(tuple(given), keep, task=self.key, kind="countries", rule=rule)
        self.scored = {country: self._tokens_of(country, given[country]) for country in kept}
        keep = [bool(self._others({"country": country})) for country in kept]
        rule = "another capital has as many tokens"
        kept = usable(kept, keep, task=self.key, kind="countries", rule=rule)
        self.capitals = {country: given[country] for country in kept}

    def _is_usable(self, country: str, capital: str) -> bool:
        return all(
            self.tokens.one_token(context, space + country) is not None
            for template in self.templates.values()
            for context, space in (before_slot(template, "country"),)
        ) and None not in self._tokens_of(country, capital)

    def _tokens_of(self, country: str, capital: str) -> tuple[tuple[int, ...] | None, ...]:
        """The ids by which a capital is scored, for each template."""
        return tuple(
            self.tokens.scored_by(template.format(country=country), " " + capital)
            for template in self.templates.values()
        )

    def choose(self, rng: np.random.Generator) -> Values:
        return {
            "template_id": pick(rng, tuple(self.templates)),
            "country": pick(rng, tuple(self.capitals)),
        }

    def corrupted(self, values: Values, rng: np.random.Generator) -> Values:
        return {**values, "country": pick(rng, self._others(values))}

    def _others(self, values: Values) -> list[str]:
        """The countries whose capital is scored by other tokens, as many."""
        own = self.scored[values["country"]]
        counts = [len(ids or ()) for ids in own]
        return [
            country
            for country, scored in self.scored.items()
            if scored != own and [len(ids or ()) for ids in scored] == counts
        ]

    def render(self, values: Values) -> Prompt:
        text, slots = fill(self.templates[values["template_id"]], values)
        capital = self.capitals[values["country"]]
        return Prompt(
            text=text,
            slots=slots,
            values=values,
            answers=(" " + capital,),
            fields={**values, "capital": capital},
        )

    def slots(self, values: Values, *, corrupted: bool = False) -> tuple[str, ...]:
        return ("country",)

    def _varied(self, values: Values, slot: str, *, corrupted: bool) -> Iterator[Values]:
        yield from ({**values, "country": country} for country in self._others(values))

    @property
    def population(self) -> int:
        return len(self.templates) * len(self.capitals)

    @property
    def corrupted_population(self) -> int:
        return self.population

    def support(self) -> Iterator[tuple[Values, float]]:
        for template_id, country in product(self.templates, self.capitals):
            yield {"template_id": template_id, "country": country}, 1 / self.population

    def corrupted_support(self, values: Values) -> Iterator[tuple[Values, float]]:
        others = self._others(values)
        yield from (({**values, "country": country}, 1 / len(others)) for country in others)

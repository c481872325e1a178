"""From the zoo of a plan to the jobs that train it."""

from collections.abc import Iterator
from typing import Any

from assay.core.record import library_version
from assay.pipeline.jobs import Job
from assay.pipeline.plan import Plan, ZooChoice
from assay.pipeline.zoo_training import zoo_plan


def training_jobs(plan: Plan, zoo: ZooChoice, device: str | None) -> Iterator[Job]:
    """The training of each model of a zoo, and the list of all.

    Args:
        plan: Says where paths start, and the seed.
        zoo: Its zoo.
        device: Where models train.
    """
    options: dict[str, Any] = {
        **zoo.model_dump(),
        "grid": plan.locate(zoo.grid),
        "images": plan.locate(zoo.images),
        "seed": plan.seeds[0],
        "device": device,
    }
    found, source = zoo_plan(**options), {"zoo": options}
    records = {
        recipe: {"library": library_version(), **found.record(recipe)} for recipe in found.grid.recipes()
    }
    name = found.grid.name
    first = Job(
        name=f"enrol {name}",
        kind="enrol",
        record={"library": library_version(), "models": list(records.values())},
        source=source,
    )
    parts = [
        Job(
            name=f"train {recipe.key}",
            kind="train",
            record=record,
            source=source,
            needs=(first.id,),
        )
        for recipe, record in records.items()
    ]
    yield from (first, *parts)
    yield Job(
        name=f"zoo {name}",
        kind="zoo",
        record={"library": library_version(), "models": [part.id for part in parts]},
        source=source,
        needs=tuple(part.id for part in parts),
    )

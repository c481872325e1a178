"""One job dealt to several gives the bytes of the job in one piece."""

from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import FileFormatError, InputError
from assay.pipeline.expand import expand
from assay.pipeline.jobs import Job, run_job
from assay.pipeline.plan import Plan
from assay.pipeline.plan_file import parse_plan
from assay.pipeline.shards import dealt
from assay.store import Store


BASE: dict[str, Any] = {
    "name": "shards",
    "n": 20,
    "models": ["mini"],
    "tasks": ["ioi"],
    "methods": ["eap"],
    "sizes": [60],
    "limits": {"batch-size": 6},
}


def plan_of(**changes: Any) -> Plan:
    return parse_plan({**BASE, **changes})


def run_all(jobs: tuple[Job, ...], folder: Path) -> Store:
    store = Store(folder)
    for job in jobs:
        run_job(job, store)
    return store


def digests(store: Store) -> dict[str, str]:
    """Of what whole jobs make; the rows of jobs and of parts differ by design."""
    return {kind: store.digest([kind]) for kind in ("scores", "circuit", "worst_case", "measurement")}


@pytest.mark.parametrize(
    ("method", "ablation"),
    [
        ("eap", "resample"),
        ("eap-ig-inputs", "mean"),
        ("eap-ig-activations", "resample"),
        ("exact", "zero"),
        ("relp", "resample"),
        ("random", "resample"),
    ],
)
def test_batches_dealt_to_jobs_give_the_scores_of_one_job(tmp_path: Path, method: str, ablation: str) -> None:
    changes: dict[str, Any] = {"methods": [method], "ablation": ablation, "n": 8, "limits": {"batch-size": 3}}
    if method == "exact":
        changes |= {"models": ["planted:induction/gpt2/bare"], "tasks": ["planted"], "sizes": [40]}
    if method == "random":
        changes["sizes"] = [600]  # 60 random edges of 1,519 lie on no path from input to logits
    one = expand(plan_of(**changes))
    several = expand(plan_of(**changes, shards={"discover": 2}))
    assert [job.kind for job in one] == ["discover", "select"]
    assert [job.kind for job in several] == ["discover-part", "discover-part", "discover", "select"]
    stores = run_all(one, tmp_path / "one"), run_all(several, tmp_path / "several")
    assert digests(stores[0]) == digests(stores[1])
    assert [store.count("scores") for store in stores] == [1, 1]
    assert stores[1].count("scores-part") == 3


@pytest.mark.parametrize(
    "attack", [{"n-clean": 130, "n-corrupted": 9}, {"protocol": "matched", "n-pairs": 40}]
)
def test_pairs_dealt_to_jobs_give_the_worst_case_of_one_job(tmp_path: Path, attack: dict[str, Any]) -> None:
    one = expand(plan_of(attack=attack))
    several = expand(plan_of(attack={**attack, "shards": 3}))
    stores = run_all(one, tmp_path / "one"), run_all(several, tmp_path / "several")
    assert digests(stores[0]) == digests(stores[1])
    (found,) = stores[1].find("worst_case")
    (other,) = stores[0].find("worst_case")
    assert bool((found.arrays["divergence"] == other.arrays["divergence"]).all())


def test_a_shard_that_ran_before_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = expand(plan_of(shards={"discover": 2}))
    store = Store(tmp_path)
    run_job(jobs[0], store)
    from assay.discovery.edges.eap_ig import Eap

    def broken(*arguments: object) -> None:
        raise AssertionError("ran again")

    monkeypatch.setattr(Eap, "score", broken)
    run_job(jobs[0], store)
    with pytest.raises(AssertionError, match="ran again"):
        run_job(jobs[1], store)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    jobs = expand(plan_of(shards={"discover": 2}))
    store = Store(tmp_path)
    run_job(jobs[0], store)
    whole = next(job for job in jobs if job.kind == "discover")
    with pytest.raises(FileFormatError, match="batch 1 of scores [0-9a-f]{16} is missing"):
        run_job(whole, store)
    assert not store.has(whole.id)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["acdc"]}, "'acdc' decides on all examples together"),
        ({"methods": ["ifr"]}, "'ifr' decides on all examples together"),
        (
            {"methods": [{"method": "eap-ig-inputs", "steps": "auto"}]},
            "steps = 'auto' needs all of them",
        ),
    ],
)
def test_what_cannot_be_dealt_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        expand(plan_of(shards={"discover": 2}, **changes))


def test_no_more_shards_than_batches() -> None:
    jobs = expand(plan_of(shards={"discover": 50}))
    assert sum(job.kind == "discover-part" for job in jobs) == 4  # 20 examples, 6 at a time


def test_parts_are_numbered_from_zero() -> None:
    assert dealt([1, 3]) == (1, 3)
    with pytest.raises(InputError, match="part 3 of 3; parts are numbered from 0 to 2"):
        dealt([3, 3])

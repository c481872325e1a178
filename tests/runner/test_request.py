"""An audit asked for again is found without its model; whatever can change it is computed anew."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Outcome, invoke
from small_runs import write_prompts

import assay.models
from assay.models.loading import MINI


Loads = Callable[..., tuple[Outcome, int]]


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loads:
    """`assay audit` of a copied model on a file, with the number of models loaded for it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(MINI, "model")
    write_prompts(Path("own.jsonl"), 12)
    names: list[object] = []
    load = assay.models.load_model
    monkeypatch.setattr(
        assay.models, "load_model", lambda name, **more: names.append(name) or load(name, **more)
    )

    def call(*more: str) -> tuple[Outcome, int]:
        names.clear()
        options = ("--model", "model", "--task", "own.jsonl", "--n", "20", "--steps", "1", "--n-random", "1")
        skipped = "attack,random,curve,calibrate"
        outcome = invoke("audit", *options, "--skip", skipped, "--out", "out", *more)
        assert outcome.exit_code == 0, outcome.stderr
        return outcome, len(names)

    return call


def test_the_same_request_loads_no_model_and_says_and_writes_the_same(loads: Loads) -> None:
    first, n_first = loads()
    files = [Path("out") / name for name in ("audit.json", "report.html")]
    written = [path.read_bytes() for path in files]
    files[0].write_text("changed")
    files[1].unlink()
    again, n_again = loads("--batch-size", "2")
    assert (n_first, n_again) == (1, 0)
    assert again.stdout.replace(" (taken from the store)", "") == first.stdout
    assert [path.read_bytes() for path in files] == written


def test_whatever_can_change_an_audit_is_computed_anew(loads: Loads) -> None:
    loads()
    model, task = Path("model/config.json"), Path("own.jsonl")
    model.write_text(json.dumps(json.loads(model.read_text())))
    assert loads()[1] == 1, "a file of the model"
    task.write_text("".join(task.read_text().splitlines(keepends=True)[1:]))
    assert loads()[1] == 1, "the file of the task"
    outcome, count = loads("--target", "0.8")
    assert count == 1, "an option"
    identity = outcome.stdout.split()[-1]
    assert invoke("store", "rm", identity, "--store", "out", "--yes").exit_code == 0
    outcome, count = loads("--target", "0.8")
    assert (count, outcome.stdout.split()[-1]) == (1, identity), "the audit was removed"


@pytest.mark.parametrize("option", [("--chat",), ("--images", "shapes:flat")])
def test_what_only_loading_tells_is_not_found_by_its_name(option: tuple[str, ...]) -> None:
    from assay.app.cli.audit import AuditSettings
    from assay.pipeline.request import request_of

    options = vars(AuditSettings())
    assert request_of(options, None) is not None
    name = option[0].removeprefix("--")
    assert request_of(options | {name: option[1:] or True}, None) is None

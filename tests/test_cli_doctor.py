"""`assay doctor`: what it names is what is installed, and its test of the engine can fail."""

import json
import sys

import pytest
import torch
from command_line import invoke

import assay
from assay.app.cli import doctor
from assay.app.cli.doctor import GAP, LOGITS, engine_checks
from assay.core.extras import EXTRAS, install_command
from assay.core.machine import usable_cores
from assay.execution import runner


def test_the_document_says_what_is_installed() -> None:
    done = invoke("doctor", "--json", "--quiet")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "assay-doctor/1"
    assert document["ok"] is True
    versions = document["versions"]
    assert (versions["circuit-assay"], versions["torch"]) == (assay.__version__, torch.__version__)
    assert versions["python"] == sys.version.split()[0]
    assert document["machine"]["cores"] == usable_cores()
    assert document["machine"]["free_memory"] > 0
    assert set(document["extras"]) == set(EXTRAS)
    for extra, facts in document["extras"].items():
        assert facts["installed"] is all(facts["packages"].values())
        assert facts["command"] == install_command(extra)
    assert [each["limit"] for each in document["checks"]] == [LOGITS, LOGITS, GAP]


def test_a_missing_extra_has_its_command_and_an_engine_that_is_wrong_has_code_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = {"name": "a check", "value": float("nan"), "limit": 1.0, "ok": False}
    monkeypatch.setattr(doctor, "engine_checks", lambda: [wrong])
    monkeypatch.setitem(EXTRAS, "ray", ("a-package-that-nobody-has",))
    done = invoke("doctor")
    assert done.exit_code == 1
    assert "pip install 'circuit-assay[ray]'" in done.stdout
    assert done.stdout.strip().endswith("The engine is wrong here. Please report this.")
    assert json.loads(invoke("doctor", "--json").stdout)["checks"][0]["value"] is None


def test_a_wrong_engine_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = runner.CircuitRunner.logits

    def slightly_wrong(self: runner.CircuitRunner, *arguments: object, **more: object) -> torch.Tensor:
        return right(self, *arguments, **more) * 1.001  # type: ignore[arg-type]

    monkeypatch.setattr(runner.CircuitRunner, "logits", slightly_wrong)
    full, two_ways, gap = engine_checks()  # nothing is cut from the full circuit, so no runner runs it
    assert (full["ok"], two_ways["ok"], gap["ok"]) == (True, False, True)

"""`assay serve` as a process: it says where it is, answers, and ends at Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from command_line import invoke
from thorough import one_of

from assay.store import Store


@pytest.mark.parametrize("ending", one_of([signal.SIGINT, signal.SIGTERM]))
def test_serve_answers_until_it_is_told_to_stop(tmp_path: Path, ending: signal.Signals) -> None:
    store = Store(tmp_path / "store")
    store.put("measurement", {"metric": "kl"}, {"value": 0.25})
    options = ["--store", str(tmp_path / "store"), "--port", "0"]
    command = [sys.executable, "-m", "assay.app.cli", "serve", *options]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ASSAY_")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert address is not None, said + process.stderr.read()
        with urllib.request.urlopen(address[0], timeout=30) as answer:
            assert b"1 result" in answer.read()
        process.send_signal(ending)
        rest = process.stderr.read()
        assert process.wait(30) == 0
        assert "Traceback" not in rest


def test_a_public_address_without_a_token_is_wrong_usage(tmp_path: Path) -> None:
    Store(tmp_path / "store")
    found = invoke("serve", "--store", str(tmp_path / "store"), "--host", "0.0.0.0")
    assert found.exit_code == 2
    assert "others can reach the store on" in found.stderr


def test_a_missing_store_is_an_error(tmp_path: Path) -> None:
    found = invoke("serve", "--store", str(tmp_path / "none"))
    assert found.exit_code == 2
    assert "nothing was stored there yet" in found.stderr

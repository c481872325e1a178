"""Circuits loaded from a hub on loopback, by the hub's own client in its own process."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from circuit_hub import CircuitHub, Repository, serving_hub

import assay
from assay.circuits import Circuit
from assay.circuits.hub_file import MOST_BYTES, HubFile
from assay.core.errors import InputError


PYTHON = """
import json, sys
import assay
answers = {}
for key, address in json.load(sys.stdin).items():
    try:
        circuit = assay.load_circuit(address)
        answers[key] = {"hash": circuit.hash, "provenance": dict(circuit.provenance)}
    except Exception as error:
        answers[key] = {"error": type(error).__name__, "message": str(error)}
print(json.dumps(answers))
"""


def environment(hub: str, cache: Path, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    there = {"HF_HOME": str(cache), "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    found = os.pathsep.join(sys.path)
    return {**kept, "no_proxy": "*", "NO_PROXY": "*", **there, "PYTHONPATH": found, **more}


def load_there(place: dict[str, str], **addresses: str) -> dict[str, Any]:
    """What loading each address gives or says, in a process with that environment."""
    done = subprocess.run(
        [sys.executable, "-c", PYTHON],
        input=json.dumps(addresses), env=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = assay.load_model("mini")
    scores = assay.discover(model, assay.load_task("ioi", model, n=8, seed=0), "eap")
    return scores.top(30).connected().save(tmp_path_factory.mktemp("circuit") / "found.safetensors")


@pytest.fixture(scope="module")
def hub(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CircuitHub]:
    content, empty = file.read_bytes(), tmp_path_factory.mktemp("empty") / "none.safetensors"
    Circuit.empty(assay.load_circuit(file).graph).save(empty)
    with serving_hub() as served:
        ioi = served.repositories["acme/ioi"] = Repository(private=False)
        ioi.commit("main", {"circuit.safetensors": content})
        ioi.commit("v2", {"none/c.safetensors": empty.read_bytes()})
        ioi.commit("damaged", {"circuit.safetensors": content[:-40]})
        ioi.commit("pickle", {"circuit.safetensors": b"\x80\x04cos\nsystem\n."})
        ioi.commit("huge", {"huge.safetensors": b"little"})
        served.declared["huge.safetensors"] = MOST_BYTES + 1
        secret = served.repositories["acme/secret"] = Repository(private=True)
        secret.commit("main", {"circuit.safetensors": content})
        yield served


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def answers(hub: CircuitHub, cache: Path) -> dict[str, Any]:
    return load_there(
        environment(hub.url, cache, HF_TOKEN="may-read"),
        loaded="hf://acme/ioi",
        branch="hf://acme/ioi@v2/none/c.safetensors",
        hidden="hf://acme/secret",
        no_file="hf://acme/ioi/other.safetensors",
        no_revision="hf://acme/ioi@v9",
        no_repository="hf://acme/none",
        damaged="hf://acme/ioi@damaged",
        pickle="hf://acme/ioi@pickle",
        huge="hf://acme/ioi@huge/huge.safetensors",
    )


def test_a_circuit_loads_as_it_was_with_its_commit(
    hub: CircuitHub, file: Path, answers: dict[str, Any]
) -> None:
    circuit, branches = assay.load_circuit(file), hub.repositories["acme/ioi"].branches
    where = {"repository": "acme/ioi", "revision": branches["main"], "file": "circuit.safetensors"}
    provenance = json.loads(json.dumps({**circuit.provenance, "hub": where}))
    assert answers["loaded"] == {"hash": circuit.hash, "provenance": provenance}
    other = answers["branch"]
    assert other["provenance"]["hub"]["revision"] == branches["v2"]
    assert other["hash"] == Circuit.empty(circuit.graph).hash != circuit.hash
    assert answers["hidden"]["provenance"]["hub"]["repository"] == "acme/secret"


@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        ("no_file", "HubError", r"'acme/ioi' has no file 'other.safetensors' at its main branch"),
        ("no_revision", "HubError", r"'acme/ioi' has no revision 'v9'; give a branch, a tag or a commit"),
        ("no_repository", "HubError", r"has no repository 'acme/none', or it is private"),
        ("damaged", "FileFormatError", r"not a readable safetensors file|changed after it was written"),
        ("pickle", "UnsafeFileError", r"is a pickle"),
        ("huge", "FileFormatError", r"has 1,073,741,825 bytes, .* at most 1,073,741,824; nothing was fet"),
    ],
)
def test_what_fails_says_what_to_do(case: str, error: str, message: str, answers: dict[str, Any]) -> None:
    assert answers[case]["error"] == error
    assert re.search(message, answers[case]["message"])


@pytest.mark.slow
def test_without_a_network_the_cache_is_enough(cache: Path, answers: dict[str, Any]) -> None:
    found = load_there(
        environment("http://127.0.0.1:9", cache), cached="hf://acme/ioi", absent="hf://acme/absent"
    )
    assert found["cached"]["hash"] == answers["loaded"]["hash"]
    assert re.search("the hub does not answer.*or give a circuit file", found["absent"]["message"])


@pytest.mark.slow
def test_a_command_takes_an_address(hub: CircuitHub, cache: Path, file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "assay", "measure", "--circuit", "hf://acme/ioi", "--metric", "kl"]
    done = subprocess.run(
        [*command, "--n", "8", "--store", str(tmp_path / "store"), "--json"],
        env=environment(hub.url, cache), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (measured,) = json.loads(done.stdout)
    assert measured["provenance"]["circuit"] == assay.load_circuit(file).hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://a/b", HubFile(repository="a/b")),
        ("hf://a/b@v1", HubFile(repository="a/b", revision="v1")),
        ("hf://a/b@refs/pr/3/c.safetensors",
         HubFile(repository="a/b", revision="refs/pr/3", path="c.safetensors")),
        ("hf://a/b@x%2Fy", HubFile(repository="a/b", revision="x/y")),
        ("hf://a/b/c/d.safetensors", HubFile(repository="a/b", path="c/d.safetensors")),
    ],
)  # fmt: skip
def test_addresses_are_read_and_written(text: str, expected: HubFile) -> None:
    assert HubFile.parse(text) == expected
    assert HubFile.parse(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    ["hf://", "hf://a", "hf://a/b@", "hf://a/b/", "hf://a/b/../c.safetensors", "hf://a/b//c.safetensors",
     "hf://a/b/c.json", "hf://a/b/c\\d.safetensors"],
)  # fmt: skip
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="write hf://OWNER/NAME|give its path in the repository"):
        HubFile.parse(text)

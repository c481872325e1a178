"""Circuits pushed to a hub on loopback and loaded from it, by the hub's own client in its own process."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from writable_hub import READER, WRITER, WritableHub, serving_hub

import assay
from assay.circuits.card import is_own_card
from assay.circuits.hub_file import MOST_BYTES, HubFile
from assay.core.errors import InputError


PYTHON = """
import json, sys, warnings
import assay
from assay.circuits import Circuit
from assay.core.errors import AssayWarning
circuit = assay.load_circuit(sys.argv[1])
answers = {}
for key, call in json.load(sys.stdin).items():
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        try:
            if call.pop("do") == "push":
                subject = Circuit.empty(circuit.graph) if call.pop("empty", False) else circuit
                if call.pop("measured", False):
                    model = assay.load_model("mini")
                    task = assay.load_task("ioi", model, n=8)
                    call["measurements"] = [assay.measure(circuit, model, task, "faithfulness")]
                answer = subject.push_to_hub(call.pop("to"), **call)
            else:
                found = assay.load_circuit(call.pop("path"), **call)
                own = {key: value for key, value in found.provenance.items() if key != "hub"}
                answer = {"hash": found.hash, "hub": found.provenance["hub"],
                          "same": own == dict(circuit.provenance)}
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
    answers[key] = [answer, [str(each.message) for each in noted
                             if issubclass(each.category, AssayWarning)]]
print(json.dumps(answers))
"""


def environment(hub: str, cache: Path, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    there = {"HF_HOME": str(cache), "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    found = os.pathsep.join(sys.path)
    return {**kept, "no_proxy": "*", "NO_PROXY": "*", **there, "PYTHONPATH": found, **more}


def run_there(place: dict[str, str], circuit: Path, **calls: dict[str, Any]) -> dict[str, Any]:
    """What each call gives or says, with its warnings, in a process with that environment."""
    done = subprocess.run(
        [sys.executable, "-c", PYTHON, str(circuit)],
        input=json.dumps(calls), env=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def hub() -> Iterator[WritableHub]:
    with serving_hub() as served:
        yield served


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = assay.load_model("mini")
    scores = assay.discover(model, assay.load_task("ioi", model, n=8, seed=0), "eap")
    return scores.top(30).connected().save(tmp_path_factory.mktemp("circuit") / "found.safetensors")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def answers(hub: WritableHub, cache: Path, file: Path) -> dict[str, Any]:
    writer = environment(hub.url, cache, HF_TOKEN=WRITER)
    found = run_there(
        writer,
        file,
        pushed={"do": "push", "to": "acme/ioi", "measured": True},
        again={"do": "push", "to": "acme/ioi", "empty": True, "path": "none/c.safetensors",
               "revision": "v2"},
        secret={"do": "push", "to": "acme/secret", "private": True},
        exposed={"do": "push", "to": "acme/ioi", "private": True},
        foreign={"do": "push", "to": "other/ioi"},
        reader={"do": "push", "to": "acme/ioi", "token": READER},
        other={"do": "push", "to": "acme/ioi", "measured": True, "empty": True},
        named={"do": "push", "to": "ioi"},
        malformed={"do": "push", "to": "acme/io i"},
        loaded={"do": "load", "path": "hf://acme/ioi"},
        branch={"do": "load", "path": "hf://acme/ioi@v2/none/c.safetensors"},
        hidden={"do": "load", "path": "hf://acme/secret"},
        no_file={"do": "load", "path": "hf://acme/ioi/other.safetensors"},
        no_revision={"do": "load", "path": "hf://acme/ioi@v9"},
        no_repository={"do": "load", "path": "hf://acme/none"},
    )  # fmt: skip
    assert "acme/ioi" in hub.repositories, found
    ioi = hub.repositories["acme/ioi"]
    content = ioi.commits[ioi.branches["main"]]
    ioi.commit("edited", {"README.md": content["README.md"] + b"Mine.\n"})
    ioi.commit("damaged", {"circuit.safetensors": content["circuit.safetensors"][:-40]})
    ioi.commit("pickle", {"circuit.safetensors": b"\x80\x04cos\nsystem\n."})
    ioi.commit("huge", {"huge.safetensors": b"little"})
    hub.declared["huge.safetensors"] = MOST_BYTES + 1
    found |= run_there(
        writer,
        file,
        edited={"do": "push", "to": "acme/ioi", "revision": "edited", "empty": True},
        damaged={"do": "load", "path": "hf://acme/ioi@damaged"},
        pickle={"do": "load", "path": "hf://acme/ioi@pickle"},
        huge={"do": "load", "path": "hf://acme/ioi@huge/huge.safetensors"},
    )
    return found


def test_what_is_pushed_loads_as_it_was_with_its_commit(
    hub: WritableHub, file: Path, answers: dict[str, Any]
) -> None:
    circuit, ioi = assay.load_circuit(file), hub.repositories["acme/ioi"]
    address, noted = answers["pushed"]
    commit = ioi.branches["main"]
    assert noted == []
    assert address == f"hf://acme/ioi@{commit}/circuit.safetensors"
    assert ioi.described[commit] == f"Circuit {circuit.hash}: {circuit.n_edges} edges"
    assert set(ioi.commits[commit]) == {".gitattributes", "circuit.safetensors", "README.md"}
    where = {"repository": "acme/ioi", "revision": commit, "file": "circuit.safetensors"}
    assert answers["loaded"][0] == {"hash": circuit.hash, "hub": where, "same": True}


def test_branches_and_paths_keep_several_circuits_apart(hub: WritableHub, answers: dict[str, Any]) -> None:
    ioi = hub.repositories["acme/ioi"]
    assert answers["again"][0] == f"hf://acme/ioi@{ioi.branches['v2']}/none/c.safetensors"
    assert "none/c.safetensors" not in ioi.commits[ioi.branches["main"]]
    found = answers["branch"][0]
    assert found["hub"]["revision"] == ioi.branches["v2"]
    assert found["hash"] != answers["loaded"][0]["hash"]


def test_private_is_private_or_refused(hub: WritableHub, answers: dict[str, Any]) -> None:
    assert hub.repositories["acme/secret"].private
    assert answers["hidden"][0]["hub"]["repository"] == "acme/secret"
    assert re.search(
        "'acme/ioi' exists and is public, not private; nothing was uploaded", answers["exposed"][0]["message"]
    )


def test_the_card_says_what_the_circuit_is_and_how_to_load_it(
    hub: WritableHub, file: Path, answers: dict[str, Any]
) -> None:
    ioi, circuit = hub.repositories["acme/ioi"], assay.load_circuit(file)
    content = ioi.commits[ioi.branches["main"]]["README.md"]
    card = content.decode()
    assert is_own_card(content)
    assert not is_own_card(content.replace(b"ioi", b"other"))
    assert card.startswith("---\nlibrary_name: assay\ntags:\n- assay\n")
    assert f"# Circuit of mini for ioi: {circuit.n_edges} of {circuit.graph.n_edges:,} edges" in card
    for row in ("| model | mini, gpt2, float32 |", "| method | eap |", f"| circuit | {circuit.hash} |"):
        assert row in card
    assert re.search(r"\| faithfulness \| ioi \| .* \| resample \| logit\\_diff \| [−-]?\d.* \| 8 \|", card)
    assert 'assay.load_circuit("hf://acme/ioi/circuit.safetensors")' in card
    assert json.loads(re.search(r"## Provenance\n\n```json\n(.*?)\n```", card, re.S)[1]) == json.loads(  # type: ignore[index]
        json.dumps(dict(circuit.provenance))
    )


def test_a_card_that_somebody_edited_stays(hub: WritableHub, answers: dict[str, Any]) -> None:
    ioi, (address, noted) = hub.repositories["acme/ioi"], answers["edited"]
    held = ioi.commits[ioi.branches["edited"]]
    assert held["README.md"].endswith(b"Mine.\n")
    assert HubFile.parse(address).revision == ioi.branches["edited"]
    assert noted == ["README.md of 'acme/ioi' was written by somebody else or edited, so it stays as it is"]
    before = ioi.commits[ioi.branches["main"]]
    assert held["circuit.safetensors"] != before["circuit.safetensors"]


@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        ("foreign", "HubError", r"may not write to 'other/ioi' \(HTTP 403\)\. Use a token with write access"),
        ("reader", "HubError", r"may not write to 'acme/ioi' \(HTTP 403\)"),
        ("other", "InputError", r"the measurement 'faithfulness' is of circuit \w{16}, not of \w{16}"),
        ("named", "InputError", r"the repository is 'ioi'; write OWNER/NAME"),
        ("malformed", "InputError", r"the repository is 'acme/io i'; write OWNER/NAME"),
        ("no_file", "HubError", r"'acme/ioi' has no file 'other.safetensors' at its main branch"),
        ("no_revision", "HubError", r"'acme/ioi' has no revision 'v9'; give a branch, a tag or a commit"),
        ("no_repository", "HubError", r"has no repository 'acme/none', or it is private"),
        ("damaged", "FileFormatError", r"not a readable safetensors file|changed after it was written"),
        ("pickle", "UnsafeFileError", r"is a pickle"),
        ("huge", "FileFormatError", r"has 1,073,741,825 bytes, .* at most 1,073,741,824; nothing was fet"),
    ],
)
def test_what_fails_says_what_to_do(case: str, error: str, message: str, answers: dict[str, Any]) -> None:
    assert answers[case][0]["error"] == error
    assert re.search(message, answers[case][0]["message"])


def test_nothing_is_sent_without_a_token(hub: WritableHub, tmp_path: Path, file: Path) -> None:
    before = len(hub.asked)
    place = environment(hub.url, tmp_path)
    found = run_there(place, file, none={"do": "push", "to": "acme/new"})["none"][0]
    assert len(hub.asked) == before
    assert found["error"] == "HubError"
    assert re.search(
        r"nothing was sent to 'acme/new': an upload needs an access token .* log in with `hf auth login`, "
        "set HF_TOKEN, or pass token=",
        found["message"],
    )


@pytest.mark.slow
def test_without_a_network_the_cache_is_enough(
    hub: WritableHub, cache: Path, file: Path, answers: dict[str, Any]
) -> None:
    found = run_there(
        environment("http://127.0.0.1:9", cache, HF_TOKEN=WRITER),
        file,
        cached={"do": "load", "path": "hf://acme/ioi"},
        absent={"do": "load", "path": "hf://acme/absent"},
        sent={"do": "push", "to": "acme/ioi"},
    )
    assert found["cached"][0]["hash"] == answers["loaded"][0]["hash"]
    assert re.search("the hub does not answer.*or give a circuit file", found["absent"][0]["message"])
    assert re.search("was not uploaded to 'acme/ioi': the hub does not answer", found["sent"][0]["message"])


@pytest.mark.slow
def test_commands_take_addresses_and_push(
    hub: WritableHub, cache: Path, file: Path, answers: dict[str, Any], tmp_path: Path
) -> None:
    place = environment(hub.url, cache, HF_TOKEN=WRITER)

    def assay_(*arguments: str) -> Any:
        command = [sys.executable, "-m", "assay", *arguments, "--store", str(tmp_path / "store"), "--json"]
        done = subprocess.run(command, env=place, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    circuit = assay.load_circuit(file)
    (measured,) = assay_("measure", "--circuit", "hf://acme/ioi", "--metric", "kl", "--n", "8")
    assert measured["provenance"]["circuit"] == circuit.hash
    pushed = assay_("push", "hf://acme/ioi", "acme/copy")
    copy = hub.repositories["acme/copy"]
    assert pushed == {
        "circuit": circuit.hash,
        "n_edges": circuit.n_edges,
        "address": f"hf://acme/copy@{copy.branches['main']}/circuit.safetensors",
    }
    card = copy.commits[copy.branches["main"]]["README.md"].decode()
    assert "| kl | ioi | nats |" in card  # as the store holds it
    assert f'"revision": "{hub.repositories["acme/ioi"].branches["main"]}"' in card  # where it came from


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

"""Repositories of the hub, served on loopback: the hub's own client fetches them in a process of its own."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from assay.models import load_model
from assay.models.loading import MINI


COMMIT, STEP = "0123456789abcdef" * 2 + "01234567", "fedcba9876543210" * 2 + "fedcba98"
NO_PROXY = {"no_proxy": "*", "NO_PROXY": "*"}


@dataclass
class Hub:
    """A small hub.

    Attributes:
        folder: Repositories: folders `OWNER/NAME`.
        asked: Method, path and authorisation of every request.
    """

    folder: Path
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    def paths(self, repository: str, method: str = "GET") -> list[str]:
        """Files of a repository whose content was asked for."""
        pattern = re.compile(rf"/{repository}/resolve/[^/]+/(.+)")
        found = (pattern.fullmatch(path) for kind, path, _ in self.asked if kind == method)
        return [match[1] for match in found if match]


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        """No line per request."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, status: int, content: bytes = b"{}", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, X_Error_Code=code, X_Error_Message=code)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.asked.append((self.command, path, self.headers.get("Authorization")))
        name = re.search(r"/(acme/[a-z-]+)(/|$)", path)
        folder = self.hub.folder / (name[1] if name else "none")
        if not folder.is_dir():
            return self.refuse(401, "RepoNotFound")
        files = [each for each in sorted(folder.iterdir()) if each.is_file()]
        revision = re.search(r"/(?:revision|resolve|tree)/([^/]+)", path)
        commit = {"main": COMMIT, COMMIT: COMMIT, "step3000": STEP, STEP: STEP}.get(
            revision[1] if revision else "main"
        )
        if commit is None:
            return self.refuse(404, "RevisionNotFound")
        if path.startswith("/api/") and "/tree/" in path:
            tree = [
                {
                    "type": "file",
                    "path": each.name,
                    "size": each.stat().st_size,
                    "oid": hashlib.sha1(each.read_bytes()).hexdigest(),
                }
                for each in files
            ]
            return self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")
        if path.startswith("/api/"):
            info = {"id": name[1] if name else "", "sha": commit, "siblings": []}
            return self.answer(200, json.dumps(info).encode(), Content_Type="application/json")
        file = folder / path.rpartition("/")[2]
        if folder.name == "gated" and self.headers.get("Authorization") != "Bearer let-me-in":
            return self.refuse(403, "GatedRepo")
        if not file.is_file():
            return self.refuse(404, "EntryNotFound")
        content = file.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        return self.answer(200, content, ETag=etag, X_Repo_Commit=commit)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    for name in ("tiny", "gated", "pickled", "unknown", "sharded"):
        shutil.copytree(MINI, folder / "acme" / name)
    (folder / "acme/tiny/pytorch_model.bin").write_bytes(b"never fetched")
    (folder / "acme/tiny/modeling_tiny.py").write_text("never fetched")
    (folder / "acme/pickled/model.safetensors").rename(folder / "acme/pickled/pytorch_model.bin")
    config = json.loads((MINI / "config.json").read_text())
    (folder / "acme/unknown/config.json").write_text(json.dumps(config | {"model_type": "gpt2s"}))
    weights = load_file(folder / "acme/sharded/model.safetensors")
    (folder / "acme/sharded/model.safetensors").unlink()
    names, places = sorted(weights), {}
    for number, half in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({each: weights[each] for each in half}, folder / "acme/sharded" / file, {"format": "pt"})
        places |= dict.fromkeys(half, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "acme/sharded/model.safetensors.index.json").write_text(json.dumps(index))
    served = Hub(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfHub", (Handler,), {"hub": served}))
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


LOADING = """
import json, sys
from assay.models import load_model
answers = []
for call in json.load(sys.stdin):
    try:
        model = load_model(**call)
        answers.append({**model.describe(), "tokens": len(model.tokenizer)})
    except Exception as error:
        answers.append({"error": type(error).__name__, "message": str(error)})
print(json.dumps(answers))
"""


def load_there(cache: Path, endpoint: str, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    """What `load_model` gives or says for each call, in a process with that hub and that cache."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    places = {"HF_HOME": str(cache), "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", LOADING],
        input=json.dumps(calls),
        env={
            **kept,
            **NO_PROXY,
            **places,
            "HF_TOKEN": "of-the-environment",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def answers(hub: Hub, cache: Path) -> dict[str, dict[str, Any]]:
    calls = {
        "tiny": {"source": "acme/tiny"},
        "tagged": {"source": "acme/tiny", "revision": "step3000"},
        "named with it": {"source": "acme/tiny@step3000"},
        "sharded": {"source": "acme/sharded"},
        "token": {"source": "acme/gated", "token": "let-me-in"},
        "gated": {"source": "acme/gated", "revision": "step3000"},
        "missing": {"source": "acme/missing"},
        "wrong revision": {"source": "acme/tiny", "revision": "step4000"},
        "pickled": {"source": "acme/pickled"},
        "unknown": {"source": "acme/unknown"},
    }
    return dict(zip(calls, load_there(cache, hub.url, *calls.values()), strict=True))


def test_a_repository_loads_like_its_directory(answers: dict[str, dict[str, Any]]) -> None:
    mini = load_model("mini")
    expected = {**mini.describe(), "tokens": len(mini.tokenizer)}
    assert answers["tiny"] == expected | {"id": "acme/tiny", "revision": COMMIT}
    assert answers["tagged"] == expected | {"id": "acme/tiny", "revision": STEP}
    assert answers["named with it"] == answers["tagged"]
    assert answers["sharded"] == expected | {"id": "acme/sharded", "revision": COMMIT}
    assert answers["token"] == expected | {"id": "acme/gated", "revision": COMMIT}


def test_only_what_is_read_is_fetched(hub: Hub, answers: dict[str, dict[str, Any]]) -> None:
    assert "model.safetensors" in hub.paths("acme/tiny")
    for repository in ("tiny", "pickled"):
        fetched = hub.paths(f"acme/{repository}", "HEAD") + hub.paths(f"acme/{repository}")
        assert "config.json" in fetched
        assert not [each for each in fetched if each.endswith((".bin", ".py"))]
    assert "config.json" in hub.paths("acme/unknown")
    assert "model.safetensors" not in hub.paths("acme/unknown")


def test_tokens_are_sent_and_not_kept(hub: Hub, cache: Path, answers: dict[str, dict[str, Any]]) -> None:
    sent = {authorisation for _, path, authorisation in hub.asked if "/acme/tiny/" in path}
    assert sent == {"Bearer of-the-environment"}
    assert "Bearer let-me-in" in {authorisation for _, path, authorisation in hub.asked if "gated" in path}
    assert "let-me-in" not in json.dumps(answers)


@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        (
            "gated",
            "HubError",
            r"cannot load 'acme/gated'.*(?s:.*)gated",
        ),
        (
            "missing",
            "HubError",
            r"cannot load 'acme/missing'.*(?s:.*)Repository Not Found",
        ),
        (
            "wrong revision",
            "HubError",
            r"cannot load 'acme/tiny'.*(?s:.*)Revision Not Found",
        ),
        ("pickled", "FileFormatError", r"has no weights model\.safetensors; expected"),
        ("unknown", "UnsupportedModelError", r"'gpt2s'\) is not supported.*Nearest by name: 'gpt2'"),
    ],
)
def test_what_cannot_be_loaded_says_what_to_do(
    case: str, error: str, message: str, answers: dict[str, dict[str, Any]]
) -> None:
    assert answers[case]["error"] == error
    assert re.search(message, answers[case]["message"])


def test_without_a_network_the_cache_is_enough(cache: Path, answers: dict[str, dict[str, Any]]) -> None:
    cached, absent = load_there(
        cache, "http://127.0.0.1:9", {"source": "acme/tiny"}, {"source": "acme/other", "revision": "v1"}
    )
    assert cached == answers["tiny"]
    assert absent["error"] == "HubError"
    assert re.search(r"cannot load 'acme/other': it is not a directory, and", absent["message"])

"""A hub on loopback: the part of the Hugging Face Hub's API that its client asks for to fetch a file."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote


@dataclass
class Repository:
    """A repository: branches of commits, which are all its files.

    Attributes:
        private: Whether only tokens see it.
        branches: Name to commit.
        commits: Commit to path to content.
    """

    private: bool
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        changed = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        name = hashlib.sha1(repr((len(self.commits), branch, sorted(changed.items()))).encode()).hexdigest()
        self.branches[branch], self.commits[name] = name, changed
        return name

    def at(self, revision: str) -> str | None:
        found = self.branches.get(revision, revision)
        return found if found in self.commits else None


@dataclass
class CircuitHub:
    """All repositories.

    Attributes:
        repositories: By id.
        declared: Path of a file to the size that the hub says it has, where that is a lie.
    """

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    declared: dict[str, int] = field(default_factory=dict)


class _Handler(BaseHTTPRequestHandler):
    hub: CircuitHub

    def log_message(self, *_: Any) -> None:
        """No line per request."""

    def answer(self, status: int, content: bytes = b"{}", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def say(self, document: Any, status: int = 200) -> None:
        self.answer(status, json.dumps(document).encode(), Content_Type="application/json")

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, X_Error_Code=code, X_Error_Message=code)

    @property
    def token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        for pattern, action in _ROUTES.items():
            if found := re.fullmatch(pattern, path):
                return action(self, *map(unquote, found.groups()))
        return self.refuse(404, "NoRoute")

    def readable(self, name: str) -> Repository | None:
        found = self.hub.repositories.get(name)
        return None if found is None or (found.private and self.token is None) else found

    def info(self, name: str, revision: str = "main") -> None:
        found = self.readable(name)
        if found is None:
            return self.refuse(401, "RepoNotFound")
        if (commit := found.at(revision)) is None and found.commits:
            return self.refuse(404, "RevisionNotFound")
        return self.say({"id": name, "sha": commit, "private": found.private, "siblings": []})

    def file(self, name: str, revision: str, path: str) -> None:
        found = self.readable(name)
        if found is None:
            return self.refuse(401, "RepoNotFound")
        commit = found.at(revision)
        if commit is None:
            return self.refuse(404, "RevisionNotFound")
        content = found.commits[commit].get(path)
        if content is None:
            return self.refuse(404, "EntryNotFound")
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X_Repo_Commit": commit}
        if path in self.hub.declared:
            headers["X_Linked_Size"] = str(self.hub.declared[path])
        return self.answer(200, content, **headers)


_ROUTES: dict[str, Callable[..., None]] = {
    r"/api/models/([^/]+/[^/]+)": _Handler.info,
    r"/api/models/([^/]+/[^/]+)/revision/([^/]+)": _Handler.info,
    r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)": _Handler.file,
}


@contextmanager
def serving_hub() -> Iterator[CircuitHub]:
    """A hub without repositories, on a port of its own."""
    hub = CircuitHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfHub", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

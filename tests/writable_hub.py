"""A hub on loopback that takes uploads: the part of the Hugging Face Hub's API that its client asks for."""

import base64
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


WRITER = "may-write"  # the token of whoever owns `acme`
READER = "may-read"


@dataclass
class Repository:
    """A repository: branches of commits, which are all its files.

    Attributes:
        private: Whether only tokens see it.
        branches: Name to commit.
        commits: Commit to path to content.
        described: Commit to its message.
    """

    private: bool
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    described: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes], message: str = "") -> str:
        changed = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        name = hashlib.sha1(repr((len(self.commits), branch, sorted(changed.items()))).encode()).hexdigest()
        self.branches[branch], self.commits[name], self.described[name] = name, changed, message
        return name

    def at(self, revision: str) -> str | None:
        found = self.branches.get(revision, revision)
        return found if found in self.commits else None


@dataclass
class WritableHub:
    """All repositories, and what was asked for.

    Attributes:
        repositories: By id.
        asked: Method, path and authorisation of every request.
        blobs: Large files by their SHA-256, before a commit names them.
        declared: Path of a file to the size that the hub says it has, where that is a lie.
    """

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    declared: dict[str, int] = field(default_factory=dict)


class _Handler(BaseHTTPRequestHandler):
    hub: WritableHub

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
        self.handle_with(_READS)

    def do_GET(self) -> None:
        self.handle_with(_READS)

    def do_POST(self) -> None:
        self.handle_with(_WRITES)

    def do_PUT(self) -> None:
        self.handle_with({r"/blobs/(\w+)": _Handler.put_blob})

    def handle_with(self, routes: dict[str, Callable[..., None]]) -> None:
        path = self.path.partition("?")[0]
        self.hub.asked.append((self.command, path, self.headers.get("Authorization")))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        for pattern, action in routes.items():
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

    def writes(self, name: str) -> bool:
        if self.token != WRITER or not name.startswith("acme/"):
            self.refuse(403 if self.token else 401, "Forbidden")
            return False
        return True

    def create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
        if not self.writes(name):
            return None
        if name in self.hub.repositories:
            return self.say({"error": "You already created this repo", "url": f"{self.hub.url}/{name}"}, 409)
        made = self.hub.repositories[name] = Repository(
            asked.get("private") is True or asked.get("visibility") == "private"
        )
        made.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        return self.say({"url": f"{self.hub.url}/{name}"})

    def branch(self, name: str, branch: str) -> None:
        if not self.writes(name):
            return None
        branches = self.hub.repositories[name].branches
        status = 409 if branch in branches else 200
        branches.setdefault(branch, branches["main"])
        return self.say({}, status)

    def modes(self, name: str, revision: str) -> None:
        if not self.writes(name):
            return None
        files = [
            {
                "path": each["path"],
                "uploadMode": "lfs" if each["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
            }
            for each in json.loads(self.body)["files"]
        ]
        return self.say({"files": files})

    def batch(self, name: str) -> None:
        if not self.writes(name):
            return None
        objects = [
            {**each, "actions": {"upload": {"href": f"{self.hub.url}/blobs/{each['oid']}"}}}
            for each in json.loads(self.body)["objects"]
        ]
        return self.say({"transfer": "basic", "objects": objects})

    def put_blob(self, oid: str) -> None:
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.hub.blobs[oid] = self.body
        return self.answer(200)

    def commit(self, name: str, branch: str) -> None:
        if not self.writes(name):
            return None
        files, message = {}, ""
        for line in self.body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            else:
                files[value["path"]] = self.hub.blobs[value["oid"]]
        made = self.hub.repositories[name].commit(branch, files, message)
        return self.say(
            {"success": True, "commitOid": made, "commitUrl": f"{self.hub.url}/{name}/commit/{made}"}
        )


_READS: dict[str, Callable[..., None]] = {
    r"/api/models/([^/]+/[^/]+)": _Handler.info,
    r"/api/models/([^/]+/[^/]+)/revision/([^/]+)": _Handler.info,
    r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)": _Handler.file,
}
_WRITES: dict[str, Callable[..., None]] = {
    r"/api/repos/create": _Handler.create,
    r"/api/validate-yaml": lambda handler: handler.say({"errors": [], "warnings": []}),
    r"/api/models/([^/]+/[^/]+)/branch/([^/]+)": _Handler.branch,
    r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)": _Handler.modes,
    r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch": _Handler.batch,
    r"/api/models/([^/]+/[^/]+)/commit/([^/]+)": _Handler.commit,
}


@contextmanager
def serving_hub() -> Iterator[WritableHub]:
    """A hub without repositories, on a port of its own."""
    hub = WritableHub()
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

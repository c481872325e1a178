"""A local server that answers like a chat endpoint, with whatever a test tells it to."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A request that came in."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]]  # status; JSON or bytes; headers


class ChatServer(NamedTuple):
    """Where it listens, and what was asked so far."""

    url: str
    asked: list[Asked]


def said(text: Any, **choice: Any) -> Reply:
    """An answer with one choice."""
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}, **choice}]}


@contextmanager
def chat_server(reply: Callable[[Asked], Reply]) -> Iterator[ChatServer]:
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            one = Asked(self.path, dict(self.headers), json.loads(content))
            asked.append(one)
            status, body, *more = reply(one)
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in (more[0] if more else {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            try:
                self.wfile.write(sent)
            except (BrokenPipeError, ConnectionResetError):
                return  # the client gave up, as some tests want

        def log_message(self, *arguments: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield ChatServer(f"http://127.0.0.1:{server.server_port}/v1", asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

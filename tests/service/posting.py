"""A served monitor as a process of its own, and requests that post it images."""

import base64
import io
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from processes import CommandProcess

from assay.tasks import draw_shapes


JSON = "application/json"


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: Any


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """An image file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=kind)
    return buffer.getvalue()


def drawn(n: int, *, style: str = "neon", start: int = 0) -> list[bytes]:
    """Drawn images as PNG files."""
    return [encoded(each) for each in draw_shapes(style, n, start=start).pixels]


def as_json(images: list[bytes], names: list[str] | None = None) -> bytes:
    """Several images as one body."""
    names = [f"{place}.png" for place in range(len(images))] if names is None else names
    parts = [
        {"name": name, "data": base64.b64encode(each).decode()}
        for name, each in zip(names, images, strict=True)
    ]
    return json.dumps({"images": parts}).encode()


class Served:
    """`assay serve` with one monitor that is posted its images.

    Args:
        folder: Of everything; the monitor's directory is `out` in it.
        name: Of this run.
        arguments: Further ones of the command.
        options: Of the monitor.
    """

    def __init__(self, folder: Path, name: str, *arguments: str, **options: Any) -> None:
        settings = {
            "images": "posted",
            "out": str(folder / "out"),
            "window": 4,
            "steps": 1,
            "threshold": 0,
            "known_batches": 0,
            "poll": 0.05,
            **options,
        }
        path = folder / "door.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        self._said = folder / name / "stderr"
        self.process = CommandProcess(
            folder / name,
            *("serve", "--store", folder / "store", "--monitor", path, "--port", "0", *arguments),
        )
        self.out = folder / "out"
        self.headers: dict[str, str] = {}
        found: list[str] = []
        self.until(lambda: found.extend(re.findall(r"http://\S+:(\d+)/", self.said)) or found)
        self.address = f"http://127.0.0.1:{found[0]}"

    @property
    def said(self) -> str:
        """What it has written to stderr."""
        return self._said.read_text() if self._said.exists() else ""

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for something; its value."""
        deadline = time.monotonic() + 120
        while not (value := condition()):
            assert self.process.alive, self.said
            assert time.monotonic() < deadline, f"nothing happened for two minutes: {self.said}"
            time.sleep(0.05)
        return value

    def ask(self, body: bytes | None = None, kind: str = JSON, query: str = "", **headers: str) -> Answer:
        """One request of `/observe`; with a body a POST."""
        request = urllib.request.Request(f"{self.address}/observe{query}", data=body)
        for name, value in {**self.headers, **({"Content-Type": kind} if body is not None else {})}.items():
            request.add_header(name, headers.get(name, value))
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, json.load(answer))
        except urllib.error.HTTPError as error:
            return Answer(error.code, json.load(error))

    def ready(self) -> None:
        """Wait until the monitor takes images."""
        image = drawn(1, start=90_000)[0]
        self.until(lambda: self.ask(image, "image/png").status == 202)

    def readings(self) -> list[dict[str, Any]]:
        """Of the file of readings."""
        journal = self.out / "readings.jsonl"
        lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
        return [each for each in map(json.loads, lines) if each["kind"] == "reading"]

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.__exit__()

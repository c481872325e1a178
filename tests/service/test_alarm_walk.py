"""An alarm walked: images posted, a webhook called, its link followed to the page, the batch opened."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import Visit
from posting import Served, as_json, drawn, encoded

from assay.app.monitor.watched import WatchedMonitor
from assay.app.site.web import serve
from assay.store import Store


WINDOW = 16


class Receiver:
    """A webhook that keeps what it is sent."""

    def __init__(self) -> None:
        events: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                del args

        self.events = events
        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def broken_camera(n: int) -> list[bytes]:
    """Images of noise."""
    rng = np.random.default_rng(0)
    return [encoded(each) for each in rng.integers(0, 256, (n, 32, 32, 3)).astype(np.uint8)]


@pytest.mark.slow
def test_an_alarm_leads_from_the_webhook_to_the_images_behind_it(
    tmp_path: Path, receiver: Receiver, visit: Visit
) -> None:
    options = {"webhook": receiver.url, "window": WINDOW, "threshold": 0.1}
    with Served(tmp_path, "run", **options) as served:
        served.until(lambda: served.ask(as_json(drawn(WINDOW, style="flat"))).status == 202)
        served.until(lambda: len(served.readings()) == 1)
        assert receiver.events == []
        names = [f"camera-{place}.png" for place in range(WINDOW)]
        assert served.ask(as_json(broken_camera(WINDOW), names)).status == 202
        (event,) = served.until(lambda: list(receiver.events))
        assert (event["event"], event["monitor"], event["batch"]) == ("alarm", "door", 2)
        assert event["page"] == f"{served.address}/monitor/0#batch-2"

        page = visit.page
        page.goto(event["page"])  # the moment it is told, the page has the batch
        batch = page.locator("details[id$='-batch-2']")
        assert batch.evaluate("each => each.open")
        assert page.evaluate("document.activeElement.textContent").startswith("Batch 2")
        pictures = batch.locator("img")
        assert pictures.count() == 6
        assert pictures.first.is_visible()
        assert pictures.first.evaluate("each => each.naturalWidth") == 32
        text = batch.inner_text()
        assert "above the threshold of 0.100" in text
        assert "000000017-camera-0.png" in text
        assert "000000032-camera-15.png" in text
        assert not page.locator("details[id$='-batch-1']").evaluate("each => each.open")
        # The files that the page names are there, as they were sent.
        shown = re.findall(r"\d{9}-camera-\d+\.png", text)
        kept = tmp_path / "out" / "posted" / "observed"
        served.until(lambda: all((kept / name).exists() for name in shown))
        assert (kept / "000000017-camera-0.png").read_bytes() == broken_camera(1)[0]
        page.goto("about:blank")
        page.goto(f"{served.address}/monitors")  # and from the list of monitors
        page.get_by_role("link", name="door").click()
        assert "1 of 2 batches raised the alarm, the first at batch 2" in page.inner_text("main")
        assert visit.said == []


class _Asked(WatchedMonitor):
    """A monitor that notes its address when it is started, and ends the server."""

    document, error, running = None, None, True

    def __init__(self) -> None:
        self.name = "asked"

    def start(self) -> None:
        raise KeyboardInterrupt

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    ("host", "url", "expected"),
    [
        ("127.0.0.1", None, r"http://127\.0\.0\.1:\d+/monitor/0"),
        ("0.0.0.0", None, rf"http://{re.escape(socket.gethostname())}:\d+/monitor/0"),
        ("127.0.0.1", "https://example.org/assay/", r"https://example\.org/assay/monitor/0"),
    ],
)
def test_the_address_in_a_notification_is_one_that_can_be_visited(
    tmp_path: Path, host: str, url: str | None, expected: str
) -> None:
    monitor = _Asked()
    token = "sixteen-characters-or-more"
    with pytest.raises(KeyboardInterrupt):
        serve(Store(tmp_path / "store"), host=host, port=0, token=token, monitors=[monitor], url=url)
    assert monitor.address is not None
    assert re.fullmatch(expected, monitor.address)

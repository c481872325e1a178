"""`POST /observe` against a real server: what is taken, refused, kept over kills, and observed once."""

import json
import signal
import socket
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from command_line import invoke
from posting import JSON, Served, as_json, drawn, encoded
from starlette.testclient import TestClient

from assay.app.monitor.spool import PostedImage, Spool, SpoolClosedError, SpoolFullError
from assay.app.monitor.watched import watched
from assay.app.site import observe
from assay.app.site.web import create_app
from assay.core.errors import InputError
from assay.pipeline.image_stream import Watch
from assay.store import Store
from assay.tasks import EvalTransform


def bomb(width: int, height: int) -> bytes:
    """A PNG of few bytes that says it has many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b"\0" * 9))
        + chunk(b"IEND", b"")
    )


# ------------------------------------------------------------------------------------------ a real server


def test_images_wait_for_a_full_window_and_are_observed_once_in_order(tmp_path: Path) -> None:
    with Served(tmp_path, "run") as served:
        served.ready()  # one image waits
        first = served.ask(drawn(1)[0], "image/png", "?name=../../etc/pass%20wd.png")
        assert first.status == 202
        assert first.body["accepted"] == ["000000002-pass-wd.png"]
        assert (first.body["waiting"], first.body["window"], first.body["reading"]) == (2, 4, None)
        jpeg, webp = (encoded(np.full((40, 50, 3), 9, np.uint8), kind) for kind in ("JPEG", "WEBP"))
        several = served.ask(as_json([jpeg, webp, *drawn(1)], ["a", "b.webp", "b.webp"]))
        assert several.status == 202, several
        assert several.body["accepted"] == ["000000003-a.jpg", "000000004-b.webp", "000000005-b.webp"]
        last = served.until(lambda: served.ask().body["reading"] and served.ask())
        assert last.status == 200
        served.until(lambda: served.ask().body["waiting"] == 1)
        reading = last.body["reading"]
        assert (reading["index"], reading["n"], reading["alarm"]) == (0, 4, True)
        assert reading["interval"]["low"] <= reading["shift"]
        assert "layers" not in reading
        (stored,) = served.readings()
        assert stored["sources"] == [
            "000000001-image.png",
            "000000002-pass-wd.png",
            "000000003-a.jpg",
            "000000004-b.webp",
        ]
        assert stored["shift"] == reading["shift"]
        # The images behind the batch are still there; so is the page that shows them.
        assert {each.name for each in (tmp_path / "out/posted/observed").iterdir()} == set(stored["sources"])
        assert "000000002-pass-wd.png" in served_page(served)


def served_page(served: Served) -> str:
    import urllib.request

    with urllib.request.urlopen(f"{served.address}/monitor/0", timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
def test_many_clients_at_once_lose_nothing(tmp_path: Path) -> None:
    with Served(tmp_path, "run", window=8) as served:
        served.ready()
        n, each = 12, 6

        def post(client: int) -> list[str]:
            body = as_json(drawn(each, start=100 * client), [f"{client}-{k}.png" for k in range(each)])
            while True:
                status, answer = served.ask(body)
                if status == 202:
                    return list(answer["accepted"])
                assert status == 429, answer  # too many at the same time: sent again

        with ThreadPoolExecutor(n) as clients:
            answers = list(clients.map(post, range(n)))
        accepted = [name for names in answers for name in names]
        assert len(set(accepted)) == n * each
        for client, names in enumerate(answers):  # a request's images stay together, in order
            assert [name[10:] for name in names] == [f"{client}-{k}.png" for k in range(each)]
        served.until(lambda: len(served.readings()) == (n * each + 1) // 8)
        names = [name for reading in served.readings() for name in reading["sources"]]
        assert names == sorted(names)
        assert len(names) == len(set(names)) == 72
        assert set(names) <= {"000000001-image.png", *accepted}


@pytest.mark.slow
def test_what_was_accepted_outlives_a_kill_and_is_observed_once(tmp_path: Path) -> None:
    with Served(tmp_path, "first") as served:
        served.ready()
        accepted = served.ask(as_json(drawn(6))).body["accepted"]
        served.until(lambda: len(served.readings()) == 1)
        served.process.end(signal.SIGKILL)
    # A kill after the reading was written and before its files were put away.
    observed, waiting = (tmp_path / "out" / "posted" / name for name in ("observed", "waiting"))
    for path in observed.iterdir():
        path.replace(waiting / path.name)
    (waiting / ".000000099-half.png.1.ab").write_bytes(b"written when the kill came")
    with Served(tmp_path, "second") as served:
        served.until(lambda: served.ask().body["waiting"] == 3)
        more = served.until(lambda: (found := served.ask(drawn(1)[0], "image/png")).status == 202 and found)
        assert more.body["accepted"] == ["000000008-image.png"]  # no number is given twice
        served.until(lambda: len(served.readings()) == 2)
        names = [name for reading in served.readings() for name in reading["sources"]]
        assert names == ["000000001-image.png", *accepted, "000000008-image.png"]
        outcome = served.process.end(signal.SIGTERM)
        assert outcome.exit_code == 0, outcome.stderr
        assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"GIF89a" + bytes(40), "cannot be read"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "cannot be read"),
        (encoded(np.zeros((40, 40, 3), np.uint8))[:-30], "cannot be read"),
        (encoded(np.zeros((40, 40, 3), np.uint8), "TIFF"), "cannot be read"),
        (bomb(60_000, 60_000), "3600000000 pixels"),
        (bomb(6_000, 6_000), "6000 x 6000 pixels"),
        (bomb(100_000, 2), "100000 x 2 pixels"),
        (encoded(np.zeros((40, 40), np.uint16)), "more than 8 bits"),
    ],
)
def test_a_hostile_image_is_refused_by_name_and_nothing_of_its_request_is_taken(
    tmp_path: Path, content: bytes, message: str
) -> None:
    spool = Spool(tmp_path, window=4)
    spool.open()
    good = PostedImage(content=drawn(1)[0], name="good.png")
    with pytest.raises(InputError, match="image 2 \\('evil") as caught:
        spool.add([good, PostedImage(content=content, name="evil\x1b[2J.png")])
    assert message in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert spool.waiting == 0
    assert not list((tmp_path / "posted" / "waiting").iterdir())


@pytest.mark.slow
def test_a_hostile_client_cannot_end_the_service(tmp_path: Path) -> None:
    token = "sixteen-characters-or-more"
    with Served(tmp_path, "run", "--token", token) as served:
        assert served.ask().status == 401
        assert served.ask(drawn(1)[0], "image/png").status == 401
        served.headers["Authorization"] = f"Bearer {token}"
        served.ready()
        refused = [
            (b"x", "text/plain", 415, "the content type is 'text/plain'"),
            (b"x", "multipart/form-data; boundary=a", 415, "multipart"),
            (b"{", JSON, 400, "not JSON"),
            (b"[" * 100_000, JSON, 400, "nested too deeply"),
            (b"[]", JSON, 400, "no list of images"),
            (b'{"images": []}', JSON, 400, "no list of images"),
            (b'{"images": [3]}', JSON, 400, "image 1 has no text"),
            (b'{"images": [{"data": "?"}]}', JSON, 400, "image 1 is not base64"),
            (json.dumps({"images": [{"data": ""}] * 300}).encode(), JSON, 413, "has 300 images"),
            (bomb(60_000, 60_000), "image/png", 400, "3600000000 pixels"),
            (b"not an image", "image/png", 400, "cannot be read"),
        ]
        for body, kind, status, message in refused:
            answer = served.ask(body, kind)
            assert (answer.status, message in answer.body["error"]) == (status, True), answer
        # A body longer than it may be, and one that ends early.
        host, port = served.address.removeprefix("http://").split(":")
        for length, sent, expected in ((1 << 40, b"", b" 413 "), (1000, b"abc", b"")):
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                head = (
                    f"POST /observe HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/png\r\n"
                    f"Authorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
                )
                connection.sendall(head.encode() + sent)
                if expected:
                    assert expected in connection.recv(1000)
        # Images without any difference have no circuit: the window is passed over, the service goes on.
        flat = encoded(np.zeros((32, 32, 3), np.uint8))
        served.ask(as_json([flat] * 7))
        served.until(lambda: "skipped 0000000" in served.said)
        assert served.ask(as_json(drawn(8))).status == 202
        served.until(lambda: served.readings())
        assert served.ask(as_json(drawn(1))).status == 202
        assert "Traceback" not in served.said


# ------------------------------------------------------------------------------------------------ the parts


def test_the_queue_has_an_end_and_a_closed_one_takes_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path, window=2, most_waiting=3)
    image = PostedImage(content=drawn(1)[0])
    with pytest.raises(SpoolClosedError, match="starting, or has ended"):
        spool.add([image])
    spool.open()
    assert spool.add([image, image]) == ["000000001-image.png", "000000002-image.png"]
    with pytest.raises(SpoolFullError, match="2 images wait already and at most 3 may"):
        spool.add([image, image])
    spool.close()
    with pytest.raises(SpoolClosedError):
        spool.add([image])


def test_what_is_passed_over_is_listed_up_to_the_newest(tmp_path: Path) -> None:
    spool = Spool(tmp_path, window=2, most_waiting=3)
    spool.open()
    watch = Watch(transform=EvalTransform(resize=(32, 32)), size=2, poll=0.01)
    stream = spool.batches(watch, wait=lambda seconds: True, tell=print, keep=set)
    names: list[str] = []
    for _ in range(3):
        names += spool.add([PostedImage(content=each) for each in drawn(2)])
        spool.pass_over(next(stream))
    spool.add([PostedImage(content=each) for each in drawn(2)])
    assert next(stream).undefined == tuple(names[-3:])
    assert {each.name for each in (tmp_path / "posted" / "observed").iterdir()} == set(names[-3:])


def test_a_file_that_is_broken_on_the_disk_is_passed_over_by_name(tmp_path: Path) -> None:
    spool = Spool(tmp_path, window=2)
    spool.open()
    names = spool.add([PostedImage(content=each) for each in drawn(6)])
    (tmp_path / "posted" / "waiting" / names[1]).write_bytes(b"gone bad")
    heard: list[str] = []
    watch = Watch(transform=EvalTransform(resize=(32, 32)), size=2, poll=0.01)
    stream = spool.batches(
        watch, wait=lambda seconds: True, tell=heard.append, keep=lambda: {names[0], names[1]}
    )
    batch = next(stream)
    assert (batch.sources, batch.skipped) == ((names[0], names[2]), (names[1],))
    assert f"skipped {names[1]}" in heard[0]
    assert batch.inputs.n == 2
    second = next(stream)
    assert (second.sources, second.skipped) == ((names[3], names[4]), ())
    spool.pass_over(second)
    assert list(stream) == []  # one is left, and nothing more comes
    assert spool.waiting == 1  # those passed over do not fill the queue
    observed = {each.name for each in (tmp_path / "posted" / "observed").iterdir()}
    assert observed == {names[0], names[1], names[3], names[4]}
    again = Spool(tmp_path, window=2)
    again.open()
    last = again.add([PostedImage(content=drawn(1)[0])])
    batch = next(again.batches(watch, wait=lambda seconds: True, tell=heard.append, keep=set))
    assert batch.sources == (names[5], *last)
    assert batch.skipped == (names[1],)  # the only one that cannot be read
    assert set(names[3:5]) <= set(batch.undefined)


def test_an_address_without_a_monitor_or_with_several_says_so(tmp_path: Path) -> None:
    def client(*names: str) -> TestClient:
        monitors = []
        for name in names:
            path = tmp_path / f"{name}.toml"
            path.write_text(f'images = "posted"\nout = "{tmp_path / name}"\n')
            monitors.append(watched(path))
        return TestClient(
            create_app(Store(tmp_path / "store"), monitors=monitors), base_url="http://127.0.0.1"
        )

    answer = client().get("/observe")
    assert (answer.status_code, "none of the monitors" in answer.json()["error"]) == (404, True)
    answer = client("a", "b").get("/observe")
    assert (answer.status_code, "(a, b)" in answer.json()["error"]) == (400, True)
    assert client("a", "b").get("/observe?monitor=b").json()["monitor"] == "b"
    assert client("a", "b").get("/observe?monitor=c").status_code == 404
    started = client("a").post("/observe", content=drawn(1)[0], headers={"Content-Type": "image/png"})
    assert (started.status_code, started.headers["retry-after"]) == (503, "10")
    assert client("a").post("/monitors").status_code == 405
    assert client("a").put("/observe").status_code == 405


def test_only_so_many_requests_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "AT_ONCE", 0)
    path = tmp_path / "a.toml"
    path.write_text(f'images = "posted"\nout = "{tmp_path / "a"}"\n')
    client = TestClient(
        create_app(Store(tmp_path / "store"), monitors=[watched(path)]), base_url="http://127.0.0.1"
    )
    answer = client.post("/observe", content=b"", headers={"Content-Type": "image/png"})
    assert (answer.status_code, "arrive already" in answer.json()["error"]) == (429, True)


def test_a_command_that_serves_nothing_refuses_posted_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = invoke("monitor", "--images", "posted")
    assert outcome.exit_code == 2
    assert "only `assay serve --monitor FILE.toml` takes" in " ".join(outcome.stderr.split())

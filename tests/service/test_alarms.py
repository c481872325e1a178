"""Alarms as events: once per episode, also after kills; files and webhooks that fail, and come back."""

import base64
import json
import math
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.analyses.generalization.journal import Reading
from assay.analyses.generalization.monitoring import Monitor
from assay.app.monitor import alarms
from assay.app.monitor.alarms import Notifier
from assay.app.monitor.sinks import AlarmFile, DeliveryError, Sink, Webhook
from assay.core.errors import InputError, OutputError
from assay.core.verdict import Interval
from assay.pipeline.progress import seconds_of
from assay.tasks import EvalTransform, draw_shapes
from assay.zoo import Zoo


Make = Callable[[], Monitor]


class Kept(Sink):
    """Keeps what it gets; refuses while `broken`."""

    key, shown = "webhook", "https://example.org/..."

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.broken = False
        self.asked = 0

    def deliver(self, event: Any) -> None:
        self.asked += 1
        if self.broken:
            raise DeliveryError("webhook https://example.org/...: no")
        self.events.append(dict(event))

    @property
    def said(self) -> list[tuple[str, int]]:
        return [(each["event"], each["batch"] - 1) for each in self.events]  # by place, as `read` has them


class Time:
    """A clock that only the test turns."""

    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


class Desk:
    """A monitor whose readings are written by hand, and its notifier, started again at will."""

    def __init__(self, make: Make, folder: Path, *sinks: Sink, cool_down: float = 0.0) -> None:
        self.make, self.folder, self.sinks, self.cool_down = make, folder, sinks, cool_down
        self.clock, self.heard = Time(), []  # type: ignore[var-annotated] # by use
        self.monitor = make()
        self.start()

    def start(self, *sinks: Sink) -> None:
        """Begin, or begin again after a kill: only readings and state are left."""
        self.sinks = sinks or self.sinks
        readings, self.monitor = self.monitor.readings, self.make()
        self.monitor.readings += readings
        self.notifier = Notifier(
            self.monitor,
            self.sinks,
            name="door",
            cool_down=self.cool_down,
            state=self.folder / "told.json",
            clock=self.clock,
            tell=self.heard.append,
        )

    def read(self, alarms: str, *, take: bool = True) -> None:
        """A reading per letter, a minute apart: `!` raises the alarm."""
        for letter in alarms:
            self.monitor.readings.append(
                Reading(
                    index=len(self.monitor.readings),
                    time=f"2026-01-01T00:{len(self.monitor.readings):02}:00.000+00:00",
                    n=4,
                    shift=0.5,
                    interval=Interval(low=0.25, high=math.nan, level=0.95, method="percentile"),
                    alarm={"!": True, ".": False, "?": None}[letter],
                    p_value=0.05,
                )
            )
            if take:
                self.notifier.take(self.monitor.readings[-1])
            self.clock.now += 60


@pytest.fixture(scope="module")
def make() -> Callable[[], Monitor]:
    zoo = Zoo.embedded()
    model = assay.load_model(str(zoo.folder(zoo.keys[0])))
    scores = assay.discover(model, draw_shapes("flat", 4).task(EvalTransform.for_model(model)), steps=1)
    return lambda: Monitor(model, scores, 0.4)


# ------------------------------------------------------------------------------------------- what is told


def test_an_episode_is_told_once_and_its_end(make: Make, tmp_path: Path) -> None:
    sink = Kept()
    desk = Desk(make, tmp_path, sink)
    desk.read("..!!!.?.!!")
    assert sink.said == [("alarm", 2), ("resolved", 5), ("alarm", 8)]
    first, end, second = sink.events
    # Batches count from 1, as on the page and in the table.
    assert first["first_batch"] == end["first_batch"] == 3
    assert second["first_batch"] == 9
    assert len({each["id"] for each in sink.events}) == 3
    assert first == {
        "schema": "assay-alarm/1",
        "page": None,
        "id": first["id"],
        "event": "alarm",
        "monitor": "door",
        "monitor_id": desk.monitor.id,
        "model": desk.monitor.model.id,
        "rule": "threshold",
        "first_batch": 3,
        "batch": 3,
        "time": "2026-01-01T00:02:00.000+00:00",
        "shift": 0.5,
        "interval": {"low": 0.25, "high": None, "level": 0.95, "method": "percentile"},
        "p_value": 0.05,
        "guarantee": desk.monitor.guarantee.statement,
    }
    assert desk.notifier.to_dict()["raised"] is True


def test_a_cool_down_holds_the_next_alarm_back(make: Make, tmp_path: Path) -> None:
    sink = Kept()
    desk = Desk(make, tmp_path, sink, cool_down=300.0)
    desk.read("!.!.!..")  # told at 0 s; those of 120 s and 240 s are over before 300 s
    assert sink.said == [("alarm", 0), ("resolved", 1)]
    desk.read("!")  # at 420 s
    assert sink.said[2:] == [("alarm", 7)]
    desk.read(".!")  # raised again at 540 s, within
    assert sink.said[3:] == [("resolved", 8)]
    desk.clock.now += 100
    desk.notifier.send()  # 700 s: no new reading, still raised, still quiet
    assert len(sink.said) == 4
    desk.clock.now += 100
    desk.notifier.send()
    assert sink.said[4:] == [("alarm", 9)]


def test_nothing_is_told_twice_after_a_start(make: Make, tmp_path: Path) -> None:
    sink = Kept()
    desk = Desk(make, tmp_path, sink)
    desk.read(".!")
    for _ in range(3):
        desk.start()
        desk.read("!")
    desk.start()
    desk.read(".")
    assert sink.said == [("alarm", 1), ("resolved", 5)]


def test_a_kill_between_reading_and_telling_loses_nothing(make: Make, tmp_path: Path) -> None:
    sink = Kept()
    desk = Desk(make, tmp_path, sink)
    desk.read(".")
    desk.read("!.!", take=False)  # kept in the journal, then killed
    desk.start()
    assert sink.said == [("alarm", 1), ("resolved", 2), ("alarm", 3)]


def test_a_cool_down_goes_on_after_a_start(make: Make, tmp_path: Path) -> None:
    sink = Kept()
    desk = Desk(make, tmp_path, sink, cool_down=600.0)
    desk.read("!.")
    desk.clock.now = 3.0  # another boot, another clock
    desk.start()
    desk.read("!")
    assert sink.said == [("alarm", 0), ("resolved", 1)]
    desk.read("!" * 10)
    assert sink.said[2:] == [("alarm", 11)]  # 540 s of it were left at the last reading before


def test_without_a_state_only_what_is_raised_now_is_news(make: Make, tmp_path: Path) -> None:
    sink = Kept()
    desk = Desk(make, tmp_path, sink)
    (tmp_path / "told.json").unlink(missing_ok=True)
    desk.read("!.!!", take=False)
    desk.start()
    assert sink.said == []
    desk.notifier.send()
    assert sink.said == [("alarm", 3)]
    assert sink.events[0]["first_batch"] == 3  # counted from 1


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"schema": "assay-alarms-told/1"}', "\x00"])
def test_a_broken_state_is_told_and_rebuilt(make: Make, tmp_path: Path, content: str) -> None:
    desk = Desk(make, tmp_path, Kept())
    desk.read("..")
    (tmp_path / "told.json").write_text(content)
    desk.start()
    assert "cannot use " in desk.heard[-1]
    desk.read("!")
    assert json.loads((tmp_path / "told.json").read_text())["seen"] == 2


def test_a_state_of_another_monitor_is_not_taken(make: Make, tmp_path: Path) -> None:
    desk = Desk(make, tmp_path, Kept())
    desk.read("!")
    record = json.loads((tmp_path / "told.json").read_text())
    (tmp_path / "told.json").write_text(json.dumps({**record, "monitor_id": "0" * 16}))
    desk.start()
    assert "another monitor" in desk.heard[-1]


# --------------------------------------------------------------------------------------- what fails, and how


def test_a_sink_that_fails_is_tried_again_with_growing_waits(make: Make, tmp_path: Path) -> None:
    sink = Kept()
    desk = Desk(make, tmp_path, sink)
    sink.broken = True
    desk.read("!")
    assert desk.notifier.to_dict() | {"sinks": []} == {
        "raised": True,
        "told": True,
        "undelivered": 1,
        "sinks": [],
        "webhook_failures": 1,
    }
    asked: list[float] = []
    for _ in range(200):
        before = sink.asked
        desk.notifier.send()
        asked += [desk.clock.now] * (sink.asked - before)
        desk.clock.now += 1
        if len(asked) == 5:
            sink.broken = False
    waits = [late - early for early, late in pairwise(asked)]
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert sink.said == [("alarm", 0)]
    assert [text.partition(";")[0] for text in desk.heard] == [
        "webhook https://example.org/...: no",
        "https://example.org/... accepts alarms again",
    ]
    assert desk.notifier.to_dict()["webhook_failures"] == 6


def test_an_event_outlasts_hours_in_which_nobody_takes_it(make: Make, tmp_path: Path) -> None:
    sink = Kept()
    desk = Desk(make, tmp_path, sink)
    sink.broken = True
    desk.read("!")
    for _ in range(2000):
        desk.clock.now += 10
        desk.notifier.send()
    assert desk.notifier.to_dict()["undelivered"] == 1
    assert sink.asked > 20_000 / alarms.LONGEST_WAIT
    sink.broken = False
    desk.clock.now += alarms.LONGEST_WAIT
    desk.read(".")
    assert sink.said == [("alarm", 0), ("resolved", 1)]


def test_the_end_of_somebody_elses_file_is_left_alone(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\nsecond line without a break")
    desk = Desk(make, tmp_path / "desk", AlarmFile(path))
    desk.read("!")
    lines = path.read_text().splitlines()
    assert lines[:2] == ["my notes", "second line without a break"]
    assert json.loads(lines[2])["event"] == "alarm"


def test_what_waits_survives_a_start_and_goes_in_order(make: Make, tmp_path: Path) -> None:
    sink = Kept()
    desk = Desk(make, tmp_path, sink)
    sink.broken = True
    desk.read("!.")
    desk.start(fresh := Kept())
    desk.notifier.send()
    assert fresh.said == [("alarm", 0), ("resolved", 1)]
    assert desk.notifier.to_dict()["webhook_failures"] == sink.asked


def test_one_broken_sink_does_not_hold_up_another(make: Make, tmp_path: Path) -> None:
    broken = Kept()
    broken.broken = True
    file = AlarmFile(tmp_path / "alarms.jsonl")
    desk = Desk(make, tmp_path, broken, file)
    desk.read("!.")
    lines = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert [each["event"] for each in lines] == ["alarm", "resolved"]


def test_the_end_tries_a_few_times_and_leaves_the_rest(make: Make, tmp_path: Path) -> None:
    sink = Kept()
    desk = Desk(make, tmp_path, sink)
    sink.broken = True
    desk.read("!")
    begun = desk.clock.now
    desk.notifier.finish(desk.clock.wait)
    assert sink.asked == 1 + alarms.TRIES_AT_THE_END
    assert desk.clock.now - begun < 15
    assert "1 event(s) could not be delivered" in desk.heard[-1]


def test_a_state_that_cannot_be_written_does_not_stop_the_monitor(make: Make, tmp_path: Path) -> None:
    sink = Kept()
    desk = Desk(make, tmp_path / "gone", sink)
    desk.read("!")
    assert sink.said == [("alarm", 0)]
    assert "cannot save the record of sent alarms" in desk.heard[0]


# ------------------------------------------------------------------------------------------------- the file

EVENT = {"id": "00112233aabbccdd", "event": "alarm", "monitor": "<b>\udcff\n"}


def test_a_line_per_event_in_folders_that_are_made(tmp_path: Path) -> None:
    file = AlarmFile(tmp_path / "a" / "b" / "alarms.jsonl")
    file.deliver(EVENT)
    file.deliver({**EVENT, "id": "1" * 16})
    file.deliver(EVENT)  # again, after a kill: it stands there
    lines = file.path.read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [EVENT["id"], "1" * 16]
    assert json.loads(lines[0]) == EVENT


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ('{"id": "a"}\n{"schema": "assay-alarm/1", "id": "b', ['{"id": "a"}']),
        ('{"id": "a"}\n{"id": "b"}', ['{"id": "a"}', '{"id": "b"}']),
        ("{", []),
        ("", []),
        # The id of the event inside a line that was cut short is not a delivery.
        ('{"schema": "assay-alarm/1", "id": "00112233aabbccdd", "ev', []),
    ],
)
def test_a_last_line_cut_short_does_not_spoil_the_next(tmp_path: Path, before: str, kept: list[str]) -> None:
    path = tmp_path / "alarms.jsonl"
    path.write_text(before)
    AlarmFile(path).deliver(EVENT)
    *first, last = path.read_text().splitlines()
    assert first == kept
    assert json.loads(last) == EVENT


def test_writers_of_one_file_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "alarms.jsonl"

    def write(number: int) -> None:
        file = AlarmFile(path)
        for place in range(50):
            file.deliver({"id": f"{number:08}{place:08}", "filler": "x" * 3000})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [json.loads(line)["id"] for line in path.read_text().splitlines()]
    assert len(found) == len(set(found)) == 200


def test_a_full_disk_leaves_the_file_as_it_was(tiny_disk: Path) -> None:
    path = tiny_disk / "alarms.jsonl"
    file = AlarmFile(path)
    file.deliver(EVENT)
    before = path.read_bytes()
    (tiny_disk / "filler").write_bytes(bytes(240 << 10))
    with pytest.raises(DeliveryError, match="No space left on device"):
        file.deliver({"id": "2" * 16, "long": "x" * 200_000})
    assert path.read_bytes() == before
    (tiny_disk / "filler").unlink()
    file.deliver({"id": "2" * 16})
    assert len(path.read_text().splitlines()) == 2


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; skipped where none can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("NOT TESTED: a full disk; there is no mount")
    if done.returncode:
        pytest.skip(f"NOT TESTED: a full disk; no tmpfs can be mounted here ({done.stderr.strip()})")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_places_that_are_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write alarm file"):
        AlarmFile(tmp_path)
    with pytest.raises(DeliveryError, match="not a regular file"):
        AlarmFile(Path("/dev/null")).deliver(EVENT)
    (tmp_path / "file").write_text("")
    with pytest.raises(DeliveryError, match="File exists"):
        AlarmFile(tmp_path / "file" / "alarms.jsonl").deliver(EVENT)


# ---------------------------------------------------------------------------------------------- the webhook


@dataclass
class Host:
    """A server on loopback: what it is asked, and how it answers."""

    port: int
    asked: list[tuple[str, dict[str, str], bytes]]
    answer: Callable[[BaseHTTPRequestHandler], None]

    def url(self, rest: str = "/hook/SECRET?token=SECRET") -> str:
        return f"http://127.0.0.1:{self.port}{rest}"


def status(code: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code, "said the server of SECRET")
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@pytest.fixture
def host() -> Iterator[Host]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.asked.append((self.path, dict(self.headers), body))
            found.answer(self)

        def do_GET(self) -> None:
            found.asked.append(("GET " + self.path, {}, b""))
            status(200)(self)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
            """Requests are not news."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Host(server.server_port, [], status(204))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_event_is_a_post_of_json(host: Host) -> None:
    Webhook(host.url()).deliver(EVENT)
    ((path, headers, body),) = host.asked
    assert path == "/hook/SECRET?token=SECRET"
    assert headers["Content-Type"] == "application/json"
    assert headers["Idempotency-Key"] == EVENT["id"]
    assert headers["User-Agent"].startswith("assay/")
    assert "Authorization" not in headers
    assert json.loads(body) == EVENT


FULL = EVENT | {
    "monitor": "door <b>",
    "monitor_id": "0123456789abcdef",
    "model": "vit & co",
    "rule": "conformal",
    "first_batch": 7,
    "batch": 7,
    "time": "2026-01-02T03:04:05.000+00:00",
    "shift": 0.4214,
    "interval": {"low": 0.39, "high": 0.45},
    "p_value": 0.02,
    "guarantee": "At most 5 % of batches.",
}


def sent(host: Host, form: str, event: dict[str, Any], query: str = "") -> tuple[str, dict[str, Any]]:
    """Path and body of the request for an event."""
    Webhook(f"http://127.0.0.1:{host.port}/hook{query}", form=form).deliver(event)
    path, _, body = host.asked[-1]
    return path, json.loads(body)


def test_slack_is_sent_text_without_mark_up(host: Host) -> None:
    _, body = sent(host, "slack", FULL)
    assert body.keys() == {"text"}
    lines = body["text"].splitlines()
    assert lines[0] == (
        "door &lt;b&gt;: vit &amp; co raised the alarm at batch 7, circuit shift 0.421 [0.390, 0.450]"
    )
    assert "Rule: conformal, p 0.020" in lines
    assert "Guarantee: At most 5 % of batches." in lines


def test_teams_is_sent_an_adaptive_card(host: Host) -> None:
    undefined = {**FULL, "event": "resolved", "interval": {"low": None, "high": None}, "p_value": None}
    _, body = sent(host, "teams", undefined)
    (attachment,) = body["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    text, facts = attachment["content"]["body"]
    assert text["text"].endswith("no longer raises the alarm at batch 7, circuit shift 0.421")
    assert {each["title"]: each["value"] for each in facts["facts"]}["Rule"] == "conformal"


def test_pagerduty_opens_and_closes_one_incident_and_its_key_leaves_the_url(host: Host) -> None:
    path, opened = sent(host, "pagerduty", FULL, "?routing_key=SECRET&a=b")
    _, closed = sent(host, "pagerduty", {**FULL, "event": "resolved", "batch": 9}, "?a=b&routing_key=SECRET")
    assert path == "/hook?a=b"
    assert opened["routing_key"] == "SECRET"
    assert (opened["event_action"], closed["event_action"]) == ("trigger", "resolve")
    assert opened["dedup_key"] == closed["dedup_key"] == "assay-0123456789abcdef-7"
    assert opened["payload"].keys() >= {"summary", "source", "severity", "timestamp"}
    assert opened["payload"]["custom_details"] == FULL


def test_a_form_that_does_not_exist_and_a_pager_without_a_key_are_refused() -> None:
    with pytest.raises(InputError, match="unknown webhook format 'slak'; did you mean 'slack'"):
        Webhook("http://127.0.0.1/", form="slak")
    with pytest.raises(InputError, match=r"needs the key of its integration: give .*routing_key=KEY"):
        Webhook("http://127.0.0.1/v2/enqueue", form="pagerduty")


def test_a_name_and_password_in_the_url_are_basic_authentication(host: Host) -> None:
    sink = Webhook(f"http://me:pa%3Ass@127.0.0.1:{host.port}")
    sink.deliver(EVENT)
    ((path, headers, _),) = host.asked
    assert path == "/"
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"me:pa:ss"
    assert "pa" not in sink.shown


@pytest.mark.parametrize("code", [400, 404, 500, 503])
def test_another_status_is_a_failure_without_secrets(host: Host, code: int) -> None:
    host.answer = status(code)
    with pytest.raises(DeliveryError, match=rf"127\.0\.0\.1:{host.port}/\.\.\.: status {code}$") as caught:
        Webhook(host.url()).deliver(EVENT)
    assert "SECRET" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("target", ["/elsewhere", "file:///etc/passwd", "ftp://127.0.0.1/", "gopher://x"])
def test_no_redirect_is_followed(host: Host, code: int, target: str) -> None:
    host.answer = status(code, Location=target)
    with pytest.raises(DeliveryError, match="a redirect; redirects are not followed"):
        Webhook(host.url()).deliver(EVENT)
    assert len(host.asked) == 1


def test_a_host_that_is_silent_or_drips_is_given_up_in_time(host: Host) -> None:
    over = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 ")
        while not over.wait(0.05):
            handler.wfile.write(b"O")

    host.answer = drip
    sink = Webhook(host.url(), timeout=0.4)
    try:
        with pytest.raises(DeliveryError, match=r"no answer within 0\.4 s"):
            sink.deliver(EVENT)
        # One at a time: a host that holds requests open cannot collect them.
        with pytest.raises(DeliveryError, match="the previous request is still unanswered"):
            sink.deliver(EVENT)
    finally:
        over.set()
    assert len(host.asked) == 1


def mail(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"220 mail.example.org ESMTP\r\n")


def test_what_is_no_http_or_cannot_be_reached_is_a_failure(host: Host) -> None:
    host.answer = mail
    with pytest.raises(DeliveryError, match="BadStatusLine"):
        Webhook(host.url()).deliver(EVENT)
    with pytest.raises(DeliveryError, match="Connection refused"):
        Webhook("http://127.0.0.1:1/SECRET").deliver(EVENT)
    with pytest.raises(DeliveryError, match=r"https://127\.0\.0\.1:\d+/\.\.\.: ") as caught:
        Webhook(host.url().replace("http:", "https:")).deliver(EVENT)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///etc/passwd", "scheme 'file'"),
        ("ftp://host/SECRET", "scheme 'ftp'"),
        ("hooks.example.org/SECRET", "scheme ''"),
        ("https:///SECRET", "no host"),
        ("https://host/SEC RET", "characters that a URL cannot have"),
        ("https://host/SECRET\r\nX-Evil: 1", "characters that a URL cannot have"),
        ("https://host:SECRET/", "not a URL"),
        ("https://[::1/SECRET", "not a URL"),
        ("", "scheme ''"),
    ],
)
def test_other_urls_are_refused_without_being_shown(url: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Webhook(url)
    assert "SECRET" not in str(caught.value)


# ------------------------------------------------------------------------------------------------ durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("45", 45), ("1.5m", 90), (" 2 h ", 7200), ("1d", 86400), (30, 30)],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["-1", "10 minutes", "", "h", "1e9", "nan", "9" * 400, -1.0])
def test_what_is_no_duration(text: str | float) -> None:
    with pytest.raises(InputError, match="not a duration"):
        seconds_of(text)

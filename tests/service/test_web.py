"""The served site: what it answers, whom it lets in, what it never does."""

import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from chromium import Visit
from starlette.testclient import TestClient


sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "report"))
from synthetic_store import HOSTILE, Filled, fill, measurement, put_measurement

from assay.app.site.web import create_app
from assay.core.errors import InputError
from assay.store import Store


TOKEN = "a token of sixteen or more".replace(" ", "-")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Filled]:
    store = Store(tmp_path_factory.mktemp("store"))
    return store, fill(store)


@pytest.fixture(scope="module")
def client(filled: tuple[Store, Filled]) -> TestClient:
    app = create_app(filled[0])
    return TestClient(app, base_url="http://127.0.0.1:8651", raise_server_exceptions=False)


def paths(ids: Filled) -> list[str]:
    """Every page of the site."""
    results = (ids.audits[0], ids.scores, ids.measurement, ids.calibration, ids.sweep)
    return ["/", *(f"/result/{key}" for key in results)]


def test_every_page_has_the_headers_that_close_it(client: TestClient, filled: tuple[Store, Filled]) -> None:
    for path in paths(filled[1]):
        answer = client.get(path)
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "script-src 'sha256-" in policy
        assert "unsafe-inline'; script" in policy  # styles alone
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert len(answer.content) < 3_000_000


def test_the_site_can_only_be_read(client: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        answer = client.request(method, "/")
        assert (answer.status_code, {*answer.headers["allow"].split(", ")}) == (405, {"GET", "HEAD"}), method


def test_the_list_is_filtered_sorted_and_paged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(130):
        put_measurement(store, measurement("kl" if seed % 2 else "js", seed=seed, shift=0.001 * seed))
    client = TestClient(create_app(store), base_url="http://localhost")
    rows = re.compile(r'<a href="/result/([0-9a-f]{16})">')
    page = client.get("/?order=value").text
    values = [store.get(key).payload["value"] for key in rows.findall(page)]
    assert len(values) == 100
    assert values == sorted(values)
    assert "1 to 100 of 130" in page
    after = re.search(r'href="([^"]*)" rel="next"', page)
    for heading in re.findall(r'href="(/\?order=[^"]*)"', page):
        assert client.get(heading.replace("&amp;", "&")).status_code == 200, heading
    rest = client.get(after[1].replace("&amp;", "&")).text
    assert len(rows.findall(rest)) == 30
    assert 'rel="next"' not in rest
    assert "65 results match" in client.get("/?metric=kl").text
    assert "Nothing matches these filters" in client.get("/?metric=kl&task=none").text


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/nowhere", 404, "This page does not exist"),
        ("/result/0123456789abcdef", 404, "no result in"),
        ("/result/..%2f..%2fetc%2fpasswd", 404, ""),
        ("/result/ABCDEF012345", 404, "hex digits"),
        ("/?order=payload", 400, "cannot order by"),
        ("/?start=99999999999999999999", 400, "expected a whole number"),
    ],
)
def test_errors_are_plain_pages(client: TestClient, path: str, status: int, text: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert text in answer.text
    assert "Traceback" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_failure_tells_nothing(filled: tuple[Store, Filled], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> int:
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr(Store, "count", fail)
    client = TestClient(create_app(filled[0]), base_url="http://localhost", raise_server_exceptions=False)
    answer = client.get("/")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "See the log of the server" in answer.text


def test_names_that_only_the_browser_knows_are_refused(filled: tuple[Store, Filled]) -> None:
    client = TestClient(create_app(filled[0], allowed_hosts=["name.of.mine"]))
    answers = {"127.0.0.1:8651": 200, "[::1]:8651": 200, "name.of.mine:80": 200}
    for host, status in (answers | {"127.0.0.1.evil.example": 400, "": 400}).items():
        assert client.get("/", headers={"host": host}).status_code == status, host


def test_a_public_address_needs_a_token(filled: tuple[Store, Filled]) -> None:
    for host in ("0.0.0.0", "::", "192.168.7.7", "example.org"):
        with pytest.raises(InputError, match="others can reach the store on"):
            create_app(filled[0], host=host)
    for host in ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"):
        create_app(filled[0], host=host)
    with pytest.raises(InputError, match="16 or more ASCII characters"):
        create_app(filled[0], host="0.0.0.0", token="short")


def test_the_token_opens_as_a_password_and_as_a_header(filled: tuple[Store, Filled]) -> None:
    site = create_app(filled[0], host="0.0.0.0", token=TOKEN)
    client = TestClient(site, base_url="http://192.168.7.7:8651")
    closed = client.get("/")
    assert closed.status_code == 401
    assert closed.headers["www-authenticate"].startswith("Basic realm=")  # a browser asks for a password
    assert "mini" not in closed.text.partition("<main>")[2].partition("</main>")[0]
    wrongs = (f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer ", f"Basic {TOKEN}", "Bearer t\u00f6ken")
    for wrong in wrongs:
        assert client.get("/", headers={"authorization": wrong.encode()}).status_code == 401, wrong
    assert client.get("/", auth=("me", TOKEN[:-1])).status_code == 401
    assert client.get("/", auth=(TOKEN, "")).status_code == 401
    assert client.get("/", auth=("me", TOKEN)).status_code == 200
    assert client.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.get(f"/?token={TOKEN}").status_code == 401
    assert client.get("/healthz").text == "ok\n"


# ---- a real server ------------------------------------------------------------------------------


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The site on a free port."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def test_a_browser_walks_the_site(filled: tuple[Store, Filled], visit: Visit) -> None:
    with serving(create_app(filled[0])) as address:
        for path in paths(filled[1]):
            visit.page.goto(address + path)
            visit.page.set_viewport_size({"width": 360, "height": 780})
            assert visit.sideways() <= 0, path
        visit.page.goto(address)
        visit.page.set_viewport_size({"width": 1300, "height": 900})
        table = visit.page.locator(".scroll").first
        assert table.evaluate("each => each.scrollWidth - each.clientWidth") <= 0
        visit.page.get_by_role("textbox", name="kind").fill("audit")
        visit.page.get_by_role("button", name="Filter").click()
        assert visit.page.locator("h1").text_content() == "2 results match"
        visit.page.locator("table.results tbody a").first.click()
        assert "circuit audit" in visit.page.locator(".kicker").first.text_content()
        visit.check(own=address)


def test_hostile_names_stay_text_on_the_site(tmp_path: Path, visit: Visit) -> None:
    store = Store(tmp_path / "store")
    ids = fill(store, model=f"m{HOSTILE}", task=f"t{HOSTILE}", metric=f"k{HOSTILE}")
    with serving(create_app(store)) as address:
        for path in ("/", f"/result/{ids.scores}"):
            page = visit.page
            page.goto(address + path)
            shown = page.locator("body").evaluate("body => body.textContent").replace('\\"', '"')
            assert HOSTILE in shown, path
            links = page.evaluate("[...document.querySelectorAll('a')].map(a => a.protocol + a.host)")
            assert set(links) == {address.replace("//", "")}
            assert page.evaluate("document.querySelectorAll('img').length") == 0
        visit.check(own=address)

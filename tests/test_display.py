"""What a notebook shows: escaped, compact, the verdict in words, and readable in a browser."""

import html.parser
import math
from typing import Any

import numpy as np
import pytest
from chromium import Visit

import assay
from assay.core import display
from assay.core.measurement import Measurement
from assay.core.verdict import Interval, Rule, Verdict
from assay.stats import mean_of


HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'\"&"


class Tags(html.parser.HTMLParser):
    """Names of elements and attributes, and the text between."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open[-1:] == [tag]:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


ALLOWED = {
    "div", "strong", "span", "table", "thead", "tbody", "tr", "th", "td", "code",
}  # fmt: skip


def checked(shown: str) -> Tags:
    """Only what this package writes: no script, no address, every element closed."""
    found = Tags(shown)
    assert set(found.names) <= ALLOWED
    assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "href")}
    assert not found.open
    assert len(shown) < 30_000
    return found


@pytest.fixture(scope="module")
def things() -> dict[str, Any]:
    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=8, seed=0)
    scores = assay.discover(model, task, "eap")
    circuit = scores.top(30).connected()
    return {
        "model": model,
        "task": task,
        "scores": scores,
        "circuit": circuit,
        "measurement": assay.measure(circuit, model, task, "faithfulness"),
        "curve": assay.faithfulness_curve(scores, model, task, fractions=[0.01, 0.1, 1.0]),
        "worst": assay.worst_case(circuit, model, task, n_clean=4, n_corrupted=4),
    }


def measurement(name: str, value: float = 0.5) -> Measurement:
    values = np.array([0.25, 0.5, 0.75])
    return Measurement(
        id=f"X1.{name}",
        name=name,
        value=value,
        n=3,
        unit=name,
        per_example=values,
        components={"a": values},
        statistic=mean_of("a"),
        rule=Rule(pass_at=0.9),
        warnings=(name,),
        provenance={"name": name},
    )


@pytest.mark.parametrize("name", ["scores", "circuit", "measurement", "curve", "worst"])
def test_every_value_has_a_small_page_of_its_own(things: dict[str, Any], name: str) -> None:
    shown = checked(things[name]._summary())
    assert "table" in shown.names
    assert " id " in f" {shown.text} " or "id " in shown.text


def test_a_measurement_shows_value_interval_n_verdict_and_identity(things: dict[str, Any]) -> None:
    measured = things["measurement"]
    text = checked(measured._summary()).text
    interval = measured.interval()
    for part in (
        display.number(measured.value),
        display.number(interval.low),
        display.number(interval.high),
        measured.status,
        measured.id_hash,
    ):
        assert part in text


@pytest.mark.parametrize("status", sorted(display.MARKS))
def test_a_verdict_is_a_word_with_a_mark(status: str) -> None:
    shown = checked(Verdict(status=status, published="none", values={"value": math.nan})._repr_html_())
    assert f"{display.MARKS[status][0]} {status}" in shown.text
    assert "undefined" in shown.text
    assert len({mark for mark, _ in display.MARKS.values()}) == len(display.MARKS)


def test_a_certificate_is_a_sentence(things: dict[str, Any]) -> None:
    found = things["worst"].certificate(0.5)
    assert found.statement[:40] in checked(found._repr_html_()).text


def test_hostile_names_stay_text() -> None:
    shown = checked(measurement(HOSTILE)._summary())
    assert "<script>" in shown.text  # as text, once read back
    verdict = Verdict(
        status=HOSTILE,
        published=HOSTILE,
        values={HOSTILE: 0.5},
        thresholds={HOSTILE: 1.0},
        interval=Interval(low=0.0, high=1.0, level=0.9, method="x"),
        reason=HOSTILE,
        table_hash=HOSTILE,
    )
    checked(verdict._repr_html_())
    checked(display.table(HOSTILE, (HOSTILE, "verdict"), [(HOSTILE, HOSTILE)], id=HOSTILE))


def test_long_text_and_many_rows_are_cut() -> None:
    shown = checked(display.card("x" * 5000, [(str(place), place) for place in range(1000)]))
    assert len(shown.text) < 2000
    assert "977 more" in shown.text
    listed = checked(display.table("t", ("a",), [(place,) for place in range(1000)]))
    assert ".to_frame()" in listed.text


def test_numbers_in_words() -> None:
    assert [display.number(each) for each in (None, math.nan, math.inf, -math.inf, 1234567, 0.123456)] == [
        "undefined", "undefined", "\N{INFINITY}", "\N{MINUS SIGN}\N{INFINITY}", "1,234,567", "0.1235",
    ]  # fmt: skip
    assert display.ends(None, 1.0) == "95 % interval undefined"


def test_in_a_browser_nothing_runs_and_the_text_is_there(things: dict[str, Any], visit: Visit) -> None:
    shown = [things[name]._repr_html_() for name in ("scores", "circuit", "measurement", "curve", "worst")]
    page = visit.open(
        "<!doctype html><meta charset=utf-8><title>quiet</title>"
        + "<hr>".join([*shown, measurement(HOSTILE)._repr_html_()])
    )
    assert page.title() == "quiet"
    visit.check()
    assert len(page.frames) == 7
    texts = [frame.inner_text("body") for frame in page.frames[1:]]
    assert "edge scores" in texts[0]
    assert "onerror=" in texts[-1]
    assert all(frame.locator("svg").bounding_box()["height"] > 40 for frame in page.frames[1:])


# ------------------------------------------------------------------------------------------------ as tables


def test_tables_have_a_row_per_thing_and_typed_columns(things: dict[str, Any]) -> None:
    measured = things["measurement"].to_frame()
    assert list(measured.columns[:2]) == ["example", "value"]
    assert len(measured) == 8
    assert measured["value"].mean() == pytest.approx(things["measurement"].value)
    assert measured.dtypes["example"] == np.int64
    assert set(measured.dtypes[1:]) == {np.dtype(np.float64)}
    curve = things["curve"].to_frame()
    assert curve["fraction"].tolist() == [0.01, 0.1, 1.0]
    assert curve["faithfulness"].tolist() == pytest.approx(things["curve"].values.tolist())
    assert (curve["low"] <= curve["high"]).all()
    assert curve.dtypes["kept_edges"] == np.int64
    assert curve["random_mean"].isna().all()
    worst = things["worst"].to_frame()
    assert len(worst) == things["worst"].divergence.size
    row = worst.iloc[6]
    assert row["divergence"] == things["worst"].divergence[int(row["clean"]), int(row["corrupted"])]
    assert (worst.dtypes["clean"], worst.dtypes["argmax_differs"]) == (np.int64, np.bool_)


def test_a_measurement_without_examples_says_so() -> None:
    with pytest.raises(assay.core.errors.InputError, match="keeps no values per example"):
        Measurement(id="a", name="a", value=1.0, n=1).to_frame()

"""What a notebook shows: escaped, compact, the verdict in words, and readable in a browser."""

import html.parser
import inspect
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from chromium import Visit
from planted_subsets import planted_matrix

import assay
from assay.core import display
from assay.core.measurement import Measurement
from assay.core.verdict import Interval, Rule, Verdict
from assay.stats import mean_of
from assay.tasks import EvalTransform


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
        if tag not in ("img", "br"):  # which have no end
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


def test_nodes_of_a_circuit_are_drawn_in_the_same_order_in_every_process(things: dict[str, Any]) -> None:
    drawn = things["circuit"].plot().lines[-1].get_xydata().tolist()
    assert len(drawn) == len(things["circuit"].nodes())
    assert [y for _, y in drawn[:2]] == [0, things["model"].n_layers + 1]  # input, logits
    assert drawn[2:] == sorted(drawn[2:], key=lambda place: (place[1], place[0]))


def test_in_a_browser_nothing_runs_and_the_text_is_there(things: dict[str, Any], visit: Visit) -> None:
    shown = [things[name]._repr_html_() for name in ("scores", "circuit", "measurement", "curve", "worst")]
    page = visit.open(
        "<!doctype html><meta charset=utf-8><title>quiet</title>"
        + "<hr>".join([*shown, measurement(HOSTILE)._repr_html_()])
    )
    assert page.title() == "quiet"
    visit.check()
    assert len(page.frames) == 1
    assert "edge scores" in page.inner_text("body")
    assert "onerror=" in page.inner_text("body")
    pictures = page.locator("img").all()
    assert len(pictures) == 6
    for picture in pictures:
        assert picture.evaluate("each => each.complete && each.naturalWidth > 200 && each.naturalHeight > 40")


# ------------------------------------------------------------------------------------- without a picture


def classifier() -> assay.Model:
    zoo = assay.Zoo.embedded()
    return zoo.load(zoo.keys[0])


def public_values(things: dict[str, Any], tmp_path: Path) -> dict[str, object]:
    """One value of each public class."""
    model, task = things["model"], things["task"]
    images = assay.tasks.draw_shapes("sketch", 20)
    store = assay.Store(tmp_path)
    store.put("scores", {"seed": 0}, {})
    data = planted_matrix(60, 120)
    path = assay.selection_path(data.correct, data.id_accuracy, [20, 40], groups=range(60))
    progress = assay.ProgressDisplay()
    progress("passes", 3, 8)
    return {
        "Circuit": things["circuit"],
        "CircuitRuns": assay.CircuitRuns(model, task, things["circuit"]),
        "CorrectnessData": assay.CorrectnessData.of(data.correct, data.id_accuracy),
        "EdgeScores": things["scores"],
        "Graph": model.graph,
        "HeadScores": assay.discover_heads(model, task, "drop-effect"),
        "ImageStream": assay.stream_images("shapes:sketch", classifier(), assay.tasks.ReadOptions(n=4)),
        "ImageTask": images.task(EvalTransform(resize=None)),
        "Interval": things["measurement"].interval(),
        "Measurement": things["measurement"],
        "Model": model,
        "Monitor": assay.Monitor(model, things["scores"], threshold=0.3, baselines=False),
        "PairTask": task,
        "ProgressDisplay": progress,
        "SelectionPath": path,
        "Store": store,
        "Subset": path[20],
        "Verdict": assay.calibrate("bootstrap-stability", things["measurement"]),
        "WorstCase": things["worst"],
        "Zoo": assay.Zoo.embedded(),
    }


def test_every_public_class_shows_itself(things: dict[str, Any], tmp_path: Path) -> None:
    classes = {name for name in assay.__all__ if inspect.isclass(getattr(assay, name))}
    values = public_values(things, tmp_path)
    assert values.keys() == classes - {"AssayError"}  # which is raised, and then shown as any error
    for name, value in values.items():
        assert type(value) is getattr(assay, name)
        shown = Tags(value._repr_html_())
        assert set(shown.names) <= ALLOWED | {"img", "br"}, name
        assert not shown.open, name
        assert len(shown.text) > 20, name
        assert len(repr(value)) < 2000, name


def test_cards_say_what_is_inside(things: dict[str, Any], tmp_path: Path) -> None:
    texts = {name: Tags(value._repr_html_()).text for name, value in public_values(things, tmp_path).items()}
    assert "4 blocks of 8 heads" in texts["Model"]
    assert "1,519" in texts["Graph"]
    assert things["task"].texts[0] in texts["PairTask"]
    assert "21 of 1,519 edges" in texts["CircuitRuns"]
    assert "scores1" in texts["Store"]
    assert "60" in texts["CorrectnessData"]
    assert all(key in texts["Zoo"] for key in assay.Zoo.embedded().keys)


def test_tasks_without_texts_or_labels_are_shown_by_number(things: dict[str, Any]) -> None:
    ids = torch.tensor([[3, 4, 5], [3, 6, 5]])
    task = assay.PairTask(clean=ids, corrupted=ids.flip(0), answers=torch.tensor([[7], [8]]))
    assert "[3, 4, 5][3, 6, 5][7]" in checked(task._repr_html_()).text
    shown = Tags(assay.ImageTask(images=torch.zeros(2, 3, 8, 8))._repr_html_())
    assert (shown.names.count("img"), shown.text.count("?")) == (2, 2)


# ---------------------------------------------------------------------------------------------- progress


def test_outside_a_notebook_progress_is_a_line_per_stage(capsys: pytest.CaptureFixture[str]) -> None:
    progress = assay.ProgressDisplay()
    for stage, done in (("train", 0), ("train", 1), ("train", 2), ("select", 0)):
        progress(stage, done, 2)
    assert capsys.readouterr().err == "train ...\nselect ...\n"
    assert repr(progress) == "train 2 of 2; select 0 of 2"


def test_in_a_notebook_progress_is_one_output_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, str]] = []

    class Handle:
        def update(self, value: object) -> None:
            shown.append(("update", repr(value)))

    def display(value: object, *, display_id: bool) -> Handle:
        assert display_id
        shown.append(("display", repr(value)))
        return Handle()

    kernel = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    progress = assay.ProgressDisplay()
    for done in range(1001):
        progress("attack", done, 1000)
    progress("search", 1, 0)
    assert [kind for kind, _ in shown].count("display") == 1
    assert shown[0] == ("display", "attack 0 of 1,000")
    assert shown[-2:] == [("update", "attack 1,000 of 1,000"), ("update", "attack 1,000 of 1,000; search 1")]
    assert len(shown) < 50


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

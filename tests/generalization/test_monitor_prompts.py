"""A monitor of a language model: a stream of prompts, the same distances, and what it refuses."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import invoke

from assay.analyses.generalization import Monitor, circuit_shift
from assay.analyses.generalization.batches import circuit_like
from assay.circuits import EdgeScores
from assay.core.errors import FileFormatError, InputError, TokenizationError
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import Model, load_model
from assay.pipeline.image_stream import Batch, Watch
from assay.pipeline.prompt_stream import known_prompts, prompt_batches
from assay.tasks import load_task
from assay.tasks.prompt_set import ArrivingPrompts, draw_prompts


QUICK = ("--model", "mini", "--window", "4", "--steps", "1", "--quiet")


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("mini")


def drawn(model: Model, task: str, n: int, name: str = "test") -> ArrivingPrompts:
    return draw_prompts(f"task:{task}", model, n=n, seed=0, name=name)


@pytest.fixture(scope="module")
def reference(model: Model) -> EdgeScores:
    return discover(model, drawn(model, "ioi", 8, "reference").task(model), steps=1)


# --------------------------------------------------------------------------------------------- the circuits


def test_a_reading_is_the_distance_of_circuits_found_alike(model: Model, reference: EdgeScores) -> None:
    assert (reference.provenance["objective"], reference.provenance["ablation"]) == ("kl", "mean")
    monitor = Monitor(model, reference, threshold=0.1)
    prompts = drawn(model, "greater-than", 6)
    reading = monitor.observe(prompts)
    same = discover(model, prompts.task(model), objective="kl", ablation="mean", steps=1)
    assert reading.shift == pytest.approx(circuit_shift(reference, same), abs=1e-9)
    assert (reading.n, reading.domain, reading.alarm) == (6, "greater-than", reading.shift > 0.1)
    confidence = run_model(model, prompts.task(model)).softmax(-1).amax(-1).mean()
    assert reading.baselines["ac"] == pytest.approx(float(confidence), abs=1e-6)
    assert monitor.to_dict()["inputs"] == "prompts"


def test_padding_beside_a_longer_prompt_changes_no_edge(model: Model) -> None:
    prompts = drawn(model, "ioi", 1).prompts + drawn(model, "greater-than", 1).prompts
    both = ArrivingPrompts(prompts=prompts).task(model)
    assert len(set(both.lengths.tolist())) == 2
    together = discover(model, both, objective="kl", ablation="zero", steps=1, per_example=True)
    assert together.per_example is not None
    for row, prompt in enumerate(prompts):
        alone = discover(
            model, ArrivingPrompts(prompts=(prompt,)).task(model), objective="kl", ablation="zero", steps=1
        )
        torch.testing.assert_close(together.per_example[row], alone.values, rtol=1e-4, atol=1e-7)


def test_settings_that_need_counterparts_or_answers_are_refused_for_a_stream(model: Model) -> None:
    pairs = load_task("ioi", model, n=8)
    prompts = drawn(model, "ioi", 4)
    by_resample = discover(model, pairs, steps=1, objective="kl")
    with pytest.raises(InputError, match="ablation is resample, but the prompts have no counterparts"):
        circuit_like(model, prompts.task(model), by_resample)
    by_answers = discover(model, pairs, steps=1, ablation="mean")
    with pytest.raises(InputError, match="objective is logit_diff, but the prompts have no answers"):
        Monitor(model, by_answers).observe(prompts)
    # Pairs have both: a batch is any task that the model reads.
    reading = Monitor(model, by_resample).observe(load_task("ioi", model, n=6, seed=1))
    assert (reading.n, reading.domain) == (6, "ioi")


# ----------------------------------------------------------------------------------------------- the stream


class Stream:
    """A followed file whose waits do what a test says."""

    def __init__(self, model: Model, path: Path, *steps: Callable[[], Any], **options: Any) -> None:
        self.told: list[str] = []
        self.passed: list[str] = []
        self._steps = list(steps)
        watch = Watch(transform=None, size=2, follow=bool(steps), skip_bad=True, **options)
        self.batches: Iterator[Batch] = prompt_batches(
            str(path),
            watch,
            model,
            done=frozenset({f"{path}:1"}),
            wait=self._wait,
            tell=self.told.append,
            passed=self.passed.append,
        )

    def _wait(self, seconds: float) -> bool:
        if not self._steps:
            return True
        self._steps.pop(0)()
        return False


def lines(model: Model, n: int) -> list[str]:
    return [json.dumps({"prompt": prompt}) for prompt in drawn(model, "ioi", n).prompts]


def test_a_growing_file_is_read_line_by_line_once(model: Model, tmp_path: Path) -> None:
    path, (a, b, c, d, e) = tmp_path / "in.jsonl", lines(model, 5)
    path.write_text(f"{a}\n{b}\n\nnot JSON\n{c[:20]}")  # line 1 is done, line 3 empty, line 5 being written

    def more(text: str) -> Callable[[], Any]:
        return lambda: path.write_bytes(path.read_bytes() + text.encode())

    stream = Stream(model, path, more(f"{c[20:]}\n"), more(f'{{"prompt": ""}}\n{d}\n{e}\n'))
    first, second = list(stream.batches)
    assert (first.sources, first.skipped) == ((f"{path}:2", f"{path}:5"), (f"{path}:4",))
    assert isinstance(first.inputs, ArrivingPrompts)
    assert first.inputs.prompts == tuple(json.loads(each)["prompt"] for each in (b, c))
    assert (second.sources, second.skipped) == ((f"{path}:7", f"{path}:8"), (f"{path}:6",))
    assert stream.passed == [f"{path}:4", f"{path}:6"]


def test_a_file_that_goes_is_waited_for_and_one_that_shrinks_is_an_error(
    model: Model, tmp_path: Path
) -> None:
    path, away = tmp_path / "in.jsonl", tmp_path / "away"
    path.write_text("\n".join(lines(model, 4)) + "\n")
    stream = Stream(
        model,
        path,
        lambda: path.rename(away),
        lambda: None,
        lambda: away.rename(path),
        lambda: path.write_text(""),
    )
    next(stream.batches)
    with pytest.raises(InputError, match="was replaced or cut short"):
        next(stream.batches)
    assert len(stream.told) == 1
    assert "waiting until it is available" in stream.told[0]


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("not JSON", FileFormatError, "in.jsonl, line 1: not JSON"),
        ('{"question": "x"}', FileFormatError, "line 1: got .*expected"),
        ("[]", FileFormatError, "line 1: got"),
        ("[1, true]", FileFormatError, "line 1: got"),
        ("[1, 99999999]", TokenizationError, "line 1: .*vocabulary"),
        (json.dumps("word " * 4000), TokenizationError, "line 1: .*(tokens|vocabulary)"),
    ],
)
def test_a_bad_line_is_named(
    model: Model, tmp_path: Path, line: str, error: type[Exception], message: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(error, match=message):
        known_prompts(str(path), model, n=0, seed=0, skip_bad=False)
    path.write_text(f'{line}\n{lines(model, 1)[0]}\n[1, 2, 3]\n"{" ".join(["a"])}"')
    known = known_prompts(str(path), model, n=0, seed=0, skip_bad=True)
    assert known.skipped[0] == f"{path}:1"
    assert (1, 2, 3) in known.prompts


# ---------------------------------------------------------------------------------------------- the command


def test_the_command_watches_a_file_of_prompts_and_goes_on(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("known.jsonl").write_text("\n".join(lines(model, 4 + 4 * 4)) + "\n")
    shifted = [json.dumps(each) for each in drawn(model, "greater-than", 8).prompts]
    Path("stream.jsonl").write_text("\n".join([*shifted[:5], ""]))
    command = (
        *("monitor", *QUICK, "--reference", "known.jsonl", "--prompts", "stream.jsonl", "--out", "out"),
        *("--alpha", "0.2"),
    )
    outcome = invoke(*command, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    assert document["inputs"] == "prompts"
    assert len(document["calibration"]["shifts"]) == 4
    (reading,) = document["readings"]
    assert reading["sources"] == [f"stream.jsonl:{line}" for line in (1, 2, 3, 4)]
    assert reading["alarm"] is True
    with Path("stream.jsonl").open("a") as file:
        file.write("\n".join([*shifted[5:], ""]))
    outcome = invoke(*command)
    assert outcome.exit_code == 0, outcome.stderr
    readings = json.loads(Path("out/monitor.json").read_text())["readings"]
    assert [each["sources"][0] for each in readings] == ["stream.jsonl:1", "stream.jsonl:5"]
    page = Path("out/monitor.html").read_text()
    assert "2 batches of prompts" in page
    assert "4 prompts in distribution" in page
    assert json.loads(shifted[6]) in page  # a batch opens to its prompts
    assert "images" not in page.partition("<main>")[2].partition("<script")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "mini", "--images", "in"), "reads text; give --prompts"),
        (("--model", "mini", "--prompts", "folder"), "reads text; give --prompts"),
        (("--model", "mini", "--prompts", "task:ioi"), "needs --reference"),
        (("--prompts", "task:ioi"), "reads images, not prompts; give --images"),
        (("--model", "mini", "--prompts", "task:ioi", "--reference", "shapes:flat"), "reads prompts; give"),
        (("--model", "mini", "--prompts", "task:io", "--reference", "task:ioi"), "did you mean 'ioi'"),
        (
            ("--model", "mini", "--prompts", "task:ioi", "--reference", "task:ioi", "--follow"),
            "one folder or file",
        ),
        (
            ("--model", "mini", "--prompts", "task:ioi", "--reference", "task:ioi", "--target", "0.8"),
            "reads prompts; give a threshold",
        ),
    ],
)
def test_options_of_the_other_kind_of_model_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = invoke("monitor", *arguments, "--known-batches", "0", "--window", "4", "--steps", "1")
    assert outcome.exit_code == 2
    assert message in " ".join(outcome.stderr.split())

"""The page of a circuit: attention patterns, weights per prompt, roles, and what does not fit."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chromium import Visit

import assay
from assay.circuits import Circuit, EdgeScores
from assay.core.errors import GraphMismatchError, InputError
from assay.execution.attention_patterns import attention_pattern
from assay.graph import build_graph
from assay.models import Model
from assay.page.html import PAGE_LIMIT
from assay.report import circuit_document, save_report
from assay.report.save import render
from assay.tasks import PairTask


@pytest.fixture(scope="module")
def model() -> Model:
    return assay.load_model("mini")


@pytest.fixture(scope="module")
def task(model: Model) -> PairTask:
    task = assay.load_task("ioi", model, n=3, seed=0)
    assert isinstance(task, PairTask)
    return task


@pytest.fixture(scope="module")
def scores(model: Model, task: PairTask) -> EdgeScores:
    return assay.discover(model, task, "eap")


def test_patterns_are_those_of_the_model_itself(model: Model, task: PairTask) -> None:
    pattern = attention_pattern(model, task, 1)
    length = int(task.lengths[1])
    assert pattern.shape == (model.n_layers, model.n_heads, length, length)
    assert torch.allclose(pattern.sum(-1), torch.ones(pattern.shape[:-1]), atol=1e-5)
    native: Any = model.module
    before = native.config._attn_implementation
    native.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            seen = native(task.clean[1:2, :length], output_attentions=True).attentions
    finally:
        native.set_attn_implementation(before)
    for layer, weights in enumerate(seen):
        assert torch.allclose(weights[0].float(), pattern[layer], atol=1e-5)
    with pytest.raises(InputError, match="row is 3; the task has prompts 0 to 2"):
        attention_pattern(model, task, 3)


def test_a_document_holds_patterns_of_the_first_prompts(
    model: Model, task: PairTask, scores: EdgeScores
) -> None:
    circuit = scores.top(40)
    document = circuit_document(circuit, scores=scores, model=model, task=task, prompts=2)
    attention = document["attention"]
    assert [prompt["text"][:2] for prompt in attention["prompts"]] == ["1:", "2:"]
    used = {name for name in circuit.nodes() if ".h" in name}
    assert set(attention["heads"]) == used
    assert attention["note"] == ""
    name = sorted(used)[0]
    layer, head = (int(part[1:]) for part in name.split("."))
    length = len(attention["prompts"][1]["tokens"])
    packed = np.frombuffer(base64.b64decode(attention["heads"][name][1]), np.uint8).reshape(length, length)
    pattern = attention_pattern(model, task, 1)[layer, head].numpy()
    assert np.abs(packed / 255 - pattern).max() <= 1 / 510 + 1e-6


def test_patterns_that_would_be_too_large_are_left_out_and_the_page_says_so(
    model: Model, task: PairTask, scores: EdgeScores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.report.circuit_page.PATTERN_BYTES", 2_000)
    document = circuit_document(scores.top(60), scores=scores, model=model, task=task)
    heads = document["attention"]["heads"]
    assert 0 < len(heads) < 10
    assert sum(len(each) for packed in heads.values() for each in packed) <= 2_100
    assert f"Patterns of {len(heads)} of " in document["attention"]["note"]


def test_a_circuit_alone_has_a_page_that_names_what_it_lacks(tmp_path: Path) -> None:
    circuit = Circuit.random(build_graph(2, 4), 30)
    path = save_report(tmp_path / "circuit.html", circuit_document(circuit))
    text = path.read_text()
    assert "This circuit has no scores" in text
    assert "made without attention patterns" in text


def test_a_circuit_of_many_edges_stays_small() -> None:
    graph = build_graph(12, 12)
    scores = EdgeScores(graph, torch.randn(graph.n_sources, graph.n_targets))
    text = render(circuit_document(scores.top(9_000), scores=scores))
    assert len(text.encode()) < PAGE_LIMIT / 2
    assert "The strongest 5,000 of 9,000 edges are drawn" in text


def test_what_does_not_fit_is_refused(model: Model, task: PairTask, scores: EdgeScores) -> None:
    circuit = scores.top(10)
    other = build_graph(9, 2)
    with pytest.raises(InputError, match="prompts is 0"):
        circuit_document(circuit, prompts=0)
    with pytest.raises(GraphMismatchError, match="does not belong to mini"):
        circuit_document(Circuit.full(other), model=model, task=task)


def test_a_click_on_a_head_shows_its_attention(
    model: Model, task: PairTask, scores: EdgeScores, visit: Visit
) -> None:
    circuit = scores.top(40)
    head = next(name for name in circuit.nodes() if ".h" in name)
    page = visit.open(render(circuit_document(circuit, scores=scores, model=model, task=task)))
    page.locator(f".node[aria-label='{head}']").click()
    panel = page.locator(".attention")
    picture = panel.locator("canvas")
    before = picture.evaluate("canvas => canvas.toDataURL()")
    picture.hover(position={"x": 90, "y": 5})
    assert "attends to" in str(panel.text_content())
    panel.locator("select").select_option(index=1)
    assert picture.evaluate("canvas => canvas.toDataURL()") != before
    visit.check()

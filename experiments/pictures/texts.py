"""Pictures of circuits of the embedded language model."""

from functools import cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr

import assay
from assay.circuits import Circuit, EdgeScores, published_circuit
from assay.graph import build_graph
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS


METHODS = ("eap", "eap-ig-inputs", "eap-ig-activations", "clean-corrupted", "relp", "ifr")
ABLATIONS = ("resample", "mean", "mean-positional", "zero")
SIZES = (25, 50, 100, 200, 400)


@cache
def ioi(seed: int = 0, n: int = 40) -> tuple[assay.Model, assay.PairTask]:
    model = assay.load_model("mini")
    return model, assay.load_task("ioi", model, n=n, seed=seed)


@cache
def scores() -> EdgeScores:
    return assay.discover(*ioi(), "eap-ig-inputs")


def panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    """A figure with axes of one style."""
    figure = Figure(figsize=size, facecolor=PAPER, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for each in axes.flat:
        each.set_facecolor(PAPER)
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["left", "bottom"]].set_color(RULE)
        each.tick_params(colors=MUTED, labelsize=8)
    return figure, axes


def of(result: Any, size: tuple[float, float]) -> Figure:
    """The picture that a result draws of itself."""
    figure, axes = panels(1, 1, size)
    result.plot(axes[0, 0])
    return figure


def methods_against_exact() -> Figure:
    model, _ = ioi()
    task = assay.load_task("ioi", model, n=6, seed=0)
    edges = model.graph.valid
    truth = assay.discover(model, task, "exact").values[edges].numpy()
    figure, axes = panels(2, 3, (8, 5))
    for each, method in zip(axes.flat, METHODS, strict=True):
        found = assay.discover(model, task, method).values[edges].numpy()
        rho = spearmanr(abs(found), abs(truth)).statistic
        each.plot(truth, found, ".", color=SUPPORTS, markersize=3, alpha=0.6, rasterized=True)
        if method != "ifr":  # a share of the stream, in no unit of the objective
            ends = [min(truth.min(), found.min()), max(truth.max(), found.max())]
            each.plot(ends, ends, color=RULE, linewidth=1, zorder=0)
        each.set_title(f"{method}: ρ = {rho:.2f}", fontsize=9, color=INK)
    figure.supxlabel("damage when the edge alone is ablated (logits)", fontsize=9, color=MUTED)
    figure.supylabel("score", fontsize=9, color=MUTED)
    return figure


def small_graph() -> Figure:
    graph = build_graph(2, 2)
    return of(Circuit(graph=graph, mask=graph.valid.clone()), (5, 4.5))


def curve() -> Figure:
    model, _ = ioi()
    held_out = ioi(seed=1)[1]
    return of(assay.faithfulness_curve(scores(), model, held_out, random_circuits=5), (6.5, 3.6))


def overshoot() -> Figure:
    """Curves by signed score and by its size, on the axis that CPR and CMD are integrated over."""
    model, held_out = ioi(seed=1)
    ranking = assay.discover(*ioi(), "relp")
    figure, axes = panels(1, 2, (8, 3))
    for axis, absolute in zip(axes.flat, (False, True), strict=True):
        curve = assay.faithfulness_curve(ranking, model, held_out, absolute=absolute)
        x, values = curve.fractions, curve.values
        axis.fill_between(x, 1, np.maximum(values, 1), color=OPPOSES, alpha=0.6, linewidth=0)
        axis.fill_between(x, np.minimum(values, 1), 1, color=MUTED, alpha=0.3, linewidth=0)
        axis.plot(x, values, "o-", color=SUPPORTS, linewidth=1.6, markersize=3.5)
        axis.axhline(1, color=INK, linewidth=0.8)
        axis.set_ylim(-0.05, 1.2)
        areas = f"CPR {curve.cpr:.2f}, CMD {curve.cmd:.2f}, overshoot {curve.overshoot:.2f}"
        axis.set_title(f"by {'|score|' if absolute else 'signed score'}: {areas}", fontsize=9, color=INK)
    figure.supxlabel("share of edges asked for", fontsize=9, color=MUTED)
    figure.supylabel("normalised faithfulness", fontsize=9, color=MUTED)
    return figure


def circuit() -> Figure:
    return of(scores().top(60).connected(), (6, 5.5))


def heads() -> Figure:
    model, task = ioi()
    figure, axes = panels(1, 3, (9, 3))
    for each, key in zip(axes.flat, ("activation-patching", "drop-effect", "dla"), strict=True):
        assay.discover_heads(model, task, key).plot(each)
    return figure


def ablations() -> Figure:
    model, _ = ioi()
    held_out = ioi(seed=1)[1]
    figure, axes = panels(1, 1, (6.5, 3.4))
    axis = axes[0, 0]
    for ablation, style in zip(ABLATIONS, ("-", "--", "-.", ":"), strict=True):
        values = [
            assay.measure(
                scores().top(size).connected(), model, held_out, "faithfulness-norm", ablation=ablation
            ).value
            for size in SIZES
        ]
        axis.plot(SIZES, values, style, color=SUPPORTS, label=ablation)
    axis.axhline(1, color=RULE, linewidth=1)
    axis.set_xscale("log")
    axis.set_xticks(SIZES, [str(size) for size in SIZES])
    axis.minorticks_off()
    axis.set_xlabel("edges of the circuit before dangling ones are removed", fontsize=9, color=MUTED)
    axis.set_ylabel("normalised faithfulness", fontsize=9, color=MUTED)
    axis.legend(frameon=False, fontsize=8)
    return figure


def margins() -> Figure:
    model, _ = ioi()
    task = ioi(seed=1, n=200)[1]
    runs = assay.CircuitRuns(model, task, scores().top(200).connected())
    figure, axes = panels(4, 1, (6.5, 4.6))
    named = {
        "full": "full: the model",
        "keep": "keep: the circuit alone",
        "drop": "drop: the model without it",
        "empty": "empty: nothing kept",
    }
    values = {run: runs.margins(run) for run in named}
    bins = np.linspace(min(map(np.min, values.values())), max(map(np.max, values.values())), 50).tolist()
    for axis, (run, label) in zip(axes.flat, named.items(), strict=True):
        axis.hist(values[run], bins=bins, color=SUPPORTS if run in ("full", "keep") else OPPOSES)
        axis.axvline(values[run].mean(), color=INK, linewidth=1)
        axis.axvline(0, color=RULE, linewidth=1, zorder=0)
        axis.set_title(f"{label}, mean {values[run].mean():+.2f}", loc="left", fontsize=9, color=INK)
        axis.set_yticks([])
        axis.sharex(axes[0, 0])
    axes[-1, 0].set_xlabel("margin of a prompt: right minus wrong answer (logits)", fontsize=9, color=MUTED)
    return figure


def agreement() -> Figure:
    model, _ = ioi()
    task = ioi(seed=1, n=200)[1]
    figure, axes = panels(1, 2, (8.5, 3.4))
    for size in SIZES:
        kept = scores().top(size).connected()
        found = assay.measure(kept, model, task, "topk")
        apart = assay.measure(kept, model, task, "kl")
        for key, mark in (("acc@1", "o"), ("acc@5", "s"), ("acc@10", "^"), ("tau@10", "x")):
            axes[0, 0].plot(size, found.parts[key].value, mark, color=SUPPORTS, label=key)
        for name, part, mark in (
            ("KL", apart, "o"),
            ("reverse KL", apart.parts["reverse-kl"], "s"),
            ("Jensen-Shannon", apart.parts["js"], "^"),
        ):
            axes[0, 1].plot(size, part.value, mark, color=OPPOSES, label=name)
    for axis, label in zip(axes.flat, ("agreement of the top K", "divergence (nats)"), strict=True):
        axis.set_xscale("log")
        axis.set_xticks(SIZES, [str(size) for size in SIZES])
        axis.minorticks_off()
        axis.set_xlabel("edges", fontsize=9, color=MUTED)
        axis.set_title(label, loc="left", fontsize=9, color=INK)
        unique = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        axis.legend(unique.values(), unique.keys(), frameon=False, fontsize=8)
    return figure


def positions() -> Figure:
    model, task = ioi()
    found = assay.discover(model, task, spans="slots", steps=2)
    assert found.spans is not None
    shares = found.values.abs().flatten(1).sum(1)
    shares = 100 * shares / shares.sum()
    figure, axes = panels(1, 1, (6, 3))
    axis = axes[0, 0]
    names = list(found.spans.names)
    axis.barh(range(len(names)), shares.tolist(), color=SUPPORTS)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel("share of the summed |score| (%)", fontsize=9, color=MUTED)
    return figure


def planted() -> Figure:
    world = assay.planted_model("induction/gpt2/interfering", seed=0)
    graph = world.model.graph
    mask = torch.zeros_like(graph.valid)
    for edge in world.edges:
        mask[graph.edge_index(edge)] = True
    return of(Circuit(graph=graph, mask=mask), (5, 4))


def worst() -> Figure:
    """A circuit of about 200 edges on 300 x 300 pairs."""
    model, _ = ioi()
    kept = scores().top(SIZES[-2]).connected()
    return of(assay.worst_case(kept, model, "ioi", n_clean=300, n_corrupted=300), (7.3, 3.2))


def published() -> Figure:
    return of(published_circuit("ioi_gpt2"), (7, 7))


PICTURES = {
    "methods-against-exact.svg": methods_against_exact,
    "small-graph.svg": small_graph,
    "curve-ioi.svg": curve,
    "overshoot-ioi.svg": overshoot,
    "circuit-ioi.svg": circuit,
    "heads-ioi.svg": heads,
    "ablations-ioi.svg": ablations,
    "margins-ioi.svg": margins,
    "agreement-ioi.svg": agreement,
    "positions-ioi.svg": positions,
    "planted-circuit.svg": planted,
    "published-ioi.svg": published,
    "worst-ioi.svg": worst,
}

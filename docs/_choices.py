"""Sphinx extension: tables of what is registered, for the pages that help to choose, and `llms.txt`.

Facts come from the registries, the cost of a method from its theory page, its quality from the table of
planted models, so that no page keeps a copy.
"""

import re
import tomllib
from pathlib import Path

from _commands import table, write_if_changed
from sphinx.application import Sphinx

import assay
from assay.analyses.calibration import GATES
from assay.discovery.edges import METHODS
from assay.metrics import METRICS
from assay.metrics.metric import MetricSpec


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def methods(source: Path) -> list[str]:
    """One row per discovery method: what it scores, needs, costs, and finds in planted models."""
    truth = (source / "tables" / "truth-methods.inc").read_text(encoding="utf-8")
    found = {
        (name, objective): (served, share, median)
        for name, objective, served, share, _, median in re.findall(
            r"^\| (\S+) \| (\S+) \| ([^|]+?) \| (\S+) \| (\S+) \| (\S+) \|", truth, re.MULTILINE
        )
    }
    rows = []
    for entry in assay.list("methods"):
        theory = (source / "theory" / f"{entry.key}.md").read_text(encoding="utf-8")
        cost = re.search(r"^\| cost \| (.+?) \|$", theory, re.MULTILINE)
        assert cost is not None, f"docs/theory/{entry.key}.md has no row of its cost"
        method = METHODS[entry.key]
        objective = method.objective or "logit_diff"
        _, share, _ = found.get((entry.key, objective), ("", "not measured", ""))
        rows.append(
            (
                f"[`{entry.key}`](../theory/{entry.key}.md)",
                entry.summary,
                "yes" if method.needs_gradients else "no",
                re.split(r"[;:.] ", cost[1])[0],
                "yes" if method.keeps_examples else "no",
                share,
            )
        )
    header = ("method", "what it scores", "gradients", "cost", "scores per prompt", "planted models found")
    return table(header, rows)


def limit_of(metric: MetricSpec) -> str:
    """The published rule of a metric in a few signs."""
    rule = metric.rule
    if rule is None:
        return "none"
    sign = (">" if rule.higher else "<") if rule.strict else ("≥" if rule.higher else "≤")
    fail = (
        f"; fails {'below' if rule.higher else 'above'} {rule.fail_at:g}" if rule.fail_at is not None else ""
    )
    return f"{sign} {rule.pass_at:g}{fail}"


def metrics(source: Path) -> list[str]:
    """One row per metric: its definition, unit, range, direction, threshold and runs."""
    pages = {path: path.read_text(encoding="utf-8") for path in sorted((source / "theory").glob("*.md"))}
    rows = []
    for entry in assay.list("metrics"):
        metric = METRICS[entry.key]
        # The page about a metric has its key in the title, the code table or the first paragraph.
        home = min(
            (path for path, text in pages.items() if f"`{entry.key}`" in text),
            key=lambda path: pages[path].find(f"`{entry.key}`"),
        )
        low, high = (f"{end:g}".replace("inf", "∞") for end in metric.range)
        rows.append(
            (
                f"[`{entry.key}`](../theory/{home.name})",
                sentence(entry.summary),
                metric.criterion,
                f"{metric.unit}, {low} to {high}",
                {"target": "1 is the model"}.get(metric.direction, metric.direction),
                limit_of(metric),
            )
        )
    return table(("metric", "what it is", "criterion", "unit and range", "better", "passes"), rows)


def gates(source: Path) -> list[str]:
    """One item per gate: its question, what either outcome means, what is wrong with the published form."""
    lines = []
    for entry in assay.list("gates"):
        gate = GATES[entry.key]
        home = f"../theory/calibrations.md#{gate.code.lower()}-{entry.key}"
        lines += [f"- [{gate.code}]({home}) `{entry.key}`: **{gate.question}**", ""]
        told = (("Pass", "on_pass"), ("Fail", "on_fail"), ("Weakness of the published form", "weakness"))
        lines += [f"  *{name}.* {sentence(getattr(gate, fact)).rstrip('.')}." for name, fact in told]
        lines.append("")
    return lines


def extras(source: Path) -> list[str]:
    """The optional packages of the distribution, as `pyproject.toml` has them."""
    project = tomllib.loads((source.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = [
        (f"`{name}`", ", ".join(f"`{package}`" for package in packages))
        for name, packages in project["optional-dependencies"].items()
        if name not in ("dev", "docs")
    ]
    return table(("extra", "packages"), rows)


def write_tables(app: Sphinx) -> None:
    source = Path(app.srcdir)
    tables = {"extras": extras, "gates": gates, "methods": methods, "metrics": metrics}
    for name, made in tables.items():
        write_if_changed(source / "choose" / "generated" / f"{name}.inc", "\n".join(made(source)))


# ---- llms.txt -----------------------------------------------------------------------------------


def first_paragraph(text: str) -> str:
    """What a page begins with, on one line and without markup."""
    body = re.sub(r"^(`{3,}|:{3,}).*?^\1\s*$|\A#[^\n]*\n", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks = [block for block in body.strip().split("\n\n") if not re.match(r"[!|:$#<>({-]", block.lstrip())]
    line = " ".join(blocks[0].split()) if blocks else ""
    line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
    return re.match(r".*?(?<!e\.g)[.:](?=\s|$)|.*", line)[0].rstrip(":")  # type: ignore[index]


def write_index(app: Sphinx, failure: Exception | None) -> None:
    """`llms.txt`: every page with its title and first sentence, for readers that are programs."""
    if failure is not None or app.builder.format != "html":
        return
    lines = ["# assay", "", f"> {first_paragraph(page_text(app, 'index'))}", "", "## Pages", ""]
    for name in sorted(app.env.found_docs - {"index"}):
        about = first_paragraph(page_text(app, name))
        lines.append(f"- [{app.env.titles[name].astext()}]({name}.html)" + (f": {about}" if about else ""))
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def page_text(app: Sphinx, name: str) -> str:
    return Path(app.env.doc2path(name)).read_text(encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_tables)
    app.connect("build-finished", write_index)
    return {"parallel_read_safe": True}

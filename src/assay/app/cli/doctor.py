"""`assay doctor`: what an issue report needs, and whether the engine computes here what it must."""

import importlib.metadata
import platform
import re
from typing import Any

from assay.app.cli.parsing import STORE, command
from assay.app.delivery import Talking, echo, note, print_table
from assay.core.errors import DISTRIBUTION, install_command


SCHEMA = "assay-doctor/1"
# Packages beneath the engine; their versions decide numbers and errors.
ENGINE = ("torch", "transformers", "numpy", "scipy", "scikit-learn", "pandas", "matplotlib", "cyclopts")
LOGITS = 1e-4  # largest difference of the full circuit's logits, relative to the largest logit
GAP = 0.02  # largest completeness gap
PROMPTS = 4


@command(STORE, example="assay doctor --json")
def doctor(settings: Talking) -> int:
    """Show versions, devices and extras; test the engine.

    The report for an issue. Exits with code 1 if the test of the engine fails.
    """
    note("testing the engine on the embedded model (seconds)")
    checks = engine_checks()
    facts = {"versions": versions(), "machine": machine(), "extras": extras(), "checks": checks}
    document = {"schema": SCHEMA, **facts, "ok": all(each["ok"] for each in checks)}
    settings.deliver(document, show=lambda: _show(document))
    return 0 if document["ok"] else 1


def versions() -> dict[str, str | None]:
    """Version of the package that runs, of Python, of the packages below it and of its plug-ins."""
    from assay.core.record import library_version

    plugins = [
        each.name
        for each in importlib.metadata.distributions()
        if any(point.group.startswith("assay.") for point in each.entry_points)
    ]
    own = {DISTRIBUTION: library_version(), "python": platform.python_version()}
    return own | {name: _installed(name) for name in (*ENGINE, *plugins)}


def _installed(distribution: str) -> str | None:
    """Version of a distribution; none if it is not installed."""
    found = next(iter(importlib.metadata.distributions(name=distribution)), None)
    return None if found is None else found.version


def extras() -> dict[str, Any]:
    """Of each extra: whether it is installed, its packages, and what installs it."""
    packages: dict[str, dict[str, str | None]] = {}
    for row in importlib.metadata.requires(DISTRIBUTION) or ():
        for name, extra in re.findall(r"^([\w.-]+).*extra == ['\"](\w+)", row):
            if name != DISTRIBUTION and extra not in ("dev", "docs"):
                packages.setdefault(extra, {})[name] = _installed(name)
    return {
        extra: {"installed": all(found.values()), "packages": found, "command": install_command(extra)}
        for extra, found in packages.items()
    }


def machine() -> dict[str, Any]:
    """System, cores, free memory in bytes, and the devices of PyTorch by name."""
    import torch

    from assay.core.machine import free_memory, usable_cores
    from assay.models.loading import accelerator

    gpus = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
    return {
        "system": platform.platform(),
        "cores": usable_cores(),
        "free_memory": free_memory(),
        "devices": [f"cuda:{index} {name}" for index, name in enumerate(gpus)],
        "default_device": str(accelerator() or "cpu"),
    }


def engine_checks() -> list[dict[str, Any]]:
    """Facts that hold for every model, on the embedded one and its default device.

    A random circuit run alone and as pairs of inputs, which add it up in different ways, gives the same
    logits. The full circuit, run as pairs, gives those of the model's own forward pass. The scores of
    `eap-ig-inputs` out of the input add up to the effect of ablating it.

    Returns:
        Of each check: what was measured, its limit, and whether it holds (an undefined value does not).
    """
    import torch

    from assay.circuits import Circuit
    from assay.discovery.edges import discover
    from assay.execution import run_circuit, run_model
    from assay.models import load_model
    from assay.tasks import load_task

    model = load_model("mini")
    task = load_task("ioi", model, n=PROMPTS)
    largest, half = run_model(model, task).abs().max(), Circuit.random(model.graph, model.graph.n_edges // 2)
    own = torch.arange(PROMPTS)[:, None].expand(-1, 2)
    own_pass = model.module(task.clean.to(model.device)).logits.detach().cpu()
    native = own_pass[torch.arange(PROMPTS), task.positions]
    full = run_circuit(Circuit.full(model.graph), model, task, pairs=own) - native
    two_ways = run_circuit(half, model, task) - run_circuit(half, model, task, pairs=own)
    gap = discover(model, task, "eap-ig-inputs").details["completeness_gap"]
    values = {
        "full circuit against the model, of the largest logit": (full.abs().max() / largest, LOGITS),
        "single runs against runs of pairs": (two_ways.abs().max() / largest, LOGITS),
        "gap of eap-ig-inputs": (gap, GAP),
    }
    return [
        {"name": name, "value": float(value), "limit": limit, "ok": float(value) <= limit}
        for name, (value, limit) in values.items()
    ]


def _show(document: dict[str, Any]) -> None:
    facts = document["machine"] | {"free_memory": f"{document['machine']['free_memory'] / 1e9:.1f} GB"}
    parts = {name: version or "not installed" for name, version in document["versions"].items()} | facts
    print_table("Environment", ["part", "here"], [[name, str(each)] for name, each in parts.items()])
    rows = [
        [name, "yes" if each["installed"] else each["command"]] for name, each in document["extras"].items()
    ]
    print_table("Extras", ["extra", "installed"], rows)
    rows = [
        [each["name"], f"{each['value']:.2g}", f"{each['limit']:g}", "yes" if each["ok"] else "NO"]
        for each in document["checks"]
    ]
    print_table("Engine", ["check", "value", "at most", "holds"], rows)
    echo("The engine works here." if document["ok"] else "The engine is wrong here. Please report this.")

"""`assay claim`: register predictions about heads, measure them, list the evidence."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.app.cli.border import (
    command,
    echo,
    make_room,
    print_json,
    print_table,
    progress_on_stderr,
    store_folder,
)
from assay.app.cli.commands import app
from assay.app.cli.options import (
    BatchOption,
    ConfigOption,
    DeviceOption,
    JsonOption,
    QuietOption,
    StoreOption,
    TracebackOption,
    option,
)
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.analyses.claims import ClaimResult, Evidence, Registration

GATE_FIRED = 3
TABLES = "tables"  # folder of measurement tables in a store


@app.command()
@command
def claim(
    file: Annotated[Path, typer.Argument(help="Claim file, TOML of schema assay-claim/1.")],
    register: Annotated[
        bool, option("--register", "Only check and register the claim; measure nothing.")
    ] = False,
    register_anew: Annotated[
        bool,
        option("--register-anew", "Replace the registration of other predictions; it stays listed."),
    ] = False,
    gate: Annotated[
        bool, option("--gate", "Exit with 3 where a prediction is contradicted or --tier is not reached.")
    ] = False,
    tier: Annotated[
        str | None, option("--tier", "Tier that --gate asks for, e.g. 'causally suggestive'.")
    ] = None,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    budget: Annotated[
        float | None,
        option("--budget", "Passes that tables over all heads may cost.  [default: no limit]", min=1),
    ] = None,
    store: StoreOption = None,
    out: Annotated[Path | None, option("--out", "Directory for claim.json and claim.html.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Test what a file predicts of some heads, and list the evidence for the claim.

    The predictions are registered beside the file before anything is measured, and a file that no longer says
    what was registered is refused.
    """
    from assay.analyses import claims
    from assay.analyses.claims.evidence import at_least
    from assay.analyses.claims.sets import known_shape
    from assay.circuits import write_atomically
    from assay.pipeline import check_writable
    from assay.report import save_report

    if tier is not None:
        at_least("proposed", tier)  # a misspelt tier is an error before the work, not after it
        if not gate:
            raise InputError("--tier is what --gate asks for; give both")
    check_writable(file.parent)
    if register:
        made = claims.register_claim(file, anew=register_anew)
        source = str(made.content["claim"]["model"])
        show_registration(made, unchecked=None if known_shape(source) else source, as_json=as_json)
        return
    tables = store_folder(store) / TABLES
    check_writable(tables)
    if out is not None:
        check_writable(out)
    with progress_on_stderr(quiet=quiet) as progress:
        found = claims.run_claim(
            file,
            folder=tables,
            device=device,
            batch_size=batch_size,
            max_passes=budget,
            register_anew=register_anew,
            progress=progress,
        )
    document = found.to_dict()
    if out is not None:
        written = make_room(out / "claim.json")
        write_atomically(written, json.dumps(document, indent=1, allow_nan=False).encode())
        save_report(out / "claim.html", document)
    if as_json:
        print_json(document)
    else:
        print_claim(found)
        if out is not None:
            echo(f"report     {out / 'claim.html'}")
    if gate and (found.contradicted or not at_least(found.tier, tier or "proposed")):
        raise typer.Exit(GATE_FIRED)


def show_registration(found: "Registration", *, unchecked: str | None, as_json: bool) -> None:
    """What `--register` prints; `unchecked` is a model whose heads are not known yet."""
    if as_json:
        print_json({**found.to_dict(), "file": str(found.path), "heads_checked": unchecked is None})
        return
    echo(f"registered {_when(found.time)}, hash {found.hash[:16]}, in {found.path}")
    if unchecked is not None:
        echo(f"whether {unchecked} has these heads is checked when the claim is run")


def print_claim(found: "ClaimResult") -> None:
    """Predictions with their tests, then the checklist, then the tier."""
    from assay.page.text import listed, p_value, rounded

    claim = found.claim
    echo(f"{claim.name}: {claim.statement}")
    if found.registration is not None:
        when = "before" if found.registered_before else "AFTER"
        echo(
            f"registered {_when(found.registration.time)}, hash {claim.hash[:16]}, {when} its prompts were "
            f"measured ({claim.model}, {claim.task}, n = {claim.n}, ablation {claim.ablation})"
        )
    echo()
    rows = []
    for test in found.outcomes:
        low, high = test.interval.low, test.interval.high
        rows.append(
            [
                test.name,
                "n/a" if test.reason else rounded(test.value),
                f"[{rounded(low)}, {rounded(high)}]" if test.interval.defined else str(test.reason or ""),
                p_value(None if test.reason else test.p),
                p_value(None if test.reason else test.q),
                test.state,
            ]
        )
    columns = ["test", "found", "90 % interval", "p", "q", "outcome"]
    print_table("", columns, rows, right="found p q")
    echo(f"M93, multiple comparisons over {len(rows)} tests: {found.multiplicity.status}")
    echo()
    lines = []
    for kind, state in found.checklist.items():
        lines.append([_mark(state), kind, "", state, "", ""])
        lines += [
            ["", "", _source(each), each.state, each.finding, each.supply]
            for each in found.evidence
            if each.kind == kind
        ]
    print_table("", ["", "evidence", "from", "state", "finding", "what would supply it"], lines)
    echo()
    if found.contradicted:
        numbers = ", ".join(str(each + 1) for each in found.contradicted)
        echo(f"contradicted: prediction {numbers}")
    echo(f"tier       {found.tier}")
    if found.lacking:
        echo(f"next tier  needs {listed(found.lacking)}")


def _source(line: "Evidence") -> str:
    """Where a line comes from; `beside` for what its kind does not need."""
    return line.source if line.required else f"{line.source}, beside"


def _mark(state: str) -> str:
    return {"present": "[x]", "against": "[-]"}.get(state, "[ ]")


def _when(time: str) -> str:
    """A time to the second."""
    return f"{time[:10]} {time[11:19]} UTC"

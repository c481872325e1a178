"""`assay claim`: register predictions about heads, measure them, list the evidence."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from assay.app.cli.border import (
    device_of,
    echo,
    echo_files,
    print_json,
    print_table,
    progress_on_stderr,
    store_folder,
    write_json,
)
from assay.app.cli.parsing import TRUST, command
from assay.app.settings import OUTPUT, RUNNING, Batched, Storing, Talking, at_least, own_group
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.analyses.claims import ClaimResult, Evidence, Registration

GATE_FIRED = 3
TABLES = "tables"  # folder of measurement tables in a store
CLAIM = own_group("Claim")


@dataclass(frozen=True, kw_only=True)
class ClaimSettings(Talking, Batched, Storing):
    """How a claim is registered and tested.

    Attributes:
        register: Only check and register the claim; measure nothing.
        register_anew: Replace the registration of other predictions; it stays listed.
        gate: Exit with 3 where a prediction is contradicted or --tier is not reached.
        tier: Tier that --gate asks for, e.g. 'causally suggestive'.
        budget: Passes that tables over all heads may cost. Default: no limit.
        out: Directory for claim.json and claim.html.
    """

    register: Annotated[bool, CLAIM] = False
    register_anew: Annotated[bool, CLAIM] = False
    gate: Annotated[bool, RUNNING] = False
    tier: Annotated[str | None, CLAIM] = None
    budget: Annotated[float | None, CLAIM, at_least(1)] = None
    out: Annotated[Path | None, OUTPUT] = None


@command(TRUST, example="assay claim movers.toml --out claim --gate --tier 'causally suggestive'")
def claim(file: Path, /, *, settings: ClaimSettings) -> int:
    """Test predictions about heads, and list the evidence.

    The predictions are registered beside the file before anything is measured, and a file that no longer says
    what was registered is refused.

    Args:
        file: Claim file, TOML of schema assay-claim/1.
        settings: The options.
    """
    from assay.analyses import claims
    from assay.analyses.claims.evidence import at_least as reached
    from assay.pipeline import check_writable

    if settings.tier is not None:
        reached("proposed", settings.tier)  # a misspelt tier is an error before the work, not after it
        if not settings.gate:
            raise InputError("--tier is what --gate asks for; give both")
    check_writable(file.parent)
    if settings.register:
        _register(file, settings)
        return 0
    tables = store_folder(settings.store) / TABLES
    for folder in (tables, settings.out):
        if folder is not None:
            check_writable(folder)
    with progress_on_stderr(quiet=settings.quiet) as progress:
        result = claims.run_claim(
            file,
            folder=tables,
            device=device_of(settings),
            batch_size=settings.batch_size,
            max_passes=settings.budget,
            register_anew=settings.register_anew,
            progress=progress,
        )
    _hand_over(settings, result)
    wanted = settings.tier or "proposed"
    fired = settings.gate and (result.contradicted or not reached(result.tier, wanted))
    return GATE_FIRED if fired else 0


def _register(file: Path, settings: ClaimSettings) -> None:
    from assay.analyses import claims
    from assay.analyses.claims.sets import known_shape

    made = claims.register_claim(file, anew=settings.register_anew)
    source = str(made.content["claim"]["model"])
    show_registration(made, unchecked=None if known_shape(source) else source, as_json=settings.json)


def _hand_over(settings: ClaimSettings, result: "ClaimResult") -> None:
    """The result to files and to stdout."""
    from assay.report import save_report

    document, page = result.to_dict(), None
    if settings.out is not None:
        page = settings.out / "claim.html"
        write_json(settings.out / "claim.json", document)
        save_report(page, document)
    if settings.json:
        print_json(document)
    else:
        print_claim(result)
        echo_files(10, report=page)


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

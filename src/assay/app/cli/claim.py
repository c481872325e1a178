"""`assay claim`: register predictions about heads, measure them, list the evidence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from assay.app.cli.parsing import TRUST, command
from assay.app.console import echo, print_json, progress_on_stderr
from assay.app.option_groups import RUNNING, own_group
from assay.app.options import Mapped, Typed
from assay.app.running import Batched, Computing, Reporting, call, check_outputs
from assay.core.errors import InputError


GATE_FIRED = 3
TABLES = "tables"  # folder of measurement tables in a store
CLAIM = own_group("Claim")


@dataclass(frozen=True, kw_only=True)
class ClaimSettings(Computing, Reporting, Batched, Typed, Mapped):
    """How a claim is registered and tested.

    Attributes:
        register: Check and register the claim only; measure nothing.
        register_anew: Replace an earlier registration that had other predictions; it stays listed.
        gate: Exit with code 3 if a prediction is contradicted or --tier is not reached.
        tier: Tier that --gate requires, e.g. 'causally suggestive'.
    """

    register: Annotated[bool, CLAIM] = False
    register_anew: Annotated[bool, CLAIM] = False
    gate: Annotated[bool, RUNNING] = False
    tier: Annotated[str | None, CLAIM] = None


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
    from assay.store import About

    if settings.tier is not None:
        reached("proposed", settings.tier)  # a misspelt tier is an error before the work, not after it
        if not settings.gate:
            raise InputError("--tier has no effect without --gate; give both")
    check_writable(file.parent)
    if settings.register:
        _register(file, settings)
        return 0
    tables = settings.store_folder() / TABLES
    check_writable(tables)
    check_outputs(settings)
    with progress_on_stderr() as progress:
        result = call(
            settings,
            claims.run_claim,
            file,
            folder=tables,
            device=settings.place(),
            dtype=settings.torch_dtype,
            progress=progress,
        )
    document, tested = result.to_dict(), result.claim
    identity = settings.keep(
        "claim",
        {"claim": result.hash, "tables": dict(result.tables)},
        document,
        About(
            model=tested.model,
            task=tested.task,
            n=tested.n,
            seed=tested.seed,
            status=result.tier,
            name=tested.name,
            ablation=tested.ablation,
        ),
    )
    settings.deliver(document, settings.files(document, "claim.json", page="claim.html"), identity=identity)
    wanted = settings.tier or "proposed"
    fired = settings.gate and (result.contradicted or not reached(result.tier, wanted))
    return GATE_FIRED if fired else 0


def _register(file: Path, settings: ClaimSettings) -> None:
    from assay.analyses import claims
    from assay.analyses.claims.sets import known_shape

    made = claims.register_claim(file, anew=settings.register_anew)
    source = str(made.content["claim"]["model"])
    checked = bool(known_shape(source))
    if settings.json:
        print_json({**made.to_dict(), "file": str(made.path), "heads_checked": checked})
        return
    when = f"{made.time[:10]} {made.time[11:19]} UTC"
    echo(f"registered {when}, hash {made.hash[:16]}, in {made.path}")
    if not checked:
        echo(f"the claim run checks whether {source} has these heads")

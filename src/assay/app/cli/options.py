"""Options that mean the same in every command, and where their values may come from."""

from pathlib import Path
from typing import Annotated, Any, no_type_check

import typer

from assay.core.errors import near_matches


DEFAULT_STORE = Path("assay-out")


def version(wanted: bool) -> bool:
    """Print the version and stop."""
    if wanted:
        from assay.core.record import library_version

        typer.echo(f"assay {library_version()}")
        raise typer.Exit
    return wanted


@no_type_check  # typer passes another class than the one it asks callbacks to name
def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the values of a TOML file the defaults of this command.

    Keys are option names; a table named like a command holds for that command alone. A file may hold
    settings of several commands, but none that no command has.
    """
    if path is None:
        return None
    import tomllib

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"cannot read {path}: {error}") from error
    commands: Any = getattr(context.find_root().command, "commands", {})
    # `store` is an option and a command: what is not a table is the option.
    tables = {key for key, value in content.items() if key in commands and isinstance(value, dict)}
    values = {key: value for key, value in content.items() if key not in tables}
    values |= content[context.info_name] if context.info_name in tables else {}
    found = {key.replace("-", "_"): value for key, value in values.items()}
    everything = {parameter.name for command in commands.values() for parameter in command.params}
    if unknown := sorted(set(found) - everything):
        near = near_matches(unknown[0], [name for name in everything if name])
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise typer.BadParameter(f"{path} sets {unknown[0]!r}, which no command has{hint}")
    known = {parameter.name for parameter in context.command.params}
    context.default_map = {key: value for key, value in found.items() if key in known}
    return path


def option(name: str, text: str, **facts: Any) -> Any:
    """An option that a variable `ASSAY_NAME` can set too."""
    variable = "ASSAY_" + name.removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, help=text, envvar=variable, show_envvar=False, **facts)


def parse_steps(value: str | int) -> int | str:
    """A count, or `auto`."""
    if value == "auto":
        return "auto"
    try:
        steps = int(value)
    except ValueError:
        steps = 0
    if steps < 1:
        raise typer.BadParameter(f"{value!r} is neither a count from 1 nor auto")
    return steps


ModelOption = Annotated[
    str, option("--model", "mini, colour-digits, planted:NAME, a hub id, or a directory by save_pretrained.")
]
ImagesOption = Annotated[
    str | None,
    option(
        "--images",
        "For an image classifier, instead of --task: shapes:DOMAIN, colour-digits:AGREEMENT, an .npz file, "
        "or a folder of one domain.",
    ),
]
SkipBadOption = Annotated[
    bool, option("--skip-bad", "Leave out image files that cannot be decoded; counted.")
]
TaskOption = Annotated[str, option("--task", "Registered task, a JSONL file of prompts, or colour-digits.")]
DiscoverOnOption = Annotated[
    str | None,
    option("--discover-on", "JSONL file to find the circuit on; --task is then measured on."),
]
MeasureOnOption = Annotated[
    str | None,
    option("--measure-on", "JSONL file to measure on; --task is then for finding the circuit."),
]
MethodOption = Annotated[str, option("--method", "Discovery method; see `assay list methods`.")]
ObjectiveOption = Annotated[
    str | None, option("--objective", "Loss that defines the behaviour.  [default: the task's own]")
]
AblationOption = Annotated[
    str | None, option("--ablation", "What a cut edge carries.  [default: the task's own]")
]
CountOption = Annotated[int | None, option("--n", "Prompts to draw.  [default: 200, all of a file]", min=1)]
SeedOption = Annotated[int, option("--seed", "Root seed.", min=0)]
StepsOption = Annotated[  # int | str, which typer has no option type for
    Any,
    option("--steps", "Quadrature nodes of the method, or auto.", parser=parse_steps, metavar="COUNT"),
]
CircuitOption = Annotated[
    str | None,
    option(
        "--circuit",
        "Circuit file, published circuit, heads as a2.h3,a3.h0, head JSON, or id of the store.  "
        "[default: one discovered, as audit does]",
    ),
]
TargetOption = Annotated[float, option("--target", "Normalised faithfulness a circuit must reach.")]
DeviceOption = Annotated[str | None, option("--device", "cpu, cuda, cuda:1, ...  [default: cpu]")]
BatchOption = Annotated[
    int | None, option("--batch-size", "Prompts per pass.  [default: by free memory]", min=1)
]
StoreOption = Annotated[  # text, not Path: a path would take slashes from a URL
    str | None,
    option(
        "--store",
        "Results store to resume from and add to: a directory, or postgresql+psycopg://USER@HOST/DATABASE.  "
        "[default: assay-out]",
        metavar="DIR|URL",
    ),
]
JsonOption = Annotated[bool, option("--json", "Print one JSON document and nothing else on stdout.")]
QuietOption = Annotated[bool, option("--quiet", "No progress and no notes on stderr.")]
DryRunOption = Annotated[bool, option("--dry-run", "Print the plan and its cost in passes; run nothing.")]
TracebackOption = Annotated[bool, option("--traceback", "Show where an error came from.")]
ConfigOption = Annotated[
    Path | None,
    option("--config", "TOML file of options.", callback=read_config, is_eager=True),
]

"""The application: how a command is registered, read from its arguments, run and ended.

A command is a function of one frozen dataclass of settings: its fields are the options, the `Attributes` of
its docstring their help. Values come from the command line, else `ASSAY_NAME` variables, else the file of
`--config`, else the field's default.
"""

import errno
import inspect
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from cyclopts import (
    App,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)
from cyclopts.config import Dict, Env

from assay.app.cli.pages import Pages
from assay.app.console import fit_terminal, note, quiet, say, show_warning
from assay.app.running import ImageWorkers, Quiet
from assay.core.errors import AssayError, AssayWarning, InputError, by_option, near_matches
from assay.core.machine import decoding_with


Command = TypeVar("Command", bound=Callable[..., int | None])

CIRCUITS, TRUST, IMAGES, SUBSETS, STORE = (
    Group(name, sort_key=place)
    for place, name in enumerate(("Circuits", "Trust", "Image classifiers", "Subsets", "Store"))
)
PREFIX = "ASSAY_"
# Endings that no output directory has: before 0.2 some commands took a file there.
FILES = frozenset((".csv", ".html", ".json", ".jsonl", ".npz", ".pt", ".safetensors", ".toml", ".txt"))
# Options that went or that other commands have: what takes their place where a command has it; what to type.
MOVED = {
    "--out": ("--save", "this command writes one file; name it with --save FILE, not --out"),
    "--zoo": (
        "PREDICTIONS",
        "this command takes the zoo as an argument: my-zoo --images DIR, not --zoo my-zoo",
    ),
    "--edges": ("--top", "the size of a discovered circuit is --top K, not --edges"),
}
INTERRUPTED = 130
EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "wrong usage, an unknown name or a value out of range",
    3: "a gate or alarm fired",
    INTERRUPTED: "interrupted",
}
# There the same names say what a page shows, not what to run: a variable or a file must not set them.
TYPED_ONLY = {
    "report": ("--sweep", "--compare"),
    "store ls": ("--model", "--task", "--method"),
}


# ---- registering --------------------------------------------------------------------------------


def _shown(default: object) -> str | None:
    """A default for a help page; none for a switch or where the help text names it."""
    if default is None or default is False or default == ():
        return None
    return ", ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def make_app(name: str, text: str, **facts: Any) -> App:
    """An application or a family of commands; help is plain, and nothing has a negative form unasked."""
    return App(
        name=name,
        help=text,
        help_flags=("--help", "-h"),
        help_format="plaintext",
        help_formatter=Pages(),
        default_parameter=Parameter(
            negative=(),
            json_list=False,  # [a].npz is a file
            json_dict=False,
            show_default=_shown,
            show_choices=False,
        ),
        **facts,
    )


def _version() -> str:
    from assay.core.record import library_version

    return f"assay {library_version()}"


def command(
    group: Group | None = None, *, example: str, parent: App | None = None, name: str | None = None
) -> Callable[[Command], Command]:
    """Register a function of settings; settings without a required field may be left out.

    Args:
        group: Heading of the command in `assay --help`.
        example: What its help page ends with.
        parent: Family it belongs to.
        name: Its name, where the function cannot have it.
    """

    def register(function: Command) -> Command:
        signature = inspect.signature(function)
        parameters = [_with_default(parameter) for parameter in signature.parameters.values()]
        cast(Any, function).__signature__ = signature.replace(parameters=parameters)
        facts: dict[str, Any] = {} if group is None else {"group": group}
        (parent or app).command(cast(Any, function), name=name, help_epilogue=f"Example:  {example}", **facts)
        return function

    return register


def _with_default(parameter: inspect.Parameter) -> inspect.Parameter:
    settings = parameter.annotation
    if not isinstance(settings, type) or not issubclass(settings, Quiet):
        return parameter
    try:
        return parameter.replace(default=settings())
    except TypeError:  # a field is required
        return parameter


# ---- where values come from ---------------------------------------------------------------------


def _open(commands: Sequence[str], arguments: ArgumentCollection) -> ArgumentCollection:
    """Arguments that a variable or a file may set."""
    typed, rest = TYPED_ONLY.get(" ".join(commands), ()), arguments.copy()
    rest[:] = [each for each in arguments if each.name not in typed]
    return rest


def read_variables(application: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Values of `ASSAY_NAME` variables that are not empty."""
    wanted = _open(commands, arguments)
    wanted[:] = [
        each for each in wanted if os.environ.get(PREFIX + each.name.lstrip("-").upper().replace("-", "_"))
    ]
    Env(PREFIX, source="an ASSAY_ variable", command=False)(application, commands, wanted)


def read_config(application: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Values of the TOML file of `--config`.

    Keys are option names; a table named like a command holds for that command alone. A file may hold
    settings of several commands, but none that no command has.
    """
    tokens = [token.value for each in arguments if each.name == "--config" for token in each.tokens]
    if not tokens:
        return
    values = _values(Path(tokens[-1]), commands)
    own = _names(_open(commands, arguments))
    unknown = sorted(values.keys() - own)
    if unknown:
        everything = set[str]().union(
            *(_names(each.assemble_argument_collection()) for _, each in every_command(app))
        )
        for name in unknown:
            if name not in everything:
                near = near_matches(name, sorted(everything))
                hint = f"; did you mean {near[0]!r}?" if near else ""
                hint = f"; {MOVED[f'--{name}'][1]}" if f"--{name}" in MOVED else hint
                raise InputError(f"{tokens[-1]} sets {name!r}, which is not an option of any command{hint}")
    known = {name: value for name, value in values.items() if name in own}
    Dict(known, source=tokens[-1])(application, (), arguments)


def check_values(application: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse a file for the output directory, and a fraction for a count, which would be rounded silently."""
    names = {argument.name for argument in arguments}
    for argument in arguments:
        for token in argument.tokens if argument.name == "--out" else ():
            if Path(token.value).is_file() or Path(token.value).suffix in FILES:
                instead = "; --save names the file of the result" if "--save" in names else ""
                raise InputError(f"--out is {token.value}, a file; give a directory{instead}")
        kinds = {argument.hint, *get_args(argument.hint)}
        if int in kinds and float not in kinds and argument.parameter.converter is None:
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(token=token, argument=argument, target_type=int)


def _values(path: Path, commands: Sequence[str]) -> dict[str, Any]:
    """What the file sets for a command, by names with hyphens."""
    import tomllib

    try:
        content: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    values: dict[str, Any] = {}
    table: object = content
    family: Any = app
    for name in (*commands, None):
        if not isinstance(table, Mapping):
            break
        # `store` is an option and a command: what is not a table is the option.
        values |= {
            key.replace("_", "-"): value
            for key, value in table.items()
            if not (isinstance(value, Mapping) and key in family)
        }
        table, family = (table.get(name), family[name]) if name is not None else (None, None)
    return values


def _names(arguments: ArgumentCollection) -> set[str]:
    return {name.lstrip("-") for each in arguments for name in each.names}


def every_command(family: App, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command below with its words, in alphabetical order; a command may have others below it."""
    for name, each in sorted(family.resolved_commands().items()):
        if not name.startswith("-"):
            if each.default_command is not None:
                yield (*before, name), each
            yield from every_command(each, (*before, name))


def family(group: Group, name: str, text: str) -> App:
    """Commands below one name."""
    return app.command(make_app(name, text, group=group, group_commands=Group("Commands"), help_epilogue=""))


app = make_app(
    "assay",
    "Discover circuits in trained transformers and measure how far they can be trusted.",
    help_epilogue="Start with `assay audit`. `assay plan COMMAND ...` prints what a command would cost. "
    "Options can also come from ASSAY_OPTION variables and, with --config, from a TOML file.\n\nExit codes: "
    + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items() if code not in (0, INTERRUPTED))
    + ".",
    version=_version,
    group_commands=Group("Options", sort_key=-1),
    config=(read_variables, read_config, check_values),
)


# ---- running ------------------------------------------------------------------------------------


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code, 2 where a family of commands got none.

    Errors of the package are one message on stderr and a code, its warnings a line each. With `--traceback`,
    and for every other error, the exception passes through.
    """
    traceback = False
    try:
        function, bound = _parse(list(arguments))
        bound.apply_defaults()
        settings = next((each for each in bound.arguments.values() if isinstance(each, Quiet)), Quiet())
        traceback = settings.traceback
        workers = settings.workers if isinstance(settings, ImageWorkers) else None
        with warnings.catch_warnings(), quiet(silent=settings.quiet), decoding_with(workers):
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", AssayWarning)
            warnings.showwarning = show_warning
            if lacking := fit_terminal():
                note(
                    f"note: the encoding of this terminal ({lacking}) lacks some signs and shows letters "
                    "or '?' instead. Set PYTHONIOENCODING=utf-8, or a UTF-8 locale such as LC_ALL=C.UTF-8"
                )
            code = function(*bound.args, **bound.kwargs)
        helped = function.__name__ == "help_print" and not {"--help", "-h"} & set(arguments)
        return 2 if helped else code or 0
    except CycloptsError as error:
        say(f"error: {_sentence(error)}")
        return 2
    except AssayError as error:
        if traceback:
            raise
        say(f"error: {by_option(str(error))}")
        return 2 if isinstance(error, InputError) else 1
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG or traceback:
            raise
        say(f"error: file name too long: {str(error.filename)[:60]}...")
        return 2
    except KeyboardInterrupt:
        say("Interrupted. Run the same command again to resume.")
        return INTERRUPTED


def _parse(arguments: list[str]) -> tuple[Callable[..., Any], inspect.BoundArguments]:
    """The function to call and its arguments; of an option that is given twice, the last value counts.

    `plan COMMAND ...` is `COMMAND ... --dry-run`.
    """
    if arguments[:1] == ["plan"]:
        if len(arguments) == 1:
            raise InputError("`assay plan` needs a command, such as `assay plan discover --task ioi`")
        arguments = [*arguments[1:], "--dry-run"]
    try:
        function, bound, _ = app.parse_args(arguments, print_error=False, exit_on_error=False)
    except RepeatArgumentError as error:
        if error.token.source != "cli":
            raise
        _, applications, _ = app.parse_commands(arguments)
        own = applications[-1].assemble_argument_collection()
        argument = next(each for each in own if error.token.keyword in each.names)
        first = next(
            place for place, text in enumerate(arguments) if text.partition("=")[0] in argument.names
        )
        values = 0 if "=" in arguments[first] else argument.token_count()[0]
        return _parse(arguments[:first] + arguments[first + 1 + values :])
    return function, bound


def _sentence(error: CycloptsError) -> str:
    """What is wrong with the arguments, and the file or variable it is in."""
    text, argument = str(error), error.argument
    if isinstance(error, UnknownCommandError):
        return _unknown_command(error)
    if isinstance(error, UnknownOptionError):
        instead, moved = MOVED.get((error.token.keyword or error.token.value).partition("=")[0], ("", ""))
        if any(instead in each.names for each in error.argument_collection):
            return moved
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected argument {(error.unused_tokens or [''])[0]!r}"
    if isinstance(error, MissingArgumentError) and argument is not None:
        if error.keyword is None:
            return f"`assay {' '.join(error.command_chain or ())}` needs {argument.name}"
        count = argument.token_count()[0]
        return f"{error.keyword} needs {'a value' if count == 1 else f'{count} values'}"
    token = getattr(error, "token", None) or (argument.tokens[0] if argument and argument.tokens else None)
    if token is None or argument is None or token.source == "cli":
        return text
    text = text.replace(token.keyword or "", argument.name)
    return text if token.source in text else f"{text} (from {token.source})"


def _unknown_command(error: UnknownCommandError) -> str:
    """A mistyped command beside those there are, in alphabetical order."""
    assert error.unused_tokens
    name, known = error.unused_tokens[0], sorted(error.app or app)
    names = [each for each in known if not each.startswith("-")]
    near = near_matches(name, names)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    if name == "compare" and "report" in names:
        hint = "; `assay report --compare A B` compares two results."
    return f"unknown command {name!r}{hint} Commands: {', '.join(names)}."


def main() -> None:
    """Entry point of the command."""
    # One kind of progress at a time: transformers draws a bar even for weights on disk.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    fit_terminal()  # also for errors before a command runs
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, `head` for one
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    if code == INTERRUPTED and any(not each.daemon for each in threading.enumerate()[1:]):
        os._exit(code)  # threads would end what they have begun first, which can take minutes
    sys.exit(code)

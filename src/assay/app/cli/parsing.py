"""The application: how a command is registered, read from its arguments, run and ended.

A command is a function of one frozen dataclass of settings: its fields are the options, the `Attributes` of
its docstring their help. Values come from the command line, else `ASSAY_NAME` variables, else the file of
`--config`, else the field's default.
"""

import errno
import inspect
import io
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
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
    UnusedCliTokensError,
)
from cyclopts.config import Env, Toml

from assay.app.console import quiet, say, show_warning
from assay.app.running import ImageWorkers, Quiet
from assay.core.errors import AssayError, AssayWarning, InputError, by_option, unknown_name
from assay.core.machine import decoding_with


Command = TypeVar("Command", bound=Callable[..., int | None])

CIRCUITS, TRUST, IMAGES, SUBSETS, STORE = (
    Group(name, sort_key=place)
    for place, name in enumerate(("Circuits", "Trust", "Image classifiers", "Subsets", "Store"))
)
PREFIX = "ASSAY_"
INTERRUPTED = 130
EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "wrong usage, an unknown name or a value out of range",
    3: "a gate or alarm fired",
    INTERRUPTED: "interrupted",
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


def read_config(application: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Values of the TOML file of `--config`, which has a table for each command: `[audit]`, `[store.ls]`."""
    paths = [token.value for each in arguments if each.name == "--config" for token in each.tokens]
    if not paths:
        return
    file = Toml(paths[-1], source=paths[-1], must_exist=True)
    try:
        content = file.config
    except (CycloptsError, OSError) as error:
        raise InputError(f"cannot read {paths[-1]}: {error}") from error
    for name, table in content.items():
        if not isinstance(table, dict):
            raise InputError(
                f"{paths[-1]} sets {name!r} outside a table; put [{'.'.join(commands)}] above it"
            )
        if name not in app:
            raise unknown_name(f"command in {paths[-1]}", name, [*app])
    file(application, commands, arguments)


def check_values(application: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse a fraction for a count, which would be rounded silently."""
    for argument in arguments:
        kinds = {argument.hint, *get_args(argument.hint)}
        if int in kinds and float not in kinds and argument.parameter.converter is None:
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(token=token, argument=argument, target_type=int)


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
    help_epilogue="Start with `assay audit`. "
    "Options can also come from ASSAY_OPTION variables and, with --config, from a TOML file.\n\nExit codes: "
    + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items() if code not in (0, INTERRUPTED))
    + ".",
    version=_version,
    group_commands=Group("Options", sort_key=-1),
    config=(Env(PREFIX, source="an ASSAY_ variable", command=False, show=False), read_config, check_values),
)

app.register_install_completion_command(help="Install completion with the tab key for the current shell.")


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
    """The function to call and its arguments; of an option that is given twice, the last value counts."""
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


def main() -> None:
    """Entry point of the command."""
    # One kind of progress at a time: transformers draws a bar even for weights on disk.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for stream in (sys.stdout, sys.stderr):  # signs that a terminal lacks are shown as ?
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, `head` for one
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    if code == INTERRUPTED and any(not each.daemon for each in threading.enumerate()[1:]):
        os._exit(code)  # threads would end what they have begun first, which can take minutes
    sys.exit(code)

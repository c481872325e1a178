"""The application: how a command is registered, read from its arguments, run and ended.

A command is a function of one frozen dataclass of settings: its fields are the options, the `Attributes` of
its docstring their help. Values come from the command line, else `ASSAY_NAME` variables, else the file of
`--config`, else the field's default.
"""

import errno
import gc
import inspect
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast, get_args

from cyclopts import App, ArgumentCollection, CoercionError, CycloptsError, Group, Parameter
from cyclopts.config import Env, Toml

from assay.app.delivery import Quiet, Talking, print_json, quiet, say, show_warning
from assay.app.options import FILTERS, RareGroup
from assay.core.errors import AssayError, AssayWarning, InputError, by_option, check_name
from assay.core.machine import DECODING, entered


Command = TypeVar("Command", bound=Callable[..., int | None])

CIRCUITS, TRUST, IMAGES, SUBSETS, STORE = (
    Group(name, sort_key=place)
    for place, name in enumerate(("Circuits", "Trust", "Image classifiers", "Subsets", "Store"))
)
PREFIX = "ASSAY_"
_VARIABLES: Callable[[App, tuple[str, ...], ArgumentCollection], None] = Env(
    PREFIX, source="an ASSAY_ variable", command=False, show=False
)
HELP_ALL = "--help-all"
GATE_FIRED = 3
INTERRUPTED = 130
EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "wrong usage, an unknown name or a value out of range",
    GATE_FIRED: "a gate or alarm fired",
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
        epilogue = f"Rarer options: {HELP_ALL}\n\nExample:  {example}"
        (parent or app).command(cast(Any, function), name=name, help_epilogue=epilogue, **facts)
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


def read_variables(application: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Values of `ASSAY_NAME` variables; filters take none: ASSAY_MODEL is for what computes."""
    settable = [each for each in arguments if each.parameter.group != FILTERS.group]
    _VARIABLES(application, commands, ArgumentCollection(settable))  # type: ignore[no-untyped-call]  # cyclopts'


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
        check_name(f"command in {paths[-1]}", name, [each for each in app if not each.startswith("-")])
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
    "Options can also come from ASSAY_OPTION variables and, with --config, from a TOML file; "
    f"`assay COMMAND {HELP_ALL}` lists the rarer ones.\n\nExit codes: "
    + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items() if code not in (0, INTERRUPTED))
    + ".",
    version=_version,
    group_commands=Group("Options", sort_key=-1),
    config=(read_variables, read_config, check_values),
)

app.register_install_completion_command(help="Install completion with the tab key for the current shell.")


# ---- running ------------------------------------------------------------------------------------


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code, 2 where a family of commands got none.

    Errors of the package are one message on stderr (with `--json` also a document on stdout) and a code, its
    warnings a line each. With `--traceback`, and for every other error, the exception passes through.
    """
    words = ["--help" if word == HELP_ALL else word for word in arguments]
    RareGroup.shown = HELP_ALL in arguments
    settings: Quiet = Talking(json="--json" in words, traceback="--traceback" in words)
    try:
        function, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
        bound.apply_defaults()
        settings = next((each for each in bound.arguments.values() if isinstance(each, Quiet)), settings)
        workers, exif = (getattr(settings, name, None) for name in ("workers", "exif"))
        decoding = entered(DECODING, (workers, exif != "ignore"))
        with warnings.catch_warnings(), quiet(silent=settings.quiet), decoding:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", AssayWarning)
            warnings.showwarning = show_warning
            code = function(*bound.args, **bound.kwargs)
        helped = function.__name__ == "help_print" and "--help" not in words and "-h" not in words
        return 2 if helped else code or 0
    except CycloptsError as error:
        return _failed(settings, _with_source(error), 2)
    except AssayError as error:
        if settings.traceback:
            raise
        return _failed(settings, by_option(str(error)), 2 if isinstance(error, InputError) else 1)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG or settings.traceback:
            raise
        return _failed(settings, f"{str(error.filename)[:80]}... is too long for a file name", 2)
    except KeyboardInterrupt:
        say("Interrupted. Run the same command again to resume.")
        return INTERRUPTED
    finally:
        RareGroup.shown = False


def _with_source(error: CycloptsError) -> str:
    """What is wrong with the arguments, and the file or variable it is in."""
    text, source = str(error), getattr(getattr(error, "token", None), "source", "")
    return text if source in ("", "cli") or source in text else f"{text} (from {source})"


def _failed(settings: Quiet, message: str, code: int) -> int:
    """Say an error; returns the exit code."""
    say(f"error: {message}")
    if isinstance(settings, Talking) and settings.json:
        print_json({"error": message, "code": code})
    return code


def _interrupt(number: int, frame: object) -> None:
    """SIGTERM ends a command as Ctrl-C does."""
    del number, frame
    raise KeyboardInterrupt


def main() -> None:
    """Entry point of the command."""
    signal.signal(signal.SIGTERM, _interrupt)
    gc.set_threshold(10_000)  # imports make lasting objects: searching them took a tenth of a short command
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

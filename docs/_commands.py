"""Sphinx extension: the pages of the commands, from the settings that the command line is made of.

Nothing is written by hand: types, ranges, defaults and help are those of `assay COMMAND --help`, the entries
of its JSON come from `docs/howto/json.md`, which the tests compare with what the commands print.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

from cyclopts import App, Group
from cyclopts.argument import Argument
from sphinx.application import Sphinx

from assay.app.cli import app as application
from assay.app.cli.parsing import EXIT_CODES, PREFIX, every_command
from assay.app.options import FILTERS


NUMBERS = {int: "whole number", float: "number"}


def commands() -> Iterator[tuple[str, App]]:
    """Every command with its full name, in alphabetical order."""
    for words, each in every_command(application):
        yield " ".join(words), each


def arguments(command: App) -> list[Argument]:
    """The options of a command as its help page lists them: by group, positional ones first."""
    shown = [each for each in command.assemble_argument_collection(parse_docstring=True) if each.show]
    return sorted(shown, key=lambda each: (not positional(each), group_of(each).sort_key))


def positional(argument: Argument) -> bool:
    return not argument.name.startswith("-")


def group_of(argument: Argument) -> Group:
    return next(each for each in argument.parameter.group if isinstance(each, Group))


def title_of(argument: Argument) -> str:
    return "Arguments" if positional(argument) else group_of(argument).name


def kinds(hint: object) -> list[str]:
    """The words for a type: what a value may be."""
    if get_origin(hint) is Literal:
        return [f"`{value}`" for value in get_args(hint)]
    inner = get_args(hint)
    if get_origin(hint) is Annotated:
        return kinds(inner[0])
    if get_origin(hint) is tuple:
        number = "list of" if inner[-1] is Ellipsis else str(len(inner))
        return [f"{number} {' or '.join(kinds(inner[0]))}"]
    if inner:
        return [word for each in inner if each is not type(None) for word in kinds(each)]
    named = {bool: "switch", str: "text", Path: "path"}
    return [(named | NUMBERS)[hint]]  # type: ignore[index]


def type_of(argument: Argument) -> str:
    """Type and range."""
    hint, parameter = argument.hint, argument.parameter
    text = f"`{parameter.metavar}`" if parameter.metavar else " or ".join(kinds(hint))
    for limit in parameter.validator:
        ends = {"at least": limit.gte, "above": limit.gt, "at most": limit.lte, "below": limit.lt}
        text += "".join(f", {word} {end}" for word, end in ends.items() if end is not None)
    return text


def default_of(argument: Argument) -> str:
    value = argument.field_info.default
    if argument.required:
        return "required"
    if value is False:
        return "off"
    if value in (None, (), argument.field_info.empty):
        return "–"
    return f"`{', '.join(map(str, value)) if isinstance(value, tuple) else value}`"


def cell(text: str) -> str:
    return " ".join(text.replace("|", r"\|").replace("<", r"\<").split())


def prose(text: str) -> str:
    """Plain help as Markdown: names of options are code."""
    return re.sub(r"(?<![\w`-])--[a-z][a-z-]*", r"`\g<0>`", text)


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [header, tuple("---" for _ in header), *rows]
    return ["| " + " | ".join(map(cell, line)) + " |" for line in lines] + [""]


def key_of(argument: Argument) -> str:
    return argument.name.lstrip("-")


def can_be_set(argument: Argument) -> bool:
    """Whether a variable or a file may give an option of a command its value."""
    return not positional(argument) and argument.name != "--config"


def variable_of(argument: Argument) -> str:
    return PREFIX + key_of(argument).upper().replace("-", "_")


def toml_of(name: str, options: list[Argument]) -> list[str]:
    """A file of every key of a command at its default; a key without a default is a comment."""
    lines = ["```toml", f"[{name.replace(' ', '.')}]"]
    for each in options:
        value = each.field_info.default
        if not can_be_set(each):
            continue
        if value is None:
            lines.append(f"# {key_of(each)} =")
        elif isinstance(value, bool):
            lines.append(f"{key_of(each)} = {str(value).lower()}")
        elif isinstance(value, int | float):
            lines.append(f"{key_of(each)} = {value}")
        elif isinstance(value, tuple):
            lines.append(f"{key_of(each)} = {list(map(str, value))}".replace("'", '"'))
        else:
            lines.append(f'{key_of(each)} = "{value}"')
    return [*lines, "```", ""]


def json_rows(source: Path) -> dict[str, tuple[str, str]]:
    """Schema and entries of the document that each command prints."""
    text = (source / "howto" / "json.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `assay ([a-z ]+)` \| *(\S*) *\| (.+) \|$", text, re.MULTILINE)
    return {name: (schema, entries) for name, schema, entries in rows}


def first_line(command: App) -> str:
    return command.help.partition("\n")[0]


def page(name: str, command: App, document: tuple[str, str] | None) -> str:
    """The page of one command."""
    example = (command.help_epilogue or "").partition("Example:  ")[2]
    about = re.sub(r"\n\s*Args:.*", "", command.help, flags=re.DOTALL)
    lines = [f"# `assay {name}`", "", *map(str.strip, prose(about).splitlines()), ""]
    lines += ["```text", f"$ {example.strip()}", "```", ""] if example else []
    options = arguments(command)
    for title in dict.fromkeys(map(title_of, options)):
        rows = [
            (f"`{each.name}`", prose(each.parameter.help or ""), type_of(each), default_of(each))
            for each in options
            if title_of(each) == title
        ]
        lines += [f"## {title}", "", *table(("option", "what it does", "type", "default"), rows)]
    if any(each.name == "--json" for each in options):
        lines += ["## JSON", "", "`--json` prints one document on stdout: see [JSON](../../howto/json.md)."]
        if document is not None:
            schema, entries = document
            lines += ["", *([f"Schema: {schema}.", ""] if schema else []), f"Entries: {entries}."]
        lines.append("")
    codes = [code for code in EXIT_CODES if code != 3 or any(each.name == "--gate" for each in options)]
    lines += [
        "## Exit codes",
        "",
        *table(("code", "means"), [(str(code), EXIT_CODES[code]) for code in codes]),
    ]
    lines += ["## As a file", "", "Every key, for `--config FILE`:", "", *toml_of(name, options)]
    return "\n".join(lines)


def overview() -> dict[str, str]:
    """Tables of the commands and of all options, for the page above the commands."""
    used: dict[str, tuple[Argument, list[str]]] = {}
    listed = []
    for name, command in commands():
        listed.append((f"[`assay {name}`](generated/{name.replace(' ', '-')}.md)", first_line(command)))
        for each in arguments(command):
            if can_be_set(each):
                used.setdefault(each.name, (each, []))[1].append(name)
    rows = [
        (
            f"`{option}`",
            "–" if each.parameter.group == FILTERS.group else f"`{variable_of(each)}`",
            f"`{key_of(each)}`",
            ", ".join(f"`{name}`" for name in names),
        )
        for option, (each, names) in sorted(used.items())
    ]
    codes = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    tables = {
        "commands": table(("command", "does"), listed),
        "options": table(("option", "variable", "key of a file", "commands"), rows),
        "exit-codes": table(("code", "means"), codes),
    }
    return {name: "\n".join(lines) for name, lines in tables.items()}


def write_if_changed(path: Path, text: str) -> None:
    """Unchanged pages are not built again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def write_pages(app: Sphinx) -> None:
    source = Path(app.srcdir)
    documents, directory = json_rows(source), source / "commands" / "generated"
    for name, command in commands():
        text = page(name, command, documents.get(name))
        write_if_changed(directory / f"{name.replace(' ', '-')}.md", text)
    for name, text in overview().items():
        write_if_changed(directory / f"{name}.inc", text)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}

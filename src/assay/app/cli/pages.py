"""How help pages look: headings and two columns, no boxes."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions, RenderableType


class Pages:
    """The help formatter of every command."""

    def render_usage(
        self, console: "Console", options: "ConsoleOptions", usage: "RenderableType | None"
    ) -> None:
        """The line of what may be typed."""
        if usage is not None:
            console.print("Usage:", usage, style="bold", end="\n")

    def render_description(
        self, console: "Console", options: "ConsoleOptions", description: "RenderableType | None"
    ) -> None:
        """What the command does."""
        if description is not None:
            console.print(description)

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """One group: a heading, then a row for each command or option."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        if not panel.entries:
            return
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(max_width=max(20, int(0.4 * console.width)), style="cyan")
        table.add_column(overflow="fold")
        for entry in panel.entries:
            table.add_row(Text(", ".join(entry.display_labels_with_metavar)), Text(_text(entry)))
        console.print(Text(f"{panel.title}:", style="bold"))
        console.print(Padding(table, (0, 0, 1, 2)))


def _text(entry: "HelpEntry") -> str:
    """The help of an option on one line, its default at the end."""
    inner = getattr(entry.description, "primary_renderable", entry.description)
    text = " ".join(str(inner or "").split())
    if entry.required:
        return f"{text} [required]"
    return text if entry.default is None else f"{text} [default: {entry.default}]"

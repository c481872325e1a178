"""`assay --install-completion` and `--show-completion`: names after the tab key."""

from pathlib import Path
from typing import Literal

from assay.app.cli.parsing import app
from assay.app.console import echo
from assay.core.errors import InputError


Shell = Literal["bash", "zsh", "fish", "powershell"]


@app.command(name="--install-completion")
def install_completion(*, shell: Shell | None = None, output: Path | None = None) -> None:
    """Install completion for the current shell.

    Args:
        shell: Default: the one that runs this command.
        output: File to write, and nothing else. Default: where the shell looks for it, and its start-up file
            loads it.
    """
    # The start-up file is the user's own: it changes only where no other file is asked for.
    path = app.install_completion(shell=shell or _shell(), output=output, add_to_startup=output is None)
    echo(f"completion  {path}")


@app.command(name="--show-completion")
def show_completion(*, shell: Shell | None = None) -> None:
    """Print the completion script of the current shell.

    Args:
        shell: Default: the one that runs this command.
    """
    print(app.generate_completion(shell=shell or _shell()))


def _shell() -> Shell:
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    try:
        return detect_shell()
    except ShellDetectionError:
        raise InputError(
            "cannot detect the shell; name it with --shell bash, zsh, fish or powershell"
        ) from None

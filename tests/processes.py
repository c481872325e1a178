"""Processes that tests kill, stop and wait for: forks of a server that has loaded everything and run nothing.

They start at once and, unlike a fork of the test itself, meet no lock that one of its threads held.
What the start of a new process adds is in `test_cli.py`.
"""

import multiprocessing
import os
import sys
from pathlib import Path

from command_line import Outcome

from assay.app.cli import run


CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["assay", "assay.app.cli", "torch", "transformers"])


class CommandProcess:
    """`assay` in a process and a group of its own.

    Args:
        folder: Where its streams are written, as `stdout` and `stderr`.
        arguments: Of the command.
    """

    def __init__(self, folder: Path, *arguments: object) -> None:
        folder.mkdir()
        self._streams = folder / "stdout", folder / "stderr"
        given = [str(each) for each in arguments]
        self._process = CONTEXT.Process(target=_run, args=(given, *self._streams, Path.cwd()))
        self._process.start()

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.is_alive()

    def end(self, number: int | None = None) -> Outcome:
        """Send it a signal, if any, and wait; the exit code of a signal is negative, as of `subprocess`."""
        if number is not None:
            os.kill(self.pid, number)
        self._process.join(240)
        assert self._process.exitcode is not None, "it still runs after four minutes"
        return Outcome(self._process.exitcode, *(path.read_text() for path in self._streams))

    def __enter__(self) -> "CommandProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def _run(arguments: list[str], stdout: Path, stderr: Path, folder: Path) -> None:
    os.setsid()
    os.chdir(folder)
    sys.stdout, sys.stderr = (path.open("w", buffering=1) for path in (stdout, stderr))
    for number, stream in enumerate((sys.stdout, sys.stderr), 1):
        os.dup2(stream.fileno(), number)  # for what the command starts
    sys.exit(run(arguments))

"""`assay serve`: the results store, and monitors that run, as a local site."""

from pathlib import Path
from typing import Annotated

from assay.app.cli.border import command, echo
from assay.app.cli.commands import app
from assay.app.cli.options import (
    DEFAULT_STORE,
    ConfigOption,
    QuietOption,
    StoreOption,
    TracebackOption,
    option,
)


@app.command()
@command
def serve(
    store: StoreOption = None,
    host: Annotated[
        str, option("--host", "Address to listen on; any but a loopback one needs --token.")
    ] = "127.0.0.1",
    port: Annotated[int, option("--port", "Port; 0 takes a free one.", min=0, max=65535)] = 8651,
    token: Annotated[
        str | None, option("--token", "What visitors must show: 16 characters or more.", show_default=False)
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        option("--allow-host", "A further name under which the site is visited; may be repeated."),
    ] = None,
    monitor: Annotated[
        list[Path] | None,
        option(
            "--monitor",
            "TOML file of `assay monitor` options, or the directory of a running monitor; may be repeated.",
        ),
    ] = None,
    quiet: QuietOption = False,
    config: ConfigOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Show the results store in a local, read-only site, until Ctrl-C."""
    from assay.app.monitor.watch import watched
    from assay.app.site.web import create_app
    from assay.app.site.web import serve as run
    from assay.store import Store

    kept = Store(store or DEFAULT_STORE, create=False)
    create_app(kept, host=host, token=token)  # what is wrong with host or token, before a monitor is loaded
    monitors = [watched(path) for path in monitor or ()]

    def ready(address: str) -> None:
        if not quiet:
            echo(f"serving {kept.directory} at {address}  (Ctrl-C ends it)", err=True)

    run(
        kept,
        host=host,
        port=port,
        token=token,
        monitors=monitors,
        allowed_hosts=allow_host or (),
        ready=ready,
    )

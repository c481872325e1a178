"""`assay serve`: the results store as a local site."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import STORE, command
from assay.app.delivery import Quiet, Storing, note
from assay.app.options import at_least, call, own_group
from assay.core.errors import needs_extra


SITE = own_group("Site")


@dataclass(frozen=True, kw_only=True)
class ServeSettings(Quiet, Storing):
    """Where the site is served, and to whom.

    Attributes:
        host: Address to listen on; any other than a loopback address needs --token.
        port: Port; 0 picks a free one.
        token: Token that visitors must send: 16 characters or more.
        allow_host: Additional host name of the site; repeat for several.
    """

    host: Annotated[str, SITE] = "127.0.0.1"
    port: Annotated[int, SITE, at_least(0, 65535)] = 8651
    token: Annotated[str | None, SITE, Parameter(allow_leading_hyphen=True)] = None
    allow_host: Annotated[tuple[str, ...], SITE] = ()


@command(STORE, example="assay serve --store assay-out")
def serve(settings: ServeSettings) -> None:
    """Show the store as a local, read-only site until Ctrl-C."""
    with needs_extra("serve", "`assay serve` needs starlette and uvicorn"):
        from assay.app.site.web import serve as run

    store = settings.existing_store()
    call(
        settings,
        run,
        store,
        allowed_hosts=settings.allow_host,
        ready=lambda address: note(f"serving {store.directory} at {address}  (Ctrl-C to stop)"),
    )

"""A real PostgreSQL for the tests: a pytest plugin with the session fixture `postgres`.

The server is started from the binaries of the system (Debian: package `postgresql`) in a temporary directory,
listens on a unix socket alone, and is stopped at the end. Each process of pytest-xdist has its own.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa


PASSWORD = "s3cret-pa55"
_ABSENT = (
    "POSTGRESQL IS NOT INSTALLED: every test of the PostgreSQL store is skipped (apt install postgresql)"
)


def binaries() -> Path | None:
    """The folder of `initdb` and `pg_ctl`."""
    debian = os.pathsep.join(map(str, Path("/usr/lib/postgresql").glob("*/bin")))
    found = shutil.which("initdb", path=debian) or shutil.which("initdb")
    return None if found is None else Path(found).resolve().parent


class PostgresServer:
    """A server in a directory of its own.

    Attributes:
        directory: Data, socket and log; given to the user that the server runs as.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        # A socket's path is short, so not the long directory of a test.
        self.directory = Path(tempfile.mkdtemp(prefix="assay-pg-", dir="/tmp"))
        self._user = _unprivileged()
        secret = self.directory / "password"
        secret.write_text(PASSWORD)
        if self._user is not None:
            for path in (self.directory, secret):
                shutil.chown(path, self._user.pw_uid, self._user.pw_gid)
        data = str(self.directory / "data")
        self._run(
            "initdb", "-D", data, "-U", "assay", "--auth=scram-sha-256", f"--pwfile={secret}", "-E", "UTF8",
            "--locale=C.UTF-8", "--no-sync",
        )  # fmt: skip
        with (self.directory / "data" / "postgresql.conf").open("a") as settings:
            settings.write(
                f"listen_addresses = ''\nunix_socket_directories = '{self.directory}'\nfsync = off\n"
                "shared_buffers = 16MB\nmax_connections = 50\nautovacuum = off\n"
            )
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        log = str(self.directory / "log")
        self._run("pg_ctl", "-D", str(self.directory / "data"), "-l", log, "-w", "-t", "60", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `fast` closes all connections, `immediate` is a crash."""
        self._run("pg_ctl", "-D", str(self.directory / "data"), "-w", "-m", mode, "stop")

    def restart(self, mode: str = "fast") -> None:
        """Stop it under its clients and start it again."""
        self.stop(mode)
        self.start()

    def database(self, **query: str) -> str:
        """The URL of a new empty place for tables, password included.

        It is a schema that is searched alone: a database apiece would copy a thousand files for every test.
        """
        name = f"assay_{next(self._numbers)}"
        engine = sa.create_engine(self._url(), isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE SCHEMA {name}"))
        return self._url(options=f"-csearch_path={name}", **query).render_as_string(hide_password=False)

    def close(self) -> None:
        """Stop it for good and remove what it wrote."""
        with contextlib.suppress(subprocess.CalledProcessError):  # a test may have stopped it
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _url(self, **query: str) -> sa.URL:
        return sa.URL.create(
            "postgresql+psycopg",
            username="assay",
            password=PASSWORD,
            database="postgres",
            query={"host": str(self.directory), **query},
        )

    def _run(self, program: str, *arguments: str) -> None:
        who: dict[str, Any] = {}
        if self._user is not None:
            who = {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        done = subprocess.run(
            [str(self._folder / program), *arguments],
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            **who,
            check=False,
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout.decode())


def _unprivileged() -> Any:
    """The user to run as, None for this one: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    import pwd  # not above: Windows, where other tests run, does not have it

    names = {user.pw_name: user for user in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


def pytest_report_header() -> str:
    folder = binaries()
    return _ABSENT if folder is None else f"postgresql: {folder}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server; `restart()` it under a store, `database()` gives the URL of a new empty place."""
    folder = binaries()
    if folder is None:
        pytest.skip(_ABSENT)
    server = PostgresServer(folder)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new store may be made, on each backend."""
    if request.param == "sqlite":
        return str(tmp_path / "results")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database(arrays=str(tmp_path / "results"))

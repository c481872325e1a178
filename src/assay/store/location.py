"""Where a store is: a directory, a SQLite database by URL, or a PostgreSQL database by URL."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from assay.core.errors import InputError


DATABASE_NAME = "assay.db"
DEFAULT_DIRECTORY = "assay-out"  # of the arrays of a PostgreSQL store that names none
POSTGRES_DRIVER = "postgresql+psycopg"
ARRAYS = "arrays"  # of a PostgreSQL URL: where the array files lie; the driver never sees it
HIDDEN = "***"
_SECRETS = ("password", "sslpassword")
# What is meant as a URL and has no `://`: the name of a database, or user and password, in front of the rest.
_MISTYPED = re.compile(
    r"(?:sqlite|postgres|postgresql)(?:\+\w+)?(?:[:;]|//|\\\\)|(?![./~\\]|\w:[/\\])[^@]*:[^@]*@"
)


@dataclass(frozen=True, kw_only=True)
class Location:
    """A parsed location.

    Attributes:
        url: What the driver gets; it may hold a password, so it is never shown.
        directory: Where arrays lie; None: what a PostgreSQL database has recorded.
        text: What opens the store again, password included.
        shown: The same for people: passwords are stars.
    """

    url: sa.URL
    directory: Path | None
    text: str
    shown: str

    @property
    def sqlite(self) -> bool:
        """Whether the database is a file."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def file(self) -> Path:
        """The database of a SQLite store."""
        return Path(str(self.url.database))

    def __repr__(self) -> str:
        return f"Location({self.shown!r})"


def locate(location: str | os.PathLike[str]) -> Location:
    """Read what names a store.

    Raises:
        InputError: A URL that cannot be read, or of another database.
    """
    text = os.fspath(location)
    if "://" in text:
        return _from_url(text)
    if collapsed := re.match(r"(sqlite|postgresql)(\+\w+)?:/", text):
        raise InputError(
            f"{_without_password(text)!r} was converted from a URL to a path, which removes slashes; give "
            f"it as text, {collapsed[0]}/..."
        )
    if _MISTYPED.match(text) and not Path(text).is_dir():
        raise InputError(
            f"{_without_password(text)!r} looks like the URL of a database but has no '://'; give "
            f"{POSTGRES_DRIVER}://USER@HOST/DATABASE, or the whole path of a directory with this name"
        )
    return _sqlite(Path(text).expanduser().absolute() / DATABASE_NAME)


def _sqlite(database: Path) -> Location:
    url = sa.URL.create("sqlite", database=str(database))
    # A directory is named by itself: its name may hold what means something else in a URL.
    return Location(url=url, directory=database.parent, text=str(database.parent), shown=str(database.parent))


def _from_url(text: str) -> Location:
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):  # ValueError: a port that is not a number
        # From None: what is read as a port is the password of a URL without a host.
        raise _unreadable(text) from None
    backend = url.get_backend_name()
    if backend == "sqlite":
        if url.username is not None or url.password is not None or url.host:
            raise InputError(
                f"a SQLite database is a file and has no user or host, got {_without_password(text)!r}; "
                f"write sqlite:///DIR/{DATABASE_NAME}, with three slashes, or give the directory"
            )
        if not url.database or Path(url.database).name != DATABASE_NAME:
            raise InputError(
                f"the database of a results store is DIR/{DATABASE_NAME}, got {_without_password(text)!r}; "
                "give the directory"
            )
        return _sqlite(Path(url.database).absolute())
    if backend != "postgresql":
        raise InputError(
            f"a results store is in SQLite or PostgreSQL, got {_without_password(text)!r}; give a directory "
            f"or {POSTGRES_DRIVER}://USER@HOST/DATABASE"
        )
    # With a slash too many, user and password are read as a part of the database's name.
    if "@" in (url.database or "") or "@" in (url.host or ""):
        raise _unreadable(text)
    return _postgres(url)


def _unreadable(text: str) -> InputError:
    return InputError(
        f"cannot read {_without_password(text)!r} as the URL of a database; give a directory, "
        f"sqlite:///DIR/{DATABASE_NAME} or {POSTGRES_DRIVER}://USER@HOST/DATABASE"
    )


def _postgres(url: sa.URL) -> Location:
    if url.drivername not in ("postgresql", POSTGRES_DRIVER):
        raise InputError(
            f"the driver of a PostgreSQL store is psycopg, got {url.drivername!r}; write "
            f"{POSTGRES_DRIVER}://..."
        )
    if not url.database:
        raise InputError(
            f"{_shown(url)!r} lacks the name of a database; write {POSTGRES_DRIVER}://USER@HOST/DATABASE"
        )
    if HIDDEN in (url.password, *(url.query.get(name) for name in _SECRETS)):
        raise InputError(
            f"the password of {_shown(url)!r} was hidden for display; give the URL itself, or keep the "
            "password in ~/.pgpass or PGPASSWORD"
        )
    url = url.set(drivername=POSTGRES_DRIVER)
    given: Any = url.query.get(ARRAYS)
    if isinstance(given, tuple):
        raise InputError(f"?{ARRAYS}= names the directory of the arrays once, got {', '.join(given)}")
    directory = None if given is None else Path(given).expanduser().absolute()
    named = url if directory is None else url.update_query_dict({ARRAYS: str(directory)})
    return Location(
        url=url.difference_update_query([ARRAYS]),
        directory=directory,
        text=named.render_as_string(hide_password=False),
        shown=_shown(named),
    )


def _shown(url: sa.URL) -> str:
    stars = {name: HIDDEN for name in _SECRETS if name in url.query}
    return url.update_query_dict(stars).render_as_string(hide_password=True)


def _without_password(text: str) -> str:
    """A text that may be a mistyped URL, less all that may be a password.

    That is what stands between the colon behind the user and the last `@`; all behind that colon where there
    is not `@`; and the user too where nothing shows that it is one.
    """
    text = re.sub(r"(password=)[^&]*", rf"\1{HIDDEN}", text, flags=re.IGNORECASE)
    before, at, place = text.rpartition("@") if "@" in text else (text, "", "")
    scheme = re.match(r"(?:\w[\w+.-]*)?[^\w@]*[/\\]+", text)
    start = 0 if scheme is None else scheme.end()
    user, colon, _ = before[start:].partition(":")
    if colon:
        return f"{before[:start]}{user}:{HIDDEN}{at}{place}" if scheme else f"{HIDDEN}{at}{place}"
    return text if scheme or not at else f"{HIDDEN}{at}{place}"

"""Stores of earlier versions, and that a new store is what an upgraded one becomes."""

import multiprocessing
import os
import shutil
import signal
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from assay.core.errors import AssayWarning, OutputError
from assay.store import DATABASE_NAME, SCHEMA_VERSION, Store
from assay.store import upgrade as upgrade_module
from assay.store.tables import METADATA


BACKUP = f"{DATABASE_NAME}.schema-1.backup"


@pytest.fixture
def old(version_1: Path, tmp_path: Path) -> Path:
    """A copy of a store that version 1 made."""
    return Path(shutil.copytree(version_1, tmp_path / "old"))


def rows(file: Path) -> list[Any]:
    """All that a database of version 1 holds."""
    database = sqlite3.connect(file)
    found = [
        database.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in ("results", "arrays")
    ]
    database.close()
    return found


def opened(location: Path) -> Store:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssayWarning)
        return Store(location)


def test_an_old_store_opens_upgraded_with_a_copy_beside_it(old: Path) -> None:
    before = rows(old / DATABASE_NAME)
    with pytest.warns(
        AssayWarning, match=rf"upgraded from schema 1 to {SCHEMA_VERSION}; .* lies in .*{BACKUP}"
    ):
        store = Store(old)
    assert rows(old / DATABASE_NAME) == before
    assert rows(old / BACKUP) == before
    assert store.verify() == []
    assert sorted(path.name for path in old.iterdir()) == ["arrays", DATABASE_NAME, BACKUP]
    assert store.put("measurement", {"new": True}, {"value": 1})


def test_what_an_old_store_holds_is_found(old: Path) -> None:
    store = opened(old)
    found = {each.kind: each for each in store.query()}
    assert store.count() == 7
    assert [each.metric for each in store.query("measurement")] == ["faithfulness-norm", "kl", "kl"]
    assert found["scores"].about == "eap-ig-inputs on ioi in mini (resample ablation)"
    assert store.get(found["scores"].id).arrays["values"].shape == (37, 101)
    assert (
        found["worst_case"].value == store.get(found["worst_case"].id).payload["summary"]["absolute"]["max"]
    )
    assert (found["calibration"].status, found["audit"].metric) == ("fail", "faithfulness-norm")
    assert [each.seed for each in store.query(where='payload."ключ" = 1')] == [1]
    assert store.count(where="provenance.note ~ QUOTED") == 1


def test_an_upgraded_store_is_not_upgraded_again(old: Path) -> None:
    opened(old)
    Store(old)  # a warning would be an error
    assert len(list(old.glob("*.backup*"))) == 1


def test_the_old_version_refuses_the_new_store(old: Path) -> None:
    opened(old)
    database = sqlite3.connect(old / DATABASE_NAME)
    assert database.execute("SELECT max(version) FROM schema").fetchall() == [
        (SCHEMA_VERSION,)
    ]  # it asks this
    database.close()


def test_a_failed_upgrade_leaves_the_old_store(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (old / DATABASE_NAME).read_bytes()

    def fail(*facts: object) -> dict[str, Any]:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(upgrade_module, "summarise", fail)
        with pytest.raises(ZeroDivisionError):
            Store(old)
    assert (old / DATABASE_NAME).read_bytes() == before
    assert opened(old).count() == 7


def test_an_upgrade_that_cannot_copy_the_old_file_does_not_begin(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    before = (old / DATABASE_NAME).read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="which failed: cannot copy .*No space"):
            Store(old)
    assert (old / DATABASE_NAME).read_bytes() == before
    assert sorted(path.name for path in old.iterdir()) == ["arrays", DATABASE_NAME]


def _killed(location: Path, step: int) -> None:
    left = step

    def count(*rest: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sa.event.listen(sa.Engine, "before_cursor_execute", lambda *rest: count())
    sa.event.listen(sa.Engine, "commit", lambda *rest: count())
    opened(location)


def test_an_upgrade_killed_at_any_point_leaves_a_store_that_opens(version_1: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    before, died = rows(version_1 / DATABASE_NAME), []
    for step in range(1, 50, 2):
        location = Path(shutil.copytree(version_1, tmp_path / str(step)))
        process = context.Process(target=_killed, args=(location, step))
        process.start()
        process.join()
        died.append(process.exitcode == -signal.SIGKILL)
        store = opened(location)
        assert (store.count(), store.verify()) == (7, []), step
        assert rows(location / DATABASE_NAME) == before
    assert died[0]
    assert not died[-1], "the last step lies beyond the upgrade: every point before it was tried"


def _open_at_once(location: Path, barrier: Any, counts: Any) -> None:
    barrier.wait()
    counts.put(opened(location).count())


def test_processes_that_open_an_old_store_at_once_upgrade_it_once(old: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, counts = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_open_at_once, args=(old, barrier, counts)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [counts.get(timeout=60) for _ in processes] == [7] * 4
    for process in processes:
        process.join()
    assert len(list(old.glob("*.backup*"))) == 1
    assert opened(old).verify() == []


def test_the_revisions_make_the_tables_that_the_code_uses(location: str) -> None:
    """So a new store and an upgraded one are the same, and a changed table needs a revision."""
    store = Store(location)
    with store._database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []

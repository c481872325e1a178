"""A store in PostgreSQL: where its arrays are, what is shown, and a server that goes away."""

import multiprocessing
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
import torch
from postgres_server import PASSWORD, PostgresServer

from assay.core.errors import FileFormatError, InputError, MissingExtraError, OutputError
from assay.store import SCHEMA_VERSION, About, Store
from assay.store import database as database_module


@pytest.fixture
def url(postgres: PostgresServer, tmp_path: Path) -> str:
    return postgres.database(arrays=str(tmp_path / "arrays of it"))


def without_arrays(url: str) -> str:
    return sa.make_url(url).difference_update_query(["arrays"]).render_as_string(hide_password=False)


# ---- arrays -------------------------------------------------------------------------------------


def test_the_directory_of_the_arrays_is_remembered(url: str, tmp_path: Path) -> None:
    key = Store(url).put("scores", {}, {}, {"a": torch.arange(3)})
    again = Store(without_arrays(url), create=False)
    assert again.directory == tmp_path / "arrays of it"
    assert again.get(key).arrays["a"].tolist() == [0, 1, 2]


def test_arrays_lie_in_the_usual_directory_where_none_is_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Store(without_arrays(url)).directory == tmp_path / "assay-out"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Store(without_arrays(url)).directory == tmp_path / "assay-out"


def test_arrays_that_cannot_be_seen_are_an_error_that_says_what_to_do(url: str, tmp_path: Path) -> None:
    key = Store(url).put("scores", {}, {}, {"a": torch.arange(3)})
    moved = (tmp_path / "arrays of it").rename(tmp_path / "mounted here")
    with pytest.raises(InputError, match=r"cannot find the arrays .*Mount it there, or give .*\?arrays=DIR"):
        Store(url)
    there = sa.make_url(url).update_query_dict({"arrays": str(moved)}).render_as_string(hide_password=False)
    assert Store(there).get(key).arrays["a"].tolist() == [0, 1, 2]


def test_a_directory_belongs_to_one_store(url: str, postgres: PostgresServer, tmp_path: Path) -> None:
    first = Store(url)
    # Nothing lies there yet: it may as well be what is left of an attempt that was cut off.
    second = Store(postgres.database(arrays=str(tmp_path / "arrays of it")))
    kept = first.put("scores", {"seed": 0}, {}, {"values": np.zeros(3)})
    assert second.put("scores", {"seed": 0}, {}, {"values": np.zeros(3)}) == kept
    assert Store(url).verify() == [] == second.verify()
    with pytest.raises(InputError, match="holds the arrays of another results store"):
        Store(postgres.database(arrays=str(tmp_path / "arrays of it")))
    Store(tmp_path / "directory")
    with pytest.raises(InputError, match="is a separate results store"):
        Store(postgres.database(arrays=str(tmp_path / "directory")))


# ---- what is shown ------------------------------------------------------------------------------


def test_the_password_is_shown_nowhere(url: str, tmp_path: Path) -> None:
    store = Store(url)
    assert PASSWORD in store.location
    assert PASSWORD not in repr(store) + store.url + repr(store._database.location)
    assert "***" in repr(store)
    for wrong in (url.replace("assay:", "nobody:"), url.replace("/postgres?", "/absent?")):
        with pytest.raises(OutputError, match="nobody|absent") as caught:
            Store(wrong)
        assert PASSWORD not in str(caught.value)
    with pytest.raises(InputError, match="was hidden for display; give the URL itself"):
        Store(store.url)
    with pytest.raises(
        InputError, match="the driver of a PostgreSQL store is psycopg, got 'postgresql.asyncpg'"
    ):
        Store(url.replace("+psycopg", "+asyncpg"))


def test_a_missing_driver_is_an_instruction(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"run: pip install 'circuit-assay\[postgres\]'"):
        Store(url)


def test_a_reader_does_not_make_tables(url: str) -> None:
    with pytest.raises(InputError, match="nothing was stored there yet") as caught:
        Store(url, create=False)
    assert PASSWORD not in str(caught.value)


def test_other_tables_and_newer_versions_are_refused(url: str, postgres: PostgresServer) -> None:
    store = Store(url)
    with store._database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE schema SET version = :new"), {"new": SCHEMA_VERSION + 1})
    with pytest.raises(FileFormatError, match="written by a newer version of assay"):
        Store(url)
    other = postgres.database()
    with sa.create_engine(other, poolclass=sa.pool.NullPool).begin() as connection:
        connection.execute(sa.text("CREATE TABLE songs (title TEXT)"))
    with pytest.raises(FileFormatError, match="is a database, but not a results store"):
        Store(other)


def test_who_may_only_read_is_told_so(url: str, postgres: PostgresServer) -> None:
    store = Store(url)
    key = store.put("measurement", {"metric": "kl"}, {"value": 1})
    with store._database.engine.begin() as connection:
        schema = connection.execute(sa.text("SELECT current_schema()")).scalar_one()
        for statement in (
            f"CREATE ROLE reader_{schema} LOGIN PASSWORD '{PASSWORD}'",
            f"GRANT USAGE ON SCHEMA {schema} TO reader_{schema}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader_{schema}",
        ):
            connection.execute(sa.text(statement))
    reader = Store(url.replace("//assay:", f"//reader_{schema}:"), create=False)
    assert reader.get(key).payload == {"value": 1}
    with pytest.raises(OutputError, match="cannot write to the results store at .*permission denied"):
        reader.put("measurement", {}, {})


# ---- a server that goes away --------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restarted_server_loses_and_doubles_nothing(url: str, postgres: PostgresServer, mode: str) -> None:
    store, done = Store(url), threading.Event()
    keys: list[str] = []

    def work() -> None:
        seed = 0
        while not done.is_set():
            arrays = {"a": torch.tensor([seed])}
            keys.append(store.put("scores", {"seed": seed}, {}, arrays, about=About(seed=seed)))
            seed += 1

    writer = threading.Thread(target=work)
    writer.start()
    for _ in range(2):
        before = len(keys)
        while len(keys) < before + 5:
            time.sleep(0.01)
        postgres.restart(mode)
    before = len(keys)
    while len(keys) < before + 5 and writer.is_alive():
        time.sleep(0.01)
    done.set()
    writer.join()
    assert [each.id for each in store.query(order="seed")] == keys
    assert store.verify() == []


def test_a_server_that_stays_away_is_an_error_after_a_while(
    url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(url)
    monkeypatch.setattr(database_module, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(database_module, "FIRST_SECONDS", 0.5)
    postgres.stop()
    try:
        for use in (lambda: store.put("scores", {}, {}), store.count, lambda: Store(url)):
            with pytest.raises(
                OutputError, match="could not reconnect .* run the same command again"
            ) as caught:
                use()
            assert PASSWORD not in str(caught.value)
    finally:
        postgres.start()
    assert store.put("scores", {}, {})


def _put(store: Store, seed: int) -> None:
    store.put("scores", {"seed": seed}, {})


def test_a_store_opened_before_a_fork_works_on_both_sides(url: str) -> None:
    store = Store(url)
    children = [
        multiprocessing.get_context("fork").Process(target=_put, args=(store, seed)) for seed in range(3)
    ]
    for child in children:
        child.start()
        store.put("scores", {"seed": -1 - len(store.query())}, {})
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert store.count() == 6

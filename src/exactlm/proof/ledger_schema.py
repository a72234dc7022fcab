"""The table of a ledger, and how SQLite and PostgreSQL are told to keep it: durable, one writer at a time, append-only.

The triggers stop mistakes; whoever owns the database can drop them, and the chain is there to show it. Needs the extra
`proof`.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from exactlm.errors import ConfigError, LedgerError

NAME = "exactlm_ledger"
WAIT_SECONDS = 30.0  # for another writer
_WORD = Text().with_variant(Text(collation="C"), "postgresql")  # compared by its bytes
TABLE = Table(
    NAME,
    MetaData(),
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("appended", _WORD, nullable=False),
    Column("previous", _WORD, nullable=False, unique=True),
    Column("hash", _WORD, nullable=False, unique=True),
    Column("content", Text, nullable=False),
    Column("salt", Text),
    Column("receipt", Text),
    Column("receipt_digest", _WORD, index=True),
)
_KEPT = ("seq", "appended", "previous", "hash", "content")
_REFUSAL = "a ledger is append-only"
_CHANGED = " OR ".join(
    [f"new.{name} <> old.{name}" for name in _KEPT]
    + [f"new.{name} IS NOT NULL" for name in ("salt", "receipt", "receipt_digest")]
)
_SQLITE_TRIGGERS = [
    f"CREATE TRIGGER IF NOT EXISTS {NAME}_{what.lower()} BEFORE {what} ON {NAME} {when} "
    f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
    for what, when in (("UPDATE", f"WHEN {_CHANGED}"), ("DELETE", ""))
]
_POSTGRESQL_TRIGGERS = [
    f"CREATE OR REPLACE FUNCTION {NAME}_refuse() RETURNS trigger LANGUAGE plpgsql AS "
    f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$",
    f"CREATE TRIGGER {NAME}_update BEFORE UPDATE ON {NAME} FOR EACH ROW WHEN ({_CHANGED}) "
    f"EXECUTE FUNCTION {NAME}_refuse()",
    f"CREATE TRIGGER {NAME}_delete BEFORE DELETE OR TRUNCATE ON {NAME} EXECUTE FUNCTION {NAME}_refuse()",
]


def read_url(url_or_path: str | os.PathLike[str]) -> URL:
    """A path is a SQLite file. ConfigError for another database or a URL that is none."""
    given = os.fspath(url_or_path)
    if "://" not in given:
        return URL.create("sqlite", database=given)
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise ConfigError("the ledger's URL cannot be read; use postgresql://user@host/database") from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "postgresql+psycopg") or not url.database or url.database == ":memory:":
        raise ConfigError(f"ledger {name_of(url):.200}: use a path, sqlite:///path or postgresql://user@host/database")
    return url


def name_of(url: URL) -> str:
    """A file's path, or a URL without its password."""
    if url.drivername == "sqlite":
        return str(url.database)
    return url.difference_update_query(["password", "sslpassword"]).render_as_string(hide_password=True)


def open_database(url: URL, can_create: bool) -> Engine:
    """An engine over a database that has the table. LedgerError if it cannot be had, or is not one."""
    try:
        engine = _open_sqlite(url, can_create) if url.drivername == "sqlite" else _open_postgresql(url)
        try:
            if can_create:
                _create(engine)
            with engine.connect() as connection:
                connection.execute(TABLE.select().limit(1))
        except BaseException:
            engine.dispose()
            raise
    except ImportError:
        raise ConfigError('PostgreSQL needs the package psycopg: pip install "exactlm[postgres]"') from None
    except (SQLAlchemyError, NoSuchModuleError, sqlite3.Error, UnicodeError) as error:
        reason = tell(error)
        if "readonly" in reason or "unable to open" in reason:
            reason += "; SQLite writes beside a ledger even to read it: copy it, with its -wal, to where you may write"
        raise LedgerError(f"{name_of(url)}: cannot be opened as a ledger: {reason}") from None
    return engine


def tell(error: Exception) -> str:
    """What a database says, on one line."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def _open_sqlite(url: URL, can_create: bool) -> Engine:
    path = Path(str(url.database))
    if can_create and not path.exists():
        _create_file(path)
    if not path.is_file():
        raise LedgerError(f"{path}: there is no ledger")
    engine = create_engine(url, connect_args={"timeout": WAIT_SECONDS})

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # transactions begin as `begin` says
        for setting in ("synchronous=FULL", "secure_delete=ON"):
            connection.execute(f"PRAGMA {setting}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        is_write = connection.get_execution_options().get("is_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")

    return engine


def _create_file(path: Path) -> None:
    """An empty file that only its owner can read, there to stay."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be created: {error.strerror}") from None


def _open_postgresql(url: URL) -> Engine:
    settings = {"connect_timeout": int(WAIT_SECONDS), "client_encoding": "utf8"}  # also of a SQL_ASCII database
    return create_engine(url, pool_pre_ping=True, connect_args=settings)


def _create(engine: Engine) -> None:
    is_sqlite = engine.dialect.name == "sqlite"
    if is_sqlite:
        _set_wal(engine)
    with engine.execution_options(is_write=True).begin() as connection:
        if not is_sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock(hashtext('{NAME}'))"))
        if engine.dialect.has_table(connection, NAME):
            return
        TABLE.create(connection)
        for statement in _SQLITE_TRIGGERS if is_sqlite else _POSTGRESQL_TRIGGERS:
            connection.exec_driver_sql(statement)


def _set_wal(engine: Engine) -> None:
    """Write-ahead logging: readers do not wait for the writer. SQLite does not wait for others here, so we do."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        connection = engine.raw_connection()
        try:
            mode = connection.cursor().execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise LedgerError(f"{engine.url.database}: write-ahead logging is not possible there (mode {mode})")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.02)
        finally:
            connection.close()


def lock_for_writing(connection: Connection) -> None:
    """Takes the only writer's place until the transaction ends."""
    if connection.dialect.name == "postgresql":  # SQLite has done so with BEGIN IMMEDIATE
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
        connection.exec_driver_sql(f"LOCK TABLE {NAME} IN EXCLUSIVE MODE")


def see_one_moment(connection: Connection) -> None:
    """All that the transaction reads from here on is of one moment; in SQLite it always is."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def forget_erased(engine: Engine) -> bool:
    """Clears what was erased; the redaction is committed already, so nothing here raises.

    SQLite: it is overwritten in the files; False if a reader of old rows or an error held that back. PostgreSQL: the
    table was vacuumed, False if that failed. VACUUM does not tell whether it could free the rows: while a transaction
    that may still see them is open in the same database, it frees none, and True is returned all the same.
    """
    try:
        return _vacuum(engine) if engine.dialect.name == "postgresql" else _empty_log(engine)
    except (SQLAlchemyError, sqlite3.Error, UnicodeError):
        return False


def _vacuum(engine: Engine) -> bool:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"VACUUM {NAME}")
    return True


def _empty_log(engine: Engine) -> bool:
    raw = engine.raw_connection()
    try:
        return bool(raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
    finally:
        raw.close()

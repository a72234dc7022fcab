"""What the tests of the ledger share: receipts that need no model, and a PostgreSQL database of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from exactlm import SamplingParams
from exactlm.prompt import ReadPrompt
from exactlm.receipt import Receipt, make_receipt

IDENTITY = {
    **{name: f"{i}" * 64 for i, name in enumerate(("fingerprint", "model", "tokenizer", "text"))},
    "template": None,
    "adapter": None,
}


def make(number: int, num_tokens: int = 3) -> Receipt:
    """A well-formed receipt, another for each number."""
    ids = [(number + i) % 1000 for i in range(num_tokens)]
    output = {
        "token_ids": ids,
        "text": f"secret answer {number}",
        "finish_reason": "length",
        "stop_reason": None,
        "digest": f"{number:064x}",
    }
    params = SamplingParams(max_tokens=num_tokens, temperature=0.5, seed=number, stop=[f"secret stop {number}"])
    prompt = ReadPrompt([1, 2, 3], f"secret prompt {number}")
    return make_receipt(IDENTITY, prompt, params, num_tokens, 0, output, ["ab" * 32] * num_tokens)


@contextlib.contextmanager
def fresh_postgres(options: str = "") -> Iterator[str]:
    """The URL of an empty database, made with these options, on the server of EXACTLM_POSTGRES_URL; skips if that is
    not set."""
    given = os.environ.get("EXACTLM_POSTGRES_URL")
    if not given:
        pytest.skip("no PostgreSQL server: set EXACTLM_POSTGRES_URL, such as postgresql://postgres@localhost/postgres")
    url = make_url(given).set(drivername="postgresql+psycopg")
    server = create_engine(url, isolation_level="AUTOCOMMIT")
    name = f"exactlm_test_{secrets.token_hex(6)}"
    try:
        with server.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name} {options}")
        try:
            yield url.set(database=name).render_as_string(hide_password=False)
        finally:
            with server.connect() as connection:
                connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        server.dispose()

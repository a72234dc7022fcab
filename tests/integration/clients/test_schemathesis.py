"""schemathesis on the OpenAPI document: no answer is a 500, in the interpreter EXACTLM_CLIENTS_PYTHON."""

from __future__ import annotations

import subprocess

import httpx

from tests.integration.clients.conftest import find_python
from tests.integration.load.server import Server


def test_no_request_of_the_schema_makes_the_server_fail(server: Server) -> None:
    python = find_python("schemathesis")
    command = [python, "-m", "schemathesis.cli", "run", server.url + "/openapi.json", "--checks", "not_a_server_error"]
    done = subprocess.run([*command, "--max-examples", "25"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    ready = httpx.get(server.url + "/ready", trust_env=False)
    assert ready.status_code == 200

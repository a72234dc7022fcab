"""schemathesis on the OpenAPI document: no answer is a 500, in the interpreter EXACTLM_CLIENTS_PYTHON."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import httpx

from tests.integration.clients.conftest import find_python
from tests.integration.server.process import ServerProcess


def test_no_request_of_the_schema_makes_the_server_fail(server: ServerProcess, tmp_path: Path) -> None:
    python = find_python("schemathesis")
    url = server.url + "/openapi.json"
    command = [python, "-m", "schemathesis.cli", "run", url, "--checks", "not_a_server_error"]
    done = subprocess.run([*command, "--max-examples", "25"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    tested = re.search(r"Tested: (\d+)", done.stdout)
    assert tested is not None
    assert int(tested[1]) >= 8  # operations, of a document that was read
    ready = httpx.get(server.url + "/ready", trust_env=False)
    assert ready.status_code == 200

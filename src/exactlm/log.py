"""The log: what EXACTLM_LOG asks for, on standard error. Knows nothing of what is logged.

Everything is written by the standard `logging` under "exactlm", so an application that configures that logger itself
needs no variable. Texts of prompts and answers are never logged.
"""

from __future__ import annotations

import logging
import os

from exactlm.errors import ConfigError

LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}
_LOG = logging.getLogger("exactlm")
_handlers: list[logging.Handler] = []  # ours: at most one


def configure_log(default: str | None = None) -> None:
    """Sends the log to standard error at the level of EXACTLM_LOG, else at `default`; with neither, leaves it alone.

    ConfigError if EXACTLM_LOG names no level. May be called again.
    """
    name = os.environ.get("EXACTLM_LOG", default)
    if name is None:
        return
    if name not in LEVELS:
        raise ConfigError(f"EXACTLM_LOG={name!r}: no such level; use one of {', '.join(LEVELS)}")
    if not _handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        _handlers.append(handler)
        _LOG.addHandler(handler)
    _LOG.setLevel(LEVELS[name])

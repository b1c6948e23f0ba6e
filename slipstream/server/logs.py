"""How the server's log lines look: text for people, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO

from slipstream.server.request_context import CURRENT_REQUEST

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "request_id"}


class RequestIdFilter(logging.Filter):
    """Gives each record the id of the request that it was logged for, or None."""

    def filter(self, record: logging.LogRecord) -> bool:
        context = CURRENT_REQUEST.get()
        vars(record)["request_id"] = None if context is None else context.request_id
        return True


class TextFormatter(logging.Formatter):
    """Time, level, message, and the request's id where there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", None)
        line = super().formatMessage(record)
        return line if request_id is None else f"{line} [{request_id}]"


class JsonFormatter(logging.Formatter):
    """`time` (UTC), `level`, `logger`, `message`; `request_id`, `exception` and what a line adds, where there are."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = getattr(record, "request_id", None)
        if request_id is not None:
            entry["request_id"] = request_id
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        entry |= {key: value for key, value in vars(record).items() if key not in _OWN_FIELDS and value is not None}
        return json.dumps(entry, default=str)


def configure_logging(log_format: str, level: str, stream: TextIO | None = None) -> None:
    """Let every logger of the process write this way, to standard error unless told otherwise."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(RequestIdFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("torch").setLevel(logging.WARNING)

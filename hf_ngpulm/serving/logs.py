"""Logs as lines of JSON, for those who collect them. Neither what was said nor a key is ever among them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone


class JsonLines(logging.Formatter):
    """Writes a record as an object with its time, level, logger and message, and the `facts` that it was given."""

    def format(self, record: logging.LogRecord) -> str:
        shown = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            shown["error"] = self.formatException(record.exc_info)
        return json.dumps(shown, ensure_ascii=False)


def log_json() -> None:
    """Write all logs to standard error in this way, and what the server answers, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("hf_ngpulm.serving").setLevel(logging.INFO)

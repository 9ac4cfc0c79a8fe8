"""Write logs as lines of JSON. The logs never contain transcripts or keys."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone


class JsonLines(logging.Formatter):
    """Formats a log record as a JSON object with time, level, logger, message, and the entries of the record's `facts`."""

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
    """Write all logs to standard error as lines of JSON, including a line for each response of the server."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("hf_ngpulm.serving").setLevel(logging.INFO)

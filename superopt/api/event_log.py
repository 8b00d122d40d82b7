"""Events of long calls, also as DEBUG records of the logger of the call."""

from __future__ import annotations

import logging
from collections.abc import Callable

from superopt.report.data.report import Event


def log_events(logger: str, progress: Callable[[Event], None] | None) -> Callable[[Event], None]:
    """Return a function that logs an event to `logger` and passes it to `progress`."""
    log = logging.getLogger(logger)

    def handle(event: Event) -> None:
        log.debug("%s: %s", event.stage, event.text)
        if progress is not None:
            progress(event)

    return handle

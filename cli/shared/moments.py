"""Times that somebody names on the command line."""

from datetime import datetime

from barnabas.runtime.clock import RealClock

UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
WHEN = "2026-03-01T12:00 (local time without a zone), or 90m, 12h, 3d ago"
A_TIME = "a time such as 2026-03-01T12:00, or 90m, 12h, 3d ago"


def moment_of(text: str) -> int | None:
    """A time in milliseconds: `2026-03-01T12:00`, or so long ago as `90m` says. None: it is neither."""
    number, unit = text[:-1], text[-1:]
    if number.isdecimal() and len(number) < 20 and unit in UNITS_MS:
        return max(RealClock().now_ms() - int(number) * UNITS_MS[unit], 0)
    try:
        at_ms = int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    return max(at_ms, 0)  # no record and no change is older than 1970

"""What is known of each status: what it means, where to look next, and how it is drawn."""

from typing import NamedTuple


class Status(NamedTuple):
    """`height`: of a bar, as a share of its line. The colour is one of `colours.py`, and never the only sign."""

    meaning: str
    command: tuple[str, ...]
    colour: str
    height: float
    hatch: str


# The worst one last.
STATUSES = {
    "OK": Status("read well", (), "text", 0, ""),
    "EXPIRES_SOON": Status("the broker will remove the offset soon", ("groups", "describe"), "soon", 0.25, ".."),
    "WARN": Status("is read, but falls further behind", ("groups", "lag", "--watch"), "warn", 0.4, ""),
    "BEHIND": Status("reads records that are long since written", ("groups", "lag", "--watch"), "behind", 0.45, "\\"),
    "REWIND": Status("an offset went back", ("offsets", "log"), "back", 0.5, "\\\\"),
    "STORM": Status("rebalances all the time", ("groups", "explain"), "storm", 0.5, "xx"),
    "NEVER": Status("has members, and never committed", ("groups", "describe"), "never", 0.5, "--"),
    "REMOVED": Status("has no committed offset any more", ("offsets", "log"), "gone", 0.6, "oo"),
    "STALL": Status("commits, but always the same offset", ("groups", "lag", "--watch"), "stall", 0.7, "//"),
    "STOP": Status("does not commit any more", ("groups", "describe"), "stop", 0.8, ""),
}
RANKS = tuple(STATUSES)

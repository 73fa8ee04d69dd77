"""Which names a topic can have, and which belong to coordinators.

Folders are named after topics, so this rule also keeps a broker in its directories.
"""

import re

OFFSETS_TOPIC = "__consumer_offsets"
JOURNAL_TOPIC = "__offset_journal"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_GROUPS_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, JOURNAL_TOPIC, TRANSACTIONS_TOPIC, SHARE_GROUPS_TOPIC})

NAME_LENGTH_MAX = 249

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str | None:
    """Why a topic cannot have this name, in Kafka's words. None: it can."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return "Topic name is invalid: '.' or '..' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if _LEGAL_NAME.fullmatch(name) is None:
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    return None

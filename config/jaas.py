"""JAAS lines, in which Kafka's settings have users and passwords. Pure.

org.apache.kafka.common.security.plain.PlainLoginModule required
    username="broker" password="broker-secret" user_alice="alice-secret";
"""

import re

from barnabas.protocol.named_tuple import NamedTuple

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
ZOOKEEPER_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
MODULES = {
    "PLAIN": PLAIN_MODULE,
    "SCRAM-SHA-256": SCRAM_MODULE,
    "SCRAM-SHA-512": SCRAM_MODULE,
    "OAUTHBEARER": OAUTH_MODULE,
}
_FLAGS = ("required", "requisite", "sufficient", "optional")
_WORD = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s="';]+)|([=;]))""")
USER_PREFIX = "user_"


class JaasLine(NamedTuple):
    """A login module and its options. It has passwords: never log it."""

    module: str
    options: dict[str, str]

    @property
    def passwords(self) -> dict[str, str]:
        """The passwords of PLAIN's users, by name."""
        prefix = len(USER_PREFIX)
        return {name[prefix:]: text for name, text in self.options.items() if name.startswith(USER_PREFIX)}

    def __repr__(self) -> str:
        return f"JaasLine({self.module!r}, …)"


def read(text: str) -> JaasLine:
    """The line. ValueError says what is wrong with it, and shows nothing of it."""
    words = _words(text)
    if len(words) < 3 or words[-1] != (";", True) or words[1][0].lower() not in _FLAGS:
        raise ValueError('it is of the form `MODULE required key="value" …;`')
    rest = words[2:-1]
    if len(rest) % 3 or any(rest[at] != ("=", True) for at in range(1, len(rest), 3)):
        raise ValueError('its options are of the form key="value", and it ends with one semicolon')
    return JaasLine(words[0][0], {rest[at][0]: rest[at + 2][0] for at in range(0, len(rest), 3)})


def _words(text: str) -> list[tuple[str, bool]]:
    """Words and signs; True for a sign."""
    found: list[tuple[str, bool]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _WORD.match(text, position)
        if match is None:
            raise ValueError("a quotation mark has no partner")
        double, single, word, sign = match.groups()
        if sign is not None:
            found.append((sign, True))
        else:
            quoted = double if double is not None else single
            found.append((word if quoted is None else re.sub(r"\\(.)", r"\1", quoted), False))
        position = match.end()
    return found

"""Regular expressions in RE2's syntax: what they match, and that none costs more than it may.

tests/golden/re2-answers.json has what re2j 1.8 answers, which Apache Kafka 4.1 uses: for each pattern one bit for each
text, or null where it is refused.
"""

import json
from pathlib import Path

import pytest
from barnabas.protocol import re2
from barnabas.protocol.re2 import compiled
from barnabas.protocol.re2_syntax import PatternError
from barnabas.runtime.turns import at_once

GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "golden" / "re2-answers.json").read_text())


def matches(pattern: str, text: str) -> bool:
    return at_once(at_once(compiled(pattern)).matches(text))


def pieces(pattern: str, text: str) -> int:
    """How many pieces of work it takes to look at a text."""
    return sum(1 for _ in at_once(compiled(pattern)).matches(text))


def test_patterns_match_what_they_match_in_kafka() -> None:
    texts = GOLDEN["texts"]
    wrong = []
    for pattern, expected in GOLDEN["answers"]:
        try:
            compiled_pattern = at_once(compiled(pattern))
        except PatternError:
            found = None
        else:
            bits = "".join(str(int(at_once(compiled_pattern.matches(text)))) for text in texts)
            found = f"{int(bits, 2):x}"
        if found != expected:
            wrong.append((pattern, found, expected))
    assert not wrong
    assert sum(expected is None for _, expected in GOLDEN["answers"]) > 100
    assert len(GOLDEN["answers"]) > 600


@pytest.mark.parametrize(
    "pattern",
    ["(a*)*b", "(a+)+b", "(a|a)*b", "(a|aa)+b", "(?:a?){30}a{30}b", "(.*)(.*)(.*)(.*)b", "(\\w+\\s?)+b", "((a+)+)+b"],
)
def test_the_work_grows_with_the_text_and_not_faster(pattern: str) -> None:
    few, many = pieces(pattern, "a" * 1_000), pieces(pattern, "a" * 10_000)
    assert many <= 12 * few + 12
    assert many < 10_000
    assert not matches(pattern, "a" * 10_000)


def test_work_is_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """No piece has more than so many steps, however large the pattern is."""
    monkeypatch.setattr(re2, "KNOWN_MAX", 0)
    large = "(?:a?){1000}" * 5
    assert sum(1 for _ in compiled(large)) > 5_000 // re2.STEPS_PER_PIECE
    assert pieces(large, "a" * 100) > 100 * 5_000 // re2.STEPS_PER_PIECE


@pytest.mark.parametrize(
    "pattern",
    [
        "a{1000}" * 21,
        "((a{1000}){1000}){1000}",
        "(?:" * 20_000 + ")" * 20_000,
        "(" * 30_000,
        "[" * 30_000,
        "a|" * 32_000,
    ],
)
def test_what_is_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        at_once(compiled(pattern))


@pytest.mark.parametrize(
    "pattern", ["[" + "ab" * 16_000 + "]", "\\Q" + "a(" * 9_000, "(?i)" + "k" * 5_000, "a" * 9_000]
)
def test_what_is_long_is_read_in_pieces(pattern: str) -> None:
    assert sum(1 for _ in compiled(pattern)) >= len(pattern) // 400


def test_what_was_seen_before_is_looked_up() -> None:
    pattern = at_once(compiled("invoices-[0-9]+"))
    assert at_once(pattern.matches("invoices-1"))
    known = len(pattern._known)
    assert at_once(pattern.matches("invoices-111111111"))
    assert len(pattern._known) <= known + 1


def test_what_is_remembered_is_bounded() -> None:
    pattern = at_once(compiled(".*"))
    for code in range(re2.KNOWN_MAX + 500):
        assert at_once(pattern.matches(chr(0x4E00 + code)))
    assert len(pattern._known) <= re2.KNOWN_MAX

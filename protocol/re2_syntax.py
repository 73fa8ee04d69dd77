"""Reads regular expressions in RE2's syntax (https://github.com/google/re2/wiki/Syntax), which Kafka's protocol uses.

There are no back references and no look-arounds. So what an expression matches can be found in a time that is linear in
the text (re2.py). `parse` makes a tree of an expression, in pieces. It follows RE2's own parser: one that RE2 refuses
is refused, with these exceptions: deep nesting (`DEPTH_MAX`), and named groups that only some releases know.
"""

import unicodedata
from bisect import bisect_right
from collections.abc import Generator
from enum import Enum
from functools import lru_cache

from barnabas.protocol.named_tuple import NamedTuple

REPEAT_MAX = 1_000
DEPTH_MAX = 1_000
CHARACTERS_PER_PIECE = 100
LAST_CHARACTER = 0x10FFFF
_CATEGORIES = "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs"
CATEGORIES = frozenset(_CATEGORIES.split())


class PatternError(ValueError):
    """It is no regular expression, or one that is too large."""


class Place(Enum):
    """What must be true of a place between characters."""

    TEXT_START = 0
    TEXT_END = 1
    LINE_START = 2
    LINE_END = 3
    WORD_BOUNDARY = 4
    NO_WORD_BOUNDARY = 5


Ranges = tuple[tuple[int, int], ...]


class Characters(NamedTuple):
    """A set of characters: one character of the text must be in it. `ranges` are in order and do not overlap."""

    ranges: Ranges = ()
    folds: bool = False
    is_negated: bool = False
    category: str = ""
    sets: "tuple[Characters, ...]" = ()

    def has(self, code: int) -> bool:
        return self.is_negated is not (self._has(code) or (self.folds and any(map(self._has, orbit(code)))))

    def _has(self, code: int) -> bool:
        at = bisect_right(self.ranges, code, key=_low) - 1
        if at >= 0 and code <= self.ranges[at][1]:
            return True
        if self.category and unicodedata.category(chr(code)).startswith(self.category):
            return True
        return any(each.has(code) for each in self.sets)


def _low(bounds: tuple[int, int]) -> int:
    return bounds[0]


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found)


class All(NamedTuple):
    """Each, one after the other."""

    parts: "tuple[Node, ...]"


class Any(NamedTuple):
    """One of them."""

    choices: "tuple[Node, ...]"


class Repeat(NamedTuple):
    """At least so often, and at most (None: there is no limit)."""

    part: "Node"
    least: int
    most: int | None


Node = Characters | Place | All | Any | Repeat

# Those that fold to each other and are more than a lower and an upper case letter: each with the next one.
_PAIRS = """
4b:6b 53:73 6b:212a 73:17f b5:39c c5:e5 df:1e9e e5:212b 130:130 131:131 17f:53 1c4:1c5 1c5:1c6 1c6:1c4 1c7:1c8 1c8:1c9
1c9:1c7 1ca:1cb 1cb:1cc 1cc:1ca 1f1:1f2 1f2:1f3 1f3:1f1 345:399 392:3b2 395:3b5 398:3b8 399:3b9 39a:3ba 39c:3bc 3a0:3c0
3a1:3c1 3a3:3c2 3a6:3c6 3a9:3c9 3b2:3d0 3b5:3f5 3b8:3d1 3b9:1fbe 3ba:3f0 3bc:b5 3c0:3d6 3c1:3f1 3c2:3c3 3c3:3a3 3c6:3d5
3c9:2126 3d0:392 3d1:3f4 3d5:3a6 3d6:3a0 3f0:39a 3f1:3a1 3f4:398 3f5:395 1e60:1e61 1e61:1e9b 1e9b:1e60 1e9e:df 1fbe:345
2126:3a9 212a:4b 212b:c5
"""
_ORBITS = {int(one, 16): int(other, 16) for one, _, other in (pair.partition(":") for pair in _PAIRS.split())}


def orbit(code: int) -> list[int]:
    """The other characters that `(?i)` takes for this one."""
    found = []
    following = _next_fold(code)
    while following != code:
        found.append(following)
        following = _next_fold(following)
    return found


def _next_fold(code: int) -> int:
    if code in _ORBITS:
        return _ORBITS[code]
    for other in (chr(code).lower(), chr(code).upper()):
        if len(other) == 1 and ord(other) != code:
            return ord(other)
    return code


_DIGITS = ((0x30, 0x39),)
_SPACES = ((0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20))
_WORD = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_PERL = {"d": _DIGITS, "s": _SPACES, "w": _WORD}
_POSIX = {
    "alnum": ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)),
    "alpha": ((0x41, 0x5A), (0x61, 0x7A)),
    "ascii": ((0, 0x7F),),
    "blank": ((0x09, 0x09), (0x20, 0x20)),
    "cntrl": ((0, 0x1F), (0x7F, 0x7F)),
    "digit": _DIGITS,
    "graph": ((0x21, 0x7E),),
    "lower": ((0x61, 0x7A),),
    "print": ((0x20, 0x7E),),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "upper": ((0x41, 0x5A),),
    "word": _WORD,
    "xdigit": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
}
_C_ESCAPES = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_PLACES = {"A": Place.TEXT_START, "z": Place.TEXT_END, "b": Place.WORD_BOUNDARY, "B": Place.NO_WORD_BOUNDARY}
_ASCII_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")


@lru_cache(maxsize=1)
def _scripts() -> dict[str, str]:
    """The ranges of characters of each script, as text."""
    from importlib import resources  # late: it imports the compression modules, and few patterns name a script

    text = resources.files(__package__).joinpath("scripts.txt").read_text()
    rows = (line.partition(" ") for line in text.splitlines())
    return {name: ranges for name, _, ranges in rows}


def _unicode_set(name: str, *, folds: bool, is_negated: bool) -> Characters:
    if name == "Any":
        return Characters(((0, LAST_CHARACTER),), is_negated=is_negated)
    if name in CATEGORIES:
        return Characters(category=name, folds=folds, is_negated=is_negated)
    if name not in _scripts():
        raise PatternError(f"there is no set of characters {name}")
    rows = (row.partition("-") for row in _scripts()[name].split())
    ranges = _merged([(int(low, 16), int(high or low, 16)) for low, _, high in rows])
    return Characters(ranges, folds=folds, is_negated=is_negated)


class _Group:
    """A group that is being read: its choices before the last `|`, and what has come since."""

    __slots__ = ("choices", "flags", "parts")

    def __init__(self, flags: frozenset[str]) -> None:
        self.flags = flags  # of what is around it
        self.choices: list[Node] = []
        self.parts: list[Node] = []

    def as_node(self) -> Node:
        self.end_choice()
        return self.choices[0] if len(self.choices) == 1 else Any(tuple(self.choices))

    def end_choice(self) -> None:
        """Begin with another one."""
        self.choices.append(self.parts[0] if len(self.parts) == 1 else All(tuple(self.parts)))
        self.parts = []


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.flags: frozenset[str] = frozenset()
        self.groups = [_Group(self.flags)]
        self.names: set[str] = set()

    # ---- the whole ----

    def read(self) -> Generator[None, None, Node]:
        text = self.text
        was_repeat = False
        count = 0
        while self.at < len(text):
            count += 1
            if count % CHARACTERS_PER_PIECE == 0:
                yield
            character = text[self.at]
            is_repeat = False
            if character == "(":
                self._open()
            elif character == ")":
                self._close()
            elif character == "|":
                self.groups[-1].end_choice()
                self.at += 1
            elif character in "*+?":
                self.at += 1
                self._repeat(*{"*": (0, None), "+": (1, None), "?": (0, 1)}[character], was_repeat)
                is_repeat = True
            elif character == "{" and (bounds := self._bounds()) is not None:
                self._repeat(*bounds, was_repeat)
                is_repeat = True
            else:
                yield from self._one(character)
            was_repeat = is_repeat
        if len(self.groups) > 1:
            raise PatternError("a ) is missing")
        return self.groups[0].as_node()

    def _one(self, character: str) -> Generator[None, None, None]:
        parts = self.groups[-1].parts
        if character == "[":
            parts.append((yield from self._class()))
            return
        if character == "\\":
            yield from self._escaped(parts)
            return
        self.at += 1
        if character == "^":
            parts.append(Place.LINE_START if "m" in self.flags else Place.TEXT_START)
        elif character == "$":
            parts.append(Place.LINE_END if "m" in self.flags else Place.TEXT_END)
        elif character == ".":
            parts.append(Characters(((0, LAST_CHARACTER),) if "s" in self.flags else ((0, 9), (11, LAST_CHARACTER))))
        else:
            parts.append(self._literal(ord(character)))

    def _literal(self, code: int) -> Characters:
        return Characters(((code, code),), folds="i" in self.flags)

    # ---- groups and flags ----

    def _open(self) -> None:
        text = self.text
        if text.startswith("(?", self.at):
            for start in ("(?P<", "(?<"):
                if text.startswith(start, self.at):
                    self._name(start)
                    break
            else:
                self._flags()
                return
        else:
            self.at += 1
        self._push(self.flags)

    def _push(self, before: frozenset[str]) -> None:
        if len(self.groups) > DEPTH_MAX:
            raise PatternError("groups are nested too deeply")
        self.groups.append(_Group(before))

    def _name(self, start: str) -> None:
        end = self.text.find(">", self.at)
        name = self.text[self.at + len(start) : end]
        if end < 0 or not name or not all(each == "_" or each in _ASCII_LETTERS for each in name):
            raise PatternError("the name of a group has letters, digits and _")
        if name in self.names:
            raise PatternError(f"two groups have the name {name}")
        self.names.add(name)
        self.at = end + 1

    def _flags(self) -> None:
        flags, is_off, has_any = set(self.flags), False, False
        for at in range(self.at + 2, len(self.text)):
            character = self.text[at]
            if character in "imsU":
                has_any = True
                (flags.discard if is_off else flags.add)(character)
            elif character == "-" and not is_off:
                is_off, has_any = True, False
            elif character in ":)" and (has_any or not is_off):
                before, self.flags = self.flags, frozenset(flags)
                if character == ":":
                    self._push(before)
                self.at = at + 1
                return
            else:
                break
        raise PatternError("what stands behind (? is not known")

    def _close(self) -> None:
        if len(self.groups) == 1:
            raise PatternError("there is a ) too many")
        group = self.groups.pop()
        self.flags = group.flags
        self.groups[-1].parts.append(group.as_node())
        self.at += 1

    # ---- repetition ----

    def _bounds(self) -> tuple[int, int | None] | None:
        """`{2}`, `{2,}`, `{2,5}` as numbers; None: it is none of them, and means itself."""
        end = self.text.find("}", self.at, self.at + 30)
        least, comma, most = self.text[self.at + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_number(least) or (most and not _is_number(most)):
            return None
        low = int(least)
        high = low if not comma else int(most) if most else None
        if max(low, high or 0) > REPEAT_MAX or (high is not None and high < low):
            raise PatternError("an expression is repeated 1000 times at most")
        self.at = end + 1
        return low, high

    def _repeat(self, least: int, most: int | None, was_repeat: bool) -> None:
        if self.text.startswith("?", self.at):  # as few as possible: what matches as a whole is the same
            self.at += 1
        parts = self.groups[-1].parts
        if was_repeat or not parts:
            raise PatternError("there is nothing to be repeated")
        part = parts[-1]
        if isinstance(part, Place):  # a place is where it is, however often one looks
            parts[-1] = part if least else Any((part, All(())))
            return
        parts[-1] = Repeat(part, least, most)

    # ---- escapes ----

    def _escaped(self, parts: list[Node]) -> Generator[None, None, None]:
        following = self.text[self.at + 1 : self.at + 2]
        if following in _PLACES and following:
            parts.append(_PLACES[following])
            self.at += 2
        elif following == "Q":
            end = self.text.find("\\E", self.at)
            for number, each in enumerate(self.text[self.at + 2 : end if end >= 0 else None]):
                if number % CHARACTERS_PER_PIECE == 0:
                    yield
                parts.append(self._literal(ord(each)))
            self.at = len(self.text) if end < 0 else end + 2
        elif following and following in "pP":
            parts.append(self._unicode())
        elif following.lower() in _PERL and following:
            parts.append(self._perl())
        else:
            parts.append(self._literal(self._code()))

    def _perl(self) -> Characters:
        letter = self.text[self.at + 1]
        self.at += 2
        return Characters(_PERL[letter.lower()], folds="i" in self.flags, is_negated=letter.isupper())

    def _unicode(self) -> Characters:
        is_negated = self.text[self.at + 1] == "P"
        name = self.text[self.at + 2 : self.at + 3]
        self.at += 3
        if name == "{":
            end = self.text.find("}", self.at)
            if end < 0:
                raise PatternError("a } is missing")
            name, self.at = self.text[self.at : end], end + 1
            if name.startswith("^"):
                is_negated, name = not is_negated, name[1:]
        return _unicode_set(name, folds="i" in self.flags, is_negated=is_negated)

    def _code(self) -> int:
        """The character that is meant by what stands behind a backslash."""
        text, at = self.text, self.at + 1
        character = text[at : at + 1]
        if not character:
            raise PatternError("a backslash is the last character")
        self.at = at + 1
        if character not in _ASCII_LETTERS:
            return ord(character)
        if character in _C_ESCAPES:
            return _C_ESCAPES[character]
        if character in "01234567" and (character == "0" or text[at + 1 : at + 2] in tuple("01234567")):
            end = at + 1
            while end < at + 3 and text[end : end + 1] in tuple("01234567"):
                end += 1
            self.at = end
            return int(text[at:end], 8)
        if character == "x":
            in_braces = text.startswith("{", at + 1)
            end = text.find("}", at) if in_braces else at + 3
            digits = text[at + 2 : end] if in_braces else text[at + 1 : end]
            is_number = all(each in "0123456789abcdefABCDEF" for each in digits)
            if end >= 0 and is_number and (digits if in_braces else len(digits) == 2) and len(digits.lstrip("0")) <= 6:
                code = int(digits, 16)
                if code <= LAST_CHARACTER:
                    self.at = end + 1 if in_braces else end
                    return code
        raise PatternError(f"\\{character} is not known")

    # ---- classes ----

    def _class(self) -> Generator[None, None, Characters]:
        text, folds = self.text, "i" in self.flags
        ranges: list[tuple[int, int]] = []
        sets: dict[str, Characters] = {}
        self.at += 1
        is_negated = text.startswith("^", self.at)
        self.at += is_negated
        begin = self.at
        count = 0
        while self.at == begin or not text.startswith("]", self.at):
            count += 1
            if count % CHARACTERS_PER_PIECE == 0:
                yield
            first = self.at
            following = text[first + 1 : first + 2] if text.startswith("\\", first) else ""
            if text.startswith("[:", first) and (end := text.find(":]", first + 2)) >= 0:
                self.at = end + 2
                sets[text[first : self.at]] = _posix_set(text[first + 2 : end], folds)
            elif following and following in "pP":
                found = self._unicode()
                sets[text[first : self.at]] = found
            elif following and following.lower() in _PERL:
                sets[following] = self._perl()
            else:
                low = high = self._class_code()
                if text.startswith("-", self.at) and self.at + 1 < len(text) and text[self.at + 1] != "]":
                    self.at += 1
                    high = self._class_code()
                    if high < low:
                        raise PatternError("a range begins behind its end")
                ranges.append((low, high))
        self.at += 1
        return Characters(_merged(ranges), folds=folds, is_negated=is_negated, sets=tuple(sets.values()))

    def _class_code(self) -> int:
        if self.at >= len(self.text):
            raise PatternError("a ] is missing")
        if self.text[self.at] == "\\":
            return self._code()
        self.at += 1
        return ord(self.text[self.at - 1])


def _posix_set(name: str, folds: bool) -> Characters:
    ranges = _POSIX.get(name.removeprefix("^"))
    if ranges is None:
        raise PatternError(f"there is no set of characters [:{name}:]")
    return Characters(ranges, folds=folds, is_negated=name.startswith("^"))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and (text == "0" or not text.startswith("0"))


def parse(text: str) -> Generator[None, None, Node]:
    """The tree of an expression. PatternError: it is none."""
    return _Reader(text).read()

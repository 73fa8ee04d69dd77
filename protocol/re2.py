"""Regular expressions of clients: RE2's syntax (re2_syntax.py), in a time that is linear in the text, and in pieces.

Python's `re` takes a time that is exponential in the text for some expressions, and nothing can stop it. Here a text is
read once, with the set of all states in which the expression can be after each character (Thompson's automaton). Sets
that were met before are looked up. Work is cut into pieces, so that a broker serves others meanwhile, whatever a client
sends: `pattern = yield from compiled(text)`, then `yield from pattern.matches(name)`.
"""

from collections.abc import Generator

from barnabas.protocol.named_tuple import NamedTuple
from barnabas.protocol.re2_syntax import All, Any, Characters, Node, PatternError, Place, parse

__all__ = ["Pattern", "PatternError", "compiled"]

STATES_MAX = 20_000
STEPS_PER_PIECE = 200
KNOWN_MAX = 10_000  # states that a pattern remembers

_START, _LINE, _WORD, _OTHER = range(4)  # what stands before a place
_END = ""

# A set of states before a character, and what stood before it.
_Before = tuple[frozenset[int], int]


class _Split(NamedTuple):
    """Goes on in each of these states."""

    targets: tuple[int, ...]


class _At(NamedTuple):
    """Goes on if this is true of the place."""

    place: Place
    target: int


class _Take(NamedTuple):
    """Takes a character."""

    characters: Characters
    target: int


_State = _Split | _At | _Take | None


class Pattern:
    """An expression that is ready to be matched. State 0 is its begin, state 1 its end."""

    __slots__ = ("_known", "_states")

    def __init__(self, states: list[_State]) -> None:
        self._states = states
        self._known: dict[tuple[_Before, str], _Before] = {}

    def matches(self, text: str) -> Generator[None, None, bool]:
        """Whether the whole text matches."""
        known = self._known
        before: _Before = (frozenset((0,)), _START)
        for character in text:
            after = known.get((before, character))
            if after is None:
                after = yield from self._step(before, character)
            if not after[0]:
                return False
            before = after
        after = known.get((before, _END))
        if after is None:
            after = yield from self._step(before, _END)
        return bool(after[0])

    def _step(self, before: _Before, character: str) -> Generator[None, None, _Before]:
        """Where the pattern is behind a character; behind the end: whether it has matched."""
        states, kind = before
        following = _kind(character)
        reached = set(states)
        left = list(states)
        taken: set[int] = set()
        code = ord(character) if character else -1
        steps = 0
        while left:
            steps += 1
            if steps >= STEPS_PER_PIECE:
                steps = 0
                yield
            number = left.pop()
            state = self._states[number]
            if isinstance(state, _Take):
                steps += len(state.characters.sets)
                if code >= 0 and state.target not in taken and state.characters.has(code):
                    taken.add(state.target)
                continue
            if isinstance(state, _At):
                targets: tuple[int, ...] = (state.target,) if _is_true(state.place, kind, following, character) else ()
            elif state is None:
                if not character:
                    taken.add(number)
                continue
            else:
                targets = state.targets
                steps += len(targets)
            for target in targets:
                if target not in reached:
                    reached.add(target)
                    left.append(target)
        after = frozenset(taken), following
        if len(self._known) >= KNOWN_MAX or len(taken) > STEPS_PER_PIECE:
            self._known.clear()
        self._known[before, character] = after
        return after


def _kind(character: str) -> int:
    if character == "\n":
        return _LINE
    is_word = character.isascii() and (character.isalnum() or character == "_")
    return _WORD if is_word else _OTHER


def _is_true(place: Place, kind: int, following: int, character: str) -> bool:
    if place is Place.TEXT_START:
        return kind == _START
    if place is Place.TEXT_END:
        return character == _END
    if place is Place.LINE_START:
        return kind in (_START, _LINE)
    if place is Place.LINE_END:
        return character in (_END, "\n")
    is_boundary = (kind == _WORD) is not (following == _WORD)
    return is_boundary is (place is Place.WORD_BOUNDARY)


def compiled(text: str) -> Generator[None, None, Pattern]:
    """An expression as a pattern. PatternError: it is none, or it has too many states."""
    tree = yield from parse(text)
    states: list[_State] = [None, None]

    def new() -> int:
        if len(states) >= STATES_MAX:
            raise PatternError("the expression is too large")
        states.append(None)
        return len(states) - 1

    left: list[tuple[Node, int, int]] = [(tree, 0, 1)]  # what leads from one state to another
    steps = 0
    while left:
        node, begin, end = left.pop()
        steps += 1
        if steps % STEPS_PER_PIECE == 0:
            yield
        if isinstance(node, Characters):
            states[begin] = _Take(node, end)
        elif isinstance(node, Place):
            states[begin] = _At(node, end)
        elif isinstance(node, All):
            at = begin
            for part in node.parts[:-1]:
                following = new()
                left.append((part, at, following))
                at = following
            if node.parts:
                left.append((node.parts[-1], at, end))
            else:
                states[begin] = _Split((end,))
        elif isinstance(node, Any):
            begins = [new() for _ in node.choices]
            states[begin] = _Split(tuple(begins))
            left.extend((choice, each, end) for choice, each in zip(node.choices, begins, strict=True))
        else:
            part, least, most = node
            at = begin
            for _ in range(least):
                following = new()
                left.append((part, at, following))
                at = following
            if most is None:
                inside = new()
                states[at] = _Split((inside, end))
                left.append((part, inside, at))
            else:
                for _ in range(most - least):
                    inside, following = new(), new()
                    states[at] = _Split((inside, end))
                    left.append((part, inside, following))
                    at = following
                states[at] = _Split((end,))
    return Pattern(states)

"""HTML that cannot be broken by what is in it.

Names of groups and topics come from clients, so they may hold anything. Text becomes part of the page through
`element` only, which escapes it. `visible` writes control characters, and those that turn the direction of what
follows, as U+XXXX, and shortens what is too long.
"""

import html
import unicodedata
from typing import Any

NAME_MAX = 60  # characters of a name that are shown; the element's title has more
TITLE_MAX = 500
LONG = 16  # characters of a word
VOID = {"meta", "img", "source", "br"}


class Html(str):
    """A piece of a page. Any other string is text."""

    __slots__ = ()


def element(name: str, /, *content: object, **attributes: Any) -> Html:
    """An element. Attributes that are None or False are left out; `class_` and `data_label` lose or change the `_`."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{_escaped(str(value))}"')
    inner = join(*content)
    return Html(f"<{' '.join(words)}>" if name in VOID else f"<{' '.join(words)}>{inner}</{name}>")


def join(*content: object) -> Html:
    """Pieces one after the other."""
    return Html(
        "".join(part if isinstance(part, Html) else _escaped(str(part)) for part in content if part is not None)
    )


def named(name: str) -> Html:
    """The name of a group or a topic."""
    return shown(name, NAME_MAX, title=visible(name, TITLE_MAX) if len(name) > NAME_MAX else None)


def shown(text: str, most: int, title: str | None = None) -> Html:
    """A text of somebody else. A long word in it may break anywhere, else a table would be wider than the page."""
    seen = visible(text, most)
    has_long_word = max(map(len, seen.split()), default=0) > LONG
    return element("bdi", seen, title=title, class_="long" if has_long_word else None)


def visible(text: str, most: int = NAME_MAX) -> str:
    """Text in which every character can be seen, on one line, not longer than `most` characters."""
    if not text:
        return "(empty)"
    cut = text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - most // 2 + 1 :]}"
    return "".join(_visible(character) for character in cut)


def _visible(character: str) -> str:
    # Cc, Cf: control and format; Cs: half of a pair; Zl, Zp: line and paragraph ends.
    is_hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return f"U+{ord(character):04X}" if is_hidden else character


def _escaped(text: str) -> str:
    return html.escape(text.encode("utf-8", "replace").decode())

"""ssl.principal.mapping.rules: how the name of a certificate becomes the name of a user. Pure.

DEFAULT, or RULE:pattern/replacement/ with L or U behind it; the first rule whose pattern matches the whole name counts.
"""

import re

from barnabas.protocol.named_tuple import NamedTuple

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_REFERENCE = re.compile(r"\\(.)|\$(\d)|\$\{(\w+)\}", re.DOTALL)


class Rule(NamedTuple):
    """One rule. Without a pattern it is DEFAULT: the name stays as it is."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str

    def name(self, subject: str) -> str | None:
        """The user's name; None: the rule does not apply."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        name = self.pattern.sub(self._replaced, subject)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _replaced(self, match: re.Match[str]) -> str:
        def text(reference: re.Match[str]) -> str:
            escaped, number, name = reference.groups()
            if escaped is not None:
                return escaped
            if name is not None:
                return match.group(name) or ""
            return match.group(int(number)) or "" if int(number) <= match.re.groups else reference.group()

        return _REFERENCE.sub(text, self.replacement)


def read_rules(text: str) -> tuple[Rule, ...]:
    """The rules of a setting. ValueError says which part of it is none."""
    rules, position = [], 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise ValueError(
                f"`{text[position:]}` is no rule: DEFAULT, or RULE:pattern/replacement/ with L or U behind it"
            )
        is_default, pattern, replacement, case = match.groups()
        position = match.end()
        if is_default:
            rules.append(Rule(None, "", ""))
            continue
        try:
            # Java writes named groups without the P of Python.
            compiled = re.compile(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern))
            named = {name for _, _, name in _REFERENCE.findall(replacement) if name}
            if not named <= set(compiled.groupindex):
                raise ValueError(f"its replacement names a group that the pattern does not have: {replacement}")
        except re.error as error:
            raise ValueError(f"its pattern {pattern} cannot be read: {error}") from None
        rules.append(Rule(compiled, replacement, case))
    return tuple(rules)


def user_of(rules: tuple[Rule, ...], subject: str) -> str | None:
    """The name of the user whose certificate has this subject; None: no rule applies."""
    return next((name for rule in rules if (name := rule.name(subject)) is not None), None)

"""The failure that a simulation reports."""


class Violation(Exception):
    """An invariant does not hold. `invariant` is its name."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant

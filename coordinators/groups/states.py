"""The states of a classic group, and from which to which it may go."""

from enum import Enum
from typing import Final


class State(Enum):
    """The states of a classic group, with their names on the wire."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


MOVES: Final = {  # to Empty from CompletingRebalance and Stable: by a live reset
    State.EMPTY: {State.PREPARING_REBALANCE, State.DEAD},
    State.PREPARING_REBALANCE: {State.COMPLETING_REBALANCE, State.EMPTY, State.DEAD},
    State.COMPLETING_REBALANCE: {State.STABLE, State.PREPARING_REBALANCE, State.EMPTY, State.DEAD},
    State.STABLE: {State.PREPARING_REBALANCE, State.EMPTY, State.DEAD},
    State.DEAD: set[State](),
}

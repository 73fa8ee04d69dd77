"""Sets of offsets as ranges: sorted, apart from each other, each from one offset to before another. All pure."""

from collections.abc import Iterable

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def united(*some: Iterable[Range]) -> Ranges:
    """The offsets that are in any of them."""
    found: list[Range] = []
    for low, high in sorted(one for ranges in some for one in ranges):
        if low >= high:
            continue
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def without(ranges: Iterable[Range], taken: Iterable[Range]) -> Ranges:
    """The offsets of the first that are not in the second."""
    found: list[Range] = []
    gone = united(taken)
    for low, high in united(ranges):
        position = low
        for begin, end in gone:
            if end <= position or begin >= high:
                continue
            if begin > position:
                found.append((position, begin))
            position = max(position, end)
        if position < high:
            found.append((position, high))
    return tuple(found)


def common(some: Iterable[Range], others: Iterable[Range]) -> Ranges:
    """The offsets that are in both."""
    first = united(some)
    return without(first, without(first, others))

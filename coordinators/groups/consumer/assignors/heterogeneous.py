"""The `uniform` assignor where members read different topics: as equal as the subscriptions allow, then sticky."""

import struct
from heapq import heapify, heappop, heappush, heapreplace, merge

from barnabas.coordinators.groups.consumer.assignors.assignable import Assignable, Partitions
from barnabas.runtime.turns import Pieces, chunks

_UUID = struct.Struct(">qq")
ROUNDS_MAX = 16  # of balancing
SORTED_AT_ONCE = 500


def assign_heterogeneous(group: Assignable) -> Pieces[dict[str, Partitions]]:
    """Members keep what they may keep. What is free goes to whom has least, then those with most give to others."""
    work = _Work(group)
    yield from work.begin()
    order = yield from work.order()
    for topic_id in order:
        work.hand_out(topic_id)
        yield
    for _ in range(ROUNDS_MAX):
        moved = 0
        for topic_id in order:
            moved += work.balance(topic_id)
            yield
        if not moved:
            break
    return (yield from work.targets())


class _Work:
    """An assignment in the making. Members are numbers, in the order of the group."""

    def __init__(self, group: Assignable) -> None:
        self.members = group.members
        self.partition_counts = group.partition_counts
        self.sizes = [0] * len(group.members)
        self.readers: dict[bytes, list[int]] = {}
        self.owners: dict[bytes, list[int]] = {}
        self.ranks: dict[bytes, tuple[float, int, int, int]] = {}

    def begin(self) -> Pieces[None]:
        """Who reads what, and who has what."""
        for number, member in enumerate(self.members):
            for topic_id in member.topics:
                self.readers.setdefault(topic_id, []).append(number)
            yield
        for topic_id in self.readers:
            self.owners[topic_id] = [-1] * self.partition_counts[topic_id]
            yield
        for number, member in enumerate(self.members):
            for topic_id in member.topics:
                owners = self.owners[topic_id]
                for partition in member.target.get(topic_id, ()):
                    if partition < len(owners) and owners[partition] < 0:
                        owners[partition] = number
                        self.sizes[number] += 1
            yield

    def order(self) -> Pieces[list[bytes]]:
        """The topics in the order in which they are given to members."""
        ranks = self.ranks
        for topic_id in self.readers:
            ranks[topic_id] = self.rank(topic_id)
            yield
        runs = []
        for some in chunks(list(ranks), SORTED_AT_ONCE):
            runs.append(sorted(some, key=ranks.__getitem__))
            yield
        order = []
        for topic_id in merge(*runs, key=ranks.__getitem__):
            order.append(topic_id)
            yield
        return order

    def rank(self, topic_id: bytes) -> tuple[float, int, int, int]:
        """Topics with many partitions for each reader come first, then those with few readers."""
        readers = len(self.readers[topic_id])
        high, low = _UUID.unpack(topic_id)  # signed, as Java compares them
        return -self.partition_counts[topic_id] / readers, readers, high, low

    def hand_out(self, topic_id: bytes) -> None:
        """Give the free partitions to those who have least; where all are equal, in turn."""
        owners = self.owners[topic_id]
        free = [partition for partition, owner in enumerate(owners) if owner < 0]
        if not free:
            return
        if len(free) == 1:
            number = min(self.readers[topic_id], key=self.sizes.__getitem__)
            owners[free[0]] = number
            self.sizes[number] += 1
            return
        readers = sorted(self.readers[topic_id], key=self.sizes.__getitem__)
        sizes = self.sizes
        position = 0
        level = 1  # how many readers, from the first on, have equally much
        while position < len(free):
            size = sizes[readers[0]]
            while level < len(readers) and sizes[readers[level]] == size:
                level += 1
            for number in readers[:level]:
                if position == len(free):
                    break
                owners[free[position]] = number
                sizes[number] += 1
                position += 1

    def balance(self, topic_id: bytes) -> int:
        """Move partitions from whom has most to whom has least. Returns how many."""
        owners, sizes = self.owners[topic_id], self.sizes
        size_of = sizes.__getitem__
        if not owners or max(map(size_of, owners)) - min(map(size_of, self.readers[topic_id])) <= 1:
            return 0
        readers = sorted(self.readers[topic_id], key=size_of)
        has: dict[int, list[int]] = {number: [] for number in readers}
        for partition, owner in enumerate(owners):
            has[owner].append(partition)
        # The next to get is the first of those with least, the next to give the last of those with most. An entry
        # counts while its size is that of the member.
        takers = [(sizes[number], place, number) for place, number in enumerate(readers)]
        givers = [(-sizes[number], -place, number) for place, number in enumerate(readers) if has[number]]
        heapify(takers)
        heapify(givers)
        moved = 0
        while givers:
            size, place, least = takers[0]
            if size != sizes[least]:
                heappop(takers)
                continue
            minus_size, minus_place, most = givers[0]
            if -minus_size != sizes[most] or not has[most]:
                heappop(givers)
                continue
            if sizes[most] - size <= 1:
                break
            partition = has[most].pop()
            has[least].append(partition)
            owners[partition] = least
            sizes[most] -= 1
            sizes[least] += 1
            heapreplace(takers, (sizes[least], place, least))
            heapreplace(givers, (-sizes[most], minus_place, most))
            heappush(takers, (sizes[most], -minus_place, most))
            heappush(givers, (-sizes[least], -place, least))
            moved += 1
        return moved

    def targets(self) -> Pieces[dict[str, Partitions]]:
        """The outcome. What was needed for it goes bit by bit: to free 10,000 lists at once takes some milliseconds."""
        given: list[dict[bytes, set[int]]] = [{} for _ in self.members]
        for topic_id in list(self.owners):
            del self.readers[topic_id], self.ranks[topic_id]
            for partition, owner in enumerate(self.owners.pop(topic_id)):
                given[owner].setdefault(topic_id, set()).add(partition)
            yield
        given.reverse()
        shared: dict[frozenset[int], frozenset[int]] = {}  # of most topics, a member has one and the same partition
        targets: dict[str, Partitions] = {}
        for member in self.members:
            of_member = ((topic_id, frozenset(found)) for topic_id, found in given.pop().items())
            targets[member.member_id] = {topic_id: shared.setdefault(some, some) for topic_id, some in of_member}
            yield
        return targets

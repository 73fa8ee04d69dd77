"""What is remembered of offsets that do not move: since when, and in bounded memory."""

from barnabas.coordinators.groups.standstill import OF_GROUP_MAX, Standing, Standstills


def test_since_when_an_offset_stands_still() -> None:
    book = Standstills()
    book.seen("g", [("t", 0, 5), ("t", 1, 7)], 1_000)
    book.seen("g", [("t", 0, 5), ("t", 1, 8)], 2_000)
    assert book.of_group("g") == [Standing("t", 0, 5, 1_000), Standing("t", 1, 8, 2_000)]
    assert book.unread_partitions("g") == 2


def test_what_was_read_is_forgotten_and_begins_anew() -> None:
    book = Standstills()
    book.seen("g", [("t", 0, 5)], 1_000)
    book.seen("g", [], 2_000)
    assert (book.of_group("g"), book.unread_partitions("g"), book.count) == ([], 0, 0)
    book.seen("g", [("t", 0, 5)], 3_000)
    assert book.of_group("g") == [Standing("t", 0, 5, 3_000)]


def test_an_offset_that_goes_back_stands_anew() -> None:
    book = Standstills()
    book.seen("g", [("t", 0, 5)], 1_000)
    book.seen("g", [("t", 0, 3)], 2_000)
    assert book.of_group("g") == [Standing("t", 0, 3, 2_000)]


def test_the_one_of_many_partitions_that_does_not_move_is_found() -> None:
    book = Standstills()
    many = 60
    stuck = many - 3
    for look in range(30):
        unread = [("t", index, 7 if index == stuck else look) for index in range(many)]
        book.seen("g", unread, look * 30_000)
        assert len(book.of_group("g")) == OF_GROUP_MAX
        assert book.unread_partitions("g") == many
    oldest = min(book.of_group("g"), key=lambda each: each.since_ms)
    assert (oldest.partition, oldest.offset) == (stuck, 7)
    assert oldest.since_ms <= 10 * 30_000


def test_only_so_many_partitions_are_remembered() -> None:
    book = Standstills(partitions_max=OF_GROUP_MAX + 3)
    unread = [("t", index, 0) for index in range(OF_GROUP_MAX + 1)]
    book.seen("a", unread[: OF_GROUP_MAX - 1], 0)
    assert book.count == OF_GROUP_MAX - 1
    book.seen("a", unread[:OF_GROUP_MAX], 0)
    assert book.count == OF_GROUP_MAX
    book.seen("a", unread, 0)
    assert book.count == OF_GROUP_MAX
    assert not book.is_full
    book.seen("b", unread, 0)
    assert (len(book.of_group("b")), book.count, book.is_full) == (3, OF_GROUP_MAX + 3, True)
    book.seen("c", unread, 0)
    assert (book.of_group("c"), book.unread_partitions("c")) == ([], OF_GROUP_MAX + 1)
    book.seen("a", [], 1)
    book.seen("c", unread, 1)
    assert book.is_full
    book.keep_only({"c"})
    assert book.count == len(book.of_group("c")) == OF_GROUP_MAX

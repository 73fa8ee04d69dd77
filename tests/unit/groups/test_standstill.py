"""What is remembered of offsets that do not move: since when, and in bounded memory."""

from barnabas.groups.standstill import OF_GROUP_MAX, Standing, Standstills


def test_since_when_an_offset_stands_still() -> None:
    book = Standstills()
    book.seen("g", [(("t", 0), 5), (("t", 1), 7)], 1_000)
    book.seen("g", [(("t", 0), 5), (("t", 1), 8)], 2_000)
    assert list(book.of_group("g")) == [Standing("t", 0, 5, 1_000), Standing("t", 1, 8, 2_000)]


def test_what_was_read_is_forgotten_and_begins_anew() -> None:
    book = Standstills()
    book.seen("g", [(("t", 0), 5)], 1_000)
    book.seen("g", [], 2_000)
    assert (list(book.of_group("g")), book.count) == ([], 0)
    book.seen("g", [(("t", 0), 5)], 3_000)
    assert list(book.of_group("g")) == [Standing("t", 0, 5, 3_000)]


def test_an_offset_that_goes_back_stands_anew() -> None:
    book = Standstills()
    book.seen("g", [(("t", 0), 5)], 1_000)
    book.seen("g", [(("t", 0), 3)], 2_000)
    assert list(book.of_group("g")) == [Standing("t", 0, 3, 2_000)]


def test_only_so_many_partitions_are_remembered() -> None:
    book = Standstills(partitions_max=OF_GROUP_MAX + 10)
    unread = [(("t", index), 0) for index in range(OF_GROUP_MAX + 1)]
    book.seen("a", unread[:-2], 1)
    assert book.count == OF_GROUP_MAX - 1
    book.seen("a", unread[:-1], 1)
    assert book.count == OF_GROUP_MAX
    book.seen("a", unread, 1)
    assert book.count == OF_GROUP_MAX
    book.seen("b", unread, 1)
    assert (len(list(book.of_group("b"))), book.count) == (10, OF_GROUP_MAX + 10)
    book.seen("c", unread, 1)
    assert list(book.of_group("c")) == []
    book.seen("a", [], 2)
    book.seen("c", unread, 2)
    assert book.count == OF_GROUP_MAX + 10
    book.keep_only({"c"})
    assert book.count == len(list(book.of_group("c"))) == OF_GROUP_MAX

"""Orders of Java's and Kafka's hash tables, as Kafka 4.3.1's classes give them."""

import pytest
from barnabas.protocol.java_hash import in_timeline_order, java_hash_code

ORDERS = {
    1: "0",
    2: "0 1",
    3: "0 2 1",
    5: "3 4 0 1 2",
    6: "3 4 0 1 5 2",
    9: "3 7 4 0 8 1 5 2 6",
    14: "3 13 10 7 0 4 11 8 1 5 2 12 9 6",
    40: (
        "33 18 3 30 15 28 13 25 10 37 22 7 0 34 19 4 31 16 14 26 11 23 38 8 1 35 20 5 32 17 2 29 27 12 39 24 9 36 21 6"
    ),
}


@pytest.mark.parametrize("count", ORDERS)
def test_the_order_of_a_table_of_a_coordinator(count: int) -> None:
    keys = [f"member-{number * 7}" for number in range(count)]
    found = in_timeline_order(keys, java_hash_code, count)
    assert [keys.index(key) for key in found] == [int(number) for number in ORDERS[count].split()]

"""How addresses are written, and that all ways of writing one are the same."""

import pytest
from barnabas.config.addresses import as_java, is_same
from barnabas.config.settings import address_limits

# What Java 17 says for them.
OF_JAVA = {
    "127.0.0.1": "127.0.0.1",
    "::": "0:0:0:0:0:0:0:0",
    "::1": "0:0:0:0:0:0:0:1",
    "2001:DB8::0042": "2001:db8:0:0:0:0:0:42",
    "64:ff9b::c000:207": "64:ff9b:0:0:0:0:c000:207",
    "fe80::1%1": "fe80:0:0:0:0:0:0:1%1",
    "::ffff:192.0.2.7": "192.0.2.7",
}


@pytest.mark.parametrize("written", OF_JAVA)
def test_an_address_as_java_writes_it(written: str) -> None:
    assert as_java(written) == OF_JAVA[written]
    assert as_java(as_java(written)) == OF_JAVA[written]
    assert is_same(written, OF_JAVA[written])


@pytest.mark.parametrize("written", ["", "*", "localhost", "1:2", "::1::", "2001:db8::/32"])
def test_what_is_no_address_stays_as_it_is(written: str) -> None:
    assert as_java(written) == written
    assert not is_same(written, "0:0:0:0:0:0:0:1")


def test_limits_count_for_an_address_however_it_is_written() -> None:
    assert address_limits("::1:7, 10.0.0.1:5") == {"0:0:0:0:0:0:0:1": 7, "10.0.0.1": 5}

"""Rates, token buckets and waits, compared with figures of Apache Kafka.

The figures come from Kafka 4.3.1's own classes: `Rate` and `TokenBucket` of kafka-clients in a `Sensor` with a quota,
which was given these values at these times, and its formula of `QuotaUtils.throttleTime` for the wait.
"""

import pytest
from barnabas.cluster import quota_rates
from barnabas.cluster.quota_rates import Rate, TokenBucket, UsedBy, Windows

# A time after the beginning, what is used, how long Kafka has the client wait, the rate, and the time that it covers.
STEADY = """
0 5000 0 500.0 10000; 0 5000 0 1000.0 10000; 100 5000 4900 1485.1485148514853 10100;
600 1000 5400 1509.433962264151 10600; 1000 1000 7000 1700.0 10000; 1001 1000 7999 1799.8200179982002 10001;
2500 4000 11500 2095.2380952380954 10500; 12000 100 0 554.5454545454545 11000; 12001 3000 0 676.1260832301685 10501;
30000 20000 10000 2000.0 10000; 40999 1 9002 1818.4380398218018 10999; 41000 1 0 0.19998000199980004 10001;
41001 1 0 0.29994001199760045 10002
"""
TAKEN_BACK = """
0 50000 40000 5000.0 10000; 0 -50000 0 0.0 10000; 10 50000 39990 4995.004995004995 10010; 10 -50000 0 0.0 10010;
3000 50000 40000 5000.0 10000
"""
TWO_WINDOWS = """
0 3000 2000 3000.0 1000; 500 1 1501 2000.6666666666667 1500; 1000 1 2002 3002.0 1000;
1999 1 1004 1502.2511255627812 1999; 2000 1 1004 1502.0 2000; 2001 1 1004 1501.7491254372815 2001;
2600 900 0 565.0 1600; 3100 900 0 859.047619047619 2100; 6000 2500 1500 2500.0 1000
"""
PERCENT = """
0 50 0 5.0 10000; 10 90 3990 13.986013986013987 10010; 400 40 7600 17.307692307692307 10400;
2000 200 28000 38.0 10000
"""
ONE_WINDOW = "0 3 599 3000.0 1; 10 4 1390 700.0 10; 400 40 9000 117.5 400; 2000 200 39999 200000.0 1"
# 700 each 370 ms: of each, when it came in steps of 370 ms, and the wait.
MANY = [0] * 14 + [
    *(320, 650, 980, 2310, 2640, 3970, 4300, 4630, 5960, 6290, 6620, 7950, 8280, 8610, 9940, 10270, 10600, 10930),
    *(10270, 10600, 10930, 10270, 10600, 10930, 10270, 10600),
]  # fmt: skip


@pytest.mark.parametrize(
    ("bound", "windows", "figures"),
    [
        (1000.0, 11, STEADY),
        (1000.0, 11, TAKEN_BACK),
        (1000.0, 2, TWO_WINDOWS),
        (10.0, 11, PERCENT),
        (5.0, 1, ONE_WINDOW),
    ],
    ids=["steady", "taken back", "two windows", "percent", "one window"],
)
def test_a_rate_is_kafkas(bound: float, windows: int, figures: str) -> None:
    rate, cut = Rate(), Windows(windows, 1)
    for line in figures.split(";"):
        at, used, throttle_ms, per_second, span_ms = map(float, line.split())
        rate.add(cut, used, 1_000_000 + at)
        assert rate.throttle_ms(cut, bound, 1_000_000 + at) == throttle_ms, line
        assert rate.per_second(cut, 1_000_000 + at) == pytest.approx(per_second), line
        assert rate._span_ms(cut, 1_000_000 + at) == span_ms, line


def test_a_rate_of_many_requests_is_kafkas() -> None:
    rate, cut = Rate(), Windows(11, 1)
    found = []
    for step in range(len(MANY)):
        rate.add(cut, 700, 1_000_000 + step * 370)
        found.append(rate.throttle_ms(cut, 1000.0, 1_000_000 + step * 370))
    assert found == MANY


# A time after the beginning, how many are asked for, how long Kafka has the client wait, and what is left.
@pytest.mark.parametrize(
    ("bound", "windows", "figures"),
    [
        (
            2.0,
            11,
            """0 10 0 12.0; 0 10 0 2.0; 0 10 0 -8.0; 0 1 4000 -8.0; 1000 1 3000 -6.0; 4000 1 0 -1.0; 4001 5 499 -0.998;
            4500 1 0 -1.0; 100000 23 0 -1.0; 100000 1 500 -1.0; 100499 1 1 -0.002""",
        ),
        (1.0, 11, "0 6 0 5.0; 0 6 0 -1.0; 0 1 1000 -1.0; 500 1 500 -0.5; 1000 1 0 -1.0; 1500 1 500 -0.5"),
        (
            0.5,
            3,
            """0 1 0 0.5; 0 3 0 -2.5; 0 1 5000 -2.5; 1000 1 4000 -2.0; 3000 1 2000 -1.0; 3001 4 1999 -0.9995;
            4000 1 1000 -0.5""",
        ),
    ],
    ids=["two a second", "one", "a half"],
)
def test_a_bucket_is_kafkas(bound: float, windows: int, figures: str) -> None:
    bucket, cut = TokenBucket(bound), Windows(windows, 1)
    for line in figures.split(";"):
        at, asked, throttle_ms, left = map(float, line.split())
        now_ms = 1_000_000 + at
        found_ms = bucket.throttle_ms(cut, now_ms)
        if bucket.tokens(cut, now_ms) >= 0:
            bucket.take(cut, asked, now_ms)
        assert found_ms == throttle_ms, line
        assert bucket.tokens(cut, now_ms) == pytest.approx(left), line


def test_what_says_nothing_any_more_is_as_new() -> None:
    rate, bucket, cut = Rate(), TokenBucket(2.0), Windows(11, 1)
    rate.add(cut, 5, 1000)
    bucket.take(cut, 100, 1000)
    assert (rate.is_as_new(cut, 11_999), rate.is_as_new(cut, 12_000)) == (False, True)
    assert (bucket.is_as_new(cut, 50_999), bucket.is_as_new(cut, 51_000)) == (False, True)


def test_a_quota_of_nothing_does_not_divide_by_it() -> None:
    rate, cut = Rate(), Windows(11, 1)
    rate.add(cut, 1, 0)
    assert rate.throttle_ms(cut, 0.0, 0) == 11_000


@pytest.mark.parametrize("bound", [1.0, 0.0001, 5e-324])
def test_a_wait_is_never_longer_than_an_answer_can_say(bound: float) -> None:
    """32 bits of milliseconds. With a bound that is small enough the quotient is infinite."""
    rate, bucket, cut = Rate(), TokenBucket(bound), Windows(11, 1)
    rate.add(cut, 3_000_000, 0)
    bucket.take(cut, 3_000_000, 0)
    assert rate.throttle_ms(cut, bound, 0) == 2**31 - 1
    assert bucket.throttle_ms(cut, 0) == 2**31 - 1


def test_what_says_nothing_any_more_is_forgotten() -> None:
    used: UsedBy[str, Rate] = UsedBy()
    cut = Windows(11, 1)
    for number in range(100):
        used.of(f"old {number}", Rate, cut, 0).add(cut, 1, 0)
    for number in range(60):
        used.of(f"new {number}", Rate, cut, 12_000).add(cut, 1, 12_000)
    assert {who.split()[0] for who, _ in used.newest()} == {"new"}


def test_of_very_many_the_one_that_was_used_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_rates, "USED_MAX", 10)
    used: UsedBy[str, Rate] = UsedBy()
    cut = Windows(11, 1)
    for number in range(100):
        used.of("all the time", Rate, cut, number).add(cut, 1, number)
        used.of(f"once {number}", Rate, cut, number).add(cut, 1, number)
    assert len(list(used.newest())) == 10
    assert used.of("all the time", Rate, cut, 100).per_second(cut, 100) > 9

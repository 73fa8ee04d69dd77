"""What a reader has before it, by the headers: held against the records that a reader is given."""

import random

import pytest
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import Record, batches, build, records
from barnabas.runtime.turns import at_once
from barnabas.storage.unread import count_unread
from barnabas.storage.validation import AppendOrigin


def given(log, offset, bound, *, committed):
    """(offset, timestamp) of the records that a consumer gets, found the way a client finds them: by unpacking all."""
    offset = max(offset, log.log_start_offset)
    aborted = sorted(log.segments.aborted_transactions(offset, bound), key=lambda pair: pair[1])
    begun, found = set(), []
    position = offset
    while position < bound:
        data = log.read(position, 1 << 20, upper_bound=bound, at_least_one=True)
        assert not data.error
        if not len(data.records):
            break
        for header, batch in batches(data.records):
            while aborted and aborted[0][1] <= header.base_offset:
                begun.add(aborted.pop(0)[0])
            position = header.next_offset
            if header.is_control:
                begun.discard(header.producer_id)
            elif not (committed and header.is_transactional and header.producer_id in begun):
                found += [(record.offset, record.timestamp) for record in records(batch) if record.offset >= offset]
    return found


def compare(log, offset, headers_max=10_000):
    both = at_once(count_unread(log, offset, headers_max))
    for unread, bound, committed in (
        (both.read_uncommitted, log.high_watermark, False),
        (both.read_committed, log.last_stable_offset, True),
    ):
        truth = given(log, offset, bound, committed=committed)
        assert unread.records_min <= len(truth) <= unread.records_max
        assert unread.end_offset == bound
        if headers_max >= 10_000:
            assert unread.records_min == unread.records_max, (offset, unread)
            assert unread.next_timestamp == (truth[0][1] if truth else None)
    return both


@pytest.mark.parametrize("seed", range(6))
def test_the_headers_say_what_a_consumer_is_given(make_world, seed):
    world = make_world(seed)
    rng = random.Random(seed)
    log = world.log(segment_bytes=rng.choice((2_500, 5_000, 100_000)), index_interval_bytes=rng.choice((0, 300, 4_096)))
    sequences, open_transactions = {}, set()
    for _ in range(60):
        world.clock.advance(rng.randint(1, 1_000))
        count = rng.choice((1, 1, 2, 5, 30))
        pairs = [(b"k%d" % rng.randint(0, 9), b"v" * rng.randint(0, 40)) for _ in range(count)]
        kind = rng.random()
        if kind < 0.4:
            world.append(log, *pairs, codec=rng.choice((Compression.NONE, Compression.GZIP)))
        elif kind < 0.8 or not open_transactions:
            producer = rng.randint(1, 3)
            first = sequences.get(producer, 0)
            result = world.append(
                log, *pairs, producer_id=producer, producer_epoch=0, base_sequence=first, transactional=True
            )
            assert not result.error
            sequences[producer] = first + count
            open_transactions.add(producer)
        else:
            producer = rng.choice(sorted(open_transactions))
            open_transactions.discard(producer)
            assert not world.marker(log, producer, commit=rng.random() < 0.5).error
    ends = [batch.last_offset + 1 for _, batch in log.segments.batches_from(0)]
    log.set_high_watermark(rng.choice(ends[-5:]))  # followers have whole batches
    end = log.log_end_offset
    for offset in range(0, end + 1, 3):
        compare(log, offset)
        compare(log, offset, headers_max=7)
    log.delete_records_before(end // 3)
    for offset in range(0, end + 1, 5):
        compare(log, offset)


def test_a_batch_of_records_with_several_times(world):
    log = world.log()
    times = [5_000, 9_000, 7_000]
    batch = build([Record(timestamp=time, key=None, value=b"v") for time in times])
    assert not log.append_as_leader(batch, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=world.now()).error
    log.set_high_watermark(3)
    assert [at_once(count_unread(log, offset)).read_uncommitted.next_timestamp for offset in range(4)] == [*times, None]


def test_a_compacted_log_counts_what_is_left(make_world):
    world = make_world()
    log = world.log(cleanup_policy=frozenset(("compact",)), segment_bytes=2_000)
    for number in range(200):
        pairs = [(b"k%d" % (number * 3 % 7), b"%d" % number), (b"only%d" % (number // 50), b"x")]
        assert not world.append(log, *pairs).error
    log.set_high_watermark(log.log_end_offset)
    before = at_once(count_unread(log, 0)).read_uncommitted
    assert before.records_max == 400
    log.roll()
    world.manager.cleaner.run(log)
    after = compare(log, 0).read_uncommitted
    assert after.records_max < 100
    for offset in range(0, log.log_end_offset + 1, 7):
        compare(log, offset)


def test_beyond_the_limit_it_is_a_bound(world):
    log = world.log()
    world.fill(log, 50)
    unread = at_once(count_unread(log, 10, headers_max=5)).read_uncommitted
    assert (unread.records_min, unread.records_max) == (5, 40)
    assert unread.bytes >= at_once(count_unread(log, 10)).read_uncommitted.bytes > 0


def test_the_work_is_done_in_pieces(world):
    log = world.log()
    world.fill(log, 1_000)
    assert len(list(count_unread(log, 0))) == 10


def test_records_that_go_while_they_are_counted(world):
    log = world.log(segment_bytes=1_000)
    world.fill(log, 500)
    counting = count_unread(log, 0)
    next(counting)
    log.delete_records_before(400)
    world.manager.apply_retention()
    assert at_once(counting).read_uncommitted.records_max == 200  # 100 before, 100 that are left

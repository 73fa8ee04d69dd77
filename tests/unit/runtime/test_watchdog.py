"""The watchdog: it acts when the loop stands still, and not when it goes round."""

import threading
import time

from barnabas.runtime.watchdog import Watchdog


def test_it_acts_once_when_nobody_ticks_and_again_after_the_next_tick() -> None:
    acted = threading.Semaphore(0)
    watchdog = Watchdog(lambda: 20.0, acted.release)
    try:
        acted.acquire()
        time.sleep(0.1)
        assert not acted.acquire(blocking=False), "once for each time"
        watchdog.tick()
        acted.acquire()
    finally:
        watchdog.stop()


def test_it_does_not_act_while_the_loop_ticks_or_after_its_end() -> None:
    acted = threading.Event()
    watchdog = Watchdog(lambda: 60_000.0, acted.set)
    watchdog.tick()
    watchdog.stop()
    assert not acted.wait(0.05)

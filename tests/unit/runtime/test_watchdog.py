<<<<<<< HEAD
"""The watchdog: it acts when the loop stands still, and not when it goes round."""
=======
"""The watchdog acts once for each time that the loop stood still, and not while it goes round."""
>>>>>>> b9042d6 (A watchdog thread ends the ZooKeeper session of a loop that stands still)

import threading
import time

from barnabas.runtime.watchdog import Watchdog


<<<<<<< HEAD
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
=======
def test_it_acts_once_when_no_tick_comes_and_again_after_a_tick() -> None:
    acted = threading.Semaphore(0)
    watchdog = Watchdog(20, acted.release)
    watchdog.start()
    assert acted.acquire(timeout=10)
    assert not acted.acquire(timeout=0.1), "once"
    watchdog.tick()
    assert acted.acquire(timeout=10)
    watchdog.stop()


def test_it_does_not_act_while_ticks_come_and_after_its_stop() -> None:
    acted = threading.Event()
    watchdog = Watchdog(60_000, acted.set)
    watchdog.start()
    watchdog.tick()
    names = [thread.name for thread in threading.enumerate()]
    assert "watchdog" in names
    watchdog.stop()
    while any(thread.name == "watchdog" for thread in threading.enumerate()):
        time.sleep(0.001)
    assert not acted.is_set()
>>>>>>> b9042d6 (A watchdog thread ends the ZooKeeper session of a loop that stands still)

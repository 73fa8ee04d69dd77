"""Senders: a connection that has much to send does not keep the others waiting."""

from barnabas.broker.senders import BYTES_PER_TURN, Senders
from simulator.env import sim_env


class Sender:
    def __init__(self, name: str, size: int, senders: Senders, log: list[tuple[str, int]]) -> None:
        self.name = name
        self.left = size
        self.senders = senders
        self.log = log

    def send_some(self, bytes_max: int) -> int:
        sent = min(self.left, bytes_max)
        self.left -= sent
        self.log.append((self.name, sent))
        if self.left:
            self.senders.ask(self)
        return sent


def test_between_two_passes_others_are_served_and_everybody_gets_a_turn() -> None:
    clock = sim_env().clock
    senders = Senders(clock)
    log: list[tuple[str, int]] = []
    for name in "abc":
        senders.ask(Sender(name, 2 * BYTES_PER_TURN, senders, log))
    senders.ask(Sender("little", 5, senders, log))

    def serve_others() -> None:
        log.append(("others", 0))
        clock.call_soon(serve_others)

    serve_others()
    for _ in range(20):
        clock.loop.call_soon(clock.loop.stop)
        clock.loop.run_forever()
    sent_in_pass = 0
    for name, sent in log:
        sent_in_pass = 0 if name == "others" else sent_in_pass + sent
        assert sent_in_pass < 2 * BYTES_PER_TURN
    order = [name for name, _ in log if name != "others"]
    assert order[:4] == ["a", "b", "c", "little"]
    assert sum(sent for _, sent in log) == 6 * BYTES_PER_TURN + 5


def test_a_bug_of_one_costs_nobody_else_the_turn() -> None:
    clock = sim_env().clock
    senders = Senders(clock)
    log: list[tuple[str, int]] = []

    class Broken(Sender):
        def send_some(self, bytes_max: int) -> int:
            raise LookupError("a bug")

    complaints: list[object] = []
    clock.loop.set_exception_handler(lambda loop, context: complaints.append(context["exception"]))
    senders.ask(Broken("broken", 1, senders, log))
    senders.ask(Sender("next", 1, senders, log))
    clock.advance(0)
    senders.ask(Sender("later", 1, senders, log))
    clock.advance(0)
    assert [name for name, _ in log] == ["next", "later"]
    assert len(complaints) == 1

"""Ctrl-C while a producer is made ends the command without a traceback of what was half made."""

import gc
import sys
from typing import Any

import pytest
from barnabas.cli.shared import kafka_python
from kafka import KafkaProducer
from kafka.producer import kafka as producers


class Interrupted(KafkaProducer):  # type: ignore[misc]
    """Ctrl-C comes as the last of its settings is read."""

    @property
    def config(self) -> Any:
        raise AttributeError("config")

    @config.setter
    def config(self, _: Any) -> None:
        raise KeyboardInterrupt


def test_a_producer_that_is_half_made_goes_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    monkeypatch.setattr(producers, "log", producers.log)  # its `__del__` takes the log away, for good
    for make, is_said in ((Interrupted, True), (kafka_python.new_producer, False)):
        monkeypatch.setattr("kafka.KafkaProducer", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            make(bootstrap_servers="127.0.0.1:1")
        gc.collect()
        assert bool(said) is is_said
        said.clear()

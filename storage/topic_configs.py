"""The settings of topics, as logs need them."""

from collections.abc import Callable, Iterable, Mapping

from barnabas.config.broker import BrokerConfig
from barnabas.config.topic import TopicConfig


class TopicConfigs:
    """One object for all partitions of a topic, and one for all topics without settings of their own."""

    def __init__(self, config: BrokerConfig, overrides_of: Callable[[str], Mapping[str, str]]) -> None:
        """`overrides_of` says what a topic has set itself."""
        self._config = config
        self._overrides_of = overrides_of
        self._configs: dict[str, TopicConfig] = {}
        self._default: TopicConfig | None = None

    def of(self, topic: str) -> TopicConfig:
        config = self._configs.get(topic)
        if config is None:
            overrides = self._overrides_of(topic)
            if overrides:
                config = TopicConfig.of(overrides, self._config)
            else:
                if self._default is None:
                    self._default = TopicConfig.of({}, self._config)
                config = self._default
            self._configs[topic] = config
        return config

    def forget(self, topics: Iterable[str]) -> None:
        """These have changed, or have no log here any more."""
        for topic in topics:
            self._configs.pop(topic, None)

    def forget_all(self) -> None:
        """Settings of the broker have changed."""
        self._configs.clear()
        self._default = None

    def known(self) -> Iterable[TopicConfig]:
        """Those that were asked for."""
        return self._configs.values()

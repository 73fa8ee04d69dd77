"""The HTTP API of a broker: what Kafka's protocol has no word for."""

"""Barnabas: a standalone Kafka-protocol broker with a built-in offset manager."""

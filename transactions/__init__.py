"""Transactions (KIP-98, KIP-360, KIP-447, KIP-890): the coordinator of `__transaction_state`."""

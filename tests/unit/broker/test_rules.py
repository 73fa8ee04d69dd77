"""Which requests get a fault."""

from barnabas.broker.control.facts import NOTHING, Facts
from barnabas.broker.control.rules import Effect, Rule
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode


def facts(key: ApiKey) -> Facts:
    return NOTHING._replace(api_key=key)


def test_an_error_for_any_api_is_for_those_that_can_answer_it() -> None:
    """Until 2026-11 a rule without an API answered a Produce with REBALANCE_IN_PROGRESS, which no broker does."""
    rule = Rule(Effect.ERROR, error=ErrorCode.REBALANCE_IN_PROGRESS)
    assert rule.matches(facts(ApiKey.HEARTBEAT))
    assert not rule.matches(facts(ApiKey.PRODUCE))
    forced = Rule(Effect.ERROR, error=ErrorCode.REBALANCE_IN_PROGRESS, forced=True)
    assert forced.matches(facts(ApiKey.PRODUCE))
    assert Rule(Effect.CUT).matches(facts(ApiKey.PRODUCE))

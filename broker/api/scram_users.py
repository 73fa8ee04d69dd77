"""DescribeUserScramCredentials (key 50) and AlterUserScramCredentials (51), version 0 (KIP-554).

Any broker answers. What is kept of a password never leaves the tree.
"""

from collections import Counter

from barnabas.broker.access import admin as admin_access
from barnabas.broker.requests import RequestContext, api
from barnabas.broker.services import Services
from barnabas.cluster.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, NUMBERS, ScramCredential
from barnabas.cluster.tree.port import CoordinationError
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from barnabas.runtime.grouped import grouped

Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
Altered = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
Change = (
    AlterUserScramCredentialsRequest.ScramCredentialDeletion | AlterUserScramCredentialsRequest.ScramCredentialUpsertion
)
MECHANISM_NUMBERS = {name: number for number, name in NUMBERS.items()}


@api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0), access=admin_access.describes_cluster, is_wide=True)
async def describe_user_scram_credentials(
    services: Services, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """The SCRAM mechanisms of users. A null or empty list of users means all of them."""
    response = DescribeUserScramCredentialsResponse(error_message="")
    counts = Counter(user.name for user in request.users or ())
    names = list(counts) or await services.credentials.users()
    pace = services.env.turns.pace()
    for name in names:
        await pace.rest()
        result = Described(user=name, error_message="")
        if counts[name] > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = (
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
            )
            response.results.append(result)
            continue
        try:
            credentials = await services.credentials.kept(name) if name else {}
        except ValueError as error:
            result.error_code, result.error_message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
            response.results.append(result)
            continue
        if not credentials and not counts:
            continue  # a user with quotas only
        if not credentials:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"Attempt to describe a user credential that does not exist: {name}"
        result.credential_infos = [
            DescribeUserScramCredentialsResponse.CredentialInfo(
                mechanism=MECHANISM_NUMBERS[mechanism], iterations=credential.iterations
            )
            for mechanism, credential in credentials.items()
        ]
        response.results.append(result)
    return response


def alter_failed(request: AlterUserScramCredentialsRequest, error: ErrorCode) -> AlterUserScramCredentialsResponse:
    changes: list[Change] = [*request.deletions, *request.upsertions]
    names = dict.fromkeys(change.name for change in changes)
    return AlterUserScramCredentialsResponse(results=[Altered(user=name, error_code=error) for name in names])


@api(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    access=admin_access.alters_cluster,
    failure=alter_failed,
    is_wide=True,
)
async def alter_user_scram_credentials(
    services: Services, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Set and delete credentials: for each user all the requested changes, or none."""
    changes_asked: list[Change] = [*request.deletions, *request.upsertions]
    response = AlterUserScramCredentialsResponse()
    pace = services.env.turns.pace()
    for name, asked in grouped((change.name, change) for change in changes_asked).items():
        await pace.rest()
        result = Altered(user=name, error_message=None)
        response.results.append(result)
        problem = _problem(name, asked)
        if problem is not None:
            result.error_code, result.error_message = problem
            continue
        changes: dict[str, ScramCredential | None] = {}
        for each in asked:
            mechanism = NUMBERS[each.mechanism]
            changes[mechanism] = None
            if isinstance(each, AlterUserScramCredentialsRequest.ScramCredentialUpsertion):
                changes[mechanism] = ScramCredential.of_salted(
                    mechanism, bytes(each.salted_password), bytes(each.salt), each.iterations
                )
        try:
            is_done = await services.credentials.alter(name, changes)
        except CoordinationError as error:
            result.error_code, result.error_message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
            continue
        if not is_done:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = "Attempt to delete a user credential that does not exist"
    return response


def _problem(name: str, asked: list[Change]) -> tuple[ErrorCode, str] | None:
    """Why no credential of this user is changed, with Kafka's message."""
    if not name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if any(each.mechanism not in NUMBERS for each in asked):
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if len({each.mechanism for each in asked}) < len(asked):
        return ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
    for each in asked:
        if not isinstance(each, AlterUserScramCredentialsRequest.ScramCredentialUpsertion):
            continue
        if each.iterations < ITERATIONS_MIN:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
        if each.iterations > ITERATIONS_MAX:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
        if not each.salt or not each.salted_password:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty"
    return None

"""UpdateFeatures (key 57), versions 0-2: the cluster finalises other levels of its features (KIP-584, KIP-1022).

A broker that is not the controller says so, as for other requests to the controller. What is allowed is decided in
`cluster/features.py`. ApiVersions tells the levels.
"""

from contextlib import suppress

from barnabas.broker.access import admin as admin_access
from barnabas.broker.requests import RequestContext, api
from barnabas.broker.services import Services
from barnabas.cluster.features import ALL_FAILED, UPGRADE, Update
from barnabas.cluster.tree.port import CoordinationError
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.messages import UpdateFeaturesRequest, UpdateFeaturesResponse
from barnabas.runtime.turns import ended

Result = UpdateFeaturesResponse.UpdatableFeatureResult

FIRST_VERSION_WITHOUT_RESULTS = 2


@api(ApiKey.UPDATE_FEATURES, versions=(0, 2), access=admin_access.alters_cluster, is_wide=True)
async def update_features(
    services: Services, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Have the controller write the levels, all or none. When it answers, they hold on the controller's own broker.

    Of several updates of one feature the last one counts. As in Kafka 4.1, version 0 can only raise levels.
    """
    pace = services.env.turns.pace()
    updates = {}
    for update in request.feature_updates:
        await pace.rest()
        upgrade_type = update.upgrade_type if context.api_version >= 1 else UPGRADE
        updates[update.feature] = Update(update.feature, update.max_version_level, upgrade_type)
    asked = services.controller.update_features(list(updates.values()), validate_only=request.validate_only)
    error, message = await ended(asked)
    response = UpdateFeaturesResponse(error_code=error, error_message=message)
    if error:
        why = (message or "no details").removeprefix(ALL_FAILED)
        services.refusals.note(context, error, "features were not updated: %s", why)
        return response
    if not request.validate_only:
        with suppress(CoordinationError):  # it is read again as soon as the tree answers
            await services.features.read()
    for update in request.feature_updates if context.api_version < FIRST_VERSION_WITHOUT_RESULTS else ():
        await pace.rest()
        response.results.append(Result(feature=update.feature, error_message="NONE"))
    return response

"""ApiVersions (key 18), versions 0-4: the APIs that have a handler, their versions, and the features of the cluster.

From version 3 on it tells which levels of features this broker supports, and which ones are finalised. A client uses
transaction version 2 if that is finalised, whatever versions are announced. Up to version 3, clients cannot read a
range that begins with level 0, so such a feature is left out of those supported (KIP-1022).
"""

import re
from functools import cache

from barnabas.broker.access import rules as rules_access
from barnabas.broker.requests import Api, RequestContext, announced, api
from barnabas.broker.services import Services
from barnabas.cluster.features import SUPPORTED
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ApiVersionsRequest, ApiVersionsResponse

FIRST_VERSION_WITH_LEVEL_0 = 4

SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@api(ApiKey.API_VERSIONS, versions=(0, 4), access=rules_access.everybody)
def api_versions(services: Services, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    """All APIs offered; INVALID_REQUEST if a client's software name or version has wrong characters (KIP-511)."""
    if context.api_version >= 3 and not (
        SOFTWARE_NAME.fullmatch(request.client_software_name)
        and SOFTWARE_NAME.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    response = ApiVersionsResponse(api_keys=_offered())
    if context.api_version >= 3:
        finalised = services.features.finalised
        response.supported_features = [
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=levels.first, max_version=levels.last)
            for name, levels in SUPPORTED.items()
            if levels.first or context.api_version >= FIRST_VERSION_WITH_LEVEL_0
        ]
        response.finalized_features_epoch = finalised.epoch
        response.finalized_features = [
            ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in finalised.levels.items()
        ]
    return response


@cache
def _offered() -> list[ApiVersionsResponse.ApiVersion]:
    """Made once, because clients ask with each connection. All answers share it."""
    return [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
        for key, first, last in announced()
    ]


def too_new(row: Api) -> ApiVersionsResponse:
    """The answer to a version of ApiVersions that is not served, in version 0: which versions of this API are."""
    entry = ApiVersionsResponse.ApiVersion(api_key=row.key, min_version=row.announced[0], max_version=row.announced[1])
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[entry])

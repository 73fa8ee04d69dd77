"""ApiVersions (key 18), versions 0-4: the APIs that have a handler, and their versions.

Left out on purpose: features. `transaction.version`, `group.version` and the like tell clients to use protocols that
this broker does not serve.
"""

import re
from typing import TYPE_CHECKING

from barnabas.broker.context import RequestContext
from barnabas.broker.dispatch import Api, announced, api
from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    from barnabas.broker.broker import Broker

SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@api(ApiKey.API_VERSIONS, versions=(0, 4))
def api_versions(broker: "Broker", request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    """All APIs offered; INVALID_REQUEST if a client's software name or version has wrong characters (KIP-511)."""
    if context.api_version >= 3 and not (
        SOFTWARE_NAME.fullmatch(request.client_software_name)
        and SOFTWARE_NAME.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, first, last in announced()
        ]
    )


def too_new(row: Api) -> ApiVersionsResponse:
    """The answer to a version of ApiVersions that is not served, in version 0: which versions of this API are."""
    entry = ApiVersionsResponse.ApiVersion(api_key=row.key, min_version=row.announced[0], max_version=row.announced[1])
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[entry])

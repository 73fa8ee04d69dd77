"""`/health`: whether this process lives, and whether clients should be sent to it; for supervisors and load balancers.

`/v1/health` is something else: what this broker knows of its troubles, for `barnabas doctor`.
"""

from barnabas.broker.http.routes import HttpAnswer, HttpRequest, route
from barnabas.broker.http.schemas import boolean, record, text
from barnabas.broker.services import Services

READINESS = record(
    "Whether this process lives, and whether it serves.",
    live=boolean("Always true: a process that does not live answers nothing."),
    ready=boolean("Whether clients are served: 200, else 503."),
    why=text("Why not; null: they are.", nullable=True),
)
LIVENESS = record("Whether this process lives.", live=boolean("Always true."))


@route("GET", "/health", summary="Whether clients are served", answer=READINESS, while_starting=True, is_open=True)
def health_of_process(services: Services, request: HttpRequest) -> HttpAnswer:
    """Liveness and readiness together: 200 if clients are served, else 503. No token is asked for."""
    why = _why_not(services)
    return HttpAnswer.json({"live": True, "ready": why is None, "why": why}, status=200 if why is None else 503)


@route("GET", "/health/ready", summary="Readiness", answer=READINESS, while_starting=True, is_open=True)
def readiness(services: Services, request: HttpRequest) -> HttpAnswer:
    """The same as /health: 503 while the broker starts, stops, or is not registered in the coordination tree."""
    return health_of_process(services, request)


@route("GET", "/health/live", summary="Liveness", answer=LIVENESS, while_starting=True, is_open=True)
def liveness(services: Services, request: HttpRequest) -> HttpAnswer:
    """200 from the moment on at which it listens, also during a long start: a supervisor must not end it then."""
    return HttpAnswer.json({"live": True})


def _why_not(services: Services) -> str | None:
    if services.http.is_closing:
        return "it stops"
    if not services.server.serving:
        return "it starts"
    if not services.lease.holds:
        return services.coordination.trouble or "it does not reach the coordination tree, so it acknowledges nothing"
    return services.own_registration.why_not

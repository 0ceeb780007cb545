"""A guard inside an application of yours: a dependency for FastAPI, and a middleware for Starlette and any ASGI app.

`clients` says who asks, `process` opens the guard once in every process and runs it in threads, `ask` is what endpoints
ask with, `errors` turns what the guard raises into statuses and bodies; `dependency` and `middleware` put them together
and are all that applications need. This room sits beside the server, which it neither imports nor is imported by: one
is for models that have no server yet, the other for those that run in an application already.
"""

from queen.extras import missing

try:
    from queen.web.ask import Ask
    from queen.web.clients import Client, from_key, from_user
    from queen.web.dependency import Guarded, guarded
    from queen.web.errors import EXCEPTION_HANDLERS, NoAnswerError
    from queen.web.middleware import GuardMiddleware
except ModuleNotFoundError as error:
    raise missing(error, "web") from error

__all__ = [
    "EXCEPTION_HANDLERS",
    "Ask",
    "Client",
    "GuardMiddleware",
    "Guarded",
    "NoAnswerError",
    "from_key",
    "from_user",
    "guarded",
]

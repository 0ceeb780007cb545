"""The dashboard's files, served without a key: the page itself asks for the admin key."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from queen.serve.types import ServeError

MEDIA_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}

CSP = "; ".join([
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "form-action 'none'",
    "require-trusted-types-for 'script'",  # no text becomes markup, even where the code forgets to escape it
    "trusted-types 'none'",
])  # fmt: skip

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def dashboard_routes() -> list[Route]:
    """GET /dashboard and its files, and the way there from / for browsers."""
    files = _read_files()  # once: a name in a request is looked up here and never becomes a path

    async def page(request: Request) -> Response:
        return _reply("index.html", files["index.html"])

    async def without_slash(request: Request) -> Response:
        return RedirectResponse("../dashboard", headers=dict(HEADERS))

    async def file(request: Request) -> Response:
        name = request.path_params["file"]
        if name not in files:
            raise ServeError(404, "the dashboard has no such file")
        return _reply(name, files[name])

    async def root(request: Request) -> Response:
        """Programs find nothing here: only who asks for a page gets one."""
        if "text/html" not in request.headers.get("accept", ""):
            raise ServeError(404, "no such page")
        return RedirectResponse("dashboard", headers={**HEADERS, "Vary": "Accept"})

    return [
        Route("/", root),
        Route("/dashboard", page),
        Route("/dashboard/", without_slash),
        Route("/dashboard/{file}", file),
    ]


def _read_files() -> dict[str, bytes]:
    folder = resources.files("queen.serve.admin") / "dashboard"
    return {item.name: item.read_bytes() for item in folder.iterdir() if _extension(item.name) in MEDIA_TYPES}


def _reply(name: str, content: bytes) -> Response:
    return Response(content, media_type=MEDIA_TYPES[_extension(name)], headers=dict(HEADERS))


def _extension(name: str) -> str:
    return name.rpartition(".")[2]

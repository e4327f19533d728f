"""Templates to HTML, all text escaped and control characters shown; static files that pages name;
the sign-in page.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment
from markupsafe import Markup
from starlette.types import Scope

from frontrunner.results.process_identity import requesting_user
from frontrunner.spaces.errors import NotFound
from frontrunner.text import count, gib, minute, node_time, percent, seconds, size, thousands
from frontrunner.version import __version__
from frontrunner.views.charts.render import javascript, javascript_version
from frontrunner.views.columns import against, figures_in_words
from frontrunner.views.report import environment

HTMX = {
    "allowEval": False,
    "allowScriptTags": False,
    "attributesToSettle": [
        "class",
        "width",
        "height",
    ],  # not style, which the content security policy forbids
    "historyCacheSize": 0,
    "ignoreTitle": True,
    "includeIndicatorStyles": False,
    "selfRequestsOnly": True,
    "responseHandling": [
        {"code": "204", "swap": False},
        {"code": "[23]..", "swap": True},
        {
            "code": "[45]..",
            "swap": True,
            "error": True,
            "target": "#notice",
            "swapOverride": "innerHTML",
        },
    ],
}
FILTERS = (
    against,
    count,
    figures_in_words,
    gib,
    minute,
    node_time,
    percent,
    seconds,
    size,
    thousands,
)
FILES = (
    "style.css",
    "pages.js",
    "explorer.js",
    "step.css",
    "step.js",
    "htmx-2.0.11.min.js",
    "icon.svg",
)
CHARTS = "charts.js"
MOST_PLACE = 2000
STATIC = "/static/"
"""The folder of files that pages name; they are open to all, as the package is."""
KINDS = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
router = APIRouter()


def static_file(name: str) -> bytes:
    """Return the content of one of our own static files."""
    return files(__package__).joinpath("static", name).read_bytes()


@cache
def assets() -> dict[str, str]:
    """Return the paths of the static files, which change with their content: browsers may keep them
    for ever.
    """
    contents = {name: static_file(name) for name in FILES} | {CHARTS: javascript_version().encode()}
    parts = {
        name: (*name.rsplit(".", 1), hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    }
    return {
        name: f"{STATIC}{stem}.{digest[:12]}.{ending}"
        for name, (stem, ending, digest) in parts.items()
    }


@cache
def compressed(name: str) -> bytes:
    """Return the content of a static file by gzip."""
    return gzip.compress(javascript().encode() if name == CHARTS else static_file(name), 6, mtime=0)


@router.get(STATIC + "{file}")
def static(request: Request, file: str) -> Response:
    """A file that pages name."""
    name = next((name for name, path in assets().items() if path == STATIC + file), None)
    if name is None:
        raise NotFound(f"there is no file {file!r} here")
    headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
    content = compressed(name)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
    else:
        content = gzip.decompress(content)
    return Response(content, headers=headers, media_type=KINDS[name.rpartition(".")[2]])


@cache
def templates() -> Environment:
    """Return the templates of pages with their filters."""
    found = environment(
        __package__, "templates", **{function.__name__: function for function in FILTERS}
    )
    found.globals |= {
        "requesting_user": requesting_user,
        "assets": assets(),
        "version": __version__,
        "htmx_config": json.dumps(HTMX),
    }
    return found


def page(template: str, **values: Any) -> HTMLResponse:
    """Return a template as a response."""
    return HTMLResponse(render(template, **values))


def render(template: str, **values: Any) -> Markup:
    """Return a template as HTML."""
    return Markup(templates().get_template(template).render(**values))  # noqa: S704 - the template has escaped it


def macro(template: str, name: str, *arguments: Any) -> Markup:
    """Return what a macro of a template makes of its arguments."""
    found: Markup = getattr(templates().get_template(template).module, name)(*arguments)
    return found


def sign_in_page(scope: Scope, *, problem: str = "", place: str | None = None) -> Markup:
    """Return the page that asks for a token, and then leads on to where the request went."""
    if place is None:
        wanted = scope["path"] + (
            "?" + scope["query_string"].decode("latin-1") if scope["query_string"] else ""
        )
        place = wanted if scope["method"] == "GET" else "/"
    return render("sign_in.html", here="/login", problem=problem, place=own_place(place))


def own_place(place: str) -> str:
    """Return a path of this service, `/` in place of anything else."""
    parts = urlsplit(place)
    is_ours = (
        place.startswith("/") and not (parts.scheme or parts.netloc) and len(place) <= MOST_PLACE
    )
    if not is_ours or place.startswith("/login") or "\\" in place or not place.isprintable():
        return "/"
    return quote(place, safe="/?&=%:,;~+!*'()@-._$[]")

"""Every page of the service: found in its router, at addresses of one store."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.routing import RouteContext, iter_route_contexts

PARAMETER = re.compile(r"\{(\w+)\}")


def page_routes(app: FastAPI) -> Iterator[RouteContext]:
    """Yield the routes outside the API that can be opened by their path alone."""
    for route in iter_route_contexts(app.routes):
        is_read = "GET" in (route.methods or ()) and not route.include_in_schema
        if (
            is_read
            and hasattr(route, "dependant")
            and not any(one.field_info.is_required() for one in _queries(route))
        ):
            yield route


def _queries(route: RouteContext) -> list[Any]:
    return [
        one
        for part in (route.dependant, *route.dependant.dependencies)
        for one in part.query_params
    ]


def planned(plan: str) -> dict[str, str]:
    """Return the queries of the pages of a plan's recipe, by their paths, from the HTML of a
    plan.
    """
    query = html.unescape(plan.partition('href="/plan/recipe')[2].partition('"')[0])
    return {"/plan/recipe": query, "/plan/step": query}


def address(route: RouteContext, examples: Mapping[str, str], queries: Mapping[str, str]) -> str:
    """Return the path of a route with an example in place of each parameter; a parameter without
    one is an error.
    """
    choices = {
        one.name: get_args(one.field_info.annotation)[0]
        for one in route.dependant.path_params
        if get_origin(one.field_info.annotation) is Literal
    }
    known = dict(examples) | choices
    path = PARAMETER.sub(lambda found: quote(known[found[1]]), str(route.path))
    return path + queries.get(str(route.path), "")


def is_page(content_type: str, text: str) -> bool:
    """Whether a response is a whole page, rather than a part of one, data or a file."""
    return content_type.startswith("text/html") and text.startswith("<!doctype html>")

"""Templates to HTML: all text escaped, control characters shown, numbers in the words of the field."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from frontrunner import __version__
from frontrunner.plain_json import to_json
from frontrunner.results.outcome import Failure, Measurement
from frontrunner.server.pages.assets import assets
from frontrunner.text import count, gib, minute, node_time, percent, plain, seconds, size, thousands
from frontrunner.views.columns import against, figures_in_words

HTMX = {
    "allowEval": False,
    "allowScriptTags": False,
    "attributesToSettle": ["class", "width", "height"],  # not style, which the content security policy forbids
    "historyCacheSize": 0,
    "ignoreTitle": True,
    "includeIndicatorStyles": False,
    "selfRequestsOnly": True,
    "responseHandling": [
        {"code": "204", "swap": False},
        {"code": "[23]..", "swap": True},
        {"code": "[45]..", "swap": True, "error": True, "target": "#notice", "swapOverride": "innerHTML"},
    ],
}
"""Settings of htmx: it evaluates and keeps nothing, calls this service alone, and shows errors in one place."""
FILTERS = (against, count, figures_in_words, gib, minute, node_time, percent, seconds, size, thousands)


@cache
def environment() -> Environment:
    """Return the templates with their filters; an undefined value in a template is an error."""
    found = Environment(
        loader=PackageLoader("frontrunner.server.pages"),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    found.filters |= {function.__name__: function for function in FILTERS} | {"json": to_json}
    found.tests |= {
        "failure": lambda value: isinstance(value, Failure),
        "measurement": lambda value: isinstance(value, Measurement),
    }
    found.globals |= {"assets": assets(), "version": __version__, "htmx_config": json.dumps(HTMX)}
    found.globals |= {"seconds": seconds, "size": size}
    return found


def page(template: str, **values: Any) -> HTMLResponse:
    """Return a template as a response."""
    return HTMLResponse(render(template, **values))


def render(template: str, **values: Any) -> Markup:
    """Return a template as HTML."""
    return Markup(environment().get_template(template).render(**values))  # noqa: S704 - the template has escaped it


def macro(template: str, name: str, *arguments: Any) -> Markup:
    """Return what a macro of a template makes of its arguments."""
    found: Markup = getattr(environment().get_template(template).module, name)(*arguments)
    return found


def _shown(value: Any) -> Any:
    """Show control characters of text from outside; what a template has made is left alone."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value

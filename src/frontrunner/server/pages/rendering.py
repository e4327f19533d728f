"""Templates to HTML: all text escaped, control characters shown, numbers in the words of the field."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from frontrunner import __version__
from frontrunner.plain_json import to_json
from frontrunner.results.explain import ExplainedAttempt
from frontrunner.results.outcome import Failure, Measurement
from frontrunner.results.pages import TrialOutcome
from frontrunner.server.pages.assets import assets
from frontrunner.text import count, gib, minute, node_time, percent, plain, seconds, size, thousands
from frontrunner.views.columns import ENDINGS, figures_in_words

HTMX = {
    "allowEval": False,
    "allowScriptTags": False,
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
"""htmx's settings: it evaluates nothing, keeps nothing, asks this service alone, and shows errors in one place."""
HTML = "text/html; charset=utf-8"


@cache
def environment() -> Environment:
    """The templates with their filters; a value that a template names and nobody gave is an error."""
    found = Environment(
        loader=PackageLoader("frontrunner.server.pages"),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    found.filters |= {
        "count": count,
        "gib": gib,
        "json": to_json,
        "minute": minute,
        "node_time": node_time,
        "number": number,
        "percent": percent,
        "seconds": seconds,
        "size": size,
        "thousands": thousands,
    }
    found.filters |= {"figures_in_words": figures_in_words, "why": why}
    found.tests |= {
        "failure": lambda value: isinstance(value, Failure),
        "measurement": lambda value: isinstance(value, Measurement),
    }
    found.globals |= {"assets": assets(), "version": __version__, "htmx_config": json.dumps(HTMX)}
    found.globals |= {"seconds": seconds, "size": size}
    return found


def page(template: str, **values: Any) -> HTMLResponse:
    """A template as an answer."""
    return HTMLResponse(render(template, **values))


def render(template: str, **values: Any) -> str:
    """A template as text."""
    return environment().get_template(template).render(**values)


def digest(text: str) -> str:
    """A short name for a piece of HTML, by which a browser says which version of it is shown."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def number(value: float | None) -> str:
    """As `thousands`, or a dash for None."""
    return "-" if value is None else thousands(value)


def why(tried: TrialOutcome | ExplainedAttempt) -> str:
    """Why an attempt ended as it did; empty while it runs, and where nobody knows."""
    outcome = tried.outcome
    if isinstance(outcome, Failure):
        return outcome.message
    return "" if outcome is None or outcome.ended is None else ENDINGS[outcome.ended]


def _shown(value: Any) -> Any:
    """Text from outside without control characters; what a template has made is left alone."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value

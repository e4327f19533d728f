"""Charts as SVG and PNG files without a browser, and the script that draws them in one, both by
vl-convert.
"""

from __future__ import annotations

import json
import math
from copy import deepcopy
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec

from frontrunner.spaces.errors import require_extra
from frontrunner.text import plain
from frontrunner.views.charts.marks import NUMBER, Json

FORMATS = ("png", "svg")
WIDTH, HEIGHT = 960, 300
"""Of a file, and of a panel that states no other height, in pixels."""
PNG_SCALE = 2.0
VEGA_LITE = "6.4"
LICENSE = (
    "/* Vega, Vega-Lite, Vega-Embed: Copyright University of Washington Interactive Data Lab and"
    " others, BSD-3-Clause, https://github.com/vega */"
)
FONT = "system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


def theme(*, is_dark: bool) -> Json:
    """Return the Vega-Lite configuration for a light or a dark page."""
    light = ("#1f2328", "#59636e", "#e4e8ec", "#ffffff")
    ink, quiet, grid, paper = ("#e6edf3", "#b1bac4", "#2a313a", "#0d1117") if is_dark else light
    words = {
        "labelColor": ink,
        "titleColor": quiet,
        "labelFontSize": 11.5,
        "titleFontSize": 12,
        "titleFontWeight": 400,
    }
    legend = {
        "orient": "bottom",
        "title": None,
        "columns": 5,
        "labelLimit": 260,
        "symbolSize": 90,
        "symbolOpacity": 1,
    }
    title = {
        "color": ink,
        "subtitleColor": quiet,
        "anchor": "start",
        "frame": "group",
        "offset": 10,
    }
    return {
        "background": "transparent",
        "aria": (
            False
        ),  # the element that holds a chart has a label, and a table says the same in words
        "font": FONT,
        "view": {"stroke": None, "continuousHeight": HEIGHT},
        "axis": words | {"gridColor": grid, "domainColor": grid, "tickColor": grid},
        "axisQuantitative": {"tickCount": 5, "format": NUMBER},
        "header": {"labelColor": ink, "labelFontSize": 12, "titleColor": quiet},
        "legend": words | legend,
        "title": title | {"fontSize": 14, "subtitleFontSize": 12},
        "text": {"color": ink, "fontSize": 11.5},
        "style": {
            "halo": {
                "stroke": paper,
                "strokeWidth": 3,
                "strokeJoin": "round",
                "strokeOpacity": 0.85,
            }
        },
    }


def fitted(spec: Json, width: float) -> Json:
    """Return a copy of a specification whose panels fill a width; as `fitted` of charts.js.

    `usermeta` states how many `panels` there are, where a facet makes them, and what each needs:
    `least` pixels with its axis, of which `margin` are the axis's. A panel with a width of its own
    keeps it.
    """
    found = deepcopy(spec)
    needs = found.get("usermeta", {})
    panels = found.get("hconcat") or found.get("vconcat") or [found.get("spec", found)]
    columns = len(panels) if "hconcat" in found else found.get("columns", 1)
    if "least" in needs:
        most = max(1, min(columns, int(width / needs["least"])))
        number = needs.get("panels", len(panels))
        columns = math.ceil(number / math.ceil(number / most))  # of five with four in a row: 3 + 2
    if "hconcat" in found and columns == 1:
        found["vconcat"] = found.pop("hconcat")
    elif "columns" in found:
        found["columns"] = columns
    if panels == [found]:
        found["autosize"] = {"type": "fit-x", "contains": "padding"}
    for panel in panels:
        if "vconcat" not in panel and "facet" not in panel:
            panel.setdefault("width", max(80, int(width / columns - needs.get("margin", 0))))
    return found


def _still(spec: Json) -> Json:
    """Return a specification without what `marks.zoomed` adds for readers: a file needs none of
    it.
    """
    parts: Json = {
        key: [*map(_still, spec[key])] for key in ("layer", "hconcat", "vconcat") if key in spec
    }
    if "params" in spec:
        parts["params"] = [one for one in spec["params"] if one.get("bind") != "scales"]
    return spec | parts


def picture(spec: Json, kind: str, *, title: str = "") -> bytes:
    """Return a chart as the content of an SVG or PNG file, on white, under a title of one line."""
    require_installed()
    import vl_convert

    found = fitted(_still(spec), WIDTH) | {
        "config": theme(is_dark=False) | {"background": "white", "padding": 16}
    }
    if title:
        found["title"] = {
            "text": plain(title).replace("\n", " "),
            "fontSize": 16,
            "offset": 14,
            "frame": "bounds",
        }
    if kind == "png":
        return vl_convert.vegalite_to_png(found, vl_version=VEGA_LITE, scale=PNG_SCALE)
    return vl_convert.vegalite_to_svg(found, vl_version=VEGA_LITE).encode()


def require_installed() -> None:
    """Raise `InvalidInput` if vl-convert is not installed."""
    require_extra("vl_convert", "report", "drawing charts")


@cache
def javascript() -> str:
    """Return the script that draws the charts of a page: Vega, Vega-Lite, the two themes and
    charts.js.
    """
    require_installed()
    import vl_convert

    bundle = vl_convert.javascript_bundle(None, vl_version=VEGA_LITE)  # type: ignore[arg-type] # None: all of Vega-Embed
    return f"{LICENSE}\n{bundle}\n{_own_javascript()}"


def javascript_version() -> str:
    """Return what `javascript` depends on, without the second that it takes."""
    installed = version("vl-convert-python") if find_spec("vl_convert") else ""
    return f"{installed} {VEGA_LITE}\n{_own_javascript()}"


def _own_javascript() -> str:
    themes = json.dumps({"light": theme(is_dark=False), "dark": theme(is_dark=True)})
    own = files("frontrunner.views.charts").joinpath("charts.js").read_text(encoding="utf-8")
    return f"window.chartThemes = {themes};\n{own}"

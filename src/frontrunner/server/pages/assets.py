"""Style sheets and scripts: files of this package and Plotly's own, under names that change with their content."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from importlib.util import find_spec

OWN = ("style.css", "plotly-rules.css", "pages.js", "figures.js", "htmx-2.0.11.min.js")
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
PLOTLY = "plotly.js"
LEVEL = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class Asset:
    """One file as it is sent; `path` may be kept by browsers for ever."""

    path: str
    kind: str
    plain: bytes

    @cached_property
    def compressed(self) -> bytes:
        """The file by gzip, made once."""
        return gzip.compress(self.plain, LEVEL, mtime=0)


@cache
def assets() -> Mapping[str, str]:
    """File name -> path, for templates; Plotly's script is there where the package is installed."""
    names = [*OWN, "icon.svg"] + ([PLOTLY] if find_spec("plotly") else [])
    return {name: asset(name).path for name in names}


@cache
def asset(name: str) -> Asset:
    """A file of `assets`, read and compressed once."""
    text = _plotly() if name == PLOTLY else files(__package__).joinpath("static", name).read_bytes()
    stem, dot, ending = name.rpartition(".")
    mark = hashlib.sha256(text).hexdigest()[:12]
    return Asset(
        path=f"/static/{stem}.{mark}.{ending}",
        kind=KINDS[dot + ending],
        plain=text,
    )


@cache
def by_path() -> Mapping[str, Asset]:
    """Path -> file: what may be asked for at all."""
    return {path: asset(name) for name, path in assets().items()}


def _plotly() -> bytes:
    """Plotly's script, as its Python package brings it along; read without importing what draws."""
    return files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()

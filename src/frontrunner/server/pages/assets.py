"""Style sheets and scripts: files of this package and the script of charts, under names that change with them."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from frontrunner.views.charts.render import javascript, javascript_version

FILES = ("style.css", "pages.js", "htmx-2.0.11.min.js", "icon.svg")
CHARTS = "charts.js"
KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Asset:
    """One file; browsers may cache `path` for ever."""

    name: str
    path: str

    @property
    def media_type(self) -> str:
        """The media type of the file."""
        return KINDS[self.name[self.name.rindex(".") :]]

    @cached_property
    def plain(self) -> bytes:
        """The content; the charts' script takes a second to make, so it is made when a browser wants it."""
        return javascript().encode() if self.name == CHARTS else _file(self.name)

    @cached_property
    def compressed(self) -> bytes:
        """The content by gzip."""
        return gzip.compress(self.plain, 6, mtime=0)


def _file(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()


@cache
def assets() -> Mapping[str, Asset]:
    """Return the files by name."""
    return {name: _asset(name, _file(name)) for name in FILES} | {CHARTS: _asset(CHARTS, javascript_version().encode())}


def _asset(name: str, content: bytes) -> Asset:
    stem, _, ending = name.rpartition(".")
    return Asset(name=name, path=f"/static/{stem}.{hashlib.sha256(content).hexdigest()[:12]}.{ending}")


@cache
def by_path() -> Mapping[str, Asset]:
    """Return the files by path."""
    return {asset.path: asset for asset in assets().values()}

"""Where a store is: an SQLite file by path or URL, or another database by URL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from frontrunner.results.provenance import redact
from frontrunner.spaces.errors import bad_value

KEY_PASSWORD = "sslpassword"  # noqa: S105 - the name of libpq's parameter
EXPECTED = "a path, or a URL such as sqlite:///path/to/store.db or postgresql+psycopg://user@host/database"


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """A parsed address, whose password is `url.password` wherever it was written.

    `path` is the SQLite file, absolute; None for another database.
    """

    url: URL
    path: Path | None

    def __str__(self) -> str:
        """The file's path, or the URL with its password, and that of its key, hidden."""
        if self.path is not None:
            return str(self.path)
        shown = self.url
        if KEY_PASSWORD in shown.query:
            shown = shown.update_query_dict({KEY_PASSWORD: "***"})
        return shown.render_as_string(hide_password=True)

    def sqlite_uri(self, *, mode: str, immutable: bool = False) -> str:
        """The file as an SQLite URI; `mode` is ro, rw or rwc.

        `immutable` promises SQLite that nobody writes meanwhile, so that it needs no file beside the store.
        """
        if self.path is None:
            raise ValueError(f"{self} is not an SQLite file")
        return f"file:{quote(str(self.path))}?mode={mode}" + ("&immutable=1" if immutable else "")

    @property
    def has_log(self) -> bool:
        """Whether SQLite's write-ahead log lies beside the file: it is in use, or its writer was killed."""
        return self.path is not None and self.path.with_name(self.path.name + "-wal").exists()


def parse_address(text: str) -> StoreAddress:
    """Read `sqlite:///path`, a bare path, or another database's URL; `InvalidInput` for anything else."""
    if "\x00" in text:
        raise bad_value("store.url", text, EXPECTED)
    if "://" not in text:
        if not text.strip():
            raise bad_value("store.url", text, EXPECTED)
        path = Path(text).expanduser().absolute()
        return StoreAddress(url=URL.create("sqlite", database=str(path)), path=path)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise bad_value("store.url", redact([text])[0], EXPECTED) from error
    if url.get_backend_name() == "postgresql":
        return StoreAddress(url=_with_password_in_its_place(_with_driver(url)), path=None)
    if url.get_backend_name() != "sqlite":
        raise bad_value("store.url", redact([text])[0], EXPECTED)
    if not url.database or url.database == ":memory:":
        raise bad_value("store.url", text, "sqlite:///path: a store lives in a file")
    return StoreAddress(url=url, path=Path(url.database).expanduser().absolute())


def _with_driver(url: URL) -> URL:
    return url if "+" in url.drivername else url.set(drivername="postgresql+psycopg")


def _with_password_in_its_place(url: URL) -> URL:
    """The URL with `?password=` moved to where it is hidden; libpq takes it before one that precedes the host."""
    given = url.query.get("password")
    if given is None:
        return url
    password = given if isinstance(given, str) else given[-1]
    return url.difference_update_query(["password"]).set(password=password)


def is_new(text: str) -> bool:
    """Whether opening the store at an address would make an SQLite file; raises as `parse_address` does."""
    path = parse_address(text).path
    return path is not None and not path.exists()

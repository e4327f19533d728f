"""Errors of the service, their HTTP status, and their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frontrunner.spaces import errors
from frontrunner.spaces.errors import FrontrunnerError


class Forbidden(FrontrunnerError):
    """The sender's role does not permit this."""


class Conflict(FrontrunnerError):
    """Nothing of this kind is running, or not where it can be reached."""


class TooMany(FrontrunnerError):
    """A limit of the service is reached."""


STATUS_OF: dict[type[FrontrunnerError], int] = {
    errors.NotFound: 404,
    errors.InvalidInput: 422,
    errors.NameTaken: 409,
    errors.AlreadyDriven: 409,
    errors.CampaignFailed: 409,
    errors.NothingLegal: 422,
    errors.StoreUnusable: 503,
    errors.ServiceUnreachable: 502,
    Forbidden: 403,
    Conflict: 409,
    TooMany: 429,
    FrontrunnerError: 500,
}


def to_table(error: FrontrunnerError) -> dict[str, Any]:
    """Return an error as {"kind", "message", "hint"}."""
    return {"kind": type(error).__name__, "message": error.message, "hint": error.hint}


def from_table(table: Mapping[str, Any]) -> FrontrunnerError:
    """Return the error of {"kind", "message", "hint"}; a `FrontrunnerError` for an unknown kind."""
    kind = next((kind for kind in STATUS_OF if kind.__name__ == table.get("kind")), FrontrunnerError)
    return kind(str(table.get("message")), hint=table.get("hint"))

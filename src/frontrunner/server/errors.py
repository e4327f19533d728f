"""Errors of the service, their HTTP status, and their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frontrunner.spaces import errors
from frontrunner.spaces.errors import FrontrunnerError


class Unauthorized(FrontrunnerError):
    """A valid token is needed."""


class Refused(FrontrunnerError):
    """The service has no such address or method, or does not accept the request's head or body."""


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
    Unauthorized: 401,
    Refused: 400,
    Forbidden: 403,
    Conflict: 409,
    TooMany: 429,
    FrontrunnerError: 500,
}


KINDS = {kind.__name__: kind for kind in STATUS_OF}
PROBLEM = "application/problem+json"
IDEMPOTENCY_KEY = "Idempotency-Key"


def type_of(kind: str) -> str:
    """Return the URI of a kind of error, under which the service describes it; it never changes."""
    return f"/api/v1/problems/{kind}"


def title_of(kind: str) -> str:
    """Return what the errors of a kind have in common."""
    known = KINDS.get(kind)
    return "" if known is None else (known.__doc__ or "").split(";")[0].strip().rstrip(".")


def problem(status: int, message: str, *, kind: str, hint: str | None) -> dict[str, Any]:
    """Return an error as the problem details of RFC 9457, with its `kind` and the next step as
    `hint`.
    """
    return {
        "type": type_of(kind),
        "title": title_of(kind),
        "status": status,
        "detail": message,
        "kind": kind,
        "hint": hint,
    }


def status_of(error: FrontrunnerError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUS_OF[base] for base in type(error).__mro__ if base in STATUS_OF)


def to_problem(error: FrontrunnerError) -> dict[str, Any]:
    """Return an error as problem details."""
    return problem(status_of(error), error.message, kind=type(error).__name__, hint=error.hint)


def from_problem(found: Mapping[str, Any]) -> FrontrunnerError:
    """Return the error of problem details; a `FrontrunnerError` for an unknown kind."""
    kind = KINDS.get(str(found["kind"]), FrontrunnerError)
    return kind(str(found["detail"]), hint=found.get("hint"))

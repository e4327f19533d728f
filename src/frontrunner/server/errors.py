"""What the service refuses beside the mistakes that every front door knows.

Forbidden    403   the sender's role may not do this
Conflict     409   what is asked for does not fit the state that the campaign or the replay is in
TooMany      429   as many as there may be are running already
"""

from __future__ import annotations

from frontrunner.spaces.errors import FrontrunnerError


class Forbidden(FrontrunnerError):
    """The sender is known, and may not do this."""


class Conflict(FrontrunnerError):
    """Nothing of this kind is running, or not where it can be reached."""


class TooMany(FrontrunnerError):
    """A limit of the service is reached."""

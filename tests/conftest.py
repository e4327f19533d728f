"""What every test relies on, wherever the tests are started from."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from support.postgresql import Server, running_server, why_none

# A shell starts background jobs, and nohup its command, with these ignored, and every child inherits that: the
# programs under test must meet signals as they do in a user's terminal.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# The same examples each time: a failure then comes from a change, not from a draw. Others are drawn on demand, by
# pytest --hypothesis-profile=explore.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile("same")


WAITING = "test_slurm.py"
"""Its tests take minutes, most of them in wait for a batch system: begun last, they would be all that still runs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name != WAITING)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    """A PostgreSQL server of the tests' own, with nothing in it."""
    reason = why_none()
    if reason is not None:
        pytest.skip(reason)
    with running_server() as server:
        yield server

"""What every test relies on, wherever the tests are started from."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from support.postgresql import Server, running_server, why_none
from support.turns import ByTurns, give_way, turn_of

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: turn_of(item.path))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    give_way(item)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByTurns | None:
    return ByTurns(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    """A PostgreSQL server of the tests' own, with nothing in it."""
    reason = why_none()
    if reason is not None:
        pytest.skip(reason)
    with running_server() as server:
        yield server

"""What every test relies on, wherever the tests are started from."""

import os

# Before torch or numpy is imported: several tests and their ranks share the processors. Settings
# of the user's own frontrunner are not those of the tests.
os.environ["OMP_NUM_THREADS"] = "1"
# Without it each of a thousand child processes would compile the product, and torch, anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
for _name in [name for name in os.environ if name.startswith("FRONTRUNNER_")]:
    if not _name.startswith("FRONTRUNNER_TEST_"):
        del os.environ[_name]

# ruff: noqa: E402 - the environment comes first

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from frontrunner.results.store import Store, open_store
from support.postgresql import Server, running_server

# A shell starts background jobs, and nohup its command, with these ignored, and every child
# inherits that: the programs under test must meet signals as they do in a user's terminal.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        )

# pytest's worker processes state the size of a terminal that the programs under test do not have.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# The same examples each time: a failure then comes from a change, not from a draw. Others are drawn
# on demand, by pytest --hypothesis-profile=explore.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile("same")


TIERS = {"unit": "unit", "contract": "contract", "system": "system", "faults": "system"}
"""Marker of the tests in each folder. A test marked with a tier by itself keeps its own."""
OWN_TIERS = {"smoke", "system", "nightly", "kept"}
STARTED_FIRST = (
    "test_numerics.py",
    "test_replay.py",
    "test_every_page.py",
    "test_pages.py",
    "test_driver_faults.py",
    "test_dry_run.py",
    "test_levers.py",
    "test_numerics_deepspeed.py",
    "test_service.py",
    "test_slurm.py",
)
"""The files that take longest: `make system` gives each to one worker, and a file that started last
would be all that still runs.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        own = {mark.name for mark in item.iter_markers()}
        if "postgresql" in item.name:
            item.add_marker("system")  # starting a server costs more than these see beyond SQLite
        elif not own & OWN_TIERS:
            item.add_marker(TIERS[item.path.relative_to(Path(__file__).parent).parts[0]])
    first = {name: place for place, name in enumerate(STARTED_FIRST)}
    items.sort(key=lambda item: first.get(item.path.name, len(first)))


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server]:
    """A PostgreSQL server of the tests' own, with nothing in it."""
    with running_server() as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened

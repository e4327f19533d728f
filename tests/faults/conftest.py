"""One warm bench of real probes for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.benches import Bench
from support.campaigns import processes_of, wait_for


@pytest.fixture(scope="package")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Probes with the default settings of `tiny`; it leaves no process."""
    made = Bench(tmp_path_factory.mktemp("probes"))
    yield made
    made.evaluator.close()
    wait_for(lambda: not processes_of(os.getpid()))

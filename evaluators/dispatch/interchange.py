"""Parsl's interchange, which passes tasks from the driver to the nodes, as a process that goes with its driver.

Left alone it would outlive a driver that is killed, and end with one that is interrupted at a terminal, whose probes
are to be finished.
"""

from __future__ import annotations

import os
import runpy
import sys

from frontrunner.evaluators.descent import die_with_parent


def main() -> None:
    """Be the interchange; Parsl gives it its settings on stdin."""
    if sys.platform == "linux":
        die_with_parent()
    os.setsid()
    runpy.run_module("parsl.executors.high_throughput.interchange", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

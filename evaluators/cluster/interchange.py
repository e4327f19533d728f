"""Parsl's interchange, which passes tasks from the driver to the nodes, as a process that goes with its driver.

Left alone it would outlive a driver that is killed, and end with one that is interrupted at a terminal, whose probes
are to be finished.
"""

from __future__ import annotations

import os
import runpy
import sys

from frontrunner.evaluators.probe.descent import die_with_parent


def main() -> None:
    """Be the interchange of the driver whose process id is the argument; Parsl gives it its settings on stdin."""
    driver = int(sys.argv.pop(1))
    if sys.platform == "linux":
        die_with_parent()
    if os.getppid() != driver:  # it was killed while this process began: nobody will end it any more
        sys.exit(1)
    os.setsid()
    runpy.run_module("parsl.executors.high_throughput.interchange", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""How soon the commands that load nothing heavy answer, as whole processes.

python benchmarks/command_start.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = (
    ("--help",),
    ("launch", "--help"),
    ("space", "examples/laptop.toml"),
    ("space", "examples/frontier-22b.toml"),
)
RUNS = 10


def main() -> None:
    for arguments in COMMANDS:
        times = []
        for _ in range(RUNS):
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-P", "-m", "frontrunner.cli", *arguments],
                stdout=subprocess.DEVNULL,
                check=True,
            )
            times.append(time.perf_counter() - start)
        spread = f"{min(times):.2f} to {max(times):.2f} s"
        print(
            f"frontrunner {' '.join(arguments):<36} median {statistics.median(times):.2f} s of"
            f" {RUNS} ({spread})"
        )


if __name__ == "__main__":
    main()

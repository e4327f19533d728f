"""Bad inputs by the ten thousand, given to the functions that the commands call.

    python benchmarks/fuzz_inputs.py --inputs 100000 --seed 1 [--kind recipe] [--save FOLDER]

Campaign and cluster files, recipe files, tables to import or to calibrate by, archives,
configurations of other tools, the files that probes leave, logs of trainers and bodies of requests.
Each input is a good one with damage: cut short, bits flipped, in another encoding, with NUL, BOM
and bidirectional marks, duplicate and unknown keys, NaN and 1e999, wrong types, names of 64 kB, a
million levels deep, megabytes too long. Some are still good: what is accepted must be written and
read again as the same value. All others must be refused by one of the project's own errors that
says where and what next, within a second of processor time (long ones: one more for each 256 KiB)
and 512 MiB, with nothing written. Exit code 1 where anything else happened.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from fuzz_kinds import Kind, kinds

from frontrunner.spaces.errors import FrontrunnerError, NotFound

LONGEST_S = 3.0
"""Of processor time, and as much again for every `LARGE_BYTES`: reading a long table row by row
takes what it takes.
"""
LARGE_BYTES = 256 * 1024
GIVE_UP_S = 10.0
"""Of processor time: after this an input is given up."""
MORE_MEMORY_BYTES = 512 * 2**20
LONGEST_MESSAGE = 2_000
WEIGHTS = {
    "import": 0.2,
    "table": 0.2,
    "fit": 0.2,
    "archive": 0.5,
    "http": 0.5,
    "nemo": 0.7,
    "nanotron": 0.7,
    "accelerate": 0.7,
}
"""Kinds that take long get fewer inputs: tables by pandas, YAML by a parser in Python."""


@dataclass(kw_only=True)
class Tally:
    """What became of the inputs of one kind, and what should not have: each finding with the first
    input that made it.

    A finding is called by what happened and where in our code.
    """

    accepted: int = 0
    refused: int = 0
    longest_s: float = 0.0
    cpu_s: float = 0.0
    findings: Counter[str] = field(default_factory=Counter)

    @property
    def inputs(self) -> int:
        return self.accepted + self.refused + self.findings.total()


class TooLong(BaseException):
    """The processor time of one input is used up."""


def give_up(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise TooLong


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Limits for one input: processor time, and memory beyond what this process has."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE_MEMORY_BYTES, hard)
    )
    signal.setitimer(signal.ITIMER_PROF, GIVE_UP_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


class Fuzzer:
    """Makes inputs, has them read, and counts."""

    def __init__(self, folder: Path, save: Path | None) -> None:
        (folder / "beside").mkdir()
        self.kinds = kinds(folder / "beside")
        self.tallies = {name: Tally() for name in self.kinds}
        self._work = folder / "work"
        self._save = save

    def warm_up(self, name: str) -> None:
        """Have a few inputs of a kind read that do not count: the first ones import modules."""
        for number in range(5):
            self.run(name, f"warm-up:{number}")
        self.tallies[name] = Tally()

    def run(self, name: str, seed: str) -> None:
        """Make one input and have it read."""
        kind, tally = self.kinds[name], self.tallies[name]
        content = kind.make(random.Random(seed))
        self._work.mkdir()
        path = self._work / kind.file
        path.write_bytes(content)
        before = tally.accepted, tally.refused
        began = time.process_time()
        finding = self._read(kind, path, tally)
        took = time.process_time() - began
        tally.cpu_s += took
        tally.longest_s = max(tally.longest_s, took)
        if finding is None and took > LONGEST_S * (1 + len(content) / LARGE_BYTES):
            finding = f"took longer than {LONGEST_S:g} s of processor time"
            tally.accepted, tally.refused = before
        if finding is not None:
            tally.findings[finding] += 1
            if tally.findings[finding] == 1 and not seed.startswith("warm"):
                self._keep(name, seed, content, f"{finding} ({took:.2f} s)")
        for left in self._work.iterdir():
            left.unlink()
        self._work.rmdir()

    def _read(self, kind: Kind, path: Path, tally: Tally) -> str | None:
        """What was found wrong, or None."""
        try:
            with limited():
                kind.read(path)
        except FrontrunnerError as error:
            left = sorted(other.name for other in path.parent.iterdir() if other != path)
            wrong = why_unhelpful(error, path) or (f"refused, but wrote {left}" if left else None)
            wrong = wrong or (
                None
                if kind.refuses
                else f"{type(error).__name__} where a driver asks: {where(error)}"
            )
            tally.refused += wrong is None
            return wrong
        except (TooLong, MemoryError) as error:
            return f"{type(error).__name__}: {where(error)}"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return f"{type(error).__name__}: {where(error)}"
        tally.accepted += 1
        return None

    def _keep(self, name: str, seed: str, content: bytes, finding: str) -> None:
        print(f"{name} {seed}: {finding}", file=sys.stderr, flush=True)
        if self._save is not None:
            self._save.mkdir(parents=True, exist_ok=True)
            (self._save / f"{name}-{seed.replace(':', '-')}").write_bytes(content)
            with (self._save / "findings.txt").open("a", encoding="utf-8") as file:
                file.write(f"{name}-{seed}: {finding}\n")


def why_unhelpful(error: FrontrunnerError, path: Path) -> str | None:
    """Why a refusal does not help: it must name the file, be short, and say what is expected or
    what to do.
    """
    if len(error.message) + len(error.hint or "") > LONGEST_MESSAGE:
        return f"a message of {len(error.message):,} characters: {where(error)}"
    names_another = isinstance(
        error, NotFound
    )  # a file that the input names, and that is not there
    if path.name not in error.message and not names_another:
        return f"a message that names no file: {where(error)}"
    return None


def where(error: BaseException) -> str:
    """The last line of our own code that an error came from, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        frame
        for frame in frames
        if "frontrunner" in frame.filename or "/evaluators/" in frame.filename
    ]
    last = [frame for frame in ours if "benchmarks" not in frame.filename] or frames
    return f"{Path(last[-1].filename).name}:{last[-1].name}"


def shares(names: list[str], inputs: int) -> dict[str, int]:
    """How many inputs each kind gets; together `inputs` of them."""
    whole = sum(WEIGHTS.get(name, 1.0) for name in names)
    counts = {name: int(inputs * WEIGHTS.get(name, 1.0) / whole) for name in names}
    counts[names[0]] += inputs - sum(counts.values())
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--kind", action="append", help="one kind alone; can be given several times"
    )
    parser.add_argument("--save", type=Path, help="a folder for the inputs that made findings")
    asked = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, give_up)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as name:
        fuzzer = Fuzzer(Path(name), asked.save)
        os.chdir(name)
        for kind, count in shares(asked.kind or list(fuzzer.kinds), asked.inputs).items():
            fuzzer.warm_up(kind)
            for number in range(count):
                fuzzer.run(kind, f"{asked.seed}:{kind}:{number}")
        os.chdir("/")
    for kind, tally in fuzzer.tallies.items():
        if tally.inputs:
            found = (
                ", ".join(f"{count} x {what}" for what, count in tally.findings.most_common())
                or "nothing"
            )
            times = f"{tally.cpu_s:6.1f} s, longest {tally.longest_s:.2f} s"
            print(f"{kind:18} {tally.inputs:6} inputs {tally.accepted:6} accepted {times}: {found}")
    total = sum((tally.findings for tally in fuzzer.tallies.values()), Counter[str]())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    summary = {
        "inputs": sum(tally.inputs for tally in fuzzer.tallies.values()),
        "findings": total.total(),
    }
    print(json.dumps(summary | {"cpu_s": round(time.process_time() - began), "peak_mib": peak}))
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())

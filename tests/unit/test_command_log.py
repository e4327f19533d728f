"""The limits of a command's log, and reading it while it is written."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.evaluators.programs import command_log
from frontrunner.evaluators.programs.command_log import (
    LEFT_OUT,
    MAX_LINE_BYTES,
    MIDDLE_LENGTH,
    REFILL_S,
    UNLIMITED,
    Log,
    LogLimits,
    LogLines,
)

RATE_LIMITED = LogLimits(burst_bytes=1000, bytes_per_s=100, waiting_bytes=500)
SHORT = LogLimits(file_bytes=8000, burst_bytes=float("inf"), bytes_per_s=0.0)


class Clock:
    """A clock that a test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def contents(path: Path) -> list[bytes]:
    return [line.partition(b" ")[2] for line in path.read_bytes().splitlines()]


def numbers(lines: list[bytes]) -> list[int]:
    return [int(line.split()[-1]) for line in lines if LEFT_OUT not in line]


def left_out(path: Path) -> int:
    """How many lines are left out, by the lines that say so."""
    counts = re.findall(rb"left out (\d+) lines", path.read_bytes())
    return sum(map(int, counts))


def test_log_keeps_an_unfinished_line_of_each_stream(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.write(b"Loading 1", "stderr")
    log.write(b"step 1\nstep", "stdout")
    log.write(b"0 %\rdone\n", "stderr")
    log.close()
    assert contents(tmp_path / "log") == [b"step 1", b"Loading 10 %", b"done", b"step"]


def test_log_cuts_long_lines(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    for _ in range(3):
        log.write(b"x" * MAX_LINE_BYTES)
    assert list(map(len, contents(tmp_path / "log"))) == [MAX_LINE_BYTES] * 3
    log.write(b"y" * (MAX_LINE_BYTES + 1) + b"\n")
    assert list(map(len, contents(tmp_path / "log"))) == [*[MAX_LINE_BYTES] * 4, 1]


def test_log_limits_the_rate_of_each_stream(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", Clock()
    log = Log(path, RATE_LIMITED, clock=clock)
    log.write(b"".join(b"flood %d\n" % number for number in range(1000)), "stderr")
    log.write(b"step 1\n", "stdout")
    burst = contents(path)
    assert burst[-1] == b"step 1"
    assert 1000 - 50 < path.stat().st_size < 1000 + 50
    log.write_waiting()
    assert contents(path) == burst
    clock.seconds = 2.0
    log.write_waiting()
    assert left_out(path) == 1000 - (len(burst) - 1) - round(500 / 19 - 0.5)
    assert b" of stderr here: rate limit 100 bytes/s]" in contents(path)[len(burst)]
    clock.seconds = 10.0
    log.write(b"after\n", "stderr")
    log.close()
    seen = [int(line.split()[1]) for line in contents(path) if line.startswith(b"flood")]
    assert len(seen) + left_out(path) == 1000
    assert seen[-1] == 999
    assert contents(path)[-1] == b"after"
    assert path.read_bytes().splitlines()[-2].startswith(b"0.000000 "), "when it arrived"


def test_log_says_seldom_that_lines_were_left_out(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", Clock()
    log = Log(path, replace(RATE_LIMITED, bytes_per_s=10_000), clock=clock)
    for tick in range(1000):
        clock.seconds = tick / 500
        log.write(b"flood\n" * 50)
    assert path.read_bytes().count(LEFT_OUT) <= 2.0 / REFILL_S
    log.close()
    assert contents(path).count(b"flood") + left_out(path) == 50_000


def test_log_keeps_the_end_of_each_stream_in_order_of_arrival(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", Clock()
    log = Log(path, RATE_LIMITED, clock=clock)
    for clock.seconds in (0.0, 0.5):
        for stream in ("stderr", "stdout"):
            log.write(b"x\n" * 500, stream)
    clock.seconds = 0.6
    log.write(b"RuntimeError: at the end", "stderr")
    log.close()
    arrivals = [float(line.split()[0]) for line in path.read_bytes().splitlines()]
    assert arrivals == sorted(arrivals)
    assert contents(path)[-2:] == [b"x", b"RuntimeError: at the end"]
    assert contents(path).count(b"x") + left_out(path) == 2000


def test_log_keeps_the_beginning_and_the_end_of_a_long_file(tmp_path: Path) -> None:
    path, clock = tmp_path / "short", Clock()
    log, whole = Log(path, SHORT, clock=clock), Log(tmp_path / "whole", UNLIMITED, clock=clock)
    for number in range(2000):
        line = b"%d%b %d\n" % (number, b"x" * random.Random(number).randrange(30), number)
        log.write(line)
        whole.write(line)
        assert path.stat().st_size <= SHORT.largest_bytes
    expected, text = (tmp_path / "whole").read_bytes(), path.read_bytes()
    assert text[:2000] == expected[:2000]
    tail = text[2000 + MIDDLE_LENGTH :]
    assert len(tail) > 900
    assert tail == expected[-len(tail) :]
    middle = text[2000 : 2000 + MIDDLE_LENGTH].decode()
    assert (
        middle.split()
        == (
            f"- [frontrunner left out {len(expected) - 2000 - len(tail)} bytes of this log here]"
        ).split()
    )
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_log_is_replaced_within_its_room(tmp_path: Path) -> None:
    longest = SHORT.largest_bytes + SHORT.head_bytes + MIDDLE_LENGTH + SHORT.tail_bytes
    assert longest - MIDDLE_LENGTH <= SHORT.file_bytes


@pytest.mark.parametrize("pause", [1, 4, 100, 300])
def test_log_lines_are_read_once_while_the_file_loses_its_middle(
    tmp_path: Path, pause: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that looks often misses nothing; one that looks rarely goes on with whole lines."""
    monkeypatch.setattr(command_log, "READ_BYTES", 700)
    path, rng = tmp_path / "log", random.Random(pause)
    log, reader = Log(path, SHORT), LogLines(path, SHORT)
    seen: list[int] = []
    for number in range(3000):
        log.write(b"%b %d\n" % (b"x" * rng.randrange(30), number))
        if rng.randrange(pause) == 0:
            lines = reader.new_lines()
            assert sum(map(len, lines)) <= 700
            seen += numbers(lines)
    while lines := reader.new_lines():
        seen += numbers(lines)
    assert not reader.is_behind
    assert seen == sorted(set(seen))
    assert set(seen) <= set(range(3000))
    assert seen[-1] == 2999
    assert reader.has_gap == (len(seen) < 3000)
    assert reader.has_gap == (pause >= 100)


def test_log_lines_know_whether_there_is_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_log, "READ_BYTES", 40)
    reader = LogLines(tmp_path / "log")
    log = Log(tmp_path / "log")
    log.write(b"1\n2\n3\n4\n5\n")
    assert numbers(reader.new_lines()) == [1, 2, 3]
    assert reader.is_behind
    assert numbers(reader.new_lines()) == [4, 5]
    assert not reader.is_behind
    log.write(b"6\n7\n8\n9\n")
    reader.new_lines()
    (tmp_path / "log").unlink()
    assert reader.new_lines() == []
    assert not reader.is_behind

"""The command evaluator against a trainer that misbehaves in every way that real ones do."""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from frontrunner.evaluators.nodes.child_processes import driver_tags
from frontrunner.evaluators.nodes.supervisor import RUN_TAG, reserved_port
from frontrunner.evaluators.programs import command_replay as replay
from frontrunner.evaluators.programs.command import VARIABLES
from frontrunner.evaluators.programs.command_log import LIMITS
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.protocol import Finished, ProbeSetup
from frontrunner.evaluators.registry import commands_of, make_evaluator
from frontrunner.evaluators.runs.probes import Probes
from frontrunner.evaluators.runs.training import ReplayResult, ReplaySettings, ReplayStopped
from frontrunner.results.outcome import Failure, FailureKind, Measurement, ProbeEnding
from frontrunner.spaces.errors import InvalidInput
from support.campaigns import is_alive, marked, order, setup_of, tiny_recipe, wait_for

TRAINER = Path(__file__).parent.parent / "support" / "fake_trainer.py"
PATTERNS = (
    (
        r"^step (?P<step>\d+): (?P<step_time_s>[\d.]+) s loss (?P<loss>\S+) rate"
        r" (?P<tokens_per_s>[\d.]+)"
    ),
    r"peak (?P<peak_memory_gib>[\d.]+) GiB",
    r"configured micro batch (?P<micro_batch_seqs>\d+)",
)


def setup_with(folder: Path, behaviour: str, **probe: float) -> ProbeSetup:
    arguments = (
        "{python}",
        str(TRAINER),
        behaviour,
        "--micro-batch",
        "{micro_batch_seqs}",
        "--steps",
        "{steps}",
    )
    command = CommandSettings(
        arguments=arguments,
        log_patterns=PATTERNS,
        folder=str(folder),
        pass_environment=("PATH",),
        environment={"RECIPE": "tp{tensor_parallel}"},
    )
    return replace(setup_of(folder / "runs", probe={"measured_steps": 3} | probe), command=command)


@contextmanager
def evaluator_of(setup: ProbeSetup) -> Iterator[Probes]:
    made = make_evaluator("command", setup)
    assert isinstance(made, Probes)
    try:
        yield made
    finally:
        made.close()


def ended(setup: ProbeSetup) -> Finished:
    """The outcome of one probe, from its order to its end."""
    with evaluator_of(setup) as evaluator:
        evaluator.start(order(setup))
        found: list[Finished] = []
        wait_for(lambda: found.extend(evaluator.finished(0.25)) or found)
        return found[0]


def failure(setup: ProbeSetup) -> Failure:
    outcome = ended(setup).outcome
    assert isinstance(outcome, Failure), outcome
    return outcome


def test_a_log_becomes_a_measurement_and_the_trainer_is_ended(tmp_path: Path) -> None:
    setup = setup_with(tmp_path, "goes-on")
    outcome = ended(setup).outcome
    assert isinstance(outcome, Measurement), outcome
    assert len(outcome.step_times_s) == 3
    assert all(seconds > 0 for seconds in outcome.step_times_s)
    assert outcome.tokens_per_step == 8 * 32
    assert outcome.tokens_per_s == pytest.approx(8 * 32 / outcome.step_time_s_median)
    assert outcome.peak_memory_bytes == (2**28,)
    assert outcome.losses[:2] == (5.0, 2.5)
    assert outcome.ended is ProbeEnding.FIXED
    assert 0 < outcome.build_time_s < outcome.node_seconds


@pytest.mark.parametrize("behaviour", ["floods", "floods-stderr"])
def test_steps_are_seen_beside_and_after_a_flood_of_output(tmp_path: Path, behaviour: str) -> None:
    """70 MB of lines on stdout between two steps; or bytes without an end or a line break on
    stderr.
    """
    setup = setup_with(tmp_path, behaviour, step_deadline_s=20.0)
    outcome = ended(setup).outcome
    assert isinstance(outcome, Measurement), outcome
    assert len(outcome.step_times_s) == 3
    log = (order(setup).run_folder / "command.log").read_bytes()
    assert b"[frontrunner left out " in log
    assert len(log) < LIMITS.file_bytes / 8


def test_an_adaptive_probe_ends_when_its_step_time_is_known(tmp_path: Path) -> None:
    setup = setup_with(tmp_path, "goes-on")
    probe = replace(setup.probe, measured_steps=None, precision=0.5, max_steps=1000)
    outcome = ended(replace(setup, probe=probe)).outcome
    assert isinstance(outcome, Measurement), outcome
    assert outcome.ended is ProbeEnding.KNOWN


def test_an_adaptive_probe_of_steps_that_take_no_time_is_implausible(tmp_path: Path) -> None:
    setup = setup_with(tmp_path, "takes-no-time")
    found = failure(replace(setup, probe=replace(setup.probe, measured_steps=None)))
    assert found.kind is FailureKind.IMPLAUSIBLE
    assert "after the first take 0 s, and by our clock they took" in found.message


def test_a_trainer_gets_the_variables_it_was_given_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_DRIVER", "1")
    setup = setup_with(tmp_path, "steps")
    ended(setup)
    folder = order(setup).run_folder
    given = (folder / "command.log").read_text().splitlines()[0].split()[2:]
    marked, place = {RUN_TAG, *driver_tags(tmp_path)}, {*list(VARIABLES)[:7]}
    assert set(given) - {"LC_CTYPE"} == {"PATH", "PYTHONUNBUFFERED", "RECIPE"} | marked | place
    written = json.loads((folder / "command.json").read_text())
    assert written["environment"]["RECIPE"] == "tp1"
    assert written["passed"] == ["PATH"], "names alone: values may be secrets"
    assert os.environ["PATH"] not in (folder / "command.json").read_text()


@pytest.mark.parametrize(
    ("behaviour", "kind", "message"),
    [
        ("refuses", FailureKind.ILLEGAL_FOR_ENGINE, "heads are not divisible by 3"),
        ("crashes", FailureKind.CRASHED, "RuntimeError: a link has failed"),
        (
            "boasts",
            FailureKind.IMPLAUSIBLE,
            "the log says 999999 tokens/s, and its step time gives",
        ),
        ("mistakes-units", FailureKind.IMPLAUSIBLE, "tokens/s"),
        ("flatters-itself", FailureKind.IMPLAUSIBLE, "and by our clock they took"),
        ("ends-early", FailureKind.TOO_FEW_STEPS, "after 3 steps, of which 2 count"),
        ("says-nothing-known", FailureKind.NO_STEPS_FOUND, "no line of its log was recognized"),
        (
            "says-another-batch",
            FailureKind.IMPLAUSIBLE,
            "micro_batch_seqs is 2 in the recipe and 5 to the trainer",
        ),
    ],
)
def test_failures_are_classified(
    tmp_path: Path, behaviour: str, kind: FailureKind, message: str
) -> None:
    found = failure(setup_with(tmp_path, behaviour))
    assert (found.kind, message in found.message) == (kind, True), found.message
    assert found.log_path is not None
    assert Path(found.log_path).name == "command.log"
    assert found.log_tail


@pytest.mark.system
def test_a_trainer_in_an_endless_loop_that_ignores_signals_is_ended(tmp_path: Path) -> None:
    """It is asked to end, and killed five seconds later."""
    setup = setup_with(tmp_path, "ignores-signals", step_deadline_s=5.0)
    found = failure(setup)
    assert found.kind is FailureKind.HUNG
    assert found.message.endswith("after 2 steps")
    assert marked(RUN_TAG, str(order(setup).run_folder)) == []


def test_a_program_that_is_not_there_is_a_failure_that_names_it(tmp_path: Path) -> None:
    setup = setup_with(tmp_path, "steps")
    found = failure(replace(setup, command=replace(setup.command, arguments=("no-such-trainer",))))
    assert (found.kind, found.message) == (
        FailureKind.CRASHED,
        "no-such-trainer: No such file or directory",
    )


def test_a_command_is_lost_with_its_supervisor_and_leaves_nothing(tmp_path: Path) -> None:
    setup = setup_with(tmp_path, "leaves-ranks", measured_steps=100_000)
    with evaluator_of(setup) as evaluator:
        evaluator.start(order(setup))
        assert wait_for(
            lambda: not evaluator.finished(0.05) and evaluator.progress("00001.1").steps_done
        )  # type: ignore[union-attr]
        (supervisor,) = (
            p
            for server in psutil.Process().children()
            if "frontrunner.evaluators.nodes.fork_server" in server.cmdline()
            for p in server.children()
        )
        started = [p for p in supervisor.children(recursive=True) if is_alive(p)]
        assert len(started) == 2, "the trainer and its rank"
        supervisor.kill()
        (found,) = wait_for(lambda: evaluator.finished(0.25))
        assert found.outcome.kind is FailureKind.LOST
        wait_for(lambda: not any(map(is_alive, started)))


RANKS = """
import os, sys, time
rank = os.environ["RANK"]
print("rank", rank, "of", os.environ["WORLD_SIZE"], "on", sys.argv[1], "port", os.environ["MASTER_PORT"], flush=True)
if len(sys.argv) > 2 and rank == "1":
    raise RuntimeError(f"rank {rank} has lost its device")
for step in range(1, 20):
    time.sleep(0.02)
    if rank == "1":
        print(f"step {step}: 0.02 s loss {5 / step} rate 12800.0", flush=True)
time.sleep(600)
"""  # noqa: E501


def ranks_with(folder: Path, *more: str) -> ProbeSetup:
    setup = setup_with(folder, "steps")
    program = RANKS.replace("{", "{{").replace("}", "}}")
    arguments = ("{python}", "-c", program, "{node_rank}/{nodes}:{local_rank}", *more)
    return replace(setup, command=replace(setup.command, arguments=arguments, start_per="rank"))


def test_a_command_that_is_started_per_rank_gets_each_its_place(tmp_path: Path) -> None:
    setup = ranks_with(tmp_path)
    outcome = ended(setup).outcome
    assert isinstance(outcome, Measurement), outcome
    assert outcome.losses[:2] == (5.0, 2.5), "which the last rank logs"
    log = (order(setup).run_folder / "command.log").read_text()
    assert "rank 0 of 2 on 0/1:0 port" in log
    assert "rank 1 of 2 on 0/1:1 port" in log
    assert len({line.rpartition(" ")[2] for line in log.splitlines() if " port " in line}) == 1
    assert marked(RUN_TAG, str(order(setup).run_folder)) == []


def test_ranks_end_with_the_one_that_fails(tmp_path: Path) -> None:
    setup = ranks_with(tmp_path, "fails")
    found = failure(setup)
    assert (found.kind, found.message) == (
        FailureKind.CRASHED,
        "RuntimeError: rank 1 has lost its device",
    )
    assert found.node_seconds < 30, "the other would have waited for ten minutes"
    assert marked(RUN_TAG, str(order(setup).run_folder)) == []


def test_a_reserved_port_goes_to_those_who_name_it_alone() -> None:
    with reserved_port() as held, socket.socket() as other, socket.socket() as own:
        port = held.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            other.bind(("", port))
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind(("", port))
        own.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def planned_replay(setup: ProbeSetup, **settings: Any) -> replay.CommandReplay:
    """A replay of the tiny recipe whose probe measured 8 * 32 tokens per 0.01 s."""
    make = commands_of("command", setup.command)
    assert make is not None
    return replay.plan(
        recipe_id="a1b2c3",
        recipe=tiny_recipe(),
        setup=setup,
        make_command=make,
        measured_tokens_per_s=8 * 32 / 0.01,
        settings=ReplaySettings(
            **{"steps": 24, "folder": setup.work_folder / "replayed"} | settings
        ),
    )


def replayed(
    setup: ProbeSetup, events: list[Mapping[str, Any]] | None = None, **settings: Any
) -> ReplayResult:
    return replay.run(planned_replay(setup, **settings), None if events is None else events.append)


def test_a_replay_runs_the_command_to_its_end_and_compares_it_with_the_probe(
    tmp_path: Path,
) -> None:
    setup = setup_with(tmp_path, "steps", deadline_s=0.1)
    arguments = (*setup.command.arguments[:2], "{replay?steps}", *setup.command.arguments[3:])
    setup = replace(setup, command=replace(setup.command, arguments=arguments))
    events: list[Mapping[str, Any]] = []
    found = replayed(setup, events)
    assert found.final_step == 24
    assert found.final_loss == pytest.approx(5 / 24, abs=1e-3)
    assert found.ratio_to_probe == pytest.approx(0.5, rel=0.3)
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps == list(range(1, 25))
    (slow,) = (event for event in events if event["event"] == "slower than the probe")
    assert slow["step"] == 20
    replayed(setup)
    starts = [found.folder / "starts" / number / "command.log" for number in ("0001", "0002")]
    assert all("step 24" in log.read_text() for log in starts), "each with a log of its own"


def resuming(folder: Path, *more: str) -> ProbeSetup:
    setup = setup_with(folder, "")
    arguments = (
        "{python}",
        str(TRAINER.with_name("resuming_trainer.py")),
        "--steps",
        "{steps}",
        *more,
    )
    patterns = (r"^step (?P<step>\d+): (?P<step_time_s>[\d.]+) s loss (?P<loss>\S+)",)
    return replace(
        setup, command=replace(setup.command, arguments=arguments, log_patterns=patterns)
    )


@pytest.mark.system
def test_a_replay_that_is_stopped_waits_for_a_rank_that_stores(tmp_path: Path) -> None:
    """Long after the other rank has ended with a status of its own."""
    setup, signals = resuming(tmp_path, "--store-s", "9"), list[str]()
    setup = replace(setup, command=replace(setup.command, start_per="rank"))

    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 10:
            signals.append("SIGTERM")

    chosen = planned_replay(setup, steps=200)
    with pytest.raises(ReplayStopped) as stopped:
        replay.run(chosen, on_event, signals)
    assert stopped.value.exit_code == 75
    last = int((tmp_path / "checkpoint").read_text())
    log = (chosen.folder / "starts" / "0001" / "command.log").read_text()
    assert f"step {last}:" in log.splitlines()[-1]
    assert last < 200


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            {"learning_rate": 0.1},
            r"replay.learning_rate = 0.1: recipe a1b2c3 was run by another trainer",
        ),
        ({"launched": True}, r"--print-command: recipe a1b2c3 was run by another trainer"),
    ],
)
def test_a_replay_refuses_what_the_command_does_not_know(
    setting: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=message):
        replayed(setup_with(tmp_path, "steps"), **setting)


def test_a_deepspeed_file_that_disagrees_is_found_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        json.dumps({"train_micro_batch_size_per_gpu": 4, "train_batch_size": "auto"})
    )
    setup = setup_with(tmp_path, "steps")
    arguments = (*setup.command.arguments, "--deepspeed_config", "ds.json")
    found = failure(replace(setup, command=replace(setup.command, arguments=arguments)))
    assert found.kind is FailureKind.IMPLAUSIBLE
    assert (
        found.message == "micro_batch_seqs is 2 in the recipe and 4 to the trainer:"
        " train_micro_batch_size_per_gpu = 4 of ds.json"
    )
    assert found.node_seconds == 0

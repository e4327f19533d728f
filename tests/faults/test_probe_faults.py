"""Real faults in real probes: what each is taken for, and that nothing is left behind."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from frontrunner.evaluators.nodes.local import ThisMachine
from frontrunner.evaluators.programs.ranks import RankProgram
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup
from frontrunner.evaluators.registry import training_probe
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.spaces.errors import FrontrunnerError
from support.benches import ENDLESS, Bench
from support.campaigns import (
    is_alive,
    order,
    processes_of,
    ranks_of,
    setup_of,
    steps_written,
    wait_for,
)

ME = os.getpid()


def running_setup(bench: Bench, **probe: object) -> ProbeSetup:
    return running_setup_in(bench.folder, **probe)


def running_setup_in(folder: Path, **probe: object) -> ProbeSetup:
    return setup_of(folder, probe={**ENDLESS, **probe})


def test_a_rank_over_its_memory_limit_while_stepping(bench: Bench) -> None:
    big = {"sequence_length": 512, "global_batch": 64}
    setup = setup_of(bench.folder, cluster={"memory_gib_per_device": 0.5}, problem=big)
    bench.start(setup, micro_batch_seqs=32, accumulation=1)
    failure = bench.failure()
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "while stepping" in failure.message
    assert "tried to allocate" in failure.message, "the numbers"
    assert "Traceback" in failure.log_tail or "Error" in failure.log_tail
    assert Path(str(failure.log_path)).is_file()
    assert failure.node_seconds > 0


def test_the_fork_server_dies_and_the_next_probe_has_a_new_one(bench: Bench) -> None:
    one = bench.start(running_setup(bench))
    wait_for(lambda: bench.is_stepping(one))
    ranks = ranks_of(ME)
    server = psutil.Process(ranks[0].ppid())
    server.send_signal(signal.SIGKILL)
    failure = bench.failure()
    assert failure.kind is FailureKind.LOST
    assert "the fork server ended" in failure.message
    assert str(failure.log_path).endswith("fork-server.log")
    wait_for(lambda: not any(map(is_alive, ranks)))
    bench.start(setup_of(bench.folder))
    assert isinstance(bench.outcome(), Measurement)


def test_a_slow_start_of_the_server_is_not_held_against_a_probe(tmp_path: Path) -> None:
    evaluator = training_probe(setup_of(tmp_path, probe={"step_deadline_s": 3.0}))
    (server,) = _server(tmp_path)
    server.send_signal(signal.SIGSTOP)
    one = order(setup_of(tmp_path))
    evaluator.start(one)  # returns at once
    assert evaluator.finished(3.5) == [], "the deadline counts from the fork"
    progress = evaluator.progress(one.token)
    assert progress is not None
    assert progress.phase == "starting"
    server.send_signal(signal.SIGCONT)
    (finished,) = wait_for(lambda: evaluator.finished(0.2))
    evaluator.close()
    assert isinstance(finished.outcome, Measurement)


def test_a_server_that_is_stopped_is_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.start(setup_of(bench.folder))
    assert isinstance(bench.outcome(), Measurement)
    monkeypatch.setattr("frontrunner.evaluators.nodes.fork_server.REPLY_TIMEOUT_S", 1.0)
    (server,) = [p for p in processes_of(ME) if str(bench.folder) in _log_of(p)]
    server.send_signal(signal.SIGSTOP)
    bench.start(setup_of(bench.folder))
    failure = bench.failure()
    assert failure.kind is FailureKind.LOST
    assert failure.node_seconds >= 1.0, "it held the machine while it waited for a reply"
    assert not is_alive(server)
    bench.start(setup_of(bench.folder))
    assert isinstance(bench.outcome(), Measurement)


def _server(folder: Path) -> list[psutil.Process]:
    """The fork server that logs into a folder, by itself in a list; none while there is none."""
    return [process for process in processes_of(ME) if str(folder) in _log_of(process)]


def test_a_server_killed_while_it_warms_up_costs_one_attempt(tmp_path: Path) -> None:
    evaluator = training_probe(setup_of(tmp_path))
    evaluator.start(order(setup_of(tmp_path)))
    _server(tmp_path)[0].send_signal(signal.SIGKILL)
    (finished,) = wait_for(lambda: evaluator.finished(0.2))
    assert isinstance(finished.outcome, Failure)
    assert finished.outcome.kind is FailureKind.LOST
    assert finished.outcome.node_seconds > 0, "the machine is held while the server warms up"
    evaluator.start(order(setup_of(tmp_path), token="00001.2"))
    (finished,) = wait_for(lambda: evaluator.finished(0.2))
    evaluator.close()
    assert isinstance(finished.outcome, Measurement)


def broken_torch(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put another module in the place of torch, for children."""
    (folder / "modules" / "torch").mkdir(parents=True)
    (folder / "modules" / "torch" / "__init__.py").write_text(code)
    path = os.pathsep.join([str(folder / "modules"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)


def test_a_server_whose_driver_is_gone_ends_while_it_warms_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"  # imports may take long
    code = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(600)\n"
    broken_torch(tmp_path, code, monkeypatch)
    program = (
        "import pathlib, sys, time; from frontrunner.evaluators.nodes.fork_server import"
        " ForkClient, ServerSettings\nsettings = ServerSettings(engines=('torch',))\n"
        "client = ForkClient(pathlib.Path(sys.argv[1]), settings); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", program, str(tmp_path / "log")]) as driver:
        wait_for(begun.exists)
        (server,) = psutil.Process(driver.pid).children()
        driver.kill()
    wait_for(lambda: not is_alive(server))


def test_a_server_that_never_comes_up_is_an_error_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_torch(tmp_path, "raise SystemExit('torch is broken')", monkeypatch)
    evaluator = training_probe(setup_of(tmp_path))
    evaluator.start(order(setup_of(tmp_path)))
    with pytest.raises(FrontrunnerError, match="ended before it was ready: torch is broken"):
        wait_for(lambda: evaluator.finished(0.2))
    evaluator.close()


def test_the_fork_server_removes_what_was_offloaded_when_its_driver_is_gone(tmp_path: Path) -> None:
    setup = running_setup_in(tmp_path)
    program = RankProgram(setup)
    machine = ThisMachine(setup.work_folder, program.server)
    one, scratch = order(setup), tmp_path / "scratch"
    scratch.mkdir()
    machine.start(one, replace(program.prepare(one), scratch=scratch))
    wait_for(lambda: (machine.poll(0.02), steps_written(one.run_folder) >= 2)[1])
    assert scratch.is_dir()
    machine.close([])  # its end of the pipe, as when it is killed
    assert not scratch.exists()


def test_a_damaged_line_of_progress_does_not_end_the_supervisor(bench: Bench) -> None:
    one = bench.start(running_setup(bench))
    wait_for(lambda: bench.is_stepping(one))
    with (one.run_folder / "progress.jsonl").open("a") as file:
        file.write('{"event": "st\n[1]\n\x00\n')
    assert bench.evaluator.finished(0.5) == []
    for rank in ranks_of(ME):
        with suppress(psutil.NoSuchProcess):  # it ended with the one before
            rank.send_signal(signal.SIGTERM)
    assert bench.failure().kind is FailureKind.LOST


def test_a_damaged_result_is_not_taken_for_a_measurement(bench: Bench) -> None:
    one = bench.start(setup_of(bench.folder))
    assert isinstance(bench.outcome(), Measurement)
    (one.run_folder / "outcome.json").unlink()
    result = one.run_folder / "result.json"
    endless = json.dumps(json.loads(result.read_text()) | {"losses": [math.inf]})
    for text in ('{"status": "measured", "step_times_s": [0.1', endless):
        result.write_text(text)
        assert bench.evaluator.harvest(one) is None
        assert RunFolder(one.run_folder).outcome() is None


def has_outcome(one: ProbeOrder) -> bool:
    return isinstance(RunFolder(one.run_folder).outcome(), Measurement)


def test_a_foreign_or_late_result_changes_nothing(bench: Bench) -> None:
    first, second = (bench.start(setup_of(bench.folder)) for _ in range(2))
    wait_for(
        lambda: bench.evaluator.finished(0.2) is not None and all(map(has_outcome, (first, second)))
    )
    (second.run_folder / "outcome.json").unlink()
    for name in ("result.json", "outcome.json", "job.json"):
        shutil.copy(first.run_folder / name, second.run_folder / name)
        assert bench.evaluator.harvest(second) is None, f"{name} is of another attempt"
    lost = Failure(kind=FailureKind.LOST, message="judged before the result came", node_seconds=1.0)
    RunFolder(first.run_folder).write_outcome(lost)
    assert bench.evaluator.harvest(first) == lost, "an outcome is never replaced"


def test_a_result_of_another_problem_is_judged_by_this_one(bench: Bench) -> None:
    setup = setup_of(bench.folder)
    one = bench.start(setup)
    assert isinstance(bench.outcome(), Measurement)
    (one.run_folder / "outcome.json").unlink()
    peak = replace(setup.problem.cluster.peak_tflops, fp32=1e-6)
    bench.use(
        replace(
            setup,
            problem=replace(
                setup.problem, cluster=replace(setup.problem.cluster, peak_tflops=peak)
            ),
        )
    )
    found = bench.evaluator.harvest(one)
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.IMPLAUSIBLE


def _log_of(process: psutil.Process) -> str:
    """Where a process's stderr goes."""
    return str(Path(f"/proc/{process.pid}/fd/2").readlink())

"""A driver that is killed while another trainer runs: nothing stays behind, and the campaign goes
on.
"""

import json
import time
from pathlib import Path

import psutil
import pytest

from frontrunner import show
from frontrunner.results.outcome import Failure
from support.campaigns import frontrunner, is_alive, started, tiny, wait_for, write_toml

TRAINER = Path(__file__).parent.parent / "support" / "fake_trainer.py"


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_killed_driver_leaves_no_trainer_and_its_campaign_goes_on(
    tmp_path: Path, is_stopped: bool
) -> None:
    """A supervisor that stands still does not notice: the trainer and its ranks go on until the
    campaign does.
    """
    command = {
        "arguments": [
            "{python}",
            str(TRAINER),
            "leaves-ranks",
            "--micro-batch",
            "{micro_batch_seqs}",
            "--steps",
            "{steps}",
        ],
        "log_patterns": [r"^step (?P<step>\\d+): (?P<step_time_s>[\\d.]+) s loss (?P<loss>\\S+)"],
    }
    space = {"tensor_parallel": [1], "pipeline_parallel": [1], "micro_batch_seqs": [1, 2]}
    probe = {"measured_steps": 100}
    campaign = tiny(
        evaluator="command", command=command, space=space, probe=probe, budget={"probes": 2}
    )
    write_toml(tmp_path / "c.toml", campaign)
    with started("launch", "c.toml", cwd=tmp_path) as driver:
        rank = wait_for(
            lambda: (tmp_path / "rank.pid").exists() and (tmp_path / "rank.pid").read_text()
        )
        ran_since = time.time()
        left = [psutil.Process(int(rank)), *psutil.Process(driver.pid).children(recursive=True)]
        assert len(left) >= 3, "the rank, the supervisor and the trainer"
        if is_stopped:
            (supervisor,) = psutil.Process(driver.pid).children()
            supervisor.suspend()
        time.sleep(2)
        driver.kill()
        driver.wait()
        ran_s = time.time() - ran_since
    if not is_stopped:
        wait_for(lambda: not any(map(is_alive, left)))
    (folder,) = (tmp_path / "frontrunner-runs" / "tiny").glob("*.1")
    assert not (folder / "outcome.json").exists()
    done = frontrunner("resume", "tiny", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not any(map(is_alive, left))
    best = json.loads(done.stdout)["best"]
    assert len(best) == 2
    if not is_stopped:  # one that stands still writes no log that shows how long the trainer ran
        tried = [
            attempt.outcome
            for row in best
            for attempt in show(row["recipe_id"], store=str(tmp_path / "frontrunner.db"))
            .appearances[0]
            .attempts
        ]
        (lost,) = (outcome for outcome in tried if isinstance(outcome, Failure))
        assert ran_s <= lost.node_seconds < ran_s + 10, "what ran is charged to the budget"

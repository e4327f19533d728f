"""The jobs that probes, profiles and replays hand to the ranks."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.evaluators.nodes.fork_server import Report, ServerLost
from frontrunner.evaluators.programs.base import written
from frontrunner.evaluators.programs.jobs import (
    DEADLINE_SHARE,
    disk_folder,
    dry_run_job,
    probe_job,
    profile_job,
)
from frontrunner.evaluators.programs.rank_replay import plan
from frontrunner.evaluators.programs.ranks import write_job
from frontrunner.evaluators.protocol import ProbeOrder
from frontrunner.evaluators.registry import training_probe
from frontrunner.evaluators.runs.measure import tokens_per_step
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.evaluators.runs.settings import ProbeSettings
from frontrunner.evaluators.runs.training import ReplaySettings
from frontrunner.evaluators.trainer.job import Data, Job
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Sharding
from support.campaigns import order, setup_of, tiny_recipe


def test_a_job_equals_what_its_file_gives_back(tmp_path: Path) -> None:
    """A replay that goes on compares its job with the file in its folder."""
    setup = setup_of(tmp_path)
    recipe = tiny_recipe(
        pipeline_parallel=2, schedule="1f1b", micro_batch_seqs=4, layers_per_stage=(1, 1)
    )
    tokens = (Data(path="tokens.bin", dtype="uint16"),)
    probe = probe_job(setup, recipe, tmp_path, tokens)
    profile = profile_job(setup, recipe, tmp_path, tokens, steps=3, samples_host=True)
    for job in (probe, profile):
        assert Job.from_json(job.to_json()) == job


def test_a_probe_is_adaptive_unless_its_steps_are_counted(tmp_path: Path) -> None:
    counted = setup_of(tmp_path, probe={"warm_up_steps": 3, "measured_steps": 4})
    adaptive = replace(counted, probe=ProbeSettings(warm_up_steps=2, max_steps=9, deadline_s=100.0))
    tokens = (Data(path="tokens.bin", dtype="uint16"),)
    recipe = tiny_recipe()
    best_tokens_per_s = tokens_per_step(recipe, counted.problem) / 0.5
    asked = ProbeOrder(
        token="a", recipe=recipe, run_folder=tmp_path / "a", best_tokens_per_s=best_tokens_per_s
    )
    jobs = [
        write_job(asked, probe_job(setup, recipe, tmp_path, tokens), setup).read_text()
        for setup in (counted, adaptive)
    ]
    first, second = (Job.from_json(job).probe for job in jobs)
    assert first is not None
    assert (first.warm_up_steps, first.measured_steps, first.adaptive) == (3, 4, None)
    assert second is not None
    assert second.adaptive is not None
    assert (second.warm_up_steps, second.measured_steps) == (2, 7)
    assert (second.adaptive.best_step_time_s, second.adaptive.stop_after_s) == (
        0.5,
        DEADLINE_SHARE * 100.0,
    )


def test_a_replay_trains_with_the_router_however_probes_deal_tokens(tmp_path: Path) -> None:
    setup = setup_of(tmp_path)
    model = setup.problem.model.with_keys(
        experts=4, experts_per_token=2, routing="uniform", biases="none"
    )
    setup = replace(setup, problem=replace(setup.problem, model=model))
    recipe, settings = tiny_recipe(), ReplaySettings(steps=2)
    options = {
        "recipe": recipe,
        "settings": settings,
        "measured_tokens_per_s": None,
        "anyway": True,
    }
    planned = plan(recipe_id="0123456789ab", setup=setup, **options)
    probed = probe_job(setup, recipe, tmp_path, (Data(path="tokens.bin", dtype="uint16"),))
    assert (planned.job.model.mixture.routing, probed.model.mixture.routing) == (
        "learned",
        "uniform",
    )


def test_no_job_is_made_for_a_recipe_that_would_train_wrongly(tmp_path: Path) -> None:
    recipe = tiny_recipe(
        devices=4,
        sharding=Sharding(parameters=2, gradients=2, optimizer=2),
        pipeline_parallel=2,
        schedule="zbv",
        virtual_stages=2,
        micro_batch_seqs=1,
        accumulation=4,
    )
    setup = setup_of(tmp_path, cluster={"devices_per_node": 4}, model={"layers": 4})
    message = r"the built-in trainer cannot run .*wrong gradients: zbv splits the backward pass"
    with pytest.raises(InvalidInput, match=message):
        dry_run_job(setup.problem, setup.probe, recipe)


class Server:
    """A fork server whose ranks never start, and that is lost when it is asked about them."""

    is_ready = False

    def __init__(self, *_: object) -> None:
        pass

    def start(self, *_: object, **__: object) -> None:
        pass

    def reports(self, timeout_s: float) -> list[Report]:
        del timeout_s
        return [ServerLost()]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("end", ["concluded", "harvested", "closed"])
def test_a_probe_leaves_nothing_on_the_disk_that_it_offloaded_to(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontrunner.evaluators.nodes.local.ForkClient", Server)
    disk = tmp_path / "disk"
    setup = setup_of(tmp_path, cluster={"nvme_path": str(disk)})
    evaluator = training_probe(setup)
    one = order(
        setup,
        tiny_recipe(
            engine="deepspeed",
            offload="nvme",
            sharding=Sharding(parameters=2, gradients=2, optimizer=2),
        ),
    )
    one.run_folder.mkdir()
    evaluator.start(one)
    folder = disk_folder(setup, one.recipe, one.run_folder)
    assert folder is not None
    folder.mkdir(parents=True)
    (folder / "0.tensor.swp").write_bytes(b"0")

    if end == "concluded":
        assert len(evaluator.finished(0.0)) == 1
    elif end == "harvested":
        evaluator.harvest(one)
    else:
        evaluator.close()

    assert list(disk.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "becomes"),
    [
        (FailureKind.CRASHED, FailureKind.LOST),
        (FailureKind.OUT_OF_MEMORY, FailureKind.OUT_OF_MEMORY),
        (FailureKind.HUNG, FailureKind.HUNG),
    ],
)
def test_a_crash_whose_folder_is_full_is_lost_and_other_failures_stay(
    kind: FailureKind, becomes: FailureKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunFolder, "write_outcome", full)

    found = written(RunFolder(tmp_path), Failure(kind=kind, message="why"))

    assert isinstance(found, Failure)
    assert found.kind is becomes
    assert ("is full" in found.message) == (becomes is FailureKind.LOST)

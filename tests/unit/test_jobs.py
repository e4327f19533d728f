"""The jobs that probes, profiles and replays hand to the ranks."""

import json
from pathlib import Path

from frontrunner.evaluators.corpus import Corpus
from frontrunner.evaluators.jobs import probe_job, profile_job
from frontrunner.evaluators.trainer.job import Job
from support.campaigns import setup_of, tiny_recipe


def test_a_job_equals_what_its_file_gives_back(tmp_path: Path) -> None:
    """A replay that goes on compares its job with the file in its folder."""
    setup = setup_of(tmp_path)
    recipe = tiny_recipe(pipeline_parallel=2, schedule="1f1b", micro_batch_seqs=4, layers_per_stage=(1, 1))
    tokens = Corpus(path=tmp_path / "tokens.bin", dtype="uint16")
    probe = probe_job(setup, recipe, tmp_path, tokens)
    profile = profile_job(setup, recipe, tmp_path, tokens, steps=3, samples_host=True)
    for job in (probe, profile):
        text = json.dumps(job)
        assert json.loads(text) == job
        assert Job.from_json(text).recipe.layers_per_stage == (1, 1)

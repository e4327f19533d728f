"""A rank's gloo groups have one thread each: two of them free torch's string of the last
collective's name twice.
"""

import subprocess
import sys
from pathlib import Path

from support.trainer_runs import prepare, small_job

_RANK_THEN_GROUPS = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
from frontrunner.evaluators.trainer.entry import run_rank
from frontrunner.evaluators.trainer.job import Job

job_path, store = sys.argv[1:]
run_rank(Job.from_json(Path(job_path).read_text()), rank=0, world_size=1, init_method=f"file://{store}-1", local_rank=0)
dist.init_process_group("gloo", init_method=f"file://{store}-2", rank=0, world_size=1)
for group in (dist.group.WORLD, dist.new_group([0])):
    print(group._get_backend(torch.device("cpu")).options._threads)
dist.destroy_process_group()
"""  # noqa: E501


def test_every_group_of_a_rank_has_one_thread(tmp_path: Path) -> None:
    job_path = prepare(small_job(tmp_path / "run"))

    ended = subprocess.run(
        [sys.executable, "-P", "-c", _RANK_THEN_GROUPS, str(job_path), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ended.stdout.split()[-2:] == ["1", "1"]

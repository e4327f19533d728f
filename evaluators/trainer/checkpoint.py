"""Checkpoints by torch.distributed.checkpoint: complete or not there, the newest few kept.

A checkpoint is written to a hidden folder and renamed once every rank has finished, so each `step-NNNNNNNN` folder is
complete whenever the run was killed. The torch engine stores tensors under their names in the whole model, not by
rank, so its checkpoint can be loaded under another parallel form; the DeepSpeed engine's only under its own.
"""

import re
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from frontrunner.evaluators.trainer.files import write_json
from frontrunner.evaluators.trainer.train_step import Stepper

_COMPLETE = re.compile(r"step-(\d{8,})")


class Checkpoints:
    """The checkpoints in one folder. Every rank of the job must make the same calls."""

    def __init__(self, folder: Path, *, keep: int, rank: int, device: torch.device) -> None:
        self._folder = folder
        self._keep = keep
        self._rank = rank
        self._device = device

    def path_of(self, step: int) -> Path:
        """Return where the checkpoint of `step` is, if it is complete."""
        return self._folder / f"step-{step:08d}"

    def save(self, stepper: Stepper, step: int) -> Path:
        """Store weights and optimizer states as they are after `step`; drop checkpoints beyond those to keep."""
        target = self.path_of(step)
        partial = self._folder / f".{target.name}.partial"
        if self._rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self._wait_for_all()
        save(stepper.state(), checkpoint_id=partial)
        self._wait_for_all()
        if self._rank == 0:
            if target.exists():
                shutil.rmtree(target)
            partial.rename(target)
            write_json(self._folder / "latest.json", {"step": step, "folder": target.name})
            for old in self._complete_steps()[: -self._keep]:
                shutil.rmtree(self.path_of(old))
        return target

    def load_latest(self, stepper: Stepper) -> int:
        """Restore the newest complete checkpoint, and return its step; 0 where there is none."""
        steps = self._complete_steps() if self._rank == 0 else []
        newest = torch.tensor([steps[-1] if steps else 0], device=self._device)
        # Rank 0 decides: on a shared file system another rank may not see the newest folder yet.
        dist.broadcast(newest, src=0)
        step = int(newest.item())
        if step > 0:
            folder = self.path_of(step)
            stepper.restore(lambda state: load(state, checkpoint_id=folder))
        return step

    def _complete_steps(self) -> list[int]:
        if not self._folder.exists():
            return []
        found = (_COMPLETE.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match.group(1)) for match in found if match)

    def _wait_for_all(self) -> None:
        dist.all_reduce(torch.zeros(1, device=self._device))

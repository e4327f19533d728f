"""Whether recipes can offload to a disk on this machine; the operator that they need is compiled here, once."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from frontrunner.evaluators.probe.files import tail
from frontrunner.evaluators.probe.jobs import TORCH_DEVICES
from frontrunner.evaluators.trainer.deepspeed_engine.operators import built_folder, is_built, is_installed
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, bad_value

LOGGER = logging.getLogger(__name__)
BUILD_TIMEOUT_S = 1800.0
"""Compiling took seven minutes on a busy machine of 2 cores."""
BUILD_PROGRAM = "frontrunner.evaluators.trainer.deepspeed_engine.operators"
USES_LIBAIO = "#include <libaio.h>\nint main() { return io_submit(nullptr, 0, nullptr); }\n"
ON_ROCM = "build it with DeepSpeed: DS_BUILD_AIO=1 pip install --no-build-isolation --no-cache-dir deepspeed"
REMEDY = "install what DeepSpeed compiles it with; on Debian: apt-get install libaio-dev ninja-build g++"


def prepare_disk(cluster: Cluster, offloads: Sequence[str]) -> None:
    """Make sure that offload `nvme`, if it is among `offloads`, can run here; the first time that takes minutes.

    Without `cluster.nvme_path` such recipes are illegal, and nothing is asked of the machine. Raises `InvalidInput`
    for a folder that cannot be used and where the operator cannot be compiled, with the remedy.
    """
    if "nvme" not in offloads or cluster.nvme_path is None:
        return
    _check_folder(Path(cluster.nvme_path))
    device = TORCH_DEVICES[cluster.backend]
    if is_installed() or is_built(device):
        return
    if cluster.backend == "rocm":
        raise _missing("DeepSpeed does not compile it on ROCm", ON_ROCM)
    _check_tools()
    _build(device)


def _check_folder(folder: Path) -> None:
    """Try the one thing that the operator does: write to the folder past the system's cache."""
    what = "a folder on a disk that takes direct writes"
    if not folder.is_dir():
        raise bad_value("cluster.nvme_path", str(folder), f"{what}; there is no such folder")
    try:
        with tempfile.TemporaryDirectory(prefix="frontrunner-", dir=folder) as tried:
            os.close(os.open(Path(tried, "direct"), os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError as error:
        raise bad_value("cluster.nvme_path", str(folder), f"{what}; here: {error.strerror}") from None


def _check_tools() -> None:
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise _missing(f"there is no C++ compiler ({compiler})", REMEDY)
    if shutil.which("ninja", path=_search_path()) is None:
        raise _missing("there is no ninja", REMEDY)
    command = [compiler, "-x", "c++", "-", "-laio", "-o", os.devnull]
    if subprocess.run(command, input=USES_LIBAIO, text=True, capture_output=True, check=False).returncode != 0:
        raise _missing("there is no libaio to compile against", REMEDY)


def _missing(what: str, remedy: str) -> InvalidInput:
    return InvalidInput(f'space.offload = "nvme" needs DeepSpeed\'s async_io operator: {what}', hint=remedy)


def _search_path() -> str:
    """Where programs are looked for; pip puts ninja beside Python, which need not be on the PATH."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


def _build(device: str) -> None:
    """Compile the operator into a folder beside its own, which is then renamed: no half-built one is ever found."""
    folder = built_folder(device)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder), tempfile.TemporaryDirectory(prefix=".building-", dir=folder.parent) as aside:
        if is_built(device):  # by another process, while this one waited
            return
        log = folder.with_name(f"{folder.name}.log")
        LOGGER.warning("compiling DeepSpeed's async_io operator, once on this machine: minutes; %s", log)
        environment = {"TORCH_EXTENSIONS_DIR": aside, "DS_ACCELERATOR": device, "PATH": _search_path()}
        wrong = _run([sys.executable, "-P", "-m", BUILD_PROGRAM], {**os.environ, **environment}, log)
        if wrong is not None:
            raise FrontrunnerError(f"DeepSpeed's async_io operator was not compiled: {wrong}", hint=f"see {log}")
        shutil.rmtree(folder, ignore_errors=True)  # half a one, since it is not built
        Path(aside).rename(folder)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process of this user builds the folder; the lock goes with the process that holds it."""
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], environment: dict[str, str], log: Path) -> str | None:
    """Run a command and whatever it starts, which end with this call; what went wrong in words, or None."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        status = process.wait(timeout=BUILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"it took more than {BUILD_TIMEOUT_S:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return None if status == 0 else tail(log, 1) or f"it ended with status {status}"

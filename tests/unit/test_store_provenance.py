"""Provenance: what is recorded of a run, and what must not be."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from frontrunner.results.provenance import collect, git_state, gpu_driver_versions
from frontrunner.results.redaction import REDACTED, redact


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["launch", "a.toml", "--seed", "3"], ["launch", "a.toml", "--seed", "3"]),
        (["--hub-token", "abc", "--seed", "3"], ["--hub-token", REDACTED, "--seed", "3"]),
        (["--api-key=abc=def"], [f"--api-key={REDACTED}"]),
        (["DB_PASSWORD=x"], [f"DB_PASSWORD={REDACTED}"]),
        (["--token", "--verbose"], ["--token", "--verbose"]),
        (["hf_abcdefghijklmnop"], [REDACTED]),
        (["--store", "postgresql://me:pass@db/x"], ["--store", f"postgresql://me:{REDACTED}@db/x"]),
        (["--store=postgresql://me:pass@db/x"], [f"--store=postgresql://me:{REDACTED}@db/x"]),
        (["postgresql://h/x?password=hush"], [f"postgresql://h/x?password={REDACTED}"]),
        (
            ["postgresql://me:pass@h/x?password=hush"],
            [f"postgresql://me:{REDACTED}@h/x?password={REDACTED}"],
        ),
        (
            ["postgresql://h/x?user=me&password=hush"],
            [f"postgresql://h/x?user=me&password={REDACTED}"],
        ),
        (
            ["--store=postgresql://h/x?password=hush&sslmode=require"],
            [f"--store=postgresql://h/x?password={REDACTED}&sslmode=require"],
        ),
        (["https://example.org/a:b@c"], ["https://example.org/a:b@c"]),
        (["--export=ALL,HF_TOKEN=abc,SEED=1"], [f"--export=ALL,HF_TOKEN={REDACTED},SEED=1"]),
        (
            ["-c", "export A=1; export HF_TOKEN=abc; run"],
            ["-c", f"export A=1; export HF_TOKEN={REDACTED}; run"],
        ),
        (["-c", "HF_TOKEN='a b' run --seed 3"], ["-c", f"HF_TOKEN={REDACTED}"]),
        (["-c", "exec env DB_PASSWORD='a b' run"], ["-c", f"exec env DB_PASSWORD={REDACTED} run"]),
        (["AWS_SECRET_ACCESS_KEY=x"], [f"AWS_SECRET_ACCESS_KEY={REDACTED}"]),
        (["AWS_ACCESS_KEY=x"], [f"AWS_ACCESS_KEY={REDACTED}"]),
        (["WANDB_API_KEY=x"], [f"WANDB_API_KEY={REDACTED}"]),
        (["MYSQL_PWD=x"], [f"MYSQL_PWD={REDACTED}"]),
        (["--auth-token", "abc"], ["--auth-token", REDACTED]),
        (["-H", "Authorization: Bearer abc"], ["-H", f"Authorization: Bearer {REDACTED}"]),
        *(
            (same, same)
            for same in (
                ["--tokenizer-type", "GPT2BPETokenizer"],
                ["--tokenizer-model=a.model"],
                ["--train-tokens", "300B"],
                ["--tokens-per-batch={global_batch}"],
                ["--moe-token-dispatcher-type", "alltoall"],
                ["--author=x"],
                ["--eos-token", "0"],
                ["HF_TOKEN_PATH=/home/me/token"],
            )
        ),
    ],
)
def test_values_that_look_like_secrets_are_left_out(given: list[str], kept: list[str]) -> None:
    assert redact(given) == tuple(kept)


def test_very_long_words_are_read_in_time_that_grows_with_them() -> None:
    begin = time.process_time()
    redact(["a" * 200_000, "x=" * 100_000, "token " * 30_000])
    assert time.process_time() - begin < 2.0


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_checkout_is_named_with_whether_it_was_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        settings = [
            "-c",
            "user.name=n",
            "-c",
            "user.email=e@example.org",
            "-c",
            "commit.gpgsign=false",
        ]
        done = subprocess.run(
            ["git", "-C", tmp_path, *settings, *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert git_state(tmp_path) == (None, None)
    git("init", "--quiet")
    (tmp_path / "train.py").write_text("pass\n")
    git("add", "train.py")
    git("commit", "--quiet", "--message", "first")
    head = git("rev-parse", "HEAD")
    assert git_state(tmp_path) == (head, False)
    (tmp_path / "train.py").write_text("print()\n")
    assert git_state(tmp_path) == (head, True)


def test_without_git_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    provenance = collect("cpu")
    assert (provenance.git_revision, provenance.git_dirty) == (None, None)
    assert provenance.device == "cpu"


def test_versions_are_read_without_importing_the_packages() -> None:
    script = """
import sys
from frontrunner.results.provenance import collect
heavy = {"torch", "optuna", "deephyper"}
print(sorted(heavy & set(collect("cpu").versions)), sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['deephyper', 'optuna', 'torch'] []"


def test_drivers_versions_are_read_from_the_kernel_s_files(tmp_path: Path) -> None:
    assert gpu_driver_versions(tmp_path) == {}
    nvidia = tmp_path / "proc/driver/nvidia/version"
    nvidia.parent.mkdir(parents=True)
    nvidia.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build "
        " (dvs-builder@U16)\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
    amd = tmp_path / "sys/module/amdgpu/version"
    amd.parent.mkdir(parents=True)
    amd.write_text("6.8.5\n")
    assert gpu_driver_versions(tmp_path) == {"nvidia-driver": "550.54.15", "amdgpu-driver": "6.8.5"}

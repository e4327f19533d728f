"""What is shipped: every package and data file, under one import name, whatever folder it is kept in."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FLOORS = ("spaces", "results", "evaluators", "search")
SOURCES = (*FLOORS, "src")


def folder_of(package: str) -> Path:
    """Where a package's files are kept, by the longest mapping that fits, as setuptools reads it."""
    mapped: dict[str, str] = SETUPTOOLS["package-dir"]
    parent, rest = package, []
    while parent not in mapped:
        parent, _, last = parent.rpartition(".")
        rest.insert(0, last)
    return ROOT.joinpath(mapped[parent], *rest)


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def test_the_list_of_packages_is_the_folders_with_an_init() -> None:
    found = {path.parent for path in python_files(*SOURCES) if path.name == "__init__.py"}
    assert {folder_of(package) for package in SETUPTOOLS["packages"]} == found


def test_every_folder_with_modules_has_an_init() -> None:
    assert all((path.parent / "__init__.py").is_file() for path in python_files(*SOURCES))


def test_no_floor_is_imported_by_its_bare_name() -> None:
    for path in python_files(*SOURCES, "tests", "benchmarks"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            bare = [name for name in names if name.partition(".")[0] in FLOORS]
            assert not bare, f"{path.relative_to(ROOT)}:{node.lineno} imports {bare[0]}"


def test_the_command_s_entry_point_exists() -> None:
    module, function = PROJECT["project"]["scripts"]["frontrunner"].split(":")
    tree = ast.parse((folder_of(module.rpartition(".")[0]) / f"{module.rpartition('.')[2]}.py").read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_versions_agree() -> None:
    from frontrunner import __version__

    assert PROJECT["project"]["version"] == __version__


def test_every_pinned_version_has_its_hashes() -> None:
    _, *entries = re.split(r"\n(?=[^ #])", (ROOT / "requirements-hashed.txt").read_text(encoding="utf-8"))
    digests = re.compile(r"--hash=sha256:[0-9a-f]{64}(?= |$)", re.M)
    hashed = {entry.split(" ", 1)[0]: digests.findall(entry) for entry in entries}
    pinned = re.findall(r"^[^#\s]+==\S+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    assert list(hashed) == pinned, "run: make hashes"
    assert all(hashed.values())


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel that is built, without a network, from a copy of the sources."""
    if find_spec("setuptools") is None or find_spec("pip") is None:
        pytest.skip("building a wheel needs setuptools and pip in this environment")
    copy = tmp_path_factory.mktemp("wheel")
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", PROJECT["project"]["readme"]):
        shutil.copy(ROOT / name, copy / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        "made",
        ".",
    ]
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    built = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (copy / "made").glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_a_wheel_has_one_name_at_its_top(shipped: set[str]) -> None:
    tops = {name.partition("/")[0] for name in shipped}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"frontrunner"}


def test_a_wheel_has_every_module_and_data_file(shipped: set[str]) -> None:
    expected = set()
    for package in SETUPTOOLS["packages"]:
        folder, inside = folder_of(package), package.replace(".", "/")
        files = [path for path in folder.iterdir() if path.suffix == ".py"]
        files += [path for pattern in SETUPTOOLS["package-data"].get(package, []) for path in folder.glob(pattern)]
        expected |= {f"{inside}/{path.relative_to(folder).as_posix()}" for path in files}
    assert {name for name in shipped if name.startswith("frontrunner/")} == expected


def test_every_file_that_is_no_module_is_declared(shipped: set[str]) -> None:
    for package in SETUPTOOLS["packages"]:
        others = [
            path
            for path in folder_of(package).rglob("*")
            if path.is_file() and path.suffix not in {".py", ".pyc"} and "egg-info" not in str(path)
        ]
        for path in others:
            assert any(name.endswith(f"/{path.name}") for name in shipped), f"{path} is not shipped"

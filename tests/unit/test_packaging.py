"""What is shipped: every package and data file, under one import name, whatever folder it is kept
in.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import frontrunner

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DATA = PROJECT["tool"]["setuptools"]["package-data"]
PACKAGE = ROOT / "src" / "frontrunner"
FLOORS = ("spaces", "results", "evaluators", "search")
SOURCES = (*FLOORS, "src")


def packages() -> dict[str, Path]:
    """Each package that is shipped, and the folder that src/frontrunner shows it in."""
    folders = {
        path.parent
        for folder in ("", *FLOORS, "examples")
        for path in (PACKAGE / folder).rglob("*.py")
    }
    return {
        folder.relative_to(PACKAGE.parent).as_posix().replace("/", "."): folder
        for folder in folders
    }


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def test_the_links_of_the_package_lead_to_the_folders_at_the_top() -> None:
    assert {path.name: str(path.readlink()) for path in PACKAGE.iterdir() if path.is_symlink()} == {
        folder: f"../../{folder}" for folder in (*FLOORS, "examples")
    }


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
    tree = ast.parse((PACKAGE.parent / f"{module.replace('.', '/')}.py").read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_versions_agree() -> None:
    from frontrunner import __version__

    assert PROJECT["project"]["version"] == __version__


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel that is built, without a network, from a copy of the sources."""
    if find_spec("setuptools") is None or find_spec("pip") is None:
        pytest.skip("building a wheel needs setuptools and pip in this environment")
    copy = tmp_path_factory.mktemp("wheel")
    for folder in (*SOURCES, "examples"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignored)
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
    built = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (copy / "made").glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_a_wheel_has_one_name_at_its_top(shipped: set[str]) -> None:
    tops = {name.partition("/")[0] for name in shipped}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"frontrunner"}


def test_a_wheel_has_every_module_and_data_file(shipped: set[str]) -> None:
    expected = set()
    for package, folder in packages().items():
        inside = package.replace(".", "/")
        files = [path for path in folder.iterdir() if path.suffix == ".py"]
        files += [path for pattern in DATA.get(package, []) for path in folder.glob(pattern)]
        expected |= {f"{inside}/{path.relative_to(folder).as_posix()}" for path in files}
    assert {name for name in shipped if name.startswith("frontrunner/")} == expected


def test_every_file_that_is_no_module_is_declared(shipped: set[str]) -> None:
    for folder in packages().values():
        others = [
            path
            for path in folder.rglob("*")
            if path.is_file() and path.suffix not in {".py", ".pyc"} and "egg-info" not in str(path)
        ]
        for path in others:
            assert any(name.endswith(f"/{path.name}") for name in shipped), f"{path} is not shipped"


def test_no_module_has_the_name_of_a_public_function() -> None:
    modules = {path.stem for path in PACKAGE.iterdir()}
    assert not modules & set(frontrunner.__all__), "an import of the module would hide the function"

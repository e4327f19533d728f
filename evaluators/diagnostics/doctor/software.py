"""Python, the packages that frontrunner needs, SQLite and the compilers: present, and recent enough?"""

from __future__ import annotations

import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement

from frontrunner.evaluators.diagnostics.doctor.checks import Check, Status, Titled, examination
from frontrunner.evaluators.diagnostics.doctor.wanted import Wanted

SECTION = "software"
LEAST_PYTHON = (3, 11)
LEAST_SQLITE = (3, 35, 0)
"""The first with RETURNING, by which rows are claimed (https://www.sqlite.org/lang_returning.html)."""
COMPILERS = ("c++", "g++", "clang++", "icpx", "hipcc")


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package: the range that is asked for, the version that is installed (None: none), and whose extra asks."""

    name: str
    wanted: Requirement
    installed: str | None
    extra: str | None

    @property
    def fits(self) -> bool:
        """Whether it is installed, in the range."""
        return self.installed is not None and self.wanted.specifier.contains(self.installed, prereleases=True)


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Programs by name, with their paths; None for those that are not on PATH."""

    compiler: str | None
    ninja: str | None


def software_checks(wanted: Wanted) -> list[Titled]:
    """The examinations of this file."""
    return [
        examination(SECTION, "python", lambda: sys.version_info[:3], judge_python),
        examination(SECTION, "packages", gather_packages, lambda found: judge_packages(found, wanted.packages)),
        examination(SECTION, "sqlite", lambda: sqlite3.sqlite_version_info, judge_sqlite),
        examination(SECTION, "compiler", gather_tools, lambda found: judge_tools(found, wanted)),
    ]


def judge_python(version: tuple[int, ...]) -> Iterable[Check]:
    """Python 3.11 or later."""
    words = ".".join(map(str, version))
    if version[:2] >= LEAST_PYTHON:
        yield Check(section=SECTION, name="python", status=Status.OK, found=f"{words}, {platform.machine()}")
    else:
        remedy = "install Python 3.11 or later, and frontrunner with it"
        yield Check(section=SECTION, name="python", status=Status.PROBLEM, found=words, remedy=remedy)


def gather_packages() -> tuple[Package, ...]:
    """What frontrunner's own metadata asks for, beside what is installed."""
    found = []
    for line in metadata.requires("frontrunner") or []:
        wanted = Requirement(line)
        extra = _extra(wanted)
        if extra != "dev":
            found.append(Package(name=wanted.name, wanted=wanted, installed=_installed(wanted.name), extra=extra))
    return tuple(found)


def _extra(wanted: Requirement) -> str | None:
    """The extra that a requirement stands under, from its marker `extra == "name"`."""
    _, _, name = str(wanted.marker or "").partition('extra == "')
    return name.partition('"')[0] or None


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def judge_packages(packages: Sequence[Package], needed: Sequence[str]) -> Iterable[Check]:
    """Problems for what must be there; extras that are not installed are one note, unless the campaign needs them."""
    must = [package for package in packages if package.extra is None or package.name in needed]
    for package in must:
        if not package.fits:
            yield _unfit(package)
    if all(package.fits for package in must):
        told = ", ".join(f"{package.name} {package.installed}" for package in must)
        yield Check(section=SECTION, name="packages", status=Status.OK, found=told)
    lacking = [package for package in packages if package not in must and not package.fits]
    absent = sorted({package.extra for package in lacking if package.extra is not None})
    if absent:
        found, remedy = (
            f"extras not installed: {', '.join(absent)}",
            "pip install 'frontrunner[NAME]' for what they add",
        )
        yield Check(section=SECTION, name="extras", status=Status.NOTE, found=found, remedy=remedy)


def _unfit(package: Package) -> Check:
    wants = f"{package.name}{package.wanted.specifier}"
    how = "is not installed" if package.installed is None else f"is {package.installed}"
    what = f"frontrunner[{package.extra}]" if package.extra else wants
    return Check(
        section=SECTION,
        name=package.name,
        status=Status.PROBLEM,
        found=f"{package.name} {how}: expected {wants}",
        remedy=f"pip install '{what}'",
    )


def judge_sqlite(version: tuple[int, ...]) -> Iterable[Check]:
    """The library that Python brings: stores in files need its RETURNING."""
    words = ".".join(map(str, version))
    if version >= LEAST_SQLITE:
        yield Check(section=SECTION, name="sqlite", status=Status.OK, found=words)
    else:
        least = ".".join(map(str, LEAST_SQLITE))
        remedy = f"use a Python that brings SQLite {least} or later"
        yield Check(section=SECTION, name="sqlite", status=Status.PROBLEM, found=words, remedy=remedy)


def gather_tools() -> Tools:
    """The first C++ compiler on PATH, and ninja."""
    compilers: Mapping[str, str | None] = {name: shutil.which(name) for name in COMPILERS}
    return Tools(compiler=next(filter(None, compilers.values()), None), ninja=shutil.which("ninja"))


def judge_tools(tools: Tools, wanted: Wanted) -> Iterable[Check]:
    """A compiler for torch.compile and Triton, ninja for DeepSpeed's operators: problems only where a campaign asks."""
    missing = {"a C++ compiler": wanted.compiles or wanted.disk_folder is not None, "ninja": bool(wanted.disk_folder)}
    present = {"a C++ compiler": tools.compiler, "ninja": tools.ninja}
    for name, needed in missing.items():
        if present[name] is None:
            use = "torch.compile" if name != "ninja" else "DeepSpeed's operators for offload to a disk"
            yield Check(
                section=SECTION,
                name="compiler",
                status=Status.PROBLEM if needed else Status.NOTE,
                found=f"{name} is not on PATH: {use} cannot be used",
                remedy="install g++ or load a compiler's module" if name != "ninja" else "pip install ninja",
            )
    there = [path for path in present.values() if path]
    if there:
        yield Check(section=SECTION, name="compiler", status=Status.OK, found=", ".join(there))

"""Mutation test: change one line of the product at a time, and see whether a quick test fails.

    python benchmarks/mutate.py --count 100 --seed 1 [--seconds 60] [--files 20] [--json FILE]

The mutations are in function bodies: another comparison or operator, `and` for `or`, a number that
is 1 larger, a condition negated, a call left out, None returned. Each is drawn uniformly from the
lines that have any. One process imports the product and collects the tests once. Each mutant is a
fork of it, where the code of the mutated function is replaced in place; modules stay as imported.

The tests of a mutant come from the test files nearest to the mutated file by imports, `--files` of
them. Each of these files runs once without a mutation, in a fork that records which functions each
test enters (kept in build/mutate). Of the nearest files, the tests that pass and enter the mutated
function then run on the mutant, until one fails (`killed`), all passed (`survived`), or they took
`--seconds` of processor time (`undecided`). A test that times out has failed.

Child processes of a test import the mutant from a copy of the package. What they execute is not
recorded. Where no test enters the mutated function, the tests of the 4 nearest files run whole. On
mutants of the trainer the smoke tests run too. Equivalent mutants count as survived.

A mutant is wrong code that runs: it cannot signal processes that were there before it, but child
processes of its tests can, and files are not protected. Run it where nothing else is precious.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import errno
import functools
import gc
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import psutil
import pytest
from mutate_drawing import Mutation, draw

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "frontrunner"
TRAINER = PACKAGE / "evaluators" / "trainer"
RECORDS = ROOT / "build" / "mutate"
QUICK = "(unit or contract or smoke) and not nightly"
TEST_LIMIT_S = 120
"""Wall time of one test. The machine may be busy."""
FILES_OF_CHILDREN = 4
"""Nearest test files that run whole where no test enters the mutated function by itself."""
SPARE = 1.3
"""Mutations drawn for each that is wanted, because a few cannot be applied."""


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def apply(mutation: Mutation) -> bool:
    """Replace the code of live functions by the mutated code; False where there are none.

    Caches of all functions of the product are emptied, since they may hold results of the old code.
    """
    compiled = compile(mutation.source, str(mutation.path), "exec", dont_inherit=True)
    mutated = {(code.co_qualname, code.co_firstlineno): code for code in codes(compiled)}
    replaced = False
    for thing in gc.get_objects():
        if type(thing) is functools._lru_cache_wrapper:  # isinstance would ask proxies
            if str(getattr(thing, "__module__", "")).startswith("frontrunner"):
                thing.cache_clear()
        elif type(thing) is FunctionType and thing.__code__.co_filename == str(mutation.path):
            code = mutated.get((thing.__code__.co_qualname, thing.__code__.co_firstlineno))
            if code is not None and code != thing.__code__:
                try:
                    thing.__code__ = code
                except ValueError:  # another number of variables of the function around it
                    return False
                replaced = True
    return replaced


def spare_others() -> None:
    """Let this process signal no process that is there already: a mutant may err in the target."""
    others = set(psutil.pids()) - {os.getpid()}
    for function in (os.kill, os.killpg):

        def guarded(target: int, number: int, function: Any = function) -> None:
            if number and (target in others or target < 0):
                raise PermissionError(errno.EPERM, "not a process of this mutant", str(target))
            function(target, number)

        setattr(os, function.__name__, guarded)


def in_fork(work: Callable[[], Any], limit_s: float, *, too_long: Any = None) -> Any:
    """Return what `work` returns in a forked process; None where the process died."""
    with tempfile.TemporaryFile("w+") as answer:
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                spare_others()
                silent = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(silent, descriptor)
                json.dump({"value": work()}, answer)
            except Exception:  # of this program: tests catch their own
                answer.seek(0)
                json.dump({"error": traceback.format_exc()}, answer)
            finally:
                answer.flush()
                os._exit(0)
        outcome = {"value": None}
        deadline = time.monotonic() + limit_s
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                outcome = {"value": too_long}
                break
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # processes that tests left behind
        answer.seek(0)
        outcome = json.loads(answer.read() or json.dumps(outcome))
    if "error" in outcome:
        raise RuntimeError(outcome["error"])
    return outcome["value"]


def processor_time() -> float:
    """Return the processor seconds of this process and of its finished children."""
    return sum(os.times()[:4])


def judge(mutation: Mutation, tests: list[Callable[[], bool]], seconds: float) -> str:
    """Return what becomes of a mutant; `tests` return whether they pass."""

    def work() -> str:
        if not apply(mutation):
            return "not applicable"
        start = processor_time()
        for test in tests:
            if processor_time() - start > seconds:
                return "undecided"
            if not test():
                return "killed"
        return "survived"

    limit_s = 10 * seconds + TEST_LIMIT_S
    verdict = in_fork(work, limit_s, too_long="undecided")
    return str(verdict or "killed")  # a process that died did not pass its tests


def module_name(path: Path) -> str:
    """Return the name by which a file of the product or of the tests is imported."""
    base = PACKAGE.parent if path.is_relative_to(PACKAGE) else ROOT / "tests"
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(paths: dict[str, Path]) -> dict[str, set[str]]:
    """Return which of the modules each module imports, inside functions and by text too.

    A text is a module's full name, perhaps with `:function`, or `module:function` of a neighbor.
    """
    imported: dict[str, set[str]] = {}
    for module, path in paths.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                full_names = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= {name if name in paths else node.module for name in full_names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                name, is_function, _ = node.value.partition(":")
                names |= {name, f"{module.rpartition('.')[0]}.{name}"} if is_function else {name}
        imported[module] = names & set(paths)
    return imported


class Nearest:
    """The quick test files of a product file: those that reach it by the fewest imports first."""

    def __init__(self, product: list[Path]) -> None:
        self.tests = sorted(
            path
            for path in (ROOT / "tests").rglob("test_*.py")
            if path.parent.name in ("unit", "contract") or "mark.smoke" in path.read_text()
        )
        support = (ROOT / "tests" / "support").glob("*.py")
        self.imported = imports(
            {module_name(path): path for path in [*product, *support, *self.tests]}
        )
        lazily = importlib.import_module("frontrunner")._MODULES
        self.imported["frontrunner"] = {f"frontrunner.{module}" for module in lazily}

    def __call__(self, path: Path, count: int) -> list[Path]:
        """Return the `count` nearest test files; of equally near ones, those that import least.

        Files of the trainer also get the test files with smoke tests, whose ranks are processes
        that no import shows.
        """
        distances = {module_name(path): 0}
        queue = [module_name(path)]
        for module in queue:
            for importer, imported in self.imported.items():
                if module in imported and importer not in distances:
                    distances[importer] = distances[module] + 1
                    queue.append(importer)
        words = set(path.relative_to(PACKAGE).with_suffix("").as_posix().split("/"))
        ranked = []
        smoke = []
        for test in self.tests:
            name = module_name(test)
            if test.parent.name == "system":
                smoke.append(test)
            elif name in distances:
                shared = len(words & set(test.stem.split("_")))
                ranked.append((distances[name], -shared, len(self.imported[name]), test))
        quick = [test for *_, test in sorted(ranked)][:count]
        # The tests of numerics start their ranks fastest, and see most.
        smoke.sort(key=lambda test: "numerics" not in test.stem)
        return quick + (smoke if path.is_relative_to(TRAINER) else [])


class Runner:
    """A pytest plugin that runs the collected tests in forks, in place of the usual loop."""

    def __init__(self, options: argparse.Namespace, drawn: list[Mutation], nearest: Nearest):
        self.options = options
        self.drawn = drawn
        self.nearest = nearest
        self.failed = False
        self.results: list[dict[str, Any]] = []
        self.recorded: dict[Path, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed

    def passes(self, item: pytest.Item, next_item: pytest.Item | None) -> bool:
        """Run one test. After a failure the fixtures of later tests are torn down too."""
        self.failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        if self.failed and next_item is not None:
            item.session._setupstate.teardown_exact(None)
        return not self.failed

    def record(self, path: Path, items: list[pytest.Item]) -> dict[str, Any]:
        """Return, for the tests of a file that pass, which functions of the product they enter."""
        kept = RECORDS / f"{path.stem}.json"
        key = hashlib.sha256(path.read_bytes() + self.options.digest).hexdigest()
        if kept.exists():
            known = json.loads(kept.read_text())
            if known["key"] == key:
                return known  # type: ignore[no-any-return]

        def work() -> dict[str, Any]:
            entered: set[CodeType] = set()
            functions: dict[str, list[str]] = {}

            def enter(frame: FrameType, _event: str, _argument: object) -> None:
                entered.add(frame.f_code)

            threading.settrace(enter)  # type: ignore[arg-type]
            for index, item in enumerate(items):
                entered.clear()
                sys.settrace(enter)  # type: ignore[arg-type]
                passed = self.passes(item, items[index + 1] if index + 1 < len(items) else None)
                sys.settrace(None)
                for code in set(entered) if passed else ():
                    if code.co_filename.startswith(f"{PACKAGE}/"):
                        name = f"{Path(code.co_filename).relative_to(PACKAGE)}:{code.co_qualname}"
                        functions.setdefault(name, []).append(item.nodeid)
            return {"key": key, "functions": functions}

        answer = in_fork(work, limit_s=TEST_LIMIT_S * 10) or {"key": "", "functions": {}}
        if answer["functions"]:  # else the file could not be collected, or took too long
            RECORDS.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(answer))
        return answer  # type: ignore[no-any-return]

    def tests_of(self, mutation: Mutation, session: pytest.Session) -> list[pytest.Item]:
        """Return the tests that enter the mutated function; the smoke tests of trainer files.

        Where no test enters it, child processes may: return the tests of the nearest files.
        """
        name = f"{mutation.path.relative_to(PACKAGE)}:{mutation.function}"
        entering: list[pytest.Item] = []
        nearest: list[pytest.Item] = []
        smoke: list[pytest.Item] = []
        for index, path in enumerate(self.nearest(mutation.path, self.options.files)):
            items = [item for item in session.items if item.path == path]
            smoke += [item for item in items if item.get_closest_marker("smoke")]
            quick = [item for item in items if item.get_closest_marker("smoke") is None]
            if not quick:
                continue
            if path not in self.recorded:
                self.recorded[path] = self.record(path, quick)
            functions = self.recorded[path]["functions"]
            entering += [item for item in quick if item.nodeid in functions.get(name, ())]
            if index < FILES_OF_CHILDREN:
                passing = set().union(*functions.values())
                nearest += [item for item in quick if item.nodeid in passing]
        return (entering or nearest) + (smoke if mutation.path.is_relative_to(TRAINER) else [])

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "frontrunner"
            shutil.copytree(PACKAGE, package)
            os.environ["PYTHONPATH"] = folder
            for mutation in self.drawn:
                if len(self.results) == self.options.count:
                    break
                copied = package / mutation.path.relative_to(PACKAGE)
                importlib.import_module(module_name(mutation.path))
                items = self.tests_of(mutation, session)
                following = [*items[1:], None]
                tests = [
                    functools.partial(self.passes, item, next_item)
                    for item, next_item in zip(items, following, strict=False)
                ]
                start = processor_time()
                copied.write_text(mutation.source, encoding="utf-8")
                verdict = judge(mutation, tests, self.options.seconds)
                shutil.copy2(mutation.path, copied)
                if verdict == "not applicable":
                    continue
                self.results.append(
                    {
                        "verdict": verdict,
                        "package": package_of(mutation.path),
                        "file": str(mutation.path.resolve().relative_to(ROOT)),
                        "line": mutation.line,
                        "before": mutation.before,
                        "after": mutation.after,
                        "tests": len(tests),
                        "processor_s": round(processor_time() - start, 1),
                    }
                )
                print(line_of(self.results[-1]), file=sys.stderr, flush=True)
        return True


def package_of(path: Path) -> str:
    top, *inner = path.relative_to(PACKAGE).parts
    if top == "evaluators" and len(inner) > 1:
        return f"evaluators/{inner[0]}"
    return top if (ROOT / top).is_dir() else "src"


def line_of(result: dict[str, Any]) -> str:
    return (
        f"{result['verdict']}: {result['file']}:{result['line']} ({result['tests']} tests,"
        f" {result['processor_s']} s)\n    - {result['before']}\n    + {result['after']}"
    )


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table of packages. Undecided mutants are not part of the rate."""
    yield f"{'package':26}{'killed':>8}{'survived':>10}{'undecided':>11}{'rate':>7}"
    packages = sorted({result["package"] for result in results})
    for package in [*packages, "all"]:
        counts = Counter(r["verdict"] for r in results if package in (r["package"], "all"))
        decided = counts["killed"] + counts["survived"]
        rate = f"{counts['killed'] / decided:.0%}" if decided else "-"
        yield (
            f"{package:26}{counts['killed']:8}{counts['survived']:10}"
            f"{counts['undecided']:11}{rate:>7}"
        )


def main() -> None:
    """Draw mutations, run their tests, print the rate at which they were killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="mutations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="processor time of a mutant")
    parser.add_argument("--files", type=int, default=20, help="nearest test files of a mutant")
    parser.add_argument("--json", type=Path, help="file to write the mutants to")
    options = parser.parse_args()
    product = [
        path
        for top in PACKAGE.iterdir()
        if top.name != "examples"
        for path in ([top] if top.is_file() else top.rglob("*.py"))
        if path.suffix == ".py" and path.name != "__main__.py"
    ]
    sources = [*product, *(ROOT / "tests" / "support").rglob("*.py")]
    options.digest = b"".join(hashlib.sha256(p.read_bytes()).digest() for p in sorted(sources))
    nearest = Nearest(product)
    drawn = draw(product, round(options.count * SPARE), options.seed)
    files = {test for mutation in drawn for test in nearest(mutation.path, options.files)}
    runner = Runner(options, drawn, nearest)
    arguments = ["-q", "-s", "-m", QUICK, f"--timeout={TEST_LIMIT_S}", f"--rootdir={ROOT}"]
    arguments += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
    with tempfile.TemporaryDirectory() as folder:
        arguments += ["--basetemp", f"{folder}/tests"]
        pytest.main([*arguments, *map(str, sorted(files))], plugins=[runner])
    print("\n".join(table(runner.results)))
    for result in runner.results:
        if result["verdict"] != "killed":
            print(line_of(result))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(runner.results, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Plants small faults in the code, one at a time, and counts those that the everyday tests find.

    python tools/mutants.py                      all parts: the table, and the mutants that no test found
    python tools/mutants.py _rules js/src/data   only these parts
    python tools/mutants.py --count=60           more mutants of each Python part (--seed=2: others)
    python tools/mutants.py --again              only those that the last run did not find, with more tests
    python tools/mutants.py --keep               write the table of the last runs into CONTRIBUTING.md

The faults in Python are those of Cosmic Ray: another operator, another number, a condition turned round, a loop that
does not run. Each is written into a copy of the checkout under .mutants/, so the code under test is real code; a
mutant that only its annotations tell apart is left out. One run of the everyday tests notes which test runs which
line, then each mutant meets the tests that run its line, the quickest first, for half a minute at most by the time that
they took. A test in a browser counts for nothing here, so the figures are the least that the lane can do. In
TypeScript, Stryker does the same with every mutant of three folders (js/mutants/ has its settings).

tests/survivors.json accepts mutants, each with its reason: it is equal to the code, by proof, or nobody can see it.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from minutes import write_between

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".mutants"
RESULT = FOLDER / "result.json"
ACCEPTED = ROOT / "tests" / "survivors.json"
PARTS = ("_engine", "_analysis", "_rules", "_messages", "_widget", "_capture", "attention.py", "masks.py")
JS_PARTS = ("js/src/data", "js/src/geometry", "js/src/text")
STRYKER_RESULT = ROOT / "test-artifacts" / "mutants.json"
LANE = "not (thorough or browser or notebook or packaging)"
WANTED = 85  # percent
PROCESSES = 2
PATIENCE = 30.0  # seconds of tests for one mutant, by the time that they took
STARTING = 90.0  # seconds more until a run counts as one that does not end
# Operators of Cosmic Ray whose faults are small enough to look right; `x ** y` for `x + y` fails everywhere.
OPERATORS = (
    *("NumberReplacer", "AddNot", "ZeroIterationForLoop", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Invert"),
    *(
        f"ReplaceBinaryOperator_{pair}"
        for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul")
    ),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("BitAnd_BitOr", "BitOr_BitAnd", "BitXor_BitOr")),
    *(
        f"ReplaceComparisonOperator_{pair}"
        for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_GtE", "Gt_LtE", "Eq_NotEq", "NotEq_Eq")
    ),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Is_IsNot", "IsNot_Is", "In_NotIn", "NotIn_In")),
)


# Assertions and promises to type checkers: without them the same code runs on the same values.
PROMISES = ("strict=True", "frozen=True", "assert ", "*,", "if TYPE_CHECKING:", "(TypedDict, total=")


class Mutant(NamedTuple):
    """One fault: an operator of Cosmic Ray at a place of a file, and the lines that it changes."""

    path: str
    operator: str
    occurrence: int
    line: int
    within: str
    before: str
    after: str
    code: str


class Lane(NamedTuple):
    """What one run of the everyday tests told: the seconds of each test, and the tests that run each line."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]


def without_annotations(code: str) -> str:
    """Return code as a tree without annotations and docstrings, which change nothing that runs.

    >>> without_annotations("x: int | None = 1") == without_annotations("x: int & None = 1")
    True
    """
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def places_of(path: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield what can be mutated in a file: the operator, its occurrence, the line, and the definition around it."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    code = (ROOT / path).read_text(encoding="utf-8")
    nodes, names = list(ast_nodes(get_ast(code))), definitions(code)
    for name in operator_names():
        if name.split("/")[1] in OPERATORS:
            operator = get_operator(name)()
            starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
            yield from ((name, occurrence, line, names.get(line, "")) for occurrence, (line, _) in enumerate(starts))


def mutant_at(path: str, operator: str, occurrence: int, line: int, within: str) -> Mutant | None:
    """Return a mutant; None where it cannot be read, or differs only in an annotation or an assertion."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    code = (ROOT / path).read_text(encoding="utf-8")
    mutated = mutate_code(code, get_operator(operator)(), occurrence)
    if mutated is None or not runs(mutated) or without_annotations(mutated) == without_annotations(code):
        return None
    changed = changed_lines(code.splitlines(), mutated.splitlines())
    if any(one in changed[0] and (one not in changed[1] or changed[0].startswith(one)) for one in PROMISES):
        return None
    return Mutant(path, operator.split("/")[1], occurrence, line, within, *changed, mutated)


def runs(code: str) -> bool:
    """Return whether Python can read code."""
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def changed_lines(before: Sequence[str], after: Sequence[str]) -> tuple[str, str]:
    """Return the lines that differ, of the code and of the mutant, without the space around them."""
    length = min(len(before), len(after))
    start = next((at for at in range(length) if before[at] != after[at]), length)
    end = next((at for at in range(length - start) if before[-1 - at] != after[-1 - at]), length - start)
    return tuple("\n".join(line.strip() for line in lines[start : len(lines) - end]) for lines in (before, after))  # type: ignore[return-value]


def definitions(code: str) -> dict[int, str]:
    """Return the dotted name of the function or class that holds each line."""
    found: dict[int, str] = {}

    def walk(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = f"{name}.{child.name}" if name else child.name
                found.update(dict.fromkeys(range(child.lineno, (child.end_lineno or child.lineno) + 1), inner))
            walk(child, inner)

    walk(ast.parse(code), "")
    return found


def statement_lines(code: str, line: int) -> range:
    """Return the lines of the smallest statement around a line; of a compound one only its head.

    The head of a function, with its defaults, counts as its body: it runs when the module is imported.
    """
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            if line <= end:
                found = range(node.lineno, max(node.lineno, end) + 1)
                if body and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    found = range(body[0].lineno, (node.end_lineno or node.lineno) + 1)
    return found


def sampled(part: str, count: int, seed: int) -> list[Mutant]:
    """Return a fixed sample of a part's mutants: places by a hash of their lines, one mutant for each place.

    A change of one function leaves the sample of the others as it was.
    """

    def drawn(*words: object) -> str:
        return hashlib.sha256(repr((seed, *words)).encode()).hexdigest()

    places: dict[tuple[str, str, str], list[tuple[str, int, int, str]]] = defaultdict(list)
    for path in files_of(part):
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        for place in places_of(path):
            places[path, place[3], lines[place[2] - 1].strip()].append(place)
    chosen: list[Mutant] = []
    for path, *line in sorted(places, key=lambda place: drawn(*place)):
        tried = sorted(places[path, line[0], line[1]], key=lambda place: drawn(*line, place[0], place[1]))
        found = next(filter(None, (mutant_at(path, *place) for place in tried)), None)
        chosen += [found] if found else []
        if len(chosen) == count:
            break
    return chosen


def files_of(part: str) -> list[str]:
    """Return the files of a part, from the root of the checkout."""
    start = ROOT / "attnwidget" / part
    paths = [start] if start.is_file() else sorted(start.rglob("*.py"))
    return [path.relative_to(ROOT).as_posix() for path in paths]


def copy_checkout(to: Path) -> Path:
    """Copy the files that git knows, as they are now, and the built front-end."""
    shutil.rmtree(to, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    folders = (ROOT / "attnwidget" / "static", ROOT / "attnwidget" / "_engine" / "compiled")
    built = [path.relative_to(ROOT).as_posix() for folder in folders for path in folder.glob("*")]
    for name in [*listed.stdout.split("\0"), *built]:
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def environment(checkout: Path) -> dict[str, str]:
    """Return the environment in which tests import the package from a copy, with the same random examples each time."""
    path = os.pathsep.join((str(checkout), str(checkout / "tools")))
    own = {"PYTHONPATH": path, "CI": "true", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **own}


def run_lane(checkout: Path) -> Lane:
    """Run the everyday tests in a copy, and return what each took and which lines it ran.

    Raises:
        SystemExit: A test fails without any fault.
    """
    import coverage

    report = FOLDER / "lane.jsonl"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(PROCESSES), "--dist=loadgroup", "-m", LANE]
    command += ["-p", "mutants", "--cov=attnwidget", "--cov-context=test", "--cov-report="]
    settings = {**environment(checkout), "MUTANTS_REPORT": str(report)}
    if subprocess.run(command, cwd=checkout, env=settings).returncode:
        raise SystemExit("the everyday tests fail without a fault: mend them, then run this again")
    seconds: dict[str, float] = defaultdict(float)
    for line in report.read_text(encoding="utf-8").splitlines():
        test, took = json.loads(line)
        seconds[test] += took
    data = coverage.CoverageData(str(checkout / ".coverage"))
    data.read()
    by_file = defaultdict(list)
    for test in seconds:
        by_file[test.split("::")[0]].append(test)
    lines: dict[str, dict[int, list[str]]] = {}
    for path in data.measured_files():
        name = Path(path).relative_to(checkout).as_posix()
        lines[name] = {
            line: sorted(tests_of(contexts, by_file)) for line, contexts in data.contexts_by_lineno(path).items()
        }
    return Lane(dict(seconds), lines)


def tests_of(contexts: Iterable[str], by_file: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the tests of contexts of coverage; what a fixture runs counts for all tests of its file."""
    found: set[str] = set()
    for context in contexts:
        test, _, phase = context.rpartition("|")
        if test:
            found |= set(by_file[test.split("::")[0]]) if phase == "setup" else {test}
    return found


def tests_for(mutant: Mutant, lane: Lane, patience: float) -> list[str]:
    """Return the tests that meet a mutant, the quickest first, for so many seconds in all.

    What runs when the module is imported, as a constant, belongs to all tests that run a line of the module.
    """
    lines = lane.lines.get(mutant.path, {})
    code = (ROOT / mutant.path).read_text(encoding="utf-8")
    own = statement_lines(code, mutant.line)
    names = {test for line in own for test in lines.get(line, ())}
    if not names and any(line in lines for line in own):
        names = {test for tests in lines.values() for test in tests}
    chosen, left = [], patience
    for test in sorted(names, key=lambda test: (lane.seconds.get(test, 0.0), test)):
        left -= lane.seconds.get(test, 0.0)
        if left < 0:
            break
        chosen.append(test)
    return chosen


def is_found(mutant: Mutant, tests: Sequence[str], checkout: Path) -> str:
    """Return which test finds a mutant, or "" for none; a run that does not end has found it."""
    if not tests:
        return ""
    path = checkout / mutant.path
    original = path.read_bytes()
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    wanted = checkout / "wanted.json"
    wanted.write_text(json.dumps(tests), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "mutants", "-p", "no:cacheprovider", *files]
    settings = {**environment(checkout), "MUTANTS_WANTED": str(wanted)}
    try:
        path.write_text(mutant.code, encoding="utf-8")
        done = subprocess.run(
            command, cwd=checkout, env=settings, capture_output=True, text=True, timeout=STARTING + 12 * PATIENCE
        )
    except subprocess.TimeoutExpired:
        return "no end"
    finally:
        path.write_bytes(original)
    if done.returncode == 0:
        return ""
    last = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return last[0].split(" - ")[0] if last else "no start"


def pytest_configure(config: Any) -> None:
    """As a plugin of pytest (`-p mutants`): write what tests take, or run only the wanted ones, in their order."""
    report, wanted = os.environ.get("MUTANTS_REPORT"), os.environ.get("MUTANTS_WANTED")
    if report and not hasattr(config, "workerinput"):

        def pytest_runtest_logreport(report: Any, to: Path = Path(report)) -> None:
            with to.open("a", encoding="utf-8") as file:
                file.write(json.dumps([report.nodeid, report.duration]) + "\n")

        config.pluginmanager.register(SimpleNamespace(pytest_runtest_logreport=pytest_runtest_logreport))
    if wanted:
        order = {test: at for at, test in enumerate(json.loads(Path(wanted).read_text(encoding="utf-8")))}

        def pytest_collection_modifyitems(items: list[Any]) -> None:
            items[:] = sorted(
                (item for item in items if item.nodeid in order), key=lambda item: int(order[item.nodeid])
            )

        config.pluginmanager.register(SimpleNamespace(pytest_collection_modifyitems=pytest_collection_modifyitems))


def accepted() -> dict[tuple[str, ...], str]:
    """Return the mutants that are accepted, with their reasons."""
    kept = json.loads(ACCEPTED.read_text(encoding="utf-8")) if ACCEPTED.exists() else []
    return {identity(one): one["reason"] for one in kept}


def identity(one: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what tests/survivors.json knows a mutant by; it outlives changes of other lines."""
    return one["path"], one["within"], one["before"], one["after"]


def run_python(mutants: Sequence[Mutant], patience: float = PATIENCE) -> list[dict[str, Any]]:
    """Run the tests on each mutant, two at a time, and return what became of each."""
    copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for number in range(PROCESSES):
        copies.put(copy_checkout(FOLDER / str(number)))
    lane, reasons = run_lane(copy_checkout(FOLDER / "lane")), accepted()

    def try_one(mutant: Mutant) -> dict[str, Any]:
        checkout = copies.get()
        try:
            tests = [] if identity(mutant._asdict()) in reasons else tests_for(mutant, lane, patience)
            found = is_found(mutant, tests, checkout)
        finally:
            copies.put(checkout)
        kept = {**mutant._asdict(), "tests": len(tests), "found": found}
        del kept["code"]
        print("." if found else f"\nnot found by {len(tests)} tests: {in_words(kept)}", end="", flush=True)
        return kept

    with ThreadPoolExecutor(PROCESSES) as pool:
        return list(pool.map(try_one, mutants))


def run_javascript(parts: Iterable[str]) -> list[dict[str, Any]]:
    """Let Stryker plant faults in folders of the front-end, and return what became of each.

    Raises:
        SystemExit: A test fails without any fault, or Stryker cannot run.
    """
    npm = [sys.executable, str(ROOT / "tools" / "js.py"), "npm"]
    folders = ",".join(f"{part.removeprefix('js/')}/*.ts" for part in parts)
    STRYKER_RESULT.unlink(missing_ok=True)
    subprocess.run([*npm, "ci", "--prefix", "mutants", "--no-audit", "--no-fund"], cwd=ROOT, check=True)
    stryker = ["exec", "--prefix", "mutants", "--", "stryker", "run", "mutants/stryker.config.json"]
    subprocess.run([*npm, *stryker, "--mutate", folders], cwd=ROOT, check=False)
    if not STRYKER_RESULT.exists():
        raise SystemExit("Stryker has written no result: its own words are above")
    return list(mutants_of_stryker(json.loads(STRYKER_RESULT.read_text(encoding="utf-8"))["files"]))


def mutants_of_stryker(files: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the mutants of Stryker's report as those of Python are kept; a mutant that does not compile is left out."""
    for name, file in sorted(files.items()):
        lines = file["source"].splitlines(keepends=True)
        for one in file["mutants"]:
            if one["status"] not in ("Killed", "Timeout", "Survived", "NoCoverage"):
                continue
            start, end = (at(lines, one["location"][side]) for side in ("start", "end"))
            mutated = file["source"][:start] + one["replacement"] + file["source"][end:]
            before, after = changed_lines(file["source"].splitlines(), mutated.splitlines())
            found = one["status"] if one["status"] in ("Killed", "Timeout") else ""
            line = one["location"]["start"]["line"]
            yield {
                "path": f"js/{name}",
                "line": line,
                "within": one["mutatorName"],
                "before": before,
                "after": after,
            } | {
                "found": found,
                "tests": len(one.get("coveredBy", ())),
            }


def at(lines: Sequence[str], place: Mapping[str, int]) -> int:
    """Return where a place of Stryker's report is in the text; its lines and columns begin at 1."""
    return sum(map(len, lines[: place["line"] - 1])) + place["column"] - 1


def in_words(one: Mapping[str, Any]) -> str:
    """Return a mutant as a person reads it."""
    return f"{one['path']}:{one['line']} {one['within']}\n  - {one['before']}\n  + {one['after']}\n"


def part_of(path: str) -> str:
    """Return the part that a file belongs to."""
    return next(part for part in (*PARTS, *JS_PARTS) if f"attnwidget/{part}" == path or f"/{part}/" in f"/{path}")


def count_of(results: Iterable[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """Return for each part, and for all, how many mutants were found, are accepted, and are neither."""
    counts: dict[str, Counter[str]] = {part: Counter() for part in (*PARTS, *JS_PARTS, "all")}
    reasons = accepted()
    for one in results:
        for row in (part_of(one["path"]), "all"):
            counts[row]["found" if one["found"] else "accepted" if identity(one) in reasons else "open"] += 1
    return {part: count for part, count in counts.items() if count}


def table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a Markdown table: the mutants of each part, those found, and those accepted."""
    rows = ["| part | mutants | found | not found, with a reason | not found | found, in percent |"]
    rows.append("|---|---|---|---|---|---|")
    for part, count in count_of(results).items():
        numbers = count.total(), count["found"], count["accepted"], count["open"]
        rows.append(f"| `{part}` | {' | '.join(map(str, numbers))} | {100 * count['found'] / count.total():.0f} |")
    return rows


def survivors(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a Markdown list of the mutants that were not found, each with its reason."""
    reasons = accepted()
    lines = []
    for one in results:
        if not one["found"]:
            before, after = (" ".join(one[side].split()) for side in ("before", "after"))
            reason = reasons.get(identity(one), "**open**")
            lines.append(f"- `{one['path']}`, {one['within']}: `` {before} `` → `` {after} ``: {reason}")
    return lines


def share(count: Counter[str]) -> float:
    """Return the percentage of mutants that are found."""
    return 100 * count["found"] / max(1, count.total())


def main(arguments: Sequence[str]) -> int:
    """Run the parts, print the table, and return 1 where fewer are found than wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join((*PARTS, *JS_PARTS))} (all)")
    parser.add_argument("--count", type=int, default=30, help="mutants of each Python part (30)")
    parser.add_argument("--seed", type=int, default=1, help="another number draws others (1)")
    parser.add_argument("--again", action="store_true", help="only the Python mutants that the last run did not find")
    parser.add_argument("--keep", action="store_true", help="run nothing: write the table of the last runs")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - {*PARTS, *JS_PARTS}:
        parser.error(f"no part is called {unknown.pop()!r}: give some of {', '.join((*PARTS, *JS_PARTS))}")
    results = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else []
    if given.keep:
        write_between(ROOT / "CONTRIBUTING.md", "tools/mutants.py", table(results))
        return 0
    parts = given.parts or (PARTS if given.again else [*PARTS, *JS_PARTS])
    new = []
    if in_python := [part for part in parts if part in PARTS]:
        mutants = [one for part in in_python for one in sampled(part, given.count, given.seed)]
        known = {identity(one): one for one in results if given.again and one["found"]}
        new += [known[identity(one._asdict())] for one in mutants if identity(one._asdict()) in known]
        left = [one for one in mutants if identity(one._asdict()) not in known]
        new += run_python(left, PATIENCE * (4 if given.again else 1))
    if in_javascript := [part for part in parts if part in JS_PARTS]:
        new += run_javascript(in_javascript)
    FOLDER.mkdir(exist_ok=True)
    RESULT.write_text(
        json.dumps([one for one in results if part_of(one["path"]) not in parts] + new, indent=1), encoding="utf-8"
    )
    print("\n\n" + "\n".join([*table(new), "", *survivors(new)]))
    return int(share(count_of(new)["all"]) < WANTED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

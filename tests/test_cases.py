"""tests/cases.toml maps every reported fault to a test, or to the capability that its test waits for."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CASES = tomllib.loads((ROOT / "tests" / "cases.toml").read_text(encoding="utf-8"))
REPORTS = ROOT.parent / "shared" / "cases" / "reports.md"
KEYS = {"test", "refused", "later", "note"}


def entries() -> dict[str, dict[str, object]]:
    """Id -> its entry; a bare string or list is a test."""
    found: dict[str, dict[str, object]] = {}
    for kind, cases in CASES.items():
        if kind == "capabilities":
            continue
        for name, value in cases.items():
            assert name.startswith(kind) and name[1:].isdigit(), f"{name} stands under [{kind}]"
            found[name] = value if isinstance(value, dict) else {"test": value}
    return found


@functools.cache
def functions_of(path: str) -> frozenset[str]:
    """Names of the test functions in a file of this repository."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def nodes(entry: dict[str, object]) -> list[str]:
    """`file::test` of an entry."""
    found: list[str] = []
    for key in ("test", "refused"):
        value = entry.get(key, [])
        found += [value] if isinstance(value, str) else value  # type: ignore[arg-type, operator]
    return found


@pytest.mark.parametrize("name", entries())
def test_every_case_is_answered(name: str) -> None:
    entry = entries()[name]
    assert set(entry) <= KEYS, f"{name}: unknown key"
    assert nodes(entry) or "later" in entry, f"{name} is mapped to nothing"
    assert "later" not in entry or entry["later"] in CASES["capabilities"], f"{name} waits for {entry['later']!r}"


@pytest.mark.parametrize("name", [name for name, entry in entries().items() if nodes(entry)])
def test_every_mapped_test_exists(name: str) -> None:
    for node in nodes(entries()[name]):
        path, _, function = node.partition("::")
        assert (ROOT / path).is_file(), f"{name}: no file {path}"
        assert function in functions_of(path), f"{name}: {path} has no {function}"


def test_every_capability_is_waited_for() -> None:
    assert {entry["later"] for entry in entries().values() if "later" in entry} == set(CASES["capabilities"])


def test_scheduling_cases_are_tests_now() -> None:
    """Kinds A to G wait for nothing but the drafters and modes that do not exist yet."""
    waiting = {name: e for name, e in entries().items() if name[0] in "ABCDEFG" and not nodes(e)}
    assert {entry["later"] for entry in waiting.values()} <= {"documented commands run in CI"}


def test_tests_named_after_a_case_are_mapped() -> None:
    """A test whose name begins with an id is one of those that the id is mapped to, in whatever case it is written."""
    mapped = {node for entry in entries().values() for node in nodes(entry)}
    known = entries()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        relative = path.relative_to(ROOT).as_posix()
        for function in functions_of(relative):
            match = re.match(r"test_([A-Z]\d+)_", function)
            assert match is None or match[1] in known, f"{function} is named after an unknown case"
            if match is not None:
                assert f"{relative}::{function}" in mapped, f"{relative}::{function} is in no entry of cases.toml"


def test_the_ids_are_those_of_the_reports() -> None:
    if not REPORTS.is_file():
        pytest.skip("the collection of reports is not beside this checkout")
    reported = set(re.findall(r"^\*\*([A-Z]\d+)\*\*", REPORTS.read_text(encoding="utf-8"), re.MULTILINE))
    assert set(entries()) == reported

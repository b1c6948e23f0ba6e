"""Programming prompts from the signatures and docstrings of Python's standard library."""

from __future__ import annotations

import functools
import importlib
import inspect
import random
import re
from dataclasses import dataclass

_MODULES = (
    "array", "ast", "base64", "bisect", "calendar", "cmath", "collections", "colorsys", "configparser", "contextlib",
    "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "fileinput", "fnmatch", "fractions",
    "functools", "glob", "gzip", "hashlib", "heapq", "html", "inspect", "io", "ipaddress", "itertools", "json",
    "keyword", "linecache", "locale", "logging", "math", "mimetypes", "numbers", "operator", "os.path", "pathlib",
    "pickle", "pprint", "queue", "quopri", "random", "re", "sched", "secrets", "shlex", "shutil", "statistics",
    "string", "struct", "tempfile", "textwrap", "threading", "time", "tokenize", "types", "typing", "unicodedata",
    "urllib.parse", "uuid", "warnings", "weakref", "zipfile", "zlib",
)  # fmt: skip
_ASKS = (
    "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{code}\n```",
    "Complete the following Python function.\n```python\n{code}\n```",
    "Implement this function in Python:\n```python\n{code}\n```",
    "{code}",
    "Write a Python function `{name}` that does the following: {doc}",
    "In Python, how would you write a function that does this? {doc} Give an example.",
    "Write unit tests for a Python function `{name}`. It is described as: {doc}",
    "Explain what this Python function does and show how to use it:\n```python\n{code}\n```",
)
_TASKS = (
    "returns the {n} largest {things} of a list", "counts how often each of the {things} occurs", "reverses {things}",
    "removes duplicate {things} from a list and keeps their order", "checks whether {things} are sorted",
    "merges two sorted lists of {things}", "groups {things} by their length", "finds the longest of the {things}",
    "computes the sum of all {things} that are divisible by {n}", "splits a list of {things} into parts of {n}",
    "returns every {n}th of the {things}", "checks if two lists of {things} have a common element",
    "finds the most frequent of the {things}", "rotates a list of {things} by {n} places",
    "returns the running total of {things}", "tells which {things} appear exactly {n} times",
    "turns {things} into a string separated by commas", "returns the index of the smallest of the {things}",
)  # fmt: skip
_THINGS = ("numbers", "words", "strings", "integers", "characters", "names", "tuples", "dates", "prices", "lines")
_LANGUAGES = ("Python", "Python", "Python", "Python", "JavaScript", "Java", "C++", "Go", "Rust", "SQL", "Bash")


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    signature: str
    doc: str

    @property
    def code(self) -> str:
        doc = self.doc.replace("\n", "\n    ")
        return f'def {self.name}{self.signature}:\n    """ {doc}\n    """\n'


def code_prompt(draw: random.Random) -> str:
    """A request for code; equal states of `draw` give equal ones, with the same release of Python."""
    if draw.random() < 0.4:
        task = draw.choice(_TASKS).format(n=draw.randint(2, 9), things=draw.choice(_THINGS))
        ask = draw.choice(
            ("Write a {} function that {}.", "Implement a {} function which {}. Show an example of its use.")
        )
        return ask.format(draw.choice(_LANGUAGES), task)
    function = draw.choice(_functions())
    first = re.split(r"(?<=[.!?])\s", function.doc.replace("\n", " "))[0]
    return draw.choice(_ASKS).format(code=function.code, name=function.name, doc=first)


@functools.cache
def _functions() -> tuple[_Function, ...]:
    """Documented functions and methods of the standard library, by name."""
    found: dict[str, _Function] = {}
    for module_name in _MODULES:
        module = importlib.import_module(module_name)
        for name, value in sorted(vars(module).items()):
            members = sorted(vars(value).items()) if inspect.isclass(value) else [(name, value)]
            for member, function in members:
                described = _described(member, function)
                if described is not None:
                    found.setdefault(f"{described.name} {described.doc}", described)
    return tuple(found[key] for key in sorted(found))


def _described(name: str, value: object) -> _Function | None:
    if name.startswith("_") or not callable(value) or inspect.isclass(value):
        return None
    doc = inspect.getdoc(value) or ""
    doc = "\n".join(doc.splitlines()[:12]).strip()
    if not 30 <= len(doc) <= 600:
        return None
    try:
        signature = str(inspect.signature(value))
    except (TypeError, ValueError):
        return None
    return None if " at 0x" in signature else _Function(name, signature, doc)

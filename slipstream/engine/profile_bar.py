"""The progress bar of a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def profile_bar(seconds: float, *, is_shown: bool = True) -> Iterator[Callable[[float], None]]:
    """Gives a function that takes the part that is done, 0 to 1; silent where nobody watches."""
    console = Console(stderr=True)
    hidden = not (is_shown and console.is_terminal)
    with Progress(console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task(f"Measuring what steps cost ({seconds:g} s at most)", total=1.0)
        yield lambda part: bar.update(task, completed=min(part, 1.0))

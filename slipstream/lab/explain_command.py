"""`slipstream explain`: one step of a recording in words."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.lab.explain_requests import RequestNote


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream explain`."""
    parser.add_argument("recording", metavar="RECORDING", help="a file that --record wrote")
    parser.add_argument("--step", required=True, metavar="N", help="number of a step, from 0 on, or last")
    parser.add_argument("--request", metavar="ID", help="only this request, or those whose ids begin so")


def shortened(notes: Sequence[RequestNote]) -> list[RequestNote]:
    """Of a row of requests that got nothing for the same reason: the first, the last, and how many lie between."""
    kept: list[RequestNote] = []
    for (_, got), group in groupby(notes, key=lambda note: (note.why, note.got)):
        same = list(group)
        if got == "nothing" and len(same) > 3:
            same = [same[0], dataclasses.replace(same[1], request_id="…", state=f"{len(same) - 2} more"), same[-1]]
        kept += same
    return kept


def names_length(names: Sequence[str], least: int = 12) -> int:
    """How many first characters tell all names apart."""
    length = least
    while len({name[:length] for name in names}) < len(set(names)):
        length += 1
    return length


def run(args: argparse.Namespace) -> int:
    """Returns 0; raises SettingError for a step or request that is not there."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from slipstream.config import SettingError, shown
    from slipstream.lab.explain import explain_step, resolve_step
    from slipstream.simulation.recording_reader import read_recording

    recording = read_recording(Path(args.recording))
    step = resolve_step(recording, args.step)
    explanation = explain_step(recording, step)
    notes = explanation.requests
    if args.request is not None:
        notes = [note for note in notes if note.request_id.startswith(args.request)]
        if not notes:
            known = ", ".join(note.request_id for note in explanation.requests[:20])
            more = ", …" if len(explanation.requests) > 20 else ""
            raise SettingError(
                f"--request {shown(args.request)} neither runs nor waits in step {step}; there are {known}{more}"
            )
    console = Console()
    console.print(explanation.heading, style="bold", highlight=False, markup=False, soft_wrap=True)
    if recording.is_cut:
        console.print("(The recording was cut off: its run did not close it.)", soft_wrap=True)
    for sentence in explanation.sentences:
        console.print(f"* {sentence}", highlight=False, markup=False, soft_wrap=True)
    table = Table(header_style="bold")
    table.add_column("request", no_wrap=True)
    length = names_length([note.request_id for note in notes])
    for column in ("before", "got", "why"):
        table.add_column(column)
    for note in shortened(notes):
        name = note.request_id if len(note.request_id) <= length + 1 else note.request_id[:length] + "…"
        table.add_row(*map(Text, (name, note.state, note.got, note.why)))
    console.print(table)
    return 0

"""Slipstream beside the engines that a user would pick instead: the same prompts, on one machine, in one run.

    python benchmarks/run.py --prompts mt-bench.jsonl --eos-prompts gsm8k.jsonl --eos-prompts humaneval.jsonl \\
        --markdown table.md --json figures.json

Every system has a process, each peer an environment of its own in build/peers/ (made on first use; see
benchmarks/peers/README.md). They take turns, and those whose turn it is not are stopped. Slipstream is measured plainly
and as `slipstream serve` runs it. A peer that cannot be installed or run is named, and the others go on.
Exit status 1 when Slipstream itself failed somewhere.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from peers.dequantised import ensure_folder
from peers.environment import ENVIRONMENTS, Peer, ensure_environment, read_peers
from peers.interleaved import Limits, Measured, System, measure_interleaved
from peers.jobs import Job
from peers.machine import this_machine
from peers.report import as_json, markdown, rows_of, texts_of
from peers.workload import decoding_jobs, prefill_job, setup_for

from slipstream.bench.dataset import DatasetError, built_in, from_jsonl
from slipstream.config import EMBEDDED_MODEL
from slipstream.models.config import ModelLoadError
from slipstream.models.embedded import ensure_embedded_model
from slipstream.models.loading import ModelSource, open_model

REPOSITORY = Path(__file__).resolve().parents[1]
PARTS = ("ignore-eos", "eos", "sampled", "prefill")
PLAIN, SERVED = "Slipstream, plain", "Slipstream"


def main(arguments: Sequence[str] | None = None) -> int:
    peers = read_peers()
    args = _parser(peers).parse_args(arguments)
    try:
        source = open_model(args.model)
        gguf, folder = _files(args.model, source)
        jobs = _jobs(args, source)
    except (ModelLoadError, DatasetError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    machine = this_machine()
    setup = setup_for(
        jobs,
        model=args.model,
        gguf=gguf,
        folder=folder,
        dtype=args.dtype or ("bfloat16" if machine.has_bfloat16 else "float32"),
        num_threads=args.num_threads or machine.num_cores,
        eos_token_ids=sorted({*source.config.eos_token_ids, *source.tokenizer.eos_token_ids}),
    )
    systems = [*(_peer(peers[name]) for name in args.peers), *_slipstreams(args)]
    tokens = args.repeats * sum(len(job.prompts) * job.max_new_tokens for job in jobs)
    _say(
        f"{len(systems)} systems, {len(jobs)} jobs, {args.repeats} repeats, {tokens} output tokens for each system at "
        f"most; measuring ends after {args.minutes:g} minutes, installing and loading apart"
    )
    begin = time.monotonic()
    measured = measure_interleaved(
        systems,
        setup,
        jobs,
        repeats=args.repeats,
        limits=Limits(job_s=args.job_limit, total_s=60.0 * args.minutes),
        logs=ENVIRONMENTS / "logs",
        progress=_say,
    )
    rows, texts = rows_of(systems, jobs, measured), texts_of(jobs, measured)
    report = markdown(systems, rows, measured, texts, machine)
    print(report)
    if args.markdown is not None:
        args.markdown.write_text(report, encoding="utf-8")
    if args.json is not None:
        values = {
            "command": shlex.join(["python", *sys.argv]),
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "seconds": time.monotonic() - begin,
            "num_threads": setup.num_threads,
            **as_json(systems, rows, measured, texts, machine),
        }
        args.json.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    if args.answers is not None:
        args.answers.write_text(json.dumps(_answers(jobs, measured)) + "\n", encoding="utf-8")
    return 1 if any(name in row.failures for row in rows for name in (PLAIN, SERVED)) else 0


def _parser(peers: dict[str, Peer]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    prompts = parser.add_argument_group("what is measured")
    prompts.add_argument(
        "--prompts",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="JSONL, answered with EOS ignored; repeatable (default: built-in prompts)",
    )
    prompts.add_argument(
        "--eos-prompts",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="JSONL, answered until EOS; repeatable (default: built-in prompts)",
    )
    prompts.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    prompts.add_argument("--concurrency", type=_positive, nargs="+", default=[1, 8, 64], help="default: 1 8 64")
    prompts.add_argument("--new-tokens", type=_positive, default=128, help="of an answer, at most (default: 128)")
    prompts.add_argument("--limit", type=_positive, metavar="N", help="prompts of a job at most (default: 4, 16, 64)")
    prompts.add_argument("--repeats", type=_positive, default=3, help="default: 3")
    prompts.add_argument("--minutes", type=float, default=180.0, help="to measure at most (default: 180)")
    prompts.add_argument("--job-limit", type=float, default=600.0, metavar="S", help="of one job (default: 600)")
    systems = parser.add_argument_group("systems")
    systems.add_argument("--peers", nargs="*", choices=list(peers), default=list(peers), help="default: all")
    systems.add_argument("--model", default=EMBEDDED_MODEL, help="as for serve; llama.cpp and OpenVINO need a GGUF")
    systems.add_argument("--num-threads", type=_positive, metavar="N", help="of each system (default: all cores)")
    systems.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        help="of transformers and vLLM (default: bfloat16 where the processor multiplies it)",
    )
    systems.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="a setting of Slipstream, both times; repeatable",
    )
    outputs = parser.add_argument_group("output")
    outputs.add_argument("--markdown", type=Path, metavar="FILE", help="the tables")
    outputs.add_argument("--json", type=Path, metavar="FILE", help="every figure, each repeat's included")
    outputs.add_argument("--answers", type=Path, metavar="FILE", help="JSON: token ids of all answers, first repeat")
    return parser


def _files(model: str, source: ModelSource) -> tuple[str, str]:
    """The GGUF file ("" without one), and the folder of bfloat16 weights."""
    if Path(model).is_dir():
        return "", str(Path(model).resolve())
    path = ensure_embedded_model() if model == EMBEDDED_MODEL else Path(model).resolve()
    return str(path), str(ensure_folder(source, ENVIRONMENTS / "models"))


def _jobs(args: argparse.Namespace, source: ModelSource) -> list[Job]:
    def read(paths: Sequence[Path]) -> dict[str, list[list[int]]]:
        sets = [from_jsonl(path) for path in paths] or [built_in()]
        return {
            Path(part.name).stem: [encode_chat(source, prompt.text or "") for prompt in part.prompts] for part in sets
        }

    ignoring, respecting = read(args.prompts), read(args.eos_prompts)
    shape = {"max_new_tokens": args.new_tokens, "limit": args.limit}
    parts: dict[str, Callable[[], list[Job]]] = {
        "ignore-eos": lambda: decoding_jobs(ignoring, args.concurrency, ignore_eos=True, **shape),
        "eos": lambda: decoding_jobs(respecting, args.concurrency, ignore_eos=False, **shape),
        "sampled": lambda: decoding_jobs(ignoring, args.concurrency, ignore_eos=True, temperature=1.0, **shape),
        "prefill": lambda: [prefill_job(next(iter(ignoring.values())), args.limit)],
    }
    return [job for part in PARTS if part in args.parts for job in parts[part]()]


def encode_chat(source: ModelSource, text: str) -> list[int]:
    """A user's message as the model's chat template writes it; plain text for a model without one."""
    if source.chat_template is None:
        return source.tokenizer.encode(text)
    rendered = source.chat_template.render([{"role": "user", "content": text}])
    return source.tokenizer.encode(rendered, add_special_tokens=False)


def _peer(peer: Peer) -> System:
    def command() -> list[str]:
        return [str(ensure_environment(peer)), "-m", peer.module]

    return System(peer.name, command, is_peer=True)


def _slipstreams(args: argparse.Namespace) -> list[System]:
    def system(name: str, *settings: str) -> System:
        command = [sys.executable, "-m", "peers.with_slipstream"]
        command += [word for setting in (*settings, *args.settings) for word in ("--set", setting)]
        return System(name, lambda: command, is_peer=False, python_path=str(REPOSITORY))

    return [system(PLAIN, "speculative_config=null"), system(SERVED)]


def _answers(jobs: Sequence[Job], measured: Measured) -> list[dict[str, object]]:
    return [
        {
            "name": job.name,
            "concurrency": job.concurrency,
            "answers": {name: repeats[0].token_ids for name, repeats in results.items()},
        }
        for job, results in zip(jobs, measured.results, strict=True)
    ]


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    # Ended from outside, it ends its systems first: most of them are stopped and would stay for ever.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())

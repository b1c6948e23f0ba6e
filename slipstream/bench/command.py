"""The commands `slipstream bench` and `slipstream compare`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from slipstream.bench import compare, report
from slipstream.bench.argument_checks import check_bench, check_compare
from slipstream.bench.arguments import add_output_arguments, add_workload_arguments
from slipstream.bench.arrivals import Arrivals, all_at_once, choose_arrivals
from slipstream.bench.client import HttpLoad, Target, TargetError, first_model, tells_sources
from slipstream.bench.dataset import (
    SYNTHETIC_NOTE,
    Dataset,
    DatasetError,
    Prompt,
    built_in,
    cut_to_length,
    from_jsonl,
    random_tokens,
)
from slipstream.bench.forced import FORCED_NOTE, KnownTexts
from slipstream.bench.in_process import BenchRequest, InProcessLoad
from slipstream.bench.metrics import BenchResult, summarize
from slipstream.bench.model_systems import ModelFactory
from slipstream.bench.records import RunRecord
from slipstream.bench.server_metrics import acceptance_between, read_counters, steps_between
from slipstream.bench.systems import ScriptedFactory, SystemFactory
from slipstream.bench.variation import known_settings, parse_variation
from slipstream.config import EMBEDDED_MODEL, SettingError, Settings, check_settings
from slipstream.engine.engine import EngineDeadError
from slipstream.engine.flags import (
    add_engine_arguments,
    add_record_arguments,
    flag_of,
    given_engine_flags,
    record_to,
    settings_from_args,
)
from slipstream.models.config import ModelLoadError
from slipstream.request import RequestError, SamplingParams
from slipstream.version import __version__

# The public result's shape at one eighth: B = 512, S = 64 there.
COMPARE_VARY = "draft_budget=shared,separate"
# Without batch-invariant arithmetic near-ties fall to either side as batches differ, and so do the texts.
COMPARE_DEFAULTS: dict[str, Any] = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "batch_invariant": True,
    "speculative_config": {
        "method": "forced",
        "layout": "dspark",
        "num_speculative_tokens": 5,
        "acceptance_length": 4.72,
    },
}
COMPARE_PROMPTS, COMPARE_INPUT_LEN, COMPARE_OUTPUT_LEN, COMPARE_REPEATS = 32, 32, 128, 3

_REFUSALS = (SettingError, DatasetError, TargetError, ModelLoadError, RequestError)


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream bench`."""
    target = parser.add_argument_group("target (a server; without --base-url an engine in this process)")
    target.add_argument("--base-url", metavar="URL", help="an OpenAI-compatible server, such as http://127.0.0.1:8000")
    target.add_argument("--endpoint", choices=("chat", "completions"), default="chat")
    target.add_argument("--request-model", metavar="NAME", help="model to ask for; the server's first when left out")
    target.add_argument("--api-key", metavar="KEY")
    target.add_argument("--timeout", type=float, default=600.0, metavar="S", help="longest silence of a stream")
    target.add_argument("--vocab-size", type=int, default=1000, help="random prompts over HTTP use ids below this")
    add_workload_arguments(parser, num_prompts=32, output_len=128)
    parser.add_argument("--ignore-eos", action="store_true", help="go on past EOS; changes what is accepted")
    parser.add_argument("--num-warmups", type=int, default=1, metavar="N", help="requests sent before, not counted")
    parser.add_argument("--model", metavar="MODEL", help=f"for an engine in this process (default: {EMBEDDED_MODEL})")
    add_engine_arguments(parser, "engine in this process")
    parser.add_argument("--scripted", action="store_true", help="no model: a scripted target, to look at scheduling")
    add_record_arguments(parser)
    add_output_arguments(parser)


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream compare`."""
    parser.add_argument(
        "--vary",
        default=COMPARE_VARY,
        metavar="NAME=A,B",
        help=f"the setting to compare and its values; one of {', '.join(sorted(known_settings()))}",
    )
    parser.add_argument("--repeats", type=int, default=COMPARE_REPEATS, metavar="N", help="interleaved runs of each")
    add_workload_arguments(parser, num_prompts=COMPARE_PROMPTS, output_len=COMPARE_OUTPUT_LEN)
    parser.add_argument("--model", metavar="MODEL", help=f"for an engine in this process (default: {EMBEDDED_MODEL})")
    add_engine_arguments(parser, "engine in this process")
    parser.add_argument("--scripted", action="store_true", help="no model: a scripted target, to look at scheduling")
    add_record_arguments(parser)
    add_output_arguments(parser)


def run_bench(args: argparse.Namespace) -> int:
    """Returns 0 when every request was served, 1 when some failed, 2 when nothing could be measured."""
    return _guarded(_run_bench, args)


def run_compare(args: argparse.Namespace) -> int:
    """Returns 0 when all runs gave the same text, 1 when not or when requests failed, 2 for settings refused."""
    return _guarded(_run_compare, args)


def _guarded(command: Any, args: argparse.Namespace) -> int:
    try:
        return int(command(args))
    except _REFUSALS as error:
        _print_error(error)
        return 2
    except (EngineDeadError, report.OutputError) as error:
        _print_error(error)
        return 1


def _print_error(error: Exception) -> None:
    Console(stderr=True).print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)


# -- bench ---------------------------------------------------------------------------------------------------------


def _run_bench(args: argparse.Namespace) -> int:
    check_bench(args)
    record_to(args)
    arrivals = choose_arrivals(args.num_prompts, args.concurrency, args.request_rate, args.burstiness, args.seed)
    notes = []
    if args.base_url is None:
        settings = settings_from_args(args, EMBEDDED_MODEL if args.model is None else args.model)
        check_settings(settings)
        factory = _factory(args, settings)
        dataset = _dataset(args, factory.vocab_size, factory)
        with _progress(args, "requests") as progress:
            record = _bench_in_process(args, factory, settings, dataset, arrivals, progress)
        what = factory.description
        if settings.speculative is not None and settings.speculative.method == "forced":
            notes.append(FORCED_NOTE)
    else:
        _refuse_engine_flags(args)
        dataset = _dataset(args, args.vocab_size, None)
        with _progress(args, "requests") as progress:
            record, model = asyncio.run(_bench_http(args, dataset, arrivals, progress))
        what = f"{model} at {args.base_url}"
    result = summarize(record)
    title = f"{what}\n{args.num_prompts} requests, {dataset.name}; {arrivals.description}"
    report.print_result(Console(), title, result, is_synthetic=dataset.is_synthetic, notes=notes)
    if args.output_json is not None:
        report.write_json(Path(args.output_json), _bench_json(args, what, dataset, arrivals, result, notes))
    return 1 if result.failed else 0


def _bench_in_process(
    args: argparse.Namespace,
    factory: SystemFactory,
    settings: Settings,
    dataset: Dataset,
    arrivals: Arrivals,
    progress: _Bar,
) -> RunRecord:
    workload = _workload(args, dataset, factory, ignore_eos=args.ignore_eos)
    texts: KnownTexts = {}
    if settings.speculative is not None and settings.speculative.method == "forced":
        progress.begin("plain pass (untimed)", len(workload) * args.output_len)
        texts = compare.plain_texts(factory, settings, workload, progress.advance)
    system = factory.build(settings, texts, args.seed, record_to(args))
    warmup = [dataclasses.replace(request, seed=request.seed + 1) for request in workload[: args.num_warmups]]
    system.mark("warm-up", all_at_once(len(warmup)), is_measured=False)
    InProcessLoad(system.engine, system.recorder).run(warmup, all_at_once(len(warmup)))
    progress.begin("requests", len(workload))
    load = InProcessLoad(system.engine, system.recorder, on_done=lambda record: progress.advance(1))
    system.mark("measured", arrivals)
    record = load.run(workload, arrivals)
    system.engine.close()
    return record


async def _bench_http(
    args: argparse.Namespace, dataset: Dataset, arrivals: Arrivals, progress: _Bar
) -> tuple[RunRecord, str]:
    target = Target(
        base_url=args.base_url,
        model=args.request_model or "",
        chat=args.endpoint == "chat",
        api_key=args.api_key,
        timeout_s=args.timeout,
    )
    if not target.model:
        target = dataclasses.replace(target, model=await first_model(HttpLoad(target)))
    target = dataclasses.replace(target, tells_sources=await tells_sources(HttpLoad(target)))
    sampling = [_sampling(args, index, args.ignore_eos) for index in range(args.num_prompts)]
    prompts = list(zip(dataset.take(args.num_prompts), sampling, strict=True))
    warmup = [(_warmup_prompt(prompt), params) for prompt, params in prompts[: args.num_warmups]]
    await HttpLoad(target).run(warmup, all_at_once(len(warmup)))
    progress.begin("requests", len(prompts))
    load = HttpLoad(target, on_done=lambda record: progress.advance(1))
    before = await read_counters(load)
    record = await load.run(prompts, arrivals)
    after = await read_counters(load)
    if before is not None and after is not None:
        record.acceptance = acceptance_between(before, after)
        record.step_counts = steps_between(before, after)
    return record, target.model


def _warmup_prompt(prompt: Prompt) -> Prompt:
    """Another prompt of the same kind: the server's prefix cache must not know the workload."""
    return Prompt("Say hello.") if prompt.token_ids is None else Prompt(token_ids=prompt.token_ids[::-1])


def _bench_json(
    args: argparse.Namespace, what: str, dataset: Dataset, arrivals: Arrivals, result: BenchResult, notes: list[str]
) -> dict[str, Any]:
    synthetic = [SYNTHETIC_NOTE] if dataset.is_synthetic and result.acceptance is not None else []
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "version": __version__,
        "target": what,
        "dataset": dataset.name,
        "arrivals": arrivals.description,
        "num_prompts": args.num_prompts,
        "request_rate": args.request_rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.concurrency,
        "seed": args.seed,
        "notes": [*notes, *synthetic],
        **result.to_json(),
    }


def _refuse_engine_flags(args: argparse.Namespace) -> None:
    given = [
        *(["model"] if args.model is not None else []),
        *given_engine_flags(args),
        *(["scripted"] if args.scripted else []),
        *(["record"] if args.record is not None else []),
    ]
    if given:
        hint = " (use --request-model for the name to ask for)" if given[0] == "model" else ""
        raise SettingError(
            f"{flag_of(given[0])} is for an engine in this process and says nothing to {args.base_url}{hint}"
        )


# -- compare -------------------------------------------------------------------------------------------------------


def _run_compare(args: argparse.Namespace) -> int:
    check_compare(args)
    record = record_to(args)
    if args.input_len is None and args.dataset in ("built-in", "random"):
        args.input_len = COMPARE_INPUT_LEN
    base = settings_from_args(args, EMBEDDED_MODEL if args.model is None else args.model, COMPARE_DEFAULTS)
    check_settings(base)
    variation = parse_variation(args.vary, base)
    arrivals = choose_arrivals(args.num_prompts, args.concurrency, args.request_rate, args.burstiness, args.seed)
    factory = _factory(args, base)
    dataset = _dataset(args, factory.vocab_size, factory)
    workload = _workload(args, dataset, factory, ignore_eos=True)
    if base.model.max_model_len is None:
        longest = max(len(request.prompt_token_ids) for request in workload) + args.output_len
        base = dataclasses.replace(base, model=dataclasses.replace(base.model, max_model_len=longest))
        variation = parse_variation(args.vary, base)
    with _progress(args, "comparison") as progress:
        comparison = compare.run_comparison(
            factory,
            base,
            variation,
            workload,
            arrivals=arrivals,
            repeats=args.repeats,
            luck_seed=args.seed,
            record=record,
            progress=compare.Progress(progress.begin, progress.advance),
        )
    title = (
        f"{factory.description}\n{args.num_prompts} requests, {dataset.name}, {args.output_len} output tokens each; "
        f"{arrivals.description}\n{_settings_line(base)}"
    )
    report.print_comparison(Console(), title, comparison)
    if args.output_json is not None:
        value = {
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "version": __version__,
            "target": factory.description,
            "dataset": dataset.name,
            "arrivals": arrivals.description,
            "output_len": args.output_len,
            "seed": args.seed,
            "settings": dataclasses.asdict(base),
            **comparison.to_json(),
        }
        report.write_json(Path(args.output_json), value)
    return 0 if comparison.same_text and not comparison.failed else 1


def _settings_line(settings: Settings) -> str:
    scheduler, speculative = settings.scheduler, settings.speculative
    parts = [f"B = {scheduler.max_num_batched_tokens}", f"S = {scheduler.max_num_seqs}"]
    if speculative is not None:
        parts += [f"K = {speculative.num_drafts}", speculative.method]
        if speculative.method == "forced":
            parts[-1] += f" {speculative.acceptance_length:g} with the {speculative.layout} layout"
    return ", ".join(parts)


# -- shared --------------------------------------------------------------------------------------------------------


def _factory(args: argparse.Namespace, settings: Settings) -> SystemFactory:
    if args.scripted:
        return ScriptedFactory()
    return ModelFactory(settings.model, progress=not args.no_progress)


def _dataset(args: argparse.Namespace, vocab_size: int, factory: SystemFactory | None) -> Dataset:
    if args.dataset == "random":
        return random_tokens(
            args.num_prompts, COMPARE_INPUT_LEN if args.input_len is None else args.input_len, vocab_size, args.seed
        )
    dataset = built_in() if args.dataset == "built-in" else from_jsonl(Path(args.dataset))
    if args.input_len is None:
        return dataset
    if factory is None:
        raise SettingError(
            f"--input-len {args.input_len} cuts tokenised texts, which needs the model in this process; "
            "over HTTP it goes with --dataset random"
        )
    texts = [factory.encode(prompt.text or "") for prompt in dataset.prompts]
    return cut_to_length(dataset.name, texts, args.num_prompts, args.input_len)


def _workload(
    args: argparse.Namespace, dataset: Dataset, factory: SystemFactory, *, ignore_eos: bool
) -> list[BenchRequest]:
    def ids_of(prompt: Prompt) -> tuple[int, ...]:
        return prompt.token_ids if prompt.token_ids is not None else tuple(factory.encode_chat(prompt.text or ""))

    return [
        BenchRequest(ids_of(prompt), _sampling(args, index, ignore_eos), args.seed + index)
        for index, prompt in enumerate(dataset.take(args.num_prompts))
    ]


def _sampling(args: argparse.Namespace, index: int, ignore_eos: bool) -> SamplingParams:
    return SamplingParams(
        temperature=args.temperature, max_tokens=args.output_len, ignore_eos=ignore_eos, seed=args.seed + index
    )


class _Bar:
    """One progress bar that starts over for each pass."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def begin(self, title: str, total: int) -> None:
        self._progress.reset(self._task, total=total, description=title)

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)


@contextmanager
def _progress(args: argparse.Namespace, title: str) -> Iterator[_Bar]:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    hidden = args.no_progress or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as progress:
        bar = _Bar(progress)
        bar.begin(title, 1)
        yield bar

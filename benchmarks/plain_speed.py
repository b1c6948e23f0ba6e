"""Plain decoding (no drafts) of the embedded model: Slipstream against transformers' float32 and bfloat16.

    python benchmarks/plain_speed.py [--tokens 128] [--prompt-tokens 64] [--repeats 3] [--concurrency 1 8]

Each repeat runs every system once, one after another, so that a slow minute of the machine hits all of them. Greedy,
EOS ignored, the same random prompts; the time includes the prompts. Prints tokens per second and our ratio to
transformers' better dtype.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

from slipstream.config import EMBEDDED_MODEL, ModelSettings, SchedulerConfig
from slipstream.execution.build import build_executor, set_threads
from slipstream.execution.executor import TorchExecutor
from slipstream.models.loading import ModelSource, open_model
from slipstream.request import Request, SamplingParams
from slipstream.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16


def scheduler_config(concurrency: int, max_model_len: int) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_batched_tokens=512,
        max_num_seqs=concurrency,
        max_model_len=max_model_len,
        block_size=BLOCK_SIZE,
        num_kv_blocks=concurrency * -(-max_model_len // BLOCK_SIZE),
        enable_prefix_caching=False,
    )


def run_ours(executor: TorchExecutor, config: SchedulerConfig, prompts: list[list[int]], num_tokens: int) -> None:
    """Serve all prompts together, through the scheduler."""
    scheduler = Scheduler(config)
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        scheduler.add_request(Request(str(i), prompt, sampling))
    given = 0
    while scheduler.has_work():
        plan = scheduler.schedule(time.perf_counter())
        given += sum(len(output.new_token_ids) for output in scheduler.commit(plan, executor.execute(plan)))
    assert given == num_tokens * len(prompts)


def transformers_model(source: ModelSource, dtype: torch.dtype) -> Any:
    config = source.config
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            max_position_embeddings=config.max_position,
            tie_word_embeddings=config.tie_word_embeddings,
        )
    )
    model.load_state_dict(source.load_weights(torch.float32, "cpu"), strict=False)
    model.tie_weights()
    return model.to(dtype).eval()


@torch.inference_mode()
def run_transformers(model: Any, prompts: list[list[int]], num_tokens: int) -> None:
    ids = torch.tensor(prompts)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    assert output.shape[1] == ids.shape[1] + num_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--dtype", default="auto", help="ours")
    arguments = parser.parse_args()

    source = open_model(EMBEDDED_MODEL, progress=False)
    threads = set_threads(None)
    models = {name: transformers_model(source, getattr(torch, name)) for name in ("float32", "bfloat16")}
    generator = torch.Generator().manual_seed(0)
    for concurrency in arguments.concurrency:
        shape = (concurrency, arguments.prompt_tokens)
        prompts = torch.randint(100, source.config.vocab_size, shape, generator=generator).tolist()
        config = scheduler_config(concurrency, arguments.prompt_tokens + arguments.tokens)
        settings = ModelSettings(dtype=arguments.dtype, device="cpu", max_model_len=config.max_model_len)
        executor = build_executor(source, settings, num_kv_blocks=config.num_kv_blocks, block_size=BLOCK_SIZE)
        ours = f"slipstream {executor.decoder.description}"
        systems: dict[str, Callable[[int], None]] = {
            ours: lambda n, e=executor, c=config, p=prompts: run_ours(e, c, p, n),
            **{
                f"transformers {name}": lambda n, m=model, p=prompts: run_transformers(m, p, n)
                for name, model in models.items()
            },
        }
        rates: dict[str, list[float]] = {name: [] for name in systems}
        for system in systems.values():
            system(2)  # warm up
        for _ in range(arguments.repeats):
            for name, system in systems.items():
                begin = time.perf_counter()
                system(arguments.tokens)
                rates[name].append(concurrency * arguments.tokens / (time.perf_counter() - begin))
        medians = {name: statistics.median(values) for name, values in rates.items()}
        best = max(value for name, value in medians.items() if name != ours)
        print(f"concurrency {concurrency}, {threads} threads, {arguments.tokens} tokens, median of {arguments.repeats}")
        for name, values in rates.items():
            print(f"  {name:24s} {medians[name]:8.1f} tok/s   ({', '.join(f'{value:.1f}' for value in values)})")
        print(f"  ratio to transformers' better dtype: {medians[ours] / best:.2f}")


if __name__ == "__main__":
    main()

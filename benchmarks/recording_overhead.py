"""What --record takes of a step: one run of the embedded model, time spent recording over time spent in all.

Run alone: python benchmarks/recording_overhead.py
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from slipstream.bench.arrivals import all_at_once
from slipstream.bench.dataset import random_tokens
from slipstream.bench.in_process import BenchRequest, InProcessLoad
from slipstream.bench.model_systems import ModelFactory
from slipstream.engine.flat_settings import settings_from_flat
from slipstream.request import SamplingParams
from slipstream.simulation.record_to import RecordTo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, nargs="+", default=[1, 8, 32], help="requests at once")
    args = parser.parse_args()
    factory = ModelFactory(settings_from_flat({}).model)
    print("running  steps  ms per step  recording, us per step  share  bytes per step")
    for running in args.running:
        settings = settings_from_flat({"max_num_seqs": running, "speculative_config": {"method": "ngram"}})
        prompts = random_tokens(running, 32, factory.vocab_size, 0).take(running)
        sampling = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
        workload = [BenchRequest(prompt.token_ids or (), sampling) for prompt in prompts]
        with TemporaryDirectory() as folder:
            path = Path(folder) / "run.jsonl.gz"
            system = factory.build(settings, {}, 0, RecordTo(path))
            assert system.recording is not None
            begin = time.perf_counter()
            record = InProcessLoad(system.engine, system.recorder).run(workload, all_at_once(running))
            seconds = time.perf_counter() - begin
            system.engine.close()
            steps, spent = len(record.steps), system.recording.seconds
            print(
                f"{running:7d}  {steps:5d}  {1e3 * seconds / steps:11.1f}  {1e6 * spent / steps:22.0f}  "
                f"{spent / seconds:5.2%}  {path.stat().st_size / steps:14.0f}"
            )


if __name__ == "__main__":
    main()

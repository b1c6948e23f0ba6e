import { useState } from "preact/hooks";
import { Acceptance, Calibration } from "./drafts";
import { type Fact, Facts } from "./facts";
import { type Live, useLive } from "./live-data";
import { StepStrip } from "./strip";
import { counted, milliseconds, percent, rounded, whole } from "./words";

function speedFact({ speed }: Live): Fact {
  const first = speed.first_token_ms === null ? "" : `first token after ${milliseconds(speed.first_token_ms)}`;
  const next = speed.per_token_ms === null ? "" : `, then ${milliseconds(speed.per_token_ms)} per token`;
  const median = ` (medians, ${speed.num_measured === 1 ? "1 answer" : `last ${speed.num_measured} answers`})`;
  return {
    name: "speed",
    title: `Output, last ${speed.window_s} seconds`,
    value: `${rounded(speed.output_tokens_per_s)} tokens/s`,
    detail: first ? first + next + median : "no answer yet since the start",
  };
}

function loadFact({ load }: Live): Fact {
  return {
    name: "load",
    title: "Requests",
    value: `${whole(load.running)} running, ${whole(load.waiting)} waiting`,
    detail: `${percent(load.kv_usage)} of the KV cache (${whole(load.kv_tokens)} tokens) in use; at most ${whole(load.max_num_seqs)} run at once`,
  };
}

function draftsFact({ speculation }: Live): Fact {
  const fact = { name: "drafts", title: "Drafts, since the start" };
  if (speculation === null) return { ...fact, value: "Speculation is off", detail: "this server makes no drafts" };
  const sum = (counts: number[]) => counts.reduce((total, count) => total + count, 0);
  const verified = sum(speculation.verified_per_position);
  if (!verified) return { ...fact, value: "none verified yet", detail: `at most ${speculation.num_speculative_tokens} per request and step` };
  const accepted = sum(speculation.accepted_per_position);
  return {
    ...fact,
    value: `${percent(accepted / verified)} accepted`,
    detail: `${whole(accepted)} of ${counted(verified, "verified draft")}; ${rounded(speculation.mean_acceptance_length ?? 1)} tokens per request and verifying step`,
  };
}

export function LiveView({ onKeyNeeded }: { onKeyNeeded: (why: string) => void }) {
  const [isPaused, setPaused] = useState(false);
  const [live, problem] = useLive(isPaused, onKeyNeeded);
  return (
    <>
      {problem && <p class="problem" role="status">{problem}</p>}
      {live === null ? (
        !problem && <p class="note">Asking the server …</p>
      ) : (
        <>
          <Facts facts={[speedFact(live), loadFact(live), draftsFact(live)]} />
          <StepStrip steps={live.steps} isPaused={isPaused} onPause={() => setPaused(!isPaused)} />
          {live.speculation && (
            <div class="pair">
              <Acceptance speculation={live.speculation} />
              <Calibration bins={live.speculation.calibration} />
            </div>
          )}
        </>
      )}
    </>
  );
}

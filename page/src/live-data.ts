/** What `/v1/live` says, kept over time. */

import { useEffect, useState } from "preact/hooks";
import { KeyNeeded, getJson } from "./api";

export interface Step {
  number: number;
  kind: string;
  mode: string;
  decode: number;
  verify: number;
  prompt: number;
  ms: number;
}

export interface Bin {
  judged: number;
  said: number;
  calibrated: number;
  accepted: number;
}

export interface Speculation {
  num_speculative_tokens: number;
  num_steps: number;
  mean_acceptance_length: number | null;
  verified_per_position: number[];
  accepted_per_position: number[];
  calibration: Bin[];
}

interface Answer {
  instance: string;
  load: { running: number; waiting: number; kv_usage: number; kv_tokens: number; max_num_seqs: number };
  speed: {
    window_s: number;
    output_tokens_per_s: number;
    prompt_tokens_per_s: number;
    first_token_ms: number | null;
    per_token_ms: number | null;
    num_measured: number;
  };
  speculation: Speculation | null;
  steps: { rows: [number, string, string, number, number, number, number, number][] };
}

export type Live = Omit<Answer, "steps"> & { steps: Step[] };

const KEPT = 400;
const PERIOD_MS = 500;
const RETRY_MS = 2000;

function joined(before: Live | null, answer: Answer): Live {
  const earlier = before?.instance === answer.instance ? before.steps : [];
  const fresh = answer.steps.rows.map(([number, kind, mode, decode, verify, prompt, target, draft]) => ({
    number, kind, mode, decode, verify, prompt, ms: target + draft,
  }));
  return { ...answer, steps: [...earlier, ...fresh].slice(-KEPT) };
}

/** The newest figures while the page is looked at; what goes wrong in words. */
export function useLive(isPaused: boolean, onKeyNeeded: (why: string) => void): [Live | null, string] {
  const [live, setLive] = useState<Live | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    if (isPaused) return;
    const stop = new AbortController();
    let known = live;
    let timer = 0;
    const ask = async () => {
      let wait = PERIOD_MS;
      try {
        if (document.visibilityState === "visible") {
          const last = known?.steps.at(-1)?.number ?? -1;
          let answer = await getJson<Answer>(`v1/live?after=${last}`, stop.signal);
          // Another run of the server counts its steps anew.
          if (known && known.instance !== answer.instance) answer = await getJson<Answer>("v1/live", stop.signal);
          known = joined(known, answer);
          setLive(known);
          setProblem("");
        }
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof KeyNeeded) return onKeyNeeded(error.message);
        setProblem(`The server does not answer (${(error as Error).message}); trying again.`);
        wait = RETRY_MS;
      }
      timer = window.setTimeout(ask, wait);
    };
    void ask();
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [isPaused]);
  return [live, problem];
}

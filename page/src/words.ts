/** Figures in words: one way to write each of them. */

import type { Step } from "./live-data";

export const MODES: Record<string, string> = { full_graph: "full graph", piecewise: "piecewise graphs", eager: "eager" };
const KINDS: Record<string, string> = { decode: "decoding only", prefill: "prompts only", mixed: "mixed" };

export const whole = (value: number) => Math.round(value).toLocaleString("en");

export function rounded(value: number): string {
  return value >= 100 ? whole(value) : String(Number(value.toPrecision(value >= 10 ? 3 : 2)));
}

export const percent = (share: number) => `${(100 * share).toFixed(share > 0 && share < 0.095 ? 1 : 0)} %`;

export const counted = (count: number, one: string, several = `${one}s`) => `${whole(count)} ${count === 1 ? one : several}`;

export function milliseconds(value: number): string {
  return value >= 10_000 ? `${rounded(value / 1000)} s` : `${rounded(value)} ms`;
}

export function ordinal(place: number): string {
  const tens = place % 100;
  const ending = tens > 10 && tens < 14 ? "th" : (["th", "st", "nd", "rd"][place % 10] ?? "th");
  return `${place}${ending}`;
}

/** "step 812: 12 decode rows, 24 verify rows, 96 prompt rows, mixed, eager, 41 ms" */
export function stepInWords(step: Step): string {
  const rows = [
    counted(step.decode, "decode row"),
    counted(step.verify, "verify row"),
    counted(step.prompt, "prompt row"),
  ];
  return `step ${step.number}: ${rows.join(", ")}, ${KINDS[step.kind] ?? step.kind}, ${MODES[step.mode] ?? step.mode}, ${milliseconds(step.ms)}`;
}

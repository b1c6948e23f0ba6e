/** The last steps, a column each: rows stacked above the line, time below it. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Step } from "./live-data";
import { MODES, counted, milliseconds, stepInWords, whole } from "./words";

const ROWS = [
  { name: "decode", words: "decode rows: one per answering request, for its next token" },
  { name: "verify", words: "verify rows: drafts that the model checks along the way" },
  { name: "prompt", words: "prompt rows: tokens of prompts that are read" },
] as const;

const COLUMN = 8;
const GAP = 2;
const ROWS_HEIGHT = 150;
const TIME_HEIGHT = 60;
const MIDDLE = 10;
const LEFT = 72;
const TOP = 8;
const HEIGHT = TOP + ROWS_HEIGHT + MIDDLE + TIME_HEIGHT + 4;

/** The next of 1, 2, 5, 10, 20, … */
function niceAbove(value: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((limit) => limit >= value) ?? 10 * power;
}

function useWidth() {
  const element = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(600);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => entry && setWidth(entry.contentRect.width));
    observer.observe(element.current!);
    return () => observer.disconnect();
  }, []);
  return [element, width] as const;
}

function Column({ step, x, rowsPer, msPer, isChosen }: { step: Step; x: number; rowsPer: number; msPer: number; isChosen: boolean }) {
  let top = TOP + ROWS_HEIGHT;
  const zero = TOP + ROWS_HEIGHT + MIDDLE;
  const width = COLUMN - GAP;
  return (
    <g data-step={step.number}>
      {isChosen && <rect class="chosen" x={x - GAP / 2} y={TOP} width={COLUMN} height={HEIGHT - TOP} />}
      {ROWS.map(({ name }) => {
        const height = step[name] * rowsPer;
        top -= height;
        return height > 0 && <rect key={name} class={`fill-${name}`} x={x} y={top} width={width} height={height} />;
      })}
      <rect class={`fill-${step.mode}`} x={x} y={zero} width={width} height={Math.max(step.ms * msPer, 1)} />
    </g>
  );
}

export function StepStrip({ steps, isPaused, onPause }: { steps: Step[]; isPaused: boolean; onPause: () => void }) {
  const [element, width] = useWidth();
  const [chosenNumber, setChosen] = useState<number | null>(null);
  const shown = steps.slice(-Math.max(Math.floor((width - LEFT) / COLUMN), 1));
  const chosen = shown.find((step) => step.number === chosenNumber);
  const told = chosen ?? shown.at(-1);
  const mostRows = niceAbove(Math.max(...shown.map((step) => step.decode + step.verify + step.prompt), 1));
  const mostMs = niceAbove(Math.max(...shown.map((step) => step.ms), 1));
  const modes = Object.keys(MODES).filter((mode) => shown.some((step) => step.mode === mode));
  const left = width - shown.length * COLUMN; // the newest step stands at the right edge

  const onMove = (event: PointerEvent) => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    setChosen(shown[Math.floor((event.clientX - box.left - left) / COLUMN)]?.number ?? null);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const here = chosen ? shown.indexOf(chosen) : shown.length - 1;
    const places: Record<string, number> = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: shown.length - 1 };
    const place = places[event.key];
    if (event.key === "Escape") setChosen(null);
    if (place === undefined || !shown.length) return;
    event.preventDefault();
    setChosen(shown[Math.min(Math.max(place, 0), shown.length - 1)]!.number);
  };

  return (
    <section class="card" aria-labelledby="strip-title">
      <div class="head">
        <h2 id="strip-title">The last steps</h2>
        <button type="button" aria-pressed={isPaused} onClick={onPause}>{isPaused ? "Go on" : "Hold still"}</button>
      </div>
      <p class="note">
        Each column is one step, one run of the model for all requests at once; the newest is on the right. The higher it
        is, the more rows (tokens) the step held; the bar below says how long it took.
      </p>
      <ul class="legend">
        {ROWS.map(({ name, words }) => <li key={name}><i class={`swatch back-${name}`} /> {words}</li>)}
        {modes.map((mode) => <li key={mode}><i class={`swatch back-${mode}`} /> time of a step, {MODES[mode]}</li>)}
      </ul>
      <div ref={element}>
        {shown.length ? (
          <svg
            class="strip"
            width={width}
            height={HEIGHT}
            tabIndex={0}
            role="img"
            aria-label={`${counted(shown.length, "step")}, at most ${whole(mostRows)} rows high. Arrow keys move from step to step.`}
            aria-describedby="step-words"
            onPointerMove={onMove}
            onPointerDown={onMove}
            onPointerLeave={() => setChosen(null)}
            onKeyDown={onKeyDown}
            onBlur={() => setChosen(null)}
          >
            {[0, 0.5, 1].map((part) => (
              <line key={part} class="grid" x1={LEFT - 6} x2={width} y1={TOP + part * ROWS_HEIGHT} y2={TOP + part * ROWS_HEIGHT} />
            ))}
            <text x={LEFT - 10} y={TOP + 4} text-anchor="end">{whole(mostRows)} {mostRows === 1 ? "row" : "rows"}</text>
            <text x={LEFT - 10} y={TOP + ROWS_HEIGHT + 4} text-anchor="end">0</text>
            <text x={LEFT - 10} y={HEIGHT - 2} text-anchor="end">{milliseconds(mostMs)}</text>
            {shown.map((step, place) => (
              <Column
                key={step.number}
                step={step}
                x={left + place * COLUMN + GAP / 2}
                rowsPer={ROWS_HEIGHT / mostRows}
                msPer={TIME_HEIGHT / mostMs}
                isChosen={step === chosen}
              />
            ))}
          </svg>
        ) : (
          <p class="empty">No step has run yet. Ask something in the playground, and its steps appear here.</p>
        )}
      </div>
      {told && (
        <p id="step-words" class="told" data-fact="step" aria-live={chosen ? "polite" : "off"}>
          {chosen ? "" : "Newest: "}{stepInWords(told)}
        </p>
      )}
    </section>
  );
}

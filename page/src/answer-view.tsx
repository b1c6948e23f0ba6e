import { useState } from "preact/hooks";
import type { Answer, Token } from "./answer";
import { counted, milliseconds, percent, rounded, whole } from "./words";

const visible = (text: string) => `“${text.replaceAll("\n", "⏎").replaceAll("\t", "⇥")}”`;

function tokenInWords(token: Token, place: number): string {
  const source = token.isDraft ? "drafted, and accepted" : "the model’s own";
  const refused = token.refused.length ? `; refused here: ${token.refused.map(visible).join(" ")}` : "";
  return `Token ${place + 1} ${visible(token.text)}: ${source}${refused}`;
}

function summary(answer: Answer): string {
  const numDrafts = answer.tokens.filter((token) => token.isDraft).length;
  const numRefused = answer.tokens.reduce((total, token) => total + token.refused.length, 0);
  const parts = [counted(answer.tokens.length, "token")];
  if (answer.speculates && answer.tokens.length) {
    parts.push(`${whole(numDrafts)} from drafts (${percent(numDrafts / answer.tokens.length)})`, `${counted(numRefused, "draft")} refused`);
  }
  if (answer.tokensPerSecond !== null) parts.push(`${rounded(answer.tokensPerSecond)} tokens/s`);
  if (answer.firstTokenMs !== null) parts.push(`first token after ${milliseconds(answer.firstTokenMs)}`);
  return parts.join(", ");
}

/** An answer, token by token: hover, tap, or focus and use the arrow keys. */
export function AnswerView({ answer }: { answer: Answer }) {
  const [chosen, setChosen] = useState<number | null>(null);
  const token = chosen === null ? undefined : answer.tokens[chosen];
  const onPoint = (event: PointerEvent) => {
    const place = (event.target as HTMLElement).dataset.place;
    if (place !== undefined) setChosen(Number(place));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const last = answer.tokens.length - 1;
    const here = chosen ?? -1;
    const places: Record<string, number> = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: last };
    const place = places[event.key];
    if (event.key === "Escape") setChosen(null);
    if (place === undefined || last < 0) return;
    event.preventDefault();
    setChosen(Math.min(Math.max(place, 0), last));
  };
  const name = answer.speculates ? "with speculation" : "without speculation";
  return (
    <article class="answer" data-speculates={answer.speculates} data-state={answer.state} aria-label={`Answer ${name}`}>
      <h3>{answer.speculates ? "With speculation" : "Without speculation"}</h3>
      <div
        class="tokens"
        tabIndex={0}
        role="group"
        aria-label={`Tokens of the answer ${name}; arrow keys move from token to token`}
        onPointerOver={onPoint}
        onPointerDown={onPoint}
        onPointerLeave={() => setChosen(null)}
        onKeyDown={onKeyDown}
        onBlur={() => setChosen(null)}
      >
        {answer.tokens.map((token, place) => (
          <span
            key={place}
            data-place={place}
            class={`token ${token.isDraft ? "draft" : "target"}${token.refused.length ? " refused" : ""}${place === chosen ? " chosen" : ""}`}
          >
            {token.text}
          </span>
        ))}
        {answer.state === "running" && <span class="cursor" aria-hidden="true" />}
      </div>
      <p class="told" role="status" data-fact="token">
        {token ? tokenInWords(token, chosen!) : summary(answer)}
      </p>
      {answer.state === "stopped" && <p class="note">Stopped.</p>}
      {answer.problem && <p class="problem">{answer.problem}</p>}
    </article>
  );
}

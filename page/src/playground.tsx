import { useEffect, useRef, useState } from "preact/hooks";
import { type Answer, type Message, type Wishes, ask, compared } from "./answer";
import { AnswerView } from "./answer-view";
import { KeyNeeded, getJson } from "./api";
import { type Fact, Facts } from "./facts";
import { counted, percent, rounded, whole } from "./words";

interface Turn {
  question: string;
  wishes: Wishes;
  /** One, or two: the same question with the same seed, with and without speculation. */
  answers: Answer[];
}

interface Props {
  onKeyNeeded: (why: string) => void;
  isShown: boolean;
  attempt: number;
}

const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0]! >>> 1;

function conversation(turns: Turn[], question: string): Message[] {
  const messages: Message[] = [];
  for (const turn of turns) {
    messages.push({ role: "user", content: turn.question }, { role: "assistant", content: turn.answers[0]?.text ?? "" });
  }
  return [...messages, { role: "user", content: question }];
}

function facts(turn: Turn): Fact[] {
  const drafted = turn.answers.find((answer) => answer.speculates);
  const plain = turn.answers.find((answer) => !answer.speculates);
  const numDrafts = drafted?.tokens.filter((token) => token.isDraft).length ?? 0;
  const numRefused = drafted?.tokens.reduce((total, token) => total + token.refused.length, 0) ?? 0;
  const sources: Fact = { name: "sources", title: "Where the tokens came from", value: "all from the model itself", detail: "no drafts were made" };
  if (drafted?.tokens.length) {
    const judged = numDrafts + numRefused;
    sources.value = `${percent(numDrafts / drafted.tokens.length)} from accepted drafts`;
    sources.detail = `${whole(numDrafts)} of ${counted(drafted.tokens.length, "token")}; ${judged ? percent(numDrafts / judged) : "none"} of the drafts were accepted, ${whole(numRefused)} refused`;
  }
  const speed: Fact = { name: "speed", title: "Speed", value: "…", detail: "known when the answer is complete" };
  const [fast, slow] = [drafted?.tokensPerSecond, plain?.tokensPerSecond];
  if (fast && slow) {
    speed.value = `${rounded(fast / slow)} times as fast with drafts`;
    speed.detail = `${rounded(fast)} tokens/s with speculation, ${rounded(slow)} without, one after the other`;
  } else if (fast || slow) {
    speed.value = `${rounded((fast || slow)!)} tokens/s`;
    speed.detail = fast ? "with speculation" : "without speculation";
  }
  return [sources, speed, equality(drafted, plain)];
}

function equality(drafted: Answer | undefined, plain: Answer | undefined): Fact {
  const fact = { name: "equality", title: "With and without speculation" };
  if (!drafted || !plain) return { ...fact, value: "not compared yet", detail: "flip the switch: the last message is answered again with the same seed" };
  if (drafted.state === "running" || plain.state === "running") return { ...fact, value: "comparing …", detail: "the second answer is on its way" };
  if (drafted.state !== "done" || plain.state !== "done") return { ...fact, value: "not compared", detail: "an answer is not complete" };
  const found = compared(drafted, plain);
  if (found.areEqual) {
    return { ...fact, value: "The texts are equal", detail: `${counted(found.numTokens, "token")} and ${counted(found.numCharacters, "character")} compared, one by one` };
  }
  return {
    ...fact,
    value: "The texts differ",
    detail: `${found.differsAt ? `from token ${found.differsAt} on` : "in their characters"}; a near tie can fall either way where the server was not started with --batch-invariant`,
  };
}

export function Playground({ onKeyNeeded, isShown, attempt }: Props) {
  const [turns, setTurns] = useState<Turn[]>([]);
  const [question, setQuestion] = useState("");
  const [speculates, setSpeculates] = useState(true);
  const [canSpeculate, setCanSpeculate] = useState(true);
  const [temperature, setTemperature] = useState("0.7");
  const [maxTokens, setMaxTokens] = useState("128");
  const [seed, setSeed] = useState("");
  const running = useRef<AbortController | null>(null);
  const last = turns.at(-1);
  const isBusy = last?.answers.some((answer) => answer.state === "running") ?? false;

  useEffect(() => {
    if (!isShown) return;
    getJson<{ data: { speculation: unknown }[] }>("v1/models").then(
      ({ data }) => setCanSpeculate(data[0]?.speculation != null),
      (error: Error) => error instanceof KeyNeeded && onKeyNeeded(error.message),
    );
  }, [isShown, attempt]);

  const answer = async (earlier: Turn[], turn: Turn, withDrafts: boolean) => {
    const stop = (running.current = new AbortController());
    const onGrown = (grown: Answer) => setTurns([...earlier, { ...turn, answers: [...turn.answers, grown] }]);
    try {
      await ask(conversation(earlier, turn.question), turn.wishes, withDrafts, stop.signal, onGrown);
    } catch (error) {
      if (error instanceof KeyNeeded) onKeyNeeded(error.message);
    }
  };
  const onSubmit = (event: Event) => {
    event.preventDefault();
    if (isBusy || !question.trim()) return;
    const wishes = { temperature: Number(temperature), maxTokens: Number(maxTokens), seed: seed === "" ? newSeed() : Number(seed) };
    setQuestion("");
    void answer(turns, { question, wishes, answers: [] }, speculates && canSpeculate);
  };
  const onFlip = () => {
    if (isBusy || !canSpeculate) return;
    const next = !speculates;
    setSpeculates(next);
    if (!last || last.answers.length !== 1 || last.answers[0]!.speculates === next) return;
    void answer(turns.slice(0, -1), last, next);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) onSubmit(event);
  };

  return (
    <>
      {last && <Facts facts={facts(last)} />}
      <section class="card" aria-labelledby="playground-title">
        <div class="head">
          <h2 id="playground-title">Where each token comes from</h2>
          <button
            type="button"
            role="switch"
            class="switch"
            aria-checked={speculates && canSpeculate}
            aria-describedby="switch-words"
            aria-disabled={isBusy || !canSpeculate}
            onClick={onFlip}
          >
            <i aria-hidden="true" /> Speculation
          </button>
        </div>
        <p class="note" id="switch-words">
          {canSpeculate
            ? "Flip the switch after an answer: the message is answered again with the same seed, side by side."
            : "This server makes no drafts, so there is nothing to switch; see --speculative-config."}
        </p>
        <ul class="legend">
          <li><span class="token draft">drafted and accepted</span></li>
          <li><span class="token target">the model’s own</span></li>
          <li><span class="token target refused">drafts were refused here</span> point at it to see them</li>
        </ul>
        <div class="turns" aria-label="Conversation">
          {turns.map((turn, place) => (
            <div key={place} class="turn">
              <p class="question">{turn.question} <span class="note">seed {turn.wishes.seed}</span></p>
              <div class={turn.answers.length > 1 ? "pair" : ""}>
                {turn.answers.map((found) => <AnswerView key={String(found.speculates)} answer={found} />)}
              </div>
            </div>
          ))}
        </div>
        <form onSubmit={onSubmit}>
          <label class="question-label">
            Message
            <textarea rows={2} value={question} placeholder="Ask something" onInput={(event) => setQuestion(event.currentTarget.value)} onKeyDown={onKeyDown} />
          </label>
          <div class="controls">
            <label>Temperature <input type="number" min="0" max="2" step="0.1" required value={temperature} onInput={(event) => setTemperature(event.currentTarget.value)} /></label>
            <label>Tokens at most <input type="number" min="1" max="4096" required value={maxTokens} onInput={(event) => setMaxTokens(event.currentTarget.value)} /></label>
            <label>Seed <input type="number" min="0" max="4294967295" placeholder="a new one" value={seed} onInput={(event) => setSeed(event.currentTarget.value)} /></label>
            <span class="spring" />
            {turns.length > 0 && <button type="button" disabled={isBusy} onClick={() => setTurns([])}>Begin anew</button>}
            {isBusy ? (
              <button type="button" class="primary" onClick={() => running.current?.abort()}>Stop</button>
            ) : (
              <button type="submit" class="primary">Send</button>
            )}
          </div>
        </form>
      </section>
    </>
  );
}

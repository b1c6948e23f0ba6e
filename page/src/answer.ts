/** One answer of the playground as it grows: its tokens, where each came from, and what it was compared with. */

import { streamed } from "./api";

export interface Token {
  id: number;
  text: string;
  isDraft: boolean;
  /** Texts of the drafts that were refused where this token stands, and behind it. */
  refused: string[];
}

export interface Answer {
  speculates: boolean;
  tokens: Token[];
  text: string;
  state: "running" | "done" | "stopped" | "failed";
  problem: string;
  tokensPerSecond: number | null;
  firstTokenMs: number | null;
}

export interface Message {
  role: "user" | "assistant";
  content: string;
}

export interface Wishes {
  temperature: number;
  maxTokens: number;
  seed: number;
}

/** Asks for the answer to a conversation; `onGrown` hears of every version of it, the last one included. */
export async function ask(
  messages: Message[],
  wishes: Wishes,
  speculates: boolean,
  signal: AbortSignal,
  onGrown: (answer: Answer) => void,
): Promise<Answer> {
  let answer: Answer = {
    speculates, tokens: [], text: "", state: "running", problem: "", tokensPerSecond: null, firstTokenMs: null,
  };
  const grow = (news: Partial<Answer>) => onGrown((answer = { ...answer, ...news }));
  onGrown(answer);
  const body = {
    messages,
    temperature: wishes.temperature,
    max_tokens: wishes.maxTokens,
    seed: wishes.seed,
    // No answer is to find the prompt of another one in the cache: their speeds are compared.
    cache_salt: crypto.getRandomValues(new Uint32Array(4)).join("-"),
    speculative: { enabled: speculates },
    stream: true,
    return_token_ids: true,
    stream_options: { include_usage: true, include_token_sources: true, include_token_texts: true, include_refused_drafts: true },
  };
  try {
    for await (const chunk of streamed("v1/chat/completions", body, signal)) {
      for (const choice of chunk.choices) {
        const text = (choice.delta?.reasoning_content ?? "") + (choice.delta?.content ?? "");
        if (choice.token_ids || text) grow({ text: answer.text + text, tokens: [...answer.tokens, ...tokensOf(choice)] });
      }
      if (chunk.metrics) {
        grow({ tokensPerSecond: chunk.metrics.tokens_per_second, firstTokenMs: chunk.metrics.time_to_first_token_ms });
      }
    }
    grow({ state: "done" });
  } catch (error) {
    if (signal.aborted) grow({ state: "stopped" });
    else {
      grow({ state: "failed", problem: (error as Error).message });
      throw error;
    }
  }
  return answer;
}

function tokensOf(choice: any): Token[] {
  const ids: number[] = choice.token_ids ?? [];
  const sources: string[] = choice.token_sources ?? [];
  const refused: string[] = (choice.refused_drafts ?? []).map((draft: { text: string }) => draft.text);
  const first = sources.indexOf("target");
  return ids.map((id, place) => ({
    id,
    text: choice.token_texts?.[place] ?? "",
    isDraft: sources[place] === "draft",
    refused: place === first ? refused : [],
  }));
}

export interface Comparison {
  areEqual: boolean;
  numTokens: number;
  numCharacters: number;
  /** Of the first difference, counted from 1; 0 where there is none. */
  differsAt: number;
}

/** Two finished answers, token id by token id and character by character. */
export function compared(one: Answer, other: Answer): Comparison {
  const most = Math.max(one.tokens.length, other.tokens.length);
  let differsAt = 0;
  for (let place = 0; place < most && !differsAt; place++) {
    if (one.tokens[place]?.id !== other.tokens[place]?.id) differsAt = place + 1;
  }
  return {
    areEqual: differsAt === 0 && one.text === other.text,
    numTokens: one.tokens.length,
    numCharacters: one.text.length,
    differsAt,
  };
}

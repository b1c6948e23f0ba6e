/** The server's API, as the page uses it. Paths are relative to the page, so that it works behind a prefix. */

export class KeyNeeded extends Error {}

const KEY = "slipstream-api-key";
let memory = "";

/** Kept for this tab only. */
export function storedKey(): string {
  try {
    return sessionStorage.getItem(KEY) ?? memory;
  } catch {
    return memory;
  }
}

export function storeKey(key: string): void {
  memory = key;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    // Storage may be forbidden; then the key lasts as long as the page.
  }
}

async function call(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const key = storedKey();
  if (key) headers.set("Authorization", `Bearer ${key}`);
  const answer = await fetch(path, { ...init, headers, cache: "no-store" });
  if (answer.ok) return answer;
  const message = await messageOf(answer);
  throw answer.status === 401 ? new KeyNeeded(message) : new Error(message);
}

async function messageOf(answer: Response): Promise<string> {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the server answered ${answer.status}`;
  }
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await call(path, { signal: signal ?? null })).json();
}

/** The events of a streamed answer, as JSON, up to [DONE]. */
export async function* streamed(path: string, body: unknown, signal: AbortSignal): AsyncGenerator<any> {
  const answer = await call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop()!;
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
      if (data === "[DONE]") return;
      if (data === undefined) continue;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new Error(parsed.error.message);
      yield parsed;
    }
  }
}

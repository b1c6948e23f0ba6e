import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { storeKey } from "./api";
import { LiveView } from "./live";
import { Playground } from "./playground";
import { SettingsView } from "./settings";

const TABS = [
  { name: "live", title: "Live" },
  { name: "playground", title: "Playground" },
  { name: "settings", title: "Settings" },
] as const;
type Name = (typeof TABS)[number]["name"];

function tabOfAddress(): Name {
  return TABS.find((tab) => `#${tab.name}` === location.hash)?.name ?? "live";
}

export function App() {
  const [tab, setTab] = useState<Name>(tabOfAddress);
  const [whyKey, setWhyKey] = useState("");
  const [attempt, setAttempt] = useState(0);
  const buttons = useRef<(HTMLButtonElement | null)[]>([]);
  const onKeyNeeded = useCallback((why: string) => setWhyKey(why), []);

  useEffect(() => {
    const follow = () => setTab(tabOfAddress());
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, []);

  const show = (name: Name) => {
    history.replaceState(null, "", `#${name}`);
    setTab(name);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const count = TABS.length;
    const here = TABS.findIndex(({ name }) => name === tab);
    const places: Record<string, number> = {
      ArrowRight: (here + 1) % count,
      ArrowLeft: (here + count - 1) % count,
      Home: 0,
      End: count - 1,
    };
    const place = places[event.key];
    if (place === undefined) return;
    event.preventDefault();
    show(TABS[place]!.name);
    buttons.current[place]?.focus();
  };

  return (
    <>
      <header>
        <h1>Slipstream</h1>
        <div role="tablist" aria-label="Views" onKeyDown={onKeyDown}>
          {TABS.map(({ name, title }, place) => (
            <button
              key={name}
              ref={(element) => { buttons.current[place] = element; }}
              type="button"
              role="tab"
              id={`tab-${name}`}
              aria-controls="view"
              aria-selected={tab === name}
              tabIndex={tab === name ? 0 : -1}
              onClick={() => show(name)}
            >
              {title}
            </button>
          ))}
        </div>
      </header>
      <main>
        <div id="view" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {whyKey ? (
          <KeyForm why={whyKey} onKey={() => { setWhyKey(""); setAttempt(attempt + 1); }} />
        ) : (
          <>
            {tab === "live" && <LiveView key={attempt} onKeyNeeded={onKeyNeeded} />}
            {tab === "settings" && <SettingsView key={attempt} onKeyNeeded={onKeyNeeded} />}
          </>
        )}
        {/* Stays, so that a conversation outlives a look at another view. */}
        <div hidden={tab !== "playground" || !!whyKey}>
          <Playground onKeyNeeded={onKeyNeeded} isShown={tab === "playground" && !whyKey} attempt={attempt} />
        </div>
        </div>
      </main>
    </>
  );
}

function KeyForm({ why, onKey }: { why: string; onKey: () => void }) {
  const [key, setKey] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    storeKey(key.trim());
    onKey();
  };
  return (
    <form class="card key-form" onSubmit={submit}>
      <h2>This server asks for an API key</h2>
      <p role="status">The server says: {why}.</p>
      <label>
        API key
        <input type="password" autocomplete="off" required value={key} onInput={(event) => setKey(event.currentTarget.value)} />
      </label>
      <button type="submit">Use this key</button>
      <p class="note">Kept in this tab until it is closed, and sent to this server only.</p>
    </form>
  );
}

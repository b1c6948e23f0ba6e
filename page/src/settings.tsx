import { useEffect, useState } from "preact/hooks";
import { KeyNeeded, getJson } from "./api";
import { type Fact, Facts } from "./facts";
import { counted } from "./words";

interface Setting {
  name: string;
  value: unknown;
  source: string;
  reason: string;
}

interface Config {
  version: string;
  settings: Setting[];
}

const SOURCES: Record<string, string> = { user: "you", derived: "derived", default: "default" };

const shown = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value));

function facts({ version, settings }: Config): Fact[] {
  const value = (name: string) => {
    const found = settings.find((setting) => setting.name === name);
    return found === undefined || found.value === null ? "" : shown(found.value);
  };
  const count = (source: string) => settings.filter((setting) => setting.source === source).length;
  const speculation = settings.find((setting) => setting.name === "speculation");
  const isOn = speculation?.value === "on";
  const where = [value("device") && `on ${value("device")}`, value("dtype") && `in ${value("dtype")}`].filter(Boolean).join(" ");
  return [
    {
      name: "model",
      title: `Slipstream ${version}`,
      value: value("served_model_name") || value("model") || "model not reported",
      detail: `${where}${where ? "; " : ""}at most ${value("max_model_len") || "?"} tokens per request`,
    },
    {
      name: "speculation",
      title: "Speculation",
      value: isOn ? "on" : "off",
      detail: speculation?.reason || (isOn ? "" : "no drafts are made"),
    },
    {
      name: "sources",
      title: "Settings",
      value: `${count("user")} of ${settings.length} given by you`,
      detail: `${count("derived")} worked out for this machine and model, ${counted(count("default"), "default")}`,
    },
  ];
}

export function SettingsView({ onKeyNeeded }: { onKeyNeeded: (why: string) => void }) {
  const [config, setConfig] = useState<Config | null>(null);
  const [problem, setProblem] = useState("");
  const [sought, setSought] = useState("");
  useEffect(() => {
    getJson<Config>("v1/config").then(setConfig, (error: Error) => {
      if (error instanceof KeyNeeded) onKeyNeeded(error.message);
      else setProblem(`The settings could not be read: ${error.message}`);
    });
  }, []);
  if (problem) return <p class="problem" role="status">{problem}</p>;
  if (config === null) return <p class="note">Asking the server …</p>;
  const rows = config.settings.filter((row) => `${row.name} ${shown(row.value)} ${row.reason}`.toLowerCase().includes(sought.toLowerCase()));
  return (
    <>
      <Facts facts={facts(config)} />
      <section class="card" aria-labelledby="settings-title">
        <div class="head">
          <h2 id="settings-title">Every setting, and why it is so</h2>
          <label class="inline">Find <input type="search" value={sought} onInput={(event) => setSought(event.currentTarget.value)} /></label>
        </div>
        <table class="settings">
          <thead><tr><th scope="col">setting</th><th scope="col">value</th><th scope="col">from</th><th scope="col">why</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.name}>
                <th scope="row">{row.name}</th>
                <td><code>{shown(row.value)}</code></td>
                <td><span class={`source ${row.source}`}>{SOURCES[row.source] ?? row.source}</span></td>
                <td>{row.reason}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {rows.length === 0 && <p class="empty">No setting has “{sought}” in it.</p>}
      </section>
    </>
  );
}

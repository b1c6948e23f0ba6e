import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig, type Plugin } from "vite";

const OUTPUT = "../slipstream/server/page";
const SETUP = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];

const sha256 = (content: Buffer | string) => createHash("sha256").update(content).digest("hex");

/** Writes down what the page was made of and what came out, so that a test sees a page that is older than its sources. */
function buildRecord(): Plugin {
  return {
    name: "build-record",
    closeBundle() {
      const sources = [...SETUP, ...readdirSync("src").map((name) => `src/${name}`)].sort();
      const lines = sources.map((name) => `${name} ${sha256(readFileSync(name))}\n`);
      const built = ["index.html", "page.css", "page.js"];
      const files = Object.fromEntries(built.map((name) => [name, sha256(readFileSync(join(OUTPUT, name)))]));
      writeFileSync(join(OUTPUT, "build.json"), `${JSON.stringify({ sources: sha256(lines.join("")), files }, null, 2)}\n`);
    },
  };
}

export default defineConfig({
  base: "./",
  build: {
    outDir: OUTPUT,
    emptyOutDir: true,
    modulePreload: false,
    rollupOptions: {
      output: {
        entryFileNames: "page.js",
        assetFileNames: "page[extname]",
        codeSplitting: false,
      },
    },
  },
  plugins: [buildRecord()],
});

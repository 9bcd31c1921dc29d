/** The direction of imports, as biome.json holds it: what is refused, and what is not. */

import { spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";

const JS = join(import.meta.dirname, "..");
/** From the bottom to the top; what shares a floor knows nothing of its neighbor. */
const FLOORS = [
  ["contract"],
  ["text", "geometry"],
  ["data"],
  ["draw"],
  ["kernel"],
  ["state"],
  ["components"],
  ["views/heatmap", "views/graph", "views/text", "views/heads", "views/stages", "views/compare"],
  ["shell/status"],
  ["shell"],
];
const FOLDERS = FLOORS.flat();
const floorOf = (folder: string) => FLOORS.findIndex((floor) => floor.includes(folder));
const isAllowed = (from: string, to: string) =>
  from === to || floorOf(to) < floorOf(from) || (from === "views/compare" && to === "views/heatmap");

const up = (folder: string) => "../".repeat(folder.split("/").length);
const pathOf = (from: string, to: string) => {
  if (from === to) return "./own";
  if (to.startsWith(`${from}/`)) return `.${to.slice(from.length)}/own`;
  return from.startsWith("views/") && to.startsWith("views/") ? `../${to.slice(6)}/own` : `${up(from)}${to}/own`;
};

/** Every way to name another file, with what it is called in the name of the probe. */
const FORMS: Record<string, (path: string) => string> = {
  type: (path) => `import type { Own } from "${path}";\n\nexport type Probe = Own;\n`,
  value: (path) => `import { own } from "${path}";\n\nexport const probe = own;\n`,
  inline: (path) => `import { type Own, own } from "${path}";\n\nexport const probe: Own = own;\n`,
  again: (path) => `export { own } from "${path}";\n`,
  late: (path) => `export const probe = import("${path}");\n`,
  around: (path) => `import { own } from "./${path}";\n\nexport const probe = own;\n`,
};

let root = "";
const flagged = new Map<string, string[]>();

beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), "imports-"));
  copyFileSync(join(JS, "biome.json"), join(root, "biome.json"));
  const write = (path: string, text: string) => {
    const file = join(root, "src", path);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, text);
  };
  write("widget.ts", "export type Own = number;\nexport const own: Own = 1;\n");
  for (const from of FOLDERS) {
    write(`${from}/own.ts`, "export type Own = number;\nexport const own: Own = 1;\n");
    write(`${from}/type-widget.ts`, FORMS.type!(`${up(from)}widget`));
    for (const to of FOLDERS) write(`${from}/type-${to.replace("/", "-")}.ts`, FORMS.type!(pathOf(from, to)));
  }
  for (const [form, text] of Object.entries(FORMS)) {
    write(`data/form-${form}.ts`, text(pathOf("data", "state")));
    write(`state/form-${form}.ts`, text(pathOf("state", "data")));
  }
  write("state/one.ts", 'import type { Two } from "./two";\n\nexport type One = Two | 1;\n');
  write("state/two.ts", 'import type { One } from "./one";\n\nexport type Two = One | 2;\n');
  const biome = join(JS, "node_modules", ".bin", "biome");
  const ran = spawnSync(biome, ["lint", "--reporter=json", "--max-diagnostics=none", "src"], {
    cwd: root,
    encoding: "utf8",
    shell: process.platform === "win32",
  });
  for (const { category, location } of JSON.parse(ran.stdout).diagnostics) {
    const path = String(location.path?.file ?? location.path).replaceAll("\\", "/");
    const name = path.slice(path.lastIndexOf("src/") + 4);
    flagged.set(name, [...(flagged.get(name) ?? []), category]);
  }
}, 60_000);

afterAll(() => rmSync(root, { recursive: true, force: true }));

test.each(FOLDERS)("%s imports what is below it, and nothing else: types too", (from) => {
  const refused = FOLDERS.filter((to) => flagged.has(`${from}/type-${to.replace("/", "-")}.ts`));
  expect(refused).toEqual(FOLDERS.filter((to) => !isAllowed(from, to)));
  expect(flagged.get(`${from}/type-widget.ts`)).toEqual(["lint/style/noRestrictedImports"]);
});

test.each(Object.keys(FORMS))("upward is refused in every way to write it: %s", (form) => {
  expect(flagged.get(`data/form-${form}.ts`)).toEqual(["lint/style/noRestrictedImports"]);
});

test.each(Object.keys(FORMS).filter((form) => form !== "around"))("downward is not: %s", (form) => {
  expect(flagged.get(`state/form-${form}.ts`)).toBeUndefined();
});

test("a cycle is refused, also one of types alone", () => {
  expect(flagged.get("state/one.ts")).toEqual(["lint/suspicious/noImportCycles"]);
  expect(flagged.get("state/two.ts")).toEqual(["lint/suspicious/noImportCycles"]);
});

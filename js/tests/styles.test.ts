import { readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { STYLES, styleFiles } from "./helpers/style-sheet.ts";

test("every style sheet is in the one that is built, once, but for that of the atlas", () => {
  const src = join(STYLES, "..");
  const there = readdirSync(src, { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".css"))
    .map((name) => join(src, name))
    .filter((name) => ![join(STYLES, "widget.css"), join(src, "atlas", "atlas.css")].includes(name));
  expect([...styleFiles()].sort()).toEqual(there.sort());
});

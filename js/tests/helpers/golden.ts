/** Golden files of `tests/contract` that are written here and read by pytest. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect } from "vitest";

/** Written in escapes: what cannot be seen, or is seen on another character. */
const UNSEEN = /(?! )[\p{C}\p{M}\p{Z}]/gu;

/** Return the path of a golden file, also for a copy of this folder somewhere below the repository (js/mutants). */
export function contractFile(name: string): string {
  let root = import.meta.dirname;
  while (!existsSync(join(root, "pyproject.toml"))) root = dirname(root);
  return join(root, "tests", "contract", name);
}

/** Hold a golden file to what has been made now; with ATTNWIDGET_CONTRACT=write, write it first. */
export function checkGolden(name: string, made: Readonly<Record<string, readonly unknown[]>>): void {
  const path = contractFile(name);
  if (process.env.ATTNWIDGET_CONTRACT === "write") writeFileSync(path, asLines(made));
  const stale = `${name} is out of date: run ATTNWIDGET_CONTRACT=write npx vitest run tests/contract`;
  expect(JSON.parse(asLines(made)), stale).toEqual(near(JSON.parse(readFileSync(path, "utf8"))));
}

/** The same, but for the last digits of fractions: those of a logarithm or a sum are the machine's own. */
function near(kept: unknown): unknown {
  if (typeof kept === "number") return Number.isInteger(kept) ? kept : expect.closeTo(kept, 10);
  if (Array.isArray(kept)) return kept.map(near);
  if (typeof kept !== "object" || kept === null) return kept;
  return Object.fromEntries(Object.entries(kept).map(([name, part]) => [name, near(part)]));
}

/** A number for JSON, which has none for NaN and ±∞. */
export const portable = (value: number): number | string => (Number.isFinite(value) ? value : String(value));

/** JSON with a line for each case, so that a diff says which one changed. */
function asLines(made: Readonly<Record<string, readonly unknown[]>>): string {
  const parts = Object.entries(made).map(
    ([name, cases]) => `${JSON.stringify(name)}: [\n${cases.map((one) => JSON.stringify(one)).join(",\n")}\n]`,
  );
  return `{\n${parts.join(",\n")}\n}\n`.replace(UNSEEN, (character) =>
    character === "\n" ? character : Array.from({ length: character.length }, (_, at) => unit(character, at)).join(""),
  );
}

const unit = (character: string, at: number) => `\\u${character.charCodeAt(at).toString(16).padStart(4, "0")}`;

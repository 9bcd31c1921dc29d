import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig } from "vitest/config";

const TESTS = join(import.meta.dirname, "tests");
/** What a release must pass and not each change: `make thorough` sets the variable. */
const THOROUGH_ONLY = process.env.ATTNWIDGET_THOROUGH ? [] : ["imports.test.ts"];
const files = readdirSync(TESTS, { recursive: true, encoding: "utf8" }).filter(
  (name) => /\.test\.tsx?$/.test(name) && !THOROUGH_ONLY.includes(name),
);
/** The files that need a page say so in their first line; to make one takes longer than most of the other files. */
const onPages = files.filter((name) =>
  readFileSync(join(TESTS, name), "utf8").startsWith("// @vitest-environment jsdom\n"),
);
/** Those that replace a module have their own, which takes another page. */
const alone = onPages.filter((name) => readFileSync(join(TESTS, name), "utf8").includes("vi.mock("));
const paths = (names: string[]) => names.map((name) => `tests/${name.replaceAll("\\", "/")}`);

const page = { environment: "jsdom", setupFiles: ["tests/helpers/each-file.ts"] };

export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  test: {
    restoreMocks: true,
    maxWorkers: "100%",
    testTimeout: 60_000, // a loaded machine draws slowly
    projects: [
      {
        extends: true,
        test: { name: "pure", include: paths(files.filter((name) => !onPages.includes(name))), isolate: false },
      },
      {
        extends: true,
        test: {
          ...page,
          name: "pages",
          include: paths(onPages.filter((name) => !alone.includes(name))),
          isolate: false,
        },
      },
      { extends: true, test: { ...page, name: "alone", include: paths(alone) } },
    ],
  },
});

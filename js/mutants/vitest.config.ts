/** The tests that Stryker runs: those of the folders in which it plants faults, and what both languages agree on. */

import { defineConfig } from "vitest/config";

export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  test: {
    restoreMocks: true,
    include: ["tests/{contract,data,geometry,text}/*.test.ts"],
  },
});

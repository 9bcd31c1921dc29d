import { effect } from "@preact/signals-core";
import { expect, test, vi } from "vitest";
import { PAGE, pagedLabels } from "../../src/state/token-pages";

const word = (position: number) => `w${position}`;
const words = (start: number, stop: number) => Array.from({ length: stop - start }, (_, at) => word(start + at));
const soon = () => new Promise((resolve) => setTimeout(resolve, 0));

/** Labels of a million tokens whose pages come when they are let. */
function paged(length = 1_000_000) {
  const open: { start: number; stop: number; come(tokens?: string[] | null): void; fail(): void }[] = [];
  const ask = vi.fn(
    (start: number, stop: number) =>
      new Promise<string[] | null>((resolve, reject) => {
        open.push({
          start,
          stop,
          come: (tokens = words(start, stop)) => resolve(tokens),
          fail: () => reject(new Error()),
        });
      }),
  );
  return { labels: pagedLabels(words(0, PAGE), length, ask), ask, open };
}

test("what was sent is there at once; beyond it a token is its position until its page comes", async () => {
  const { labels, ask, open } = paged();
  expect(labels.at(PAGE - 1)).toMatchObject({ text: "w4095", subscript: "4,095" });
  expect(labels.at(10_000)).toMatchObject({ text: "10,000", subscript: "" });
  await soon();
  expect(ask.mock.calls).toEqual([[8192, 12_288]]);
  open[0]!.come();
  await soon();
  expect(labels.at(10_000)).toEqual({
    text: "w10000",
    special: false,
    position: 10_000,
    repeated: true,
    subscript: "10,000",
  });
  expect(ask).toHaveBeenCalledTimes(1);
});

test("whoever looked at a token that was not there looks again, and nobody else", async () => {
  const { labels, open } = paged();
  const [near, far] = [vi.fn(), vi.fn()];
  const ends = [effect(() => near(labels.at(3).text)), effect(() => far(labels.at(500_000).text))];
  await soon();
  open[0]!.come();
  await soon();
  expect(near.mock.calls).toEqual([["w3"]]);
  expect(far.mock.calls).toEqual([["500,000"], ["w500000"]]);
  for (const end of ends) end();
});

test("the last page ends with the tokens", async () => {
  const { labels, ask } = paged(10_000);
  labels.at(9_999);
  await soon();
  expect(ask.mock.calls).toEqual([[8192, 10_000]]);
  labels.at(10_000);
  labels.at(-1);
  await soon();
  expect(ask).toHaveBeenCalledTimes(1);
});

test("in fast panning two pages are on their way, the newest first, and old ones are forgotten", async () => {
  const { labels, ask, open } = paged();
  for (let page = 1; page <= 40; page++) labels.at(page * PAGE);
  await soon();
  expect(ask.mock.calls.map(([start]) => start / PAGE)).toEqual([40, 39]);
  labels.at(100 * PAGE);
  await soon();
  expect(ask).toHaveBeenCalledTimes(2);
  for (let at = 0; at < open.length; at++) {
    open[at]!.come();
    await soon();
  }
  expect(ask.mock.calls.map(([start]) => start / PAGE)).toEqual([40, 39, 100, 38, 37]);
});

test("looking at many tokens of one page asks for it once", async () => {
  const { labels, ask, open } = paged();
  for (let round = 0; round < 3; round++) {
    for (let at = 0; at < 100; at++) labels.at(20_000 + at);
    await soon();
  }
  expect(ask).toHaveBeenCalledTimes(1);
  open[0]!.come();
});

test("a page that could not be had is asked for again when somebody looks again", async () => {
  const { labels, ask, open } = paged();
  labels.at(50_000);
  await soon();
  open[0]!.fail();
  await soon();
  expect(labels.at(50_000).text).toBe("50,000");
  await soon();
  open[1]!.come(null);
  await soon();
  expect(ask).toHaveBeenCalledTimes(2);
  expect(labels.at(50_000).text).toBe("50,000");
});

test("pages that were not looked at for long are let go", async () => {
  const ask = vi.fn(async (start: number, stop: number) => words(start, stop));
  const labels = pagedLabels(words(0, PAGE), 300 * PAGE, ask);
  for (let page = 1; page < 300; page++) {
    labels.at(page * PAGE);
    labels.at(0); // the first is looked at all the time
    await soon();
  }
  expect(labels.at(0).text).toBe("w0");
  expect(labels.at(299 * PAGE).text).toBe(word(299 * PAGE));
  expect(labels.at(PAGE).text).toBe("4,096");
});

test("special tokens carry no position, and a byte vocabulary is read as one", async () => {
  const first = ["<s>", "Ġthe", "Ġbank", ...words(3, PAGE)];
  const labels = pagedLabels(first, 70_000, async () => ["Ġriver", "Ċ"]);
  expect(labels.at(0)).toMatchObject({ text: "<s>", special: true, subscript: "" });
  expect(labels.at(2)).toMatchObject({ text: "bank", subscript: "2" });
  labels.at(PAGE);
  await soon();
  expect([labels.at(PAGE).text, labels.at(PAGE + 1).text]).toEqual(["river", "↵"]);
});

test("to look for a text is the kernel's: not all tokens are here", () => {
  expect(paged().labels.find("w3")).toBeNull();
});

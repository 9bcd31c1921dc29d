// @vitest-environment jsdom
/** The card of a head: of how many texts and links its numbers are. */

import { h, render } from "preact";
import { expect, test } from "vitest";
import { HeadCard } from "../src/atlas/card";
import type { Card, Source } from "../src/atlas/contents";

async function shown(own: Partial<Card>, onAside: number | null): Promise<string> {
  const histogram = { mean: 0.31, std: 0.1, least: 0, most: 1, n: 5, counts: [5], edges: [0, 1] };
  const card = { metrics: { induction: histogram }, distances: [], byDistance: [], contentByDistance: [] } as object;
  const more = { positions: [], byPosition: [], contentByPosition: [], byKind: [], similar: [], writes: [" a", "b"] };
  const links = { strongest: [], ordinary: [], "strongest content": [], "ordinary content": [] };
  const whole = { ...card, ...more, links, copied: [3, 8], unwritten: null, ...own } as unknown as Card;
  const metrics = [{ name: "induction", label: "Induction", about: "" }];
  const of = {
    sentences: [""],
    labels: [[]],
    counts: [1],
    metrics,
    texts: 21,
    setAside: "first tokens",
    kinds: [],
    aside: [onAside],
  };
  const source = { index: { ...of, other: null }, open: null, card: async () => whole } as unknown as Source;
  const root = document.createElement("div");
  const props = { source, side: 0, of: source.index, metric: "", aside: false, onChoose: () => {}, onClose: null };
  render(h(HeadCard, { ...props, head: { layer: 0, head: 0, at: 0 } }), root);
  for (let i = 0; i < 20 && root.querySelector("[aria-busy=false]") === null; i++)
    await new Promise((resolve) => setTimeout(resolve, 5));
  return root.textContent ?? "";
}

test("a card says of how many texts and links its numbers are, and nothing where they are unknown", async () => {
  const said = await shown({}, 0.263);
  expect(said).toContain("26 % of its weight is on first tokens.");
  expect(said).toContain(".31 ± .10 in 5 of 21 texts");
  expect(said).toContain(
    "raises a, b most. In 3 of 8 ordinary links the key's own token is among the ten tokens raised most.",
  );
  const unknown = await shown({ copied: [0, 0] }, null);
  expect(unknown).not.toContain("of its weight");
  expect(unknown).not.toContain("ordinary links the key");
});

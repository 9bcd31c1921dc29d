// @vitest-environment jsdom
/** Files without a kernel: what is saved is found again, what is not is said. */
import { readFileSync } from "node:fs";
import { beforeEach, describe, expect, test, vi } from "vitest";
import { decode, decodeGrid } from "../../src/contract/decode";
import type { Facts, PictureMessage } from "../../src/contract/messages";
import type { Traits } from "../../src/contract/traits";
import { buildTable, parseColor } from "../../src/draw/color";
import { unpack } from "../../src/export-page";
import { createHost, type Host, type HostRequest } from "../../src/kernel/host";
import { answersOf, keyOf, nameOf, type Snapshot } from "../../src/kernel/snapshot";
import { contractFile } from "../helpers/golden.ts";
import { show } from "../helpers/page.ts";
import { massOf } from "../helpers/segments.ts";
import { CAUSAL, type Cells, factsOf, linksOf, pictureOf, quantised, stateOf, weights } from "../helpers/states.ts";

beforeEach(() => {
  vi.useFakeTimers();
});

const HEADS: Record<number, Cells> = { 0: CAUSAL, 2: weights(4, 4, 5) };
const FACTS: Facts = { ...factsOf(CAUSAL), saved: { layers: [0], heads: [0, 2], samples: [0] } };

/** A file with heads 0 and 2 of layer 0, the stage weights. */
function saved(changes: Partial<Traits> = {}, pictures: Record<string, PictureMessage> = {}): Snapshot {
  const own = Object.entries(HEADS).map(([head, cells]) => {
    const of = { layer: 0, batch: 0, head: Number(head), stage: "weights", pool: "max" } as const;
    return [keyOf(Object.values(of)), pictureOf(cells, of)];
  });
  const links = Object.entries(HEADS).map(([head, cells]) => {
    const { partners, weights } = linksOf(() => cells, [Number(head)]);
    const shape = partners.shape.slice(1);
    return [
      keyOf([0, 0, Number(head), "query", "weights"]),
      { partners: { ...partners, shape }, weights: { ...weights, shape } },
    ];
  });
  return {
    state: stateOf(CAUSAL, { facts: FACTS, ...changes }),
    derived: {
      facts: { by: ["layer"], values: { [keyOf([0])]: FACTS } },
      picture: {
        by: ["layer", "batch", "head", "stage", "pool"],
        values: { ...Object.fromEntries(own), ...pictures },
      },
      pair: { by: ["layer", "batch", "head", "query", "key"], values: {} },
    },
    links: Object.fromEntries(links),
    peaks: {},
    replies: { [nameOf({ id: "x", kind: "spread", layer: 0, batch: 0, head: 0 })]: { every: 1 } },
  };
}

function openFile(file: Snapshot) {
  const refused: string[] = [];
  const answers = answersOf(file, (reason) => {
    refused.push(reason);
    host.tell({ refused: reason });
  });
  const host: Host = createHost(file.state, answers);
  return { host, refused, ...answers };
}

const ask = (file: Snapshot, request: Omit<HostRequest, "id">) =>
  openFile(file).answer?.({ id: "1", ...request } as HostRequest) as Promise<Record<string, never>>;
const OF = { layer: 0, batch: 0, head: 2, stage: "weights" };

describe("segments", () => {
  const place = (asking: string | null, path: readonly string[]) => keyOf([0, 0, 0, asking, path]);
  const masses = {
    [place(null, [])]: massOf(),
    [place("question", [])]: massOf({ id: 3, asking: "question", row: 2 }),
    [place(null, ["doc 1"])]: massOf({ id: 4, path: ["doc 1"] }),
  };
  const file = (): Snapshot => {
    const plain = saved({ view: "segments" as never, asking: null, segment_path: [], segment: null });
    const by = ["layer", "batch", "head", "asking", "segment_path"] as const;
    const replies = { [nameOf({ id: "x", kind: "segment_line", of: 3, column: 1 })]: { every: 1 } };
    return { ...plain, derived: { ...plain.derived, mass: { by, values: masses } }, replies };
  };

  test("another one can be asked about, and gone down into, where that was saved", async () => {
    const { take, answer } = openFile(file());
    expect(await take?.({ asking: "question" })).toMatchObject({ mass: { id: 3, row: 2 } });
    expect(await answer?.({ id: "1", kind: "segment_line", of: 3, column: 1 })).toEqual({ every: 1 });
    expect(await take?.({ asking: null, segment_path: ["doc 1"] })).toMatchObject({ mass: { id: 4 } });
    expect(await take?.({ segment: "sentence 1" })).toMatchObject({ segment: "sentence 1", mass: { id: 4 } });
  });

  test("inside a segment, another head that has only the outermost ones shows these, and says so", async () => {
    const plain = file();
    const other = { [keyOf([0, 0, 2, null, []])]: massOf({ id: 5, head: 2 }) };
    const { by } = plain.derived.mass!;
    const mass = { by, values: { ...masses, ...other } };
    const { take, refused } = openFile({ ...plain, derived: { ...plain.derived, mass } });
    await take?.({ segment_path: ["doc 1"], segment: "sentence 1" });
    const at = { segment_path: [], asking: null, segment: "doc 1" };
    expect(await take?.({ head: 2 })).toMatchObject({ head: 2, mass: { id: 5 }, ...at });
    expect(refused).toEqual([
      "Of this head only the outermost segments are in the file. What lies inside doc 1 was not saved: open the notebook to compute it.",
    ]);
    expect(await take?.({ head: 0 })).toMatchObject({ head: 0, mass: { id: massOf().id } });
    expect(refused.length).toBe(1);
  });

  test("what was not saved is said, and put back", async () => {
    const { take, refused } = openFile(file());
    expect(await take?.({ asking: "doc 1" })).toEqual({ asking: null });
    expect(await take?.({ head: 2 })).toMatchObject({ head: 2, mass: null });
    expect(refused).toEqual(["What you chose was not saved: open the notebook to compute it."]);
  });
});

describe("answers", () => {
  test("rows, columns and cells of every head whose numbers are here", async () => {
    const row = await ask(saved(), { kind: "row", query: 1, ...OF });
    expect([...(await decode(row.values!))]).toEqual([...Float32Array.from(HEADS[2]![1] as number[])]);
    const column = await ask(saved(), { kind: "column", key: 3, ...OF, head: 0 });
    const { values, kinds } = await decodeGrid(column.values!, column.blocked);
    expect([values[3], [...kinds]]).toEqual([Math.fround(0.4), [1, 1, 1, 0]]);
    const cells = await ask(saved(), { kind: "cells", queries: [1, 3], keys: [2, 4], ...OF });
    const grid = await decodeGrid(cells.values!, cells.blocked);
    expect([grid.rows, grid.columns, grid.values[1]]).toEqual([2, 2, Math.fround(HEADS[2]![1]![3] as number)]);
  });

  test("several rows together, ranked", async () => {
    const found = await ask(saved(), { kind: "ranked", queries: [0, 1], over: "mean", count: 2, ...OF, head: 0 });
    expect([...(await decode(found.positions!))]).toEqual([0, 1]);
    expect([...(await decode(found.values!))]).toEqual([0.625, 0.375]);
    expect([found.allowed, found.blocked, found.sum]).toEqual([2, 2, 1]);
  });

  test("the greatest number of a pooled picture's bins, and where it is", async () => {
    const of = { layer: 0, batch: 0, head: 0, stage: "weights", pool: "max" } as const;
    const cells = weights(5, 5);
    const file = saved({}, { [keyOf(Object.values(of))]: quantised(cells, of, 2) });
    const bins = [0, 2, 4].map((top) =>
      [0, 2, 4].map((left) => {
        const inside = cells.slice(top, top + 2).flatMap((row) => row.slice(left, left + 2));
        const value = Math.max(...inside);
        return { value, place: inside.indexOf(value) };
      }),
    );
    const whole = <T extends Float32Array | Uint32Array>(data: T, dtype: "float32" | "uint32") => ({
      ...{ data: new DataView(data.buffer), dtype, shape: [3, 3], deflated: false },
    });
    const peaks = {
      values: whole(
        Float32Array.from(bins.flat(), ({ value }) => value),
        "float32",
      ),
      places: whole(
        Uint32Array.from(bins.flat(), ({ place }) => place),
        "uint32",
      ),
    };
    const known = { ...file, peaks: { [keyOf([0, 0, 0, "weights"])]: peaks } };
    const most = async (queries: number[], keys: number[]) =>
      ask(known, { kind: "peak", queries, keys, ...OF, head: 0 });
    for (const [queries, keys] of [
      [
        [2, 4],
        [4, 5],
      ],
      [
        [4, 5],
        [0, 2],
      ],
      [
        [0, 5],
        [0, 5],
      ],
      [
        [0, 4],
        [2, 5],
      ],
    ] as [[number, number], [number, number]][]) {
      const found = (await most(queries, keys)) as unknown as { value: number; query: number; key: number };
      const inside = cells.slice(...queries).flatMap((row) => row.slice(...keys));
      expect(found.value).toBe(Math.fround(Math.max(...inside)));
      expect(cells[found.query]?.[found.key]).toBe(Math.max(...inside));
    }
    await expect(most([1, 3], [0, 2])).rejects.toThrow("was not saved");
  });

  test("what was asked when it was saved, whatever the order of its fields", async () => {
    expect(await ask(saved(), { head: 0, kind: "spread", batch: 0, layer: 0 })).toEqual({ every: 1 });
  });

  test("what is not here is said", async () => {
    const why = "was not saved: open the notebook to compute it.";
    await expect(ask(saved(), { kind: "row", query: 0, ...OF, head: 1 })).rejects.toThrow(why);
    await expect(ask(saved(), { kind: "row", query: 9, ...OF })).rejects.toThrow(why);
    await expect(ask(saved(), { kind: "cost", layer: 0 })).rejects.toThrow(why);
    const of = { layer: 0, batch: 0, head: 0, stage: "weights", pool: "max" } as const;
    const pooled = { [keyOf(Object.values(of))]: quantised(weights(8, 8), of, 2) };
    await expect(ask(saved({}, pooled), { kind: "row", query: 0, ...OF, head: 0 })).rejects.toThrow(why);
  });
});

describe("selections", () => {
  test("another head brings what was saved of it", async () => {
    const { take } = openFile(saved());
    const next = await take?.({ head: 2 });
    expect(next?.picture?.head).toBe(2);
    expect([next?.head, next?.heads, next?.pair]).toEqual([2, [2], null]);
  });

  test("pins follow query and key", async () => {
    const { take } = openFile(saved());
    expect((await take?.({ query: 1, key: 2 }))?.pins).toEqual([[1, 2]]);
    expect((await take?.({ query: null, key: null }))?.pins).toEqual([]);
  });

  test("links of several heads are joined, and are none where one of them is missing", async () => {
    const { take } = openFile(saved());
    const links = (await take?.({ heads: [0, 2] }))?.links;
    expect(links?.partners.shape).toEqual([2, 4, 3]);
    const both = linksOf((head) => HEADS[head]!, [0, 2]);
    expect([...(await decode(links!.weights))]).toEqual([...(await decode(both.weights))]);
    expect((await take?.({ direction: "key" }))?.links).toBeNull();
  });

  test("links, facts and pictures are those of the layer and the sample", async () => {
    const file = saved();
    const place = { layer: 3, batch: 1 };
    const facts: Facts = { ...FACTS, saved: { layers: [0, 3], heads: [0, 2], samples: [0, 1] } };
    const linked = linksOf(() => weights(4, 4, 9), [2]);
    const shape = linked.partners.shape.slice(1);
    const own = { partners: { ...linked.partners, shape }, weights: { ...linked.weights, shape } };
    const picture = pictureOf(weights(4, 4, 9), { ...place, head: 2 });
    const { facts: allFacts, picture: pictures } = file.derived;
    Object.assign(allFacts!.values, { [keyOf([0])]: facts, [keyOf([3])]: facts });
    Object.assign(pictures!.values, { [keyOf([3, 1, 2, "weights", "max"])]: picture });
    Object.assign(file.links, { [keyOf([3, 1, 2, "query", "weights"])]: own });
    const { take } = openFile({ ...file, state: { ...file.state, facts } });
    const next = await take?.({ ...place, head: 2, heads: [2] });
    expect(next?.links).toMatchObject({ ...place, heads: [2] });
    expect([...(await decode(next!.links!.weights))]).toEqual([...(await decode(linked.weights))]);
    expect(next?.picture).toMatchObject({ ...place, head: 2 });
    expect((await take?.({ layer: 0, batch: 0 }))?.links).toMatchObject({ layer: 0, batch: 0 });
  });

  test("a head, a stage or rules that were not saved are put back, with the reason", async () => {
    const { take, refused } = openFile(saved());
    expect(await take?.({ head: 1 })).toEqual({ head: 0 });
    expect(await take?.({ stage: "scores" })).toEqual({ stage: "weights" });
    expect(await take?.({ heads: [0, 3], head: 0 })).toEqual({ heads: [0], head: 0 });
    expect(await take?.({ what_if: { scale: 1 } })).toEqual({ what_if: {} });
    expect(refused).toHaveLength(4);
    expect(refused[0]).toBe("What you chose was not saved: open the notebook to compute it.");
  });
});

describe("the widget on a file", () => {
  const openWidget = (changes: Partial<Traits> = {}) => {
    const { host } = openFile(saved(changes));
    return show(host as never);
  };

  test("heads that are not in it cannot be chosen, others can", async () => {
    const { view } = await openWidget();
    expect(view.button("head 1").disabled).toBe(true);
    expect(view.button("head 2").disabled).toBe(false);
    expect(view.button("layer 1").disabled).toBe(true);
    view.button("head 2").click();
    await vi.advanceTimersByTimeAsync(100);
    expect(view.head).toBe("head 2");
    await view.hover(1, 3);
    expect(view.status).toContain((HEADS[2]![1]![3] as number).toFixed(6));
  });

  test("a key that steps to one is told so", async () => {
    const { view } = await openWidget();
    await view.press("]");
    await vi.advanceTimersByTimeAsync(100);
    expect(view.head).toBe("head 0");
    expect(view.notices).toContain("Not in this file");
  });

  test("no kernel is missed", async () => {
    const { view } = await openWidget({ view: "graph", query: 3, key: null });
    await vi.advanceTimersByTimeAsync(6000);
    expect(view.notices).toBe("");
  });
});

describe("the contract with Python", () => {
  const contract = (name: string) => JSON.parse(readFileSync(contractFile(name), "utf8"));

  test("a file is unpacked", async () => {
    vi.useRealTimers();
    const { packed } = contract("saved.json");
    const found = (await unpack(packed.data.$bytes)) as { some: DataView; more: DataView[]; text: string; none: null };
    expect([found.some.byteLength, found.some.getUint8(2)]).toEqual([3, 9]);
    expect([found.more[1]?.byteLength, found.more[1]?.getFloat32(0, true)]).toEqual([4, 0.5]);
    expect([found.text, found.none]).toEqual(["</script> naïve 日本", null]);
  });

  test("a request has the same name", () => {
    const { request } = contract("saved.json");
    expect(nameOf({ id: "1", kind: "sweep", layer: 1, batch: 0, head: 3, own: true })).toBe(request.name);
    expect(keyOf([0, 2, "weights", null])).toBe(request.key);
  });

  test("colors are the same", () => {
    const tables = contract("colors.json") as Record<string, string>;
    for (const [name, colors] of Object.entries(tables)) {
      const [kind, palette, theme, page, ink] = name.split(" ") as [never, never, never, string, string];
      const look = { kind, palette, theme, page: parseColor(page)!, ink: parseColor(ink)! };
      expect(
        buildTable(look)
          .css.map((color) => color.slice(1))
          .join(" "),
      ).toBe(colors);
    }
  });
});

describe("a comparison of several sides", () => {
  const AT = { b: [1, 0, 2], c: null } as const;

  function compared(): Snapshot {
    const file = saved({ view: "compare", against: "b", against_at: AT.b });
    const of = (name: "b" | "c") => keyOf([0, 0, 0, "weights", "max", name, AT[name]]);
    const by = ["layer", "batch", "head", "stage", "pool", "against", "against_at"] as const;
    return {
      ...file,
      derived: {
        ...file.derived,
        comparison: { by, values: { [of("b")]: { a: "of b" }, [of("c")]: { a: "of c" } } },
        against_at: { by: ["against"], values: { [keyOf(["b"])]: AT.b, [keyOf(["c"])]: AT.c } },
      },
    };
  }

  test("each side looks where it looked when it was saved", async () => {
    const { take, refused } = openFile(compared());
    for (const name of ["c", "b", "c"] as const) {
      const now = await take?.({ against: name });
      expect([now?.against_at, now?.comparison]).toEqual([AT[name], { a: `of ${name}` }]);
    }
    expect(refused).toEqual([]);
  });

  test("a comparison is of the stage that is shown, scores too", async () => {
    const file = compared();
    const { by, values } = file.derived.comparison!;
    const picture = file.derived.picture!;
    const of = keyOf([0, 0, 0, "scores", "max", "b", AT.b]);
    const scores = Object.fromEntries(
      Object.entries(picture.values).map(([name, value]) => [name.replace('"weights"', '"scores"'), value]),
    );
    const { take, refused } = openFile({
      ...file,
      derived: {
        ...file.derived,
        comparison: { by, values: { ...values, [of]: { a: "of scores" } } },
        picture: { ...picture, values: { ...picture.values, ...scores } },
      },
    });
    expect((await take?.({ stage: "scores" }))?.comparison).toEqual({ a: "of scores" });
    expect(refused).toEqual([]);
  });

  test("a comparison that is not in the file is refused with a word, and other views stay free", async () => {
    const { take, refused } = openFile(compared());
    expect(await take?.({ against_at: [0, 0, 1] })).toEqual({ against_at: AT.b });
    expect(await take?.({ heads: [2], head: 2 })).toEqual({ heads: [0], head: 0 });
    expect(refused).toHaveLength(2);
    await take?.({ view: "heatmap" });
    expect(await take?.({ heads: [2], head: 2 })).toMatchObject({ head: 2, comparison: null });
    expect(refused).toHaveLength(2);
  });
});

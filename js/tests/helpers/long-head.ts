/** A head of any length in closed form: the weight falls with the distance from the diagonal, so that any bin is known. */

import type {
  BandMessage,
  PictureMessage,
  Quantisation,
  Sampled,
  TileAddress,
  TileMessage,
} from "../../src/contract/messages";
import type { Traits } from "../../src/contract/traits";
import type { HostRequest } from "../../src/kernel/host";
import { bits, codes, factsOf, floats, stateOf, tokensOf } from "./states.ts";

export const HIGH = 0.8;
const SCALE: Quantisation = { kind: "log", high: HIGH, octaves: 24 };
type Range = readonly [start: number, stop: number];

export function weightAt(query: number, key: number): number {
  return HIGH / (1 + Math.abs(query - key));
}

/** The greatest weight of a bin. */
export function pooledAt([q0, q1]: Range, [k0, k1]: Range): number {
  return HIGH / (1 + Math.max(0, q0 - (k1 - 1), k0 - (q1 - 1)));
}

export function longHead(queries: number, keys = queries) {
  const bins = { query: Math.ceil(queries / 512), key: Math.ceil(keys / 512) };
  const rows = Math.ceil(queries / bins.query);
  const columns = Math.ceil(keys / bins.key);
  const range = (index: number, bin: number, total: number): Range => [index * bin, Math.min(total, (index + 1) * bin)];
  const of = { layer: 0, batch: 0, head: 0, stage: "weights", pool: "max" } as const;

  function lines(start: number, stop: number, exact: (row: number) => boolean) {
    return Array.from({ length: stop - start }, (_, at) => {
      const row = start + at;
      const [first] = range(row, bins.query, queries);
      const span = exact(row) ? range(row, bins.query, queries) : ([first, first + 1] as const);
      return Array.from({ length: columns }, (_, column) => pooledAt(span, range(column, bins.key, keys)));
    });
  }

  const drawn = new Map<number, PictureMessage>();
  /** Below its first `exact` rows each row is that of its bin's first query. */
  function picture(exact = rows): PictureMessage {
    const known = drawn.get(exact) ?? draw(exact);
    drawn.set(exact, known);
    return { ...known };
  }

  function draw(exact: number): PictureMessage {
    const cells = lines(0, rows, (row) => row < exact);
    const sampled: Sampled | null = exact < rows ? { first: 0, every: bins.query, exact } : null;
    return {
      ...of,
      queries,
      keys,
      query_bin: bins.query,
      key_bin: bins.key,
      low: 0,
      high: HIGH,
      sampled,
      values: codes(cells.flat(), [rows, columns], SCALE),
      blocked: null,
      error: null,
    };
  }

  function band(start: number, stop: number, version = 0): BandMessage {
    const values = codes(lines(start, stop, () => true).flat(), [stop - start, columns], SCALE);
    return { ...of, version, start, stop, low: 0, high: HIGH, values };
  }

  function tile(address: TileAddress, { every = 1, high = HIGH } = {}): TileMessage {
    const [rowLevel, columnLevel, row, column] = address;
    const size = (total: number, level: number, at: number) => Math.min(128, Math.ceil(total / 2 ** level) - at * 128);
    const shape = [size(queries, rowLevel, row), size(keys, columnLevel, column)] as [number, number];
    const first = row * 128 * 2 ** rowLevel;
    const cells = Array.from({ length: shape[0] }, (_, r) => {
      const whole = range(row * 128 + r, 2 ** rowLevel, queries);
      const span = every === 1 ? whole : ([whole[0], whole[0] + 1] as const);
      return Array.from({ length: shape[1] }, (_, c) =>
        pooledAt(span, range(column * 128 + c, 2 ** columnLevel, keys)),
      );
    });
    return { tile: address, every, first, low: 0, high, values: codes(cells.flat(), shape, { ...SCALE, high }) };
  }

  function answer(request: HostRequest): object {
    const [qs, ks] = [request.queries, request.keys] as [Range, Range];
    if (request.kind === "tiles") return { tiles: (request.tiles as TileAddress[]).map((address) => tile(address)) };
    if (request.kind === "cells") {
      const cells = Array.from({ length: qs[1] - qs[0] }, (_, q) =>
        Array.from({ length: ks[1] - ks[0] }, (_, k) => weightAt(qs[0] + q, ks[0] + k)),
      );
      return { values: floats(cells.flat(), [cells.length, ks[1] - ks[0]]), blocked: bits([]) };
    }
    if (request.kind === "peak") {
      const key = Math.max(ks[0], Math.min(ks[1] - 1, qs[0]));
      return { value: pooledAt(qs, ks), query: Math.max(qs[0], Math.min(qs[1] - 1, key)), key };
    }
    if (request.kind === "row") {
      return {
        values: floats(Array.from({ length: keys }, (_, key) => weightAt(request.query as number, key))),
        blocked: null,
      };
    }
    return {};
  }

  /** Tokens "a0", "a1", … "a9", in turn. */
  const tokens = () => tokensOf(Array.from({ length: Math.min(queries, 4096) }, (_, at) => `a${at % 10}`));

  function state(changes: Partial<Traits> = {}): Traits {
    const facts = factsOf([[0]], { queries, keys, heads: 2 });
    return stateOf([[0]], { facts, picture: picture(), tokens: null, key_tokens: null, ...changes });
  }

  return { queries, keys, rows, columns, bins, picture, band, tile, answer, tokens, state };
}

/** Segments and the attention between them as sent: typed arrays, before anything is excluded or normalized. */

import { decode, decodeGrid } from "../contract/decode";
import type {
  Bytes,
  Envelope,
  HeadMassMessage,
  MassMessage,
  NoSegmentsMessage,
  SegmentsMessage,
} from "../contract/messages";
import type { HeadName, Stage } from "../contract/values";

/** The named parts of a text, or the reason why there are none. */
export interface Segments {
  readonly error: string | null;
  /** For each entry: a contiguous piece, on level 0 or inside the last preceding one of the level above. */
  readonly names: readonly string[];
  readonly starts: Uint32Array;
  readonly stops: Uint32Array;
  readonly levels: Uint8Array;
  /** The number of entries that were not sent. */
  readonly more: number;
  readonly length: number;
  /** The names of level 0 in order of appearance, with the number of tokens and the color slot of each. */
  readonly distinct: readonly string[];
  readonly sizes: readonly number[];
  readonly colors: readonly number[];
  readonly answer: string;
}

/** Rows of masses. `mass` and `even`: (rows, columns); `self` and `selfEven`: the part on the queries' own keys. */
export interface Masses {
  readonly rows: number;
  readonly columns: number;
  readonly mass: Float32Array;
  readonly even: Float32Array;
  readonly self: Float32Array;
  readonly selfEven: Float32Array;
}

/** Some tokens of the asking segment, from number `start` on; `self` and `selfEven` are (rows,). */
export interface MassColumns extends Masses {
  readonly start: number;
  /** The column of each token's own key; `columns` if it has none. */
  readonly own: Uint32Array;
}

export interface Mass {
  readonly id: number;
  readonly of: { readonly layer: number; readonly batch: number; readonly head: HeadName };
  readonly path: readonly string[];
  readonly asking: string;
  readonly askingPath: readonly string[];
  /** The stage that is summed. */
  readonly stage: Stage;
  readonly error: string | null;
  readonly keys: readonly string[];
  readonly keySizes: readonly number[];
  readonly keyColors: readonly number[];
  /** For each column, how many segments are inside, and its longest stretch; empty in older files. */
  readonly keyInside: readonly number[];
  readonly keySpans: Uint32Array;
  readonly rowSpans: Uint32Array;
  readonly rows: readonly string[];
  readonly rowSizes: readonly number[];
  /** The row of the asking segment. */
  readonly row: number;
  /** 1 if every number is exact. */
  readonly share: number;
  readonly looked: Uint32Array;
  /** Segments × segments; NaN in a row whose queries were not computed. */
  readonly matrix: Masses;
  /** Whether the matrix has exact numbers rather than colors only; the asking segment's row always has. */
  readonly exact: boolean;
  readonly total: number;
  readonly positions: Uint32Array;
  readonly first: MassColumns;
}

export interface HeadMass {
  readonly id: number;
  readonly batch: number;
  readonly path: readonly string[];
  readonly asking: string;
  readonly askingPath: readonly string[];
  readonly stage: Stage;
  readonly error: string | null;
  readonly keys: readonly string[];
  /** Layer and head of each row. */
  readonly heads: readonly { readonly layer: number; readonly head: number }[];
  readonly masses: Masses;
  /** The sum of each row over all columns, including unsent ones: one column. */
  readonly sums: Masses;
  /** How many queries of each layer. */
  readonly looked: Uint32Array;
  readonly total: number;
  readonly share: number;
}

const NO_FLOATS = new Float32Array(0);
const NO_WHOLES = new Uint32Array(0);
const NO_MASSES: Masses = {
  rows: 0,
  columns: 0,
  mass: NO_FLOATS,
  even: NO_FLOATS,
  self: NO_FLOATS,
  selfEven: NO_FLOATS,
};
const NONE = {
  ...{ names: [], starts: NO_WHOLES, stops: NO_WHOLES, levels: new Uint8Array(0), more: 0, length: 0 },
  ...{ distinct: [], sizes: [], colors: [], answer: "" },
};

export async function decodeSegments(message: SegmentsMessage | NoSegmentsMessage): Promise<Segments> {
  if ("error" in message && message.error) return { ...NONE, error: text(message.error) };
  const { names, length, distinct, sizes, colors, answer, more = 0, ...rest } = message as SegmentsMessage;
  const [starts, stops, levels] = await Promise.all([decode(rest.starts), decode(rest.stops), decode(rest.levels)]);
  const entries = names?.length;
  if (!(starts instanceof Uint32Array && stops instanceof Uint32Array && levels instanceof Uint8Array)) {
    throw new Error("segments must have uint32 starts and stops and uint8 levels");
  }
  if (starts.length !== entries || stops.length !== entries || levels.length !== entries) {
    throw new Error(`${entries} segments need as many starts, stops and levels`);
  }
  if (starts.some((start, at) => start >= stops[at]! || stops[at]! > length)) {
    throw new Error(`a segment is outside the ${length} positions`);
  }
  listed(distinct, sizes, colors);
  return { names, starts, stops, levels, more, length, distinct, sizes, colors, answer, error: null };
}

export async function decodeMass(message: MassMessage): Promise<Mass> {
  const { id, layer, batch, head, path, asking, asking_path: askingPath = [], stage = "weights", error } = message;
  const {
    keys = [],
    key_sizes: keySizes = [],
    key_colors: keyColors = [],
    key_inside: keyInside = [],
    rows = [],
    row_sizes: rowSizes = [],
  } = message;
  const said = {
    id,
    of: { layer, batch, head },
    path,
    asking,
    askingPath,
    stage,
    keys,
    keySizes,
    keyColors,
    keyInside,
    rows,
    rowSizes,
  };
  const none = {
    ...{ keySpans: NO_WHOLES, rowSpans: NO_WHOLES },
    row: 0,
    share: 1,
    looked: NO_WHOLES,
    matrix: NO_MASSES,
    exact: true,
    total: 0,
    positions: NO_WHOLES,
  };
  if (error != null) return { ...said, ...none, first: { ...NO_MASSES, start: 0, own: NO_WHOLES }, error };
  const { columns, row = 0, share = 1, total = 0 } = message;
  listed(keys, keySizes, keyColors);
  listed(rows, rowSizes);
  if (keyInside.length > 0) listed(keys, keyInside);
  if (!columns || !(row >= 0 && row < rows.length)) throw new Error("mass has no columns, or not the row it names");
  const [looked, positions, keySpans, rowSpans, matrix, first, own] = await Promise.all([
    wholes(message.looked, rows.length),
    wholes(message.positions),
    message.key_spans ? wholes(message.key_spans, 2 * keys.length) : NO_WHOLES,
    message.row_spans ? wholes(message.row_spans, 2 * rows.length) : NO_WHOLES,
    decodeMasses(message, [rows.length, keys.length]),
    decodeColumns(columns, columns.start, keys.length),
    message.asking_row && decodeMasses(message.asking_row, [1, keys.length]),
  ]);
  if (own) putRow(matrix, row, own);
  const exact = message.mass?.dtype === "float32";
  return { ...said, keySpans, rowSpans, row, share, looked, matrix, exact, total, positions, first, error: null };
}

export async function decodeHeadMass(message: HeadMassMessage): Promise<HeadMass> {
  const { id, batch, path, asking, asking_path: askingPath = [], stage = "weights", error } = message;
  const { keys = [], total = 0, share = 1 } = message;
  const heads = (message.heads ?? []).flatMap((count, layer) =>
    Array.from({ length: count }, (_, head) => ({ layer, head })),
  );
  const said = { id, batch, path, asking, askingPath, stage, keys, heads, total, share };
  if (error != null) return { ...said, looked: NO_WHOLES, masses: NO_MASSES, sums: NO_MASSES, error };
  const [looked, masses, sums] = await Promise.all([
    wholes(message.looked, message.heads?.length ?? 0),
    decodeMasses(message, [heads.length, keys.length]),
    decodeMasses(message.sums ?? {}, [heads.length, 1]),
  ]);
  return { ...said, looked, masses, sums, error: null };
}

interface MassesMessage {
  mass?: Envelope;
  even?: Envelope;
  self?: Envelope;
  self_even?: Envelope;
}

/** Decode masses of rows and columns; token rows have one own-key number each. */
export async function decodeMasses(
  message: MassesMessage,
  [rows, columns]: readonly [rows: number, columns: number],
  buffers: readonly Bytes[] = [],
  own: readonly number[] = [rows, columns],
): Promise<Masses> {
  const floats = async (envelope: Envelope | undefined, shape: readonly number[]) => {
    if (envelope?.shape.join() !== shape.join()) {
      throw new Error(`masses must be of shape (${shape.join(", ")}), got (${envelope?.shape.join(", ")})`);
    }
    return (await decodeGrid(envelope, null, buffers)).values;
  };
  const [mass, even, self, selfEven] = await Promise.all([
    floats(message.mass, [rows, columns]),
    floats(message.even, [rows, columns]),
    floats(message.self, own),
    floats(message.self_even, own),
  ]);
  return { rows, columns, mass, even, self, selfEven };
}

/** Replace a row of masses. */
export function putRow(into: Masses, row: number, from: Masses): void {
  for (const part of ["mass", "even", "self", "selfEven"] as const) into[part].set(from[part], row * into.columns);
}

/** Decode some tokens of the asking segment. */
export async function decodeColumns(
  message: MassesMessage & { own: Envelope },
  start: number,
  columns: number,
  buffers: readonly Bytes[] = [],
): Promise<MassColumns> {
  const rows = message.mass?.shape[0] ?? 0;
  const [masses, own] = await Promise.all([
    decodeMasses(message, [rows, columns], buffers, [rows]),
    wholes(message.own, rows, buffers),
  ]);
  if (own.some((column) => column > columns)) throw new Error(`a token's own key is in none of ${columns} columns`);
  return { ...masses, start, own };
}

async function wholes(
  envelope: Envelope | undefined,
  count?: number,
  buffers: readonly Bytes[] = [],
): Promise<Uint32Array> {
  const array = envelope === undefined ? null : await decode(envelope, buffers);
  if (!(array instanceof Uint32Array) || (count !== undefined && array.length !== count)) {
    throw new Error(`expected uint32 of ${count ?? "any"} numbers, got ${envelope?.dtype} of ${array?.length}`);
  }
  return array;
}

/** Refuse lists of different lengths, and names that are not text. */
function listed(names: readonly string[], ...lists: readonly (readonly number[])[]): void {
  const fits = (list: readonly number[]) => list?.length === names.length && list.every(Number.isInteger);
  if (!Array.isArray(names) || !names.every((name) => typeof name === "string") || !lists.every(fits)) {
    throw new Error("segments need a name and whole numbers for each");
  }
}

function text(value: unknown): string {
  if (typeof value !== "string") throw new Error("an error must be a sentence");
  return value;
}

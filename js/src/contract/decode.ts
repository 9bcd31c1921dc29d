/**
 * Bytes → arrays: the only module that reads Python's encoding (docs/contract.md).
 *
 * Nothing that arrives is trusted: data that does not match its shape is an error, not a wrong picture.
 */
import type {
  Bytes,
  Envelope,
  LinksMessage,
  PictureMessage,
  Quantisation,
  Sampled,
  ThumbnailsMessage,
  TileAddress,
  TileMessage,
  TokensMessage,
} from "./messages";
import type { HeadName, Pool, Stage } from "./values";

/** The kind of a cell. Only the value of a NUMBER is a finite number. */
export const NUMBER = 0;
export const BLOCKED = 1;
export const NAN = 2;
export const PLUS_INF = 3;
export const MINUS_INF = 4;
/** A cell that is not known yet. */
export const MISSING = 5;
export type Kind = typeof NUMBER | typeof BLOCKED | typeof NAN | typeof PLUS_INF | typeof MINUS_INF | typeof MISSING;

/** A matrix, row-major. `values` holds NaN for blocked and NaN cells, and ±∞ as such. */
export interface Grid {
  rows: number;
  columns: number;
  values: Float32Array;
  /** A `Kind` for each cell. */
  kinds: Uint8Array;
}

export interface Picture {
  of: { layer: number; batch: number; head: HeadName; stage: Stage; pool: Pool };
  /** Size of the matrix. */
  queries: number;
  keys: number;
  /** The number of keys up to the last that any query may attend to; the rest are padding. */
  ownKeys: number;
  /** The first key that a padding mask blocks; null if no mask is known to be a padding mask. */
  padding: number | null;
  /** Cells of the matrix per cell of the grid. */
  queryBin: number;
  keyBin: number;
  low: number | null;
  high: number | null;
  /** Whether the grid is the matrix itself: a cell for each cell, in float32. */
  exact: boolean;
  /** null if each row covers all its queries; else which rows are sampled. */
  sampled: Sampled | null;
  /** null when `error` says why. */
  grid: Grid | null;
  /** The learned sink's column, a number for each row of the grid; null without one. */
  sink?: Float32Array | null;
  error: string | null;
}

export interface Thumbnails {
  layer: number;
  batch: number;
  /** For each head, values from 0 to 1 on the head's own range; with signs, from −1. */
  heads: Grid[];
  /** The greatest weight of each head, among its computed rows; null if not sent. */
  highs: Float32Array | null;
  rows: number | null;
  stage: Stage;
}

/** Return the bytes, without a copy if possible. */
export function bytes(data: Bytes): Uint8Array {
  if (typeof data === "string") return fromBase64(data);
  if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return new Uint8Array(data);
}

/**
 * Return an envelope's array: float32, uint32 or uint8; `bits` are unpacked to uint8, one byte of 0 or 1 per
 * cell.
 */
export async function decode(
  envelope: Envelope,
  buffers: readonly Bytes[] = [],
): Promise<Float32Array | Uint8Array | Uint32Array> {
  checkEnvelope(envelope);
  const { dtype, shape } = envelope;
  const count = sizeOf(shape);
  const wanted = dtype === "bits" ? Math.ceil(count / 8) : dtype === "uint8" ? count : 4 * count;
  const packed = dataOf(envelope, buffers);
  const raw = envelope.deflated ? await inflate(packed, wanted) : packed;
  if (raw.length !== wanted) {
    throw new Error(`${dtype} of shape (${shape.join(", ")}) takes ${wanted} bytes, got ${raw.length}`);
  }
  if (dtype === "bits") return unpackBits(raw, count);
  if (dtype === "uint8") return raw;
  const aligned = raw.byteOffset % 4 === 0 ? raw : raw.slice();
  return dtype === "float32"
    ? new Float32Array(aligned.buffer, aligned.byteOffset, count)
    : new Uint32Array(aligned.buffer, aligned.byteOffset, count);
}

/** Decode a matrix from its values (float32 or quantized) and the bits of its blocked cells; a vector is one row. */
export async function decodeGrid(
  values: Envelope,
  blocked: Envelope | null = null,
  buffers: readonly Bytes[] = [],
): Promise<Grid> {
  const [array, mask] = await Promise.all([
    decode(values, buffers),
    blocked ? decode(blocked, buffers) : Promise.resolve(null),
  ]);
  const [rows, columns] = matrixShape(values.shape);
  if (array instanceof Uint32Array) throw new Error("values must be float32 or uint8, got uint32");
  if (array instanceof Uint8Array) {
    if (values.dtype === "bits") throw new Error("values must be float32 or uint8, got bits");
    return { rows, columns, ...dequantise(array, quantisationOf(values)) };
  }
  if (mask && blocked && (blocked.dtype !== "bits" || mask.length !== array.length)) {
    throw new Error(
      `blocked must be bits of shape (${values.shape.join(", ")}), got ${blocked.dtype} (${blocked.shape.join(", ")})`,
    );
  }
  return { rows, columns, ...classify(array, mask as Uint8Array | null) };
}

export async function decodePicture(message: PictureMessage): Promise<Picture> {
  const { layer, batch, head, stage, pool, queries, keys, low, high, error } = message;
  const queryBin = message.query_bin;
  const keyBin = message.key_bin;
  const ownKeys = message.own_keys ?? keys;
  const of = { layer, batch, head, stage, pool };
  const sampled = sampledOf(message.sampled);
  const padding = message.padding ?? null;
  const picture = { of, queries, keys, ownKeys, padding, queryBin, keyBin, low, high, sampled };
  if (error !== null && error !== undefined) return { ...picture, exact: false, grid: null, error };
  if (!message.values) throw new Error("picture has neither values nor an error");
  if (!(queryBin >= 1 && keyBin >= 1)) {
    throw new Error(`bins of a picture must be at least 1, got ${queryBin} and ${keyBin}`);
  }
  const grid = await decodeGrid(message.values, message.blocked);
  const rows = Math.ceil(queries / queryBin);
  const columns = Math.ceil(keys / keyBin);
  if (grid.rows !== rows || grid.columns !== columns) {
    throw new Error(
      `picture of ${queries} × ${keys} in bins of ${queryBin} × ${keyBin} must be ${rows} × ${columns}, ` +
        `got ${grid.rows} × ${grid.columns}`,
    );
  }
  const exact = queryBin === 1 && keyBin === 1 && message.values.dtype === "float32";
  return { ...picture, exact, grid, sink: await decodeSink(message.sink, rows), error: null };
}

/** Decode the learned sink's column for so many rows. */
export async function decodeSink(envelope: Envelope | null | undefined, rows: number): Promise<Float32Array | null> {
  if (!envelope) return null;
  const sink = await decode(envelope);
  if (!(sink instanceof Float32Array) || sink.length !== rows) {
    throw new Error(`a sink's column must be float32 of ${rows} rows, got ${envelope.dtype} of ${sink.length}`);
  }
  return sink;
}

function sampledOf(sampled: Sampled | null | undefined): Sampled | null {
  if (!sampled) return null;
  const { first, every, exact } = sampled;
  if (![first, every, exact].every((number) => Number.isInteger(number) && number >= 0) || every < 1) {
    throw new Error(`sampled must be whole numbers first, every and exact, got ${JSON.stringify(sampled)}`);
  }
  return { first, every, exact };
}

/** A matrix of codes, with the meaning of each code. */
export interface Coded {
  rows: number;
  columns: number;
  codes: Uint8Array;
  /** The number and `Kind` of each of the 256 codes. */
  numbers: Float32Array;
  kindOf: Uint8Array;
}

export interface Tile extends Coded {
  address: TileAddress;
  /** 1 if exact; else row r is query `first + every · r` alone. */
  every: number;
  first: number;
  low: number | null;
  high: number | null;
}

/** Cells per side of a tile. */
export const TILE = 128;

/** Decode a tile of a matrix of this size. */
export async function decodeTile(
  message: TileMessage,
  size: { queries: number; keys: number },
  buffers: readonly Bytes[] = [],
): Promise<Tile> {
  const { every, first, values } = message;
  const tile: TileAddress = message.tile;
  if (!Array.isArray(tile) || tile.length !== 4 || !tile.every((part) => Number.isInteger(part) && part >= 0)) {
    throw new Error(`tile must be two levels, a row and a column, got ${JSON.stringify(tile)}`);
  }
  if (!Number.isInteger(every) || every < 1 || !Number.isInteger(first) || first < 0) {
    throw new Error(`a tile's rows must be every 1, 2, … from 0, 1, … on, got ${every} from ${first}`);
  }
  const [rowLevel, columnLevel, row, column] = tile;
  const cells = (total: number, level: number, at: number) => Math.min(TILE, Math.ceil(total / 2 ** level) - at * TILE);
  const wanted = [cells(size.queries, rowLevel, row), cells(size.keys, columnLevel, column)];
  const [rows, columns] = matrixShape(values?.shape ?? []);
  if (rows !== wanted[0] || columns !== wanted[1]) {
    throw new Error(`tile ${tile.join(", ")} must be ${wanted.join(" × ")}, got ${rows} × ${columns}`);
  }
  const codes = await decode(values, buffers);
  if (!(codes instanceof Uint8Array) || values.dtype !== "uint8") {
    throw new Error(`values of a tile must be uint8, got ${values.dtype}`);
  }
  const { numbers, kindOf } = meanings(quantisationOf(values));
  checkCodes(codes, kindOf);
  const own = codes.byteLength < codes.buffer.byteLength ? codes.slice() : codes; // message buffers are not kept
  const { low, high } = message;
  return {
    address: [rowLevel, columnLevel, row, column],
    every,
    first,
    low,
    high,
    rows,
    columns,
    codes: own,
    numbers,
    kindOf,
  };
}

/** The strongest links of some heads: `count` per position, strongest first, weight 0 if there is none. */
export interface Links {
  layer: number;
  batch: number;
  heads: HeadName[];
  side: "query" | "key";
  stage: Stage;
  positions: number;
  count: number;
  partners: Uint32Array;
  weights: Float32Array;
  /** For each head, the weight that each query gives to the learned sink; null without one. */
  sinks?: readonly Float32Array[] | null;
}

export async function decodeLinks(message: LinksMessage): Promise<Links> {
  const { layer, batch, heads, side, stage = "weights" } = message;
  const [partners, weights] = await Promise.all([decode(message.partners), decode(message.weights)]);
  const [ofHeads, positions, count] = message.partners.shape;
  if (!(partners instanceof Uint32Array && weights instanceof Float32Array) || partners.length !== weights.length) {
    throw new Error("links must be uint32 partners and as many float32 weights");
  }
  if (ofHeads !== heads.length || positions === undefined || count === undefined) {
    throw new Error(
      `links of ${heads.length} heads must be (heads, positions, count), got (${message.partners.shape})`,
    );
  }
  const sinks = message.sinks ? await decodeSinks(message.sinks, heads.length) : null;
  return { layer, batch, heads, side, stage, positions, count, partners, weights, sinks };
}

async function decodeSinks(envelope: Envelope, heads: number): Promise<readonly Float32Array[]> {
  const [ofHeads, queries] = envelope.shape;
  const all = await decodeSink(envelope, heads * (queries ?? 0));
  if (all === null || ofHeads !== heads) throw new Error(`sinks of ${heads} heads, got (${envelope.shape})`);
  return Array.from({ length: heads }, (_, head) => all.subarray(head * queries!, (head + 1) * queries!));
}

export async function decodeThumbnails(
  message: ThumbnailsMessage,
  buffers: readonly Bytes[] = [],
): Promise<Thumbnails> {
  const { layer, batch, values } = message;
  const array = await decode(values, buffers);
  const [heads, rows, columns] = values.shape;
  if (values.dtype !== "uint8" || values.shape.length !== 3) {
    throw new Error(
      `thumbnails must be uint8 of shape (heads, rows, columns), got ${values.dtype} (${values.shape.join(", ")})`,
    );
  }
  const { values: numbers, kinds } = dequantise(array as Uint8Array, quantisationOf(values));
  const size = (rows as number) * (columns as number);
  const highs = message.highs ? await decode(message.highs, buffers) : null;
  if (highs !== null && (!(highs instanceof Float32Array) || highs.length !== heads)) {
    throw new Error(`highs must be float32, one for each of ${heads} heads, got ${message.highs?.dtype}`);
  }
  return {
    layer,
    batch,
    highs,
    rows: message.rows ?? null,
    stage: message.stage ?? "weights",
    heads: Array.from({ length: heads as number }, (_, head) => ({
      rows: rows as number,
      columns: columns as number,
      values: numbers.subarray(head * size, (head + 1) * size),
      kinds: kinds.subarray(head * size, (head + 1) * size),
    })),
  };
}

export async function decodeTokens(message: TokensMessage | null): Promise<string[] | null> {
  if (!message) return null;
  const text = bytes(message.text);
  const ends = await decode(message.ends);
  if (!(ends instanceof Uint32Array)) throw new Error(`ends of tokens must be uint32, got ${message.ends.dtype}`);
  const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
  const whole = utf8.decode(text);
  const ascii = whole.length === text.length;
  const tokens = new Array<string>(ends.length);
  let start = 0;
  ends.forEach((end, token) => {
    if (end < start || end > text.length) {
      throw new Error(`token ${token} ends at byte ${end}, outside ${start} to ${text.length}`);
    }
    tokens[token] = ascii ? whole.slice(start, end) : utf8.decode(text.subarray(start, end));
    start = end;
  });
  if (start !== text.length) throw new Error(`tokens end at byte ${start} of ${text.length}`);
  return tokens;
}

function checkEnvelope(envelope: Envelope): void {
  const { dtype, shape } = envelope ?? {};
  if (dtype !== "float32" && dtype !== "uint8" && dtype !== "uint32" && dtype !== "bits") {
    throw new Error(`dtype must be float32, uint8, uint32 or bits, got ${String(dtype)}`);
  }
  if (!Array.isArray(shape) || !shape.every((size) => Number.isInteger(size) && size >= 0)) {
    throw new Error(`shape must be a list of sizes, got ${JSON.stringify(shape)}`);
  }
}

function dataOf(envelope: Envelope, buffers: readonly Bytes[]): Uint8Array {
  const { data } = envelope;
  if (typeof data !== "number") {
    if (typeof data === "string" || ArrayBuffer.isView(data) || isArrayBuffer(data)) return bytes(data);
    throw new Error(`data must be bytes, got ${data === null ? "null" : typeof data}`);
  }
  const buffer = buffers[data];
  if (buffer === undefined) throw new Error(`no buffer ${data}: the message has ${buffers.length}`);
  return bytes(buffer);
}

/** True also for a buffer from another window, such as a frame's. */
function isArrayBuffer(data: unknown): data is ArrayBuffer {
  return Object.prototype.toString.call(data) === "[object ArrayBuffer]";
}

function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

function matrixShape(shape: readonly number[]): [number, number] {
  const [first, second] = shape;
  if (shape.length === 1 && first !== undefined) return [1, first];
  if (shape.length === 2 && first !== undefined && second !== undefined) return [first, second];
  throw new Error(`values must be a matrix or a vector, got shape (${shape.join(", ")})`);
}

/** A zlib stream, which must hold exactly `size` bytes. */
async function inflate(data: Uint8Array, size: number): Promise<Uint8Array> {
  const stream = new DecompressionStream("deflate");
  const writer = stream.writable.getWriter();
  // A failed write also fails the read, which reports it.
  void Promise.all([writer.write(data as Uint8Array<ArrayBuffer>), writer.close()]).catch(() => {});
  const reader = stream.readable.getReader();
  const out = new Uint8Array(size);
  let filled = 0;
  for (;;) {
    const chunk = await reader.read().catch((cause: unknown) => {
      throw new Error("data is not a complete zlib stream", { cause });
    });
    if (chunk.done) return out.subarray(0, filled);
    if (filled + chunk.value.length > size) {
      void reader.cancel().catch(() => {});
      throw new Error(`deflated data holds more than the ${size} bytes of its shape`);
    }
    out.set(chunk.value, filled);
    filled += chunk.value.length;
  }
}

function unpackBits(packed: Uint8Array, count: number): Uint8Array {
  const cells = new Uint8Array(count);
  for (let cell = 0; cell < count; cell++) {
    cells[cell] = ((packed[cell >> 3] as number) >> (7 - (cell & 7))) & 1;
  }
  return cells;
}

/** Kinds of float32 cells. The values are copied only if a blocked cell must become NaN. */
function classify(values: Float32Array, blocked: Uint8Array | null): Pick<Grid, "values" | "kinds"> {
  const kinds = new Uint8Array(values.length);
  const out = blocked ? values.slice() : values;
  for (let cell = 0; cell < values.length; cell++) {
    const value = values[cell] as number;
    if (blocked && blocked[cell] === 1) {
      kinds[cell] = BLOCKED;
      out[cell] = Number.NaN;
    } else if (value - value !== 0) {
      kinds[cell] = value > 0 ? PLUS_INF : value < 0 ? MINUS_INF : NAN;
    }
  }
  return { values: out, kinds };
}

function quantisationOf(envelope: Envelope): Quantisation {
  const { scale } = envelope;
  const known = scale && (scale.kind === "log" || scale.kind === "linear" || scale.kind === "unit");
  if (!known) throw new Error(`uint8 values need a scale of log, linear or unit, got ${JSON.stringify(scale)}`);
  if (!Number.isFinite(scale.high)) throw new Error(`high of a scale must be finite, got ${scale.high}`);
  if (scale.kind === "log" && !(typeof scale.octaves === "number" && scale.octaves > 0)) {
    throw new Error(`octaves of a log scale must be above 0, got ${scale.octaves}`);
  }
  return scale;
}

const UNUSED = 255;

/** The number for a code of at most 250. */
function numberOf(code: number, { kind, high, octaves = 0 }: Quantisation): number {
  if (code === 0) return 0;
  if (kind === "log") return high * 2 ** ((-octaves * (250 - code)) / 249);
  if (kind === "linear") return (high * (code - 125)) / 124;
  return (high * code) / 250;
}

/** The meaning of each of the 256 codes. */
function meanings(scale: Quantisation): Pick<Coded, "numbers" | "kindOf"> {
  const numbers = new Float32Array(256).fill(Number.NaN);
  const kindOf = new Uint8Array(256).fill(UNUSED);
  const last = scale.kind === "linear" ? 249 : 250;
  for (let code = 0; code <= last; code++) {
    numbers[code] = numberOf(code, scale);
    kindOf[code] = NUMBER;
  }
  kindOf[252] = BLOCKED;
  kindOf[253] = NAN;
  numbers[254] = Number.POSITIVE_INFINITY;
  kindOf[254] = PLUS_INF;
  numbers[255] = Number.NEGATIVE_INFINITY;
  kindOf[255] = MINUS_INF;
  return { numbers, kindOf };
}

function checkCodes(codes: Uint8Array, kindOf: Uint8Array): void {
  const cell = codes.findIndex((code) => kindOf[code] === UNUSED);
  if (cell >= 0) throw new Error(`code ${codes[cell]} of cell ${cell} has no meaning on its scale`);
}

function dequantise(codes: Uint8Array, scale: Quantisation): Pick<Grid, "values" | "kinds"> {
  const { numbers, kindOf } = meanings(scale);
  checkCodes(codes, kindOf);
  const values = new Float32Array(codes.length);
  const kinds = new Uint8Array(codes.length);
  for (let cell = 0; cell < codes.length; cell++) {
    const code = codes[cell] as number;
    values[cell] = numbers[code] as number;
    kinds[cell] = kindOf[code] as number;
  }
  return { values, kinds };
}

function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  const out = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) out[index] = binary.charCodeAt(index);
  return out;
}

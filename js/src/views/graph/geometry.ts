/** The geometry of the graph, as pure functions: foldable rows, and bands whose width is the number. */

export const ROW = 22;
const PITCHES = [22, 16, 12] as const;
const TALL = 640;
const LEAST_PITCH = 12;
const ROOMY = Math.floor(TALL / ROW); // rows at the full pitch, to which a sparse column is filled up

/** One row of a column: a token, or a gap for tokens left out. */
export type Row = { readonly kind: "token"; readonly index: number } | { readonly kind: "gap"; readonly count: number };

/** The places of a column's tokens. */
export interface Lane {
  readonly rows: readonly Row[];
  readonly pitch: number;
  readonly height: number;
  /** The label interval in rows. */
  readonly step: number;
  /** The center of a token's row, or null if it is folded away. */
  y(index: number): number | null;
}

/** Lay out a column of `total` tokens: all, or if they do not fit, those of `keep` with gaps between. */
export function lane(total: number, keep: readonly number[] | null, unit = 1): Lane {
  const tall = TALL * unit;
  const pitch = PITCHES.find((p) => total * p * unit <= tall);
  if (pitch !== undefined || keep === null) {
    const each = pitch !== undefined ? pitch * unit : tall / total;
    const step = each >= LEAST_PITCH * unit ? 1 : Math.ceil((14 * unit) / each);
    return {
      rows: [],
      pitch: each,
      height: total * each,
      step,
      y: (index) => (index >= 0 && index < total ? (index + 0.5) * each : null),
    };
  }
  return folded(total, keep, unit);
}

function folded(total: number, keep: readonly number[], unit: number): Lane {
  const room = Math.floor(TALL / LEAST_PITCH);
  const chosen = withNeighbors(total, keep, room);
  const rows: Row[] = [];
  let next = 0;
  for (const index of chosen) {
    if (index > next) rows.push(index === next + 1 ? token(next) : { kind: "gap", count: index - next });
    rows.push(token(index));
    next = index + 1;
  }
  if (next < total) rows.push(next === total - 1 ? token(next) : { kind: "gap", count: total - next });
  const pitch = (PITCHES.find((p) => rows.length * p <= TALL) ?? TALL / rows.length) * unit;
  const places = new Map<number, number>();
  rows.forEach((row, at) => {
    if (row.kind === "token") places.set(row.index, (at + 0.5) * pitch);
  });
  // As tall as all tokens, however many rows there are, so that folding moves nothing below.
  return { rows, pitch, height: TALL * unit, step: 1, y: (index) => places.get(index) ?? null };
}

const token = (index: number): Row => ({ kind: "token", index });

/**
 * Return the first of `keep` that fit, then tokens around them: two on each side while there is room, more only while
 * all rows keep their full pitch. Each gap takes a row too.
 */
function withNeighbors(total: number, keep: readonly number[], room: number): number[] {
  const chosen = new Set<number>();
  for (const index of keep) {
    if (chosen.size >= room / 2) break;
    if (index >= 0 && index < total) chosen.add(index);
  }
  const rowsOf = () => {
    const sorted = [...chosen].sort((a, b) => a - b);
    let gaps = (sorted[0] ?? 0) > 0 ? 1 : 0;
    for (let i = 1; i < sorted.length; i++) if (sorted[i]! > sorted[i - 1]! + 1) gaps++;
    if ((sorted.at(-1) ?? total) < total - 1) gaps++;
    return sorted.length + gaps;
  };
  const first = [...chosen];
  for (let reach = 1; reach <= ROOMY; reach++) {
    const most = reach <= 2 ? room : ROOMY;
    for (const index of first) {
      for (const near of [index - reach, index + reach]) {
        if (near < 0 || near >= total || chosen.has(near)) continue;
        chosen.add(near);
        if (rowsOf() > most) {
          chosen.delete(near);
          return [...chosen].sort((a, b) => a - b);
        }
      }
    }
  }
  return [...chosen].sort((a, b) => a - b);
}

/** One drawn link; `head` is its place among the shown heads. */
export interface Link {
  readonly query: number;
  readonly key: number;
  readonly head: number;
  /** Its number, which may be negative in other stages than the weights. */
  readonly weight: number;
  /** As a share of the largest, for numbers that are not shares of 1. */
  readonly size?: number;
}

/** The width of a link, as a share of the widest. */
export const sizeOf = ({ weight, size }: Link) => size ?? Math.abs(weight);

/** A link as a band: from `y0` on the left to `y1` on the right, with its width at both ends. */
export interface Band extends Link {
  readonly y0: number;
  readonly y1: number;
  readonly width0: number;
  readonly width1: number;
  readonly opacity: number;
}

const FULL = 14; // pixels of weight 1 at the start of a token's bands
const APART = 2; // between heads there
const FULL_FAR = 12;
const FAR_ROOM = 19; // joint width of the bands into one token, in a row of 22
const THINNEST = 0.8;

/** The bars beside the pinned token, one for each head with a band: from, to. */
export interface Stem {
  readonly head: number;
  readonly from: number;
  readonly to: number;
}

/** Return the bands of one token on `side`, linked to the other side. Heads are stacked in order. */
export function bandsOf(links: readonly Link[], side: "query" | "key", queries: Lane, keys: Lane, unit = 1) {
  const near = side === "query" ? queries : keys;
  const far = side === "query" ? keys : queries;
  const partner = (link: Link) => (side === "query" ? link.key : link.query);
  const shown = links.filter((link) => near.y(own(link, side)) !== null && far.y(partner(link)) !== null);
  const first = shown[0];
  if (first === undefined) return { bands: [] as Band[], stems: [] as Stem[] };

  const far_sums = new Map<number, number>();
  for (const link of shown) far_sums.set(partner(link), (far_sums.get(partner(link)) ?? 0) + sizeOf(link));
  const room = Math.min(FAR_ROOM * unit, Math.max(8 * unit, far.pitch - (ROW - FAR_ROOM) * unit));
  const scale = Math.min(FULL_FAR * unit, room / Math.max(...far_sums.values(), 1e-9));

  const heads = [...new Set(shown.map((link) => link.head))].sort((a, b) => a - b);
  const sums = heads.map((head) =>
    shown.filter((link) => link.head === head).reduce((sum, link) => sum + sizeOf(link), 0),
  );
  // A key's weights may sum to more than 1: then the bars of each head share the room of one row.
  const apart = APART * unit * (heads.length - 1);
  const sum = sums.reduce((total, each) => total + each, 0);
  const whole = Math.max(queries.height, keys.height);
  const full = Math.min((FULL * unit) / Math.max(1, ...sums), Math.max(unit, whole - apart) / sum);
  const tall = sum * full + apart;
  const middle = near.y(own(first, side)) as number;

  const arrived = new Map<number, number>();
  const bands: Band[] = [];
  const stems: Stem[] = [];
  let at = Math.max(0, Math.min(whole - tall, middle - tall / 2)); // around the token's row, but inside the picture
  for (const head of heads) {
    const from = at;
    for (const link of shown.filter((l) => l.head === head).sort((a, b) => partner(a) - partner(b))) {
      const to = partner(link);
      const before = arrived.get(to) ?? -((far_sums.get(to) as number) * scale) / 2;
      const width0 = sizeOf(link) * full;
      const width1 = sizeOf(link) * scale;
      const here = at + width0 / 2;
      const there = (far.y(to) as number) + before + width1 / 2;
      arrived.set(to, before + width1);
      at += width0;
      bands.push({
        ...link,
        y0: side === "query" ? here : there,
        y1: side === "query" ? there : here,
        width0: Math.max(THINNEST * unit, side === "query" ? width0 : width1),
        width1: Math.max(THINNEST * unit, side === "query" ? width1 : width0),
        opacity: Math.min(0.9, 0.35 + 1.1 * sizeOf(link)),
      });
    }
    stems.push({ head, from, to: Math.max(at, from + THINNEST * unit) });
    at += APART * unit;
  }
  return { bands, stems };
}

const own = (link: Link, side: "query" | "key") => (side === "query" ? link.query : link.key);

/** Return thin curves for all tokens: the width is the weight, at least a hairline. */
export function curvesOf(links: readonly Link[], queries: Lane, keys: Lane, unit = 1): Band[] {
  const bands: Band[] = [];
  for (const link of links) {
    const y0 = queries.y(link.query);
    const y1 = keys.y(link.key);
    if (y0 === null || y1 === null) continue;
    const most = Math.min(queries.pitch, keys.pitch) / 4;
    const width = Math.max(THINNEST * unit, Math.min(sizeOf(link) * 4 * unit, Math.max(unit, most)));
    bands.push({ ...link, y0, y1, width0: width, width1: width, opacity: 0.35 });
  }
  return bands;
}

/**
 * Return the strongest links, weakest first (the drawing order): nobody could distinguish more curves than
 * `most`.
 */
export function strongestLast(links: readonly Link[], most: number): Link[] {
  return [...links]
    .sort((a, b) => sizeOf(b) - sizeOf(a))
    .slice(0, most)
    .reverse();
}

/** Return a band's outline between x0 and x1: a cubic with both handles half way. */
export function outline(
  path: Pick<Path2D, "moveTo" | "lineTo" | "bezierCurveTo" | "closePath">,
  band: Band,
  x0: number,
  x1: number,
): void {
  const half = (x0 + x1) / 2;
  const [top0, bottom0] = [band.y0 - band.width0 / 2, band.y0 + band.width0 / 2];
  const [top1, bottom1] = [band.y1 - band.width1 / 2, band.y1 + band.width1 / 2];
  path.moveTo(x0, top0);
  path.bezierCurveTo(half, top0, half, top1, x1, top1);
  path.lineTo(x1, bottom1);
  path.bezierCurveTo(half, bottom1, half, bottom0, x0, bottom0);
  path.closePath();
}

/** The vertical progress of a cubic with level handles half way, at `share` of its width. */
function progress(share: number): number {
  // x(t) = 1.5 t (1 − t) + t³ … is not linear in t: solve x(t) = share by bisection.
  let low = 0;
  let high = 1;
  for (let i = 0; i < 24; i++) {
    const t = (low + high) / 2;
    const x = 3 * (1 - t) * (1 - t) * t * 0.5 + 3 * (1 - t) * t * t * 0.5 + t * t * t;
    if (x < share) low = t;
    else high = t;
  }
  const t = (low + high) / 2;
  return 3 * (1 - t) * t * t + t * t * t;
}

/** Return the height of a band at `share` of its width, for hit tests. */
export function middleAt(band: Band, share: number, ease = progress(share)): { y: number; width: number } {
  return { y: band.y0 + (band.y1 - band.y0) * ease, width: band.width0 + (band.width1 - band.width0) * ease };
}

/** Return the band under a point between the columns (the strongest if several overlap), or null. */
export function bandUnder(bands: readonly Band[], share: number, y: number, slack: number): Band | null {
  let best: Band | null = null;
  const ease = progress(share);
  for (const band of bands) {
    const { y: middle, width } = middleAt(band, share, ease);
    if (Math.abs(y - middle) > width / 2 + slack) continue;
    if (best === null || sizeOf(band) > sizeOf(best)) best = band;
  }
  return best;
}

/** Return the kept links of a token: the strongest `top`, and none below `threshold`. */
export function keepLinks(links: readonly Link[], top: number | null, threshold: number): Link[] {
  const strong = links.filter((link) => sizeOf(link) >= threshold && sizeOf(link) > 0);
  if (top === null) return strong;
  const kept: Link[] = [];
  const byHead = new Map<number, Link[]>();
  for (const link of strong) byHead.set(link.head, [...(byHead.get(link.head) ?? []), link]);
  for (const ofHead of byHead.values()) kept.push(...ofHead.sort((a, b) => sizeOf(b) - sizeOf(a)).slice(0, top));
  return kept;
}

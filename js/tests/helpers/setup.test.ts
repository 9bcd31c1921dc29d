// @vitest-environment jsdom
import { deflateSync } from "node:zlib";
import { expect, test } from "vitest";
import { colorScheme, frame, resize } from "./setup.ts";

function canvas(width: number, height: number) {
  const element = document.createElement("canvas");
  element.width = width;
  element.height = height;
  const context = element.getContext("2d");
  if (!context) throw new Error("no context");
  return { element, context };
}

const pixel = (context: CanvasRenderingContext2D, x: number, y: number) => [...context.getImageData(x, y, 1, 1).data];

test("what is drawn into a canvas can be read back", () => {
  const { element, context } = canvas(4, 4);
  context.fillStyle = "#ff8000";
  context.fillRect(1, 1, 2, 2);
  expect(pixel(context, 1, 2)).toEqual([255, 128, 0, 255]);
  expect(pixel(context, 0, 0)).toEqual([0, 0, 0, 0]);
  expect(context.canvas).toBe(element);
  expect(element.getContext("2d")).toBe(context);
  expect(element.getContext("webgl2")).toBeNull();
});

test("pixels put into one canvas are drawn from it into another, enlarged and unsmoothed", () => {
  const small = new OffscreenCanvas(2, 1);
  const inner = small.getContext("2d") as unknown as CanvasRenderingContext2D;
  inner.putImageData(new ImageData(new Uint8ClampedArray([9, 8, 7, 255, 1, 2, 3, 255]), 2, 1), 0, 0);
  const { context } = canvas(8, 4);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, 2, 1, 0, 0, 8, 4);
  expect(pixel(context, 3, 3)).toEqual([9, 8, 7, 255]);
  expect(pixel(context, 4, 0)).toEqual([1, 2, 3, 255]);
});

test("setting a width clears the canvas, and keeps its context", () => {
  const { element, context } = canvas(2, 2);
  context.fillRect(0, 0, 2, 2);
  element.width = 3;
  expect(pixel(context, 0, 0)).toEqual([0, 0, 0, 0]);
  context.fillRect(2, 0, 1, 1);
  expect(pixel(context, 2, 0)).toEqual([0, 0, 0, 255]);
});

test("an empty canvas cannot be drawn from", () => {
  const { context } = canvas(2, 2);
  expect(() => context.drawImage(canvas(0, 2).element, 0, 0)).toThrow(/width or height 0/);
});

test("a path is filled, a pattern repeats a canvas, text has a width", () => {
  const { context } = canvas(4, 1);
  const path = new Path2D();
  path.rect(0, 0, 1, 1);
  context.fillStyle = "#00f";
  context.fill(path);
  expect(pixel(context, 0, 0)).toEqual([0, 0, 255, 255]);
  const tile = canvas(2, 1);
  tile.context.fillStyle = "#0f0";
  tile.context.fillRect(0, 0, 2, 1);
  context.clearRect(0, 0, 4, 1);
  context.fillStyle = context.createPattern(tile.element, "repeat") ?? "";
  context.fillRect(0, 0, 4, 1);
  expect(pixel(context, 3, 0)).toEqual([0, 255, 0, 255]);
  expect(context.measureText("attention").width).toBeGreaterThanOrEqual(0);
});

test("an element has the size that the test gives, and its observers hear of it", async () => {
  const element = document.createElement("div");
  const seen: number[] = [];
  const observer = new ResizeObserver(([entry]) => seen.push(entry?.contentRect.width ?? -1));
  observer.observe(element);
  await frame();
  expect(seen).toEqual([]);
  resize(element, 320, 200);
  expect(element.clientWidth).toBe(320);
  expect(element.getBoundingClientRect().bottom).toBe(200);
  const late: number[] = [];
  new ResizeObserver(([entry]) => late.push(entry?.contentRect.height ?? -1)).observe(element);
  await frame();
  observer.disconnect();
  resize(element, 0);
  expect(seen).toEqual([320]);
  expect(late).toEqual([200, 0]);
});

test("a zlib stream is opened as in a browser", async () => {
  const deflated = new Uint8Array(deflateSync(Buffer.from([1, 2, 3])));
  const stream = new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate"));
  expect([...new Uint8Array(await new Response(stream).arrayBuffer())]).toEqual([1, 2, 3]);
});

test("a media query changes when the test says so", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const heard: boolean[] = [];
  dark.addEventListener("change", (event) => heard.push(event.matches));
  expect(dark.matches).toBe(false);
  colorScheme("dark");
  colorScheme("light");
  expect(heard).toEqual([true, false]);
});

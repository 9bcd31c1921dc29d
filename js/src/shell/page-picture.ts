/** A PNG of the widget as the page shows it, redrawn from its canvases, text and style sheet. */

import { px } from "../components/dom";
import type { Ui } from "../state/ui";

const SCALE = 2; // picture pixels per page pixel
const MOST = 8192; // pixels per side
/** Elements that are on the page only during interaction. */
const PASSING =
  ".aw-toolbar, .aw-popup, .aw-notice, .aw-menu, .aw-visually-hidden, .aw-whole-window, textarea, a[hidden]";
// Characters that XML does not allow.
const NO_XML = /[^\t\n\r\x20-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu;

/** Return a PNG of a widget. Rejects if the browser cannot draw HTML into a canvas. */
export async function pictureOfPage({ root }: Ui): Promise<Blob> {
  const { width, height: whole } = root.getBoundingClientRect();
  const height = whole - (root.querySelector<HTMLElement>(".aw-toolbar")?.offsetHeight ?? 0);
  const style = styleOf(root);
  const copy = root.cloneNode(true) as HTMLElement;
  const canvases = [...root.querySelectorAll("canvas")];
  for (const [at, canvas] of [...copy.querySelectorAll("canvas")].entries()) canvas.replaceWith(imageOf(canvases[at]!));
  for (const node of copy.querySelectorAll(PASSING)) node.remove();
  const names = new Set(style.match(/--aw-[\w-]+/g));
  const computed = getComputedStyle(root);
  for (const name of names) copy.style.setProperty(name, computed.getPropertyValue(name));
  const { fontFamily, fontSize, fontWeight, lineHeight, fontVariantNumeric, background } = computed;
  const font = { fontFamily, fontSize, fontWeight, lineHeight, fontVariantNumeric };
  Object.assign(copy.style, { width: px(width), margin: "0", background, ...font });
  const markup = new XMLSerializer().serializeToString(copy).replace(NO_XML, "\ufffd");
  const css = style.replace(/[<&]/g, (sign) => (sign === "<" ? "&lt;" : "&amp;"));
  const drawing =
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}">` +
    `<style>${css}</style><foreignObject width="100%" height="100%">${markup}</foreignObject></svg>`;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(drawing)}`;
  await image.decode();
  const scale = Math.min(SCALE, MOST / Math.max(width, height, 1));
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
  const context = canvas.getContext("2d");
  if (context === null) throw new Error("this browser has no canvas");
  context.fillStyle = computed.backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob === null ? reject(new Error("the picture could not be made")) : resolve(blob)));
  });
}

function imageOf(canvas: HTMLCanvasElement): HTMLImageElement {
  const image = document.createElement("img");
  image.src = canvas.toDataURL();
  image.className = canvas.className;
  image.style.cssText = canvas.style.cssText;
  const { width, height } = getComputedStyle(canvas);
  const computed = getComputedStyle(canvas);
  Object.assign(image.style, { width, height, position: computed.position, display: "block" });
  return image;
}

/** Return the rules of the widget's style sheet, wherever the host has put it. */
function styleOf(root: HTMLElement): string {
  const place = root.getRootNode() as Document | ShadowRoot;
  const sheets = new Set([...document.styleSheets, ...place.styleSheets, ...(place.adoptedStyleSheets ?? [])]);
  return [...sheets].flatMap(rulesOf).join("\n");
}

function rulesOf(sheet: CSSStyleSheet): string[] {
  const written = sheet.ownerNode?.textContent ?? "";
  if (written.includes(".attnwidget")) return [written]; // parsed rules lose a font set by variables
  try {
    return [...sheet.cssRules].map((rule) => rule.cssText).filter((text) => text.includes(".attnwidget"));
  } catch {
    return []; // a sheet from another origin
  }
}

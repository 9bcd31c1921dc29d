/** The script of a saved file: it unpacks Python's data and shows the widget, without a kernel or a network. */

import { createHost, type Host, mount } from "./kernel/host";
import { answersOf, type Snapshot } from "./kernel/snapshot";

/** A four-byte number, the length of the JSON after it; then the bytes that the JSON refers to. */
export async function unpack(base64: string): Promise<unknown> {
  const packed = atob(base64);
  const data = new Uint8Array(packed.length);
  for (let at = 0; at < data.length; at++) data[at] = packed.charCodeAt(at);
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"));
  const whole = await new Response(stream).arrayBuffer();
  const length = new DataView(whole).getUint32(0, true);
  const json = new TextDecoder().decode(new Uint8Array(whole, 4, length));
  const start = 4 + length;
  return JSON.parse(json, (_, value) => {
    const place: unknown = value?.$bytes;
    return Array.isArray(place) ? new DataView(whole, start + place[0], place[1]) : value;
  });
}

async function open(el: HTMLElement, data: string): Promise<void> {
  const { script, ...saved } = (await unpack(data)) as Snapshot & { script: string };
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const module = await import(url);
  URL.revokeObjectURL(url);
  const host = createHost(
    saved.state,
    answersOf(saved, (refused) => host.tell({ refused })),
  );
  followAddress(host);
  await mount(module, el, host);
}

/** A page that frames this file may set its theme: `attention.html#theme=dark`, also later. */
function followAddress(host: Host): void {
  const follow = () => {
    const theme = /^#theme=(light|dark)$/.exec(location.hash)?.[1] as "light" | "dark" | undefined;
    if (theme === undefined) return;
    document.documentElement.dataset.theme = theme;
    host.fromPython({ theme });
  };
  follow();
  addEventListener("hashchange", follow);
}

/** Report the height of the content to a page that frames this file, whenever it changes. */
function tellHeight(): void {
  if (parent === window) return;
  const tell = () => {
    const { marginTop, marginBottom } = getComputedStyle(document.body);
    const margins = Number.parseFloat(marginTop) + Number.parseFloat(marginBottom);
    const height = Math.ceil(document.body.getBoundingClientRect().height + (margins || 0));
    parent.postMessage({ attnwidget: { height } }, "*");
  };
  new ResizeObserver(tell).observe(document.body);
}

const el = document.getElementById("attnwidget");
const data = document.getElementById("attnwidget-data");
if (el !== null && data !== null) {
  const line = el.querySelector("p");
  open(el, data.textContent ?? "").then(
    () => {
      line?.remove();
      tellHeight();
    },
    (error: Error) => {
      if (line !== null) line.textContent = `This file could not be opened: ${error.message}`;
    },
  );
}

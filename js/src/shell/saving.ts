/** Save and copy what is shown: files that Python makes, or without Python a picture that the page makes. */

import type { Section } from "../components/menu";
import type { Bytes } from "../contract/messages";
import { KernelError } from "../kernel/kernel";
import type { Ui } from "../state/ui";
import { pictureOfPage } from "./page-picture";
import { pythonOf } from "./python-call";

type Format = "png" | "svg" | "html";

const MIME: Record<Format, string> = { png: "image/png", svg: "image/svg+xml", html: "text/html" };
const CALL: Record<Format, string> = {
  png: 'w.figure().savefig("attention.png")',
  svg: 'w.figure().savefig("attention.svg")',
  html: 'w.to_html("attention.html")',
};
const KEPT = 60_000; // milliseconds for which the browser can fetch a file
const SAID = 5000;
const GIVEN = 10_000; // longer, because the reader may have to act

/** Return what can be saved and copied. A saved file cannot make other files. */
export function savingSections(ui: Ui): Section[] {
  const isSaved = ui.store.facts.value.saved !== undefined;
  const files = [
    { value: "png", name: "as PNG", note: "a picture" },
    { value: "svg", name: "as SVG", note: "for print" },
    { value: "html", name: "as HTML", note: "opens in any browser" },
  ];
  const copies = [
    { value: "picture", name: "picture" },
    { value: "python", name: "as Python", note: "call and numbers" },
  ];
  return [
    {
      title: "Save",
      value: null,
      choices: isSaved ? files.slice(0, 1) : files,
      choose: (it) => save(ui, it as Format),
    },
    {
      title: "Copy",
      value: null,
      choices: copies,
      choose: (it) => (it === "python" ? copyPython(ui) : copyPicture(ui)),
    },
  ];
}

async function save(ui: Ui, format: Format): Promise<void> {
  tell(ui, null);
  try {
    const { name, blob } = await fileOf(ui, format);
    download(ui, name, blob);
    tell(ui, { title: "Sent to the browser", text: `${name}. ${otherwise(ui, format)}` }, GIVEN);
  } catch (error) {
    const why =
      error instanceof KernelError ? error.message : "only the kernel can make this file, and it does not answer.";
    tell(ui, { title: "Not saved", text: sentenceOf(why, CALL[format]) });
  }
}

/** What to do if no file arrives: a page that is not allowed to save files gets no error. */
function otherwise(ui: Ui, format: Format): string {
  const refused = "If no file arrives, this page is not allowed to save files";
  return ui.store.facts.peek().saved === undefined ? `${refused}. In a cell: ${CALL[format]}` : `${refused}.`;
}

/** Fetch Python's file; if Python cannot draw a PNG (no kernel, no matplotlib), make one from the page. */
async function fileOf(ui: Ui, format: Format): Promise<{ name: string; blob: Blob }> {
  const there = !ui.kernel.away.peek() && ui.store.facts.peek().saved === undefined;
  try {
    if (there || format !== "png") return await fetchFile(ui, format);
  } catch (error) {
    if (format !== "png") throw error;
  }
  return { name: "attention.png", blob: await pictureOfPage(ui) };
}

async function fetchFile(ui: Ui, format: Format): Promise<{ name: string; blob: Blob }> {
  const parts: ArrayBuffer[] = [];
  for (let start = 0; ; ) {
    const reply = await ui.kernel.request("file", { format, start }, { signal: ui.stop });
    if (reply.share < 1) {
      const made = Math.floor(100 * reply.share);
      tell(ui, { title: "Saving", text: `${made} % of the file is ready.` });
      continue;
    }
    const { data } = reply;
    const part = copyOf(typeof data === "number" ? (reply.buffers[data] as Bytes) : data);
    parts.push(part);
    start += part.byteLength;
    if (start >= reply.total || part.byteLength === 0) {
      return { name: reply.name, blob: new Blob(parts, { type: MIME[format] }) };
    }
  }
}

function copyOf(bytes: Bytes): ArrayBuffer {
  const view = ArrayBuffer.isView(bytes)
    ? new Uint8Array(bytes.buffer as ArrayBuffer, bytes.byteOffset, bytes.byteLength)
    : new Uint8Array(bytes as ArrayBuffer);
  return view.slice().buffer;
}

/** Click a link in the page: VS Code looks for one and asks where to put the file. */
function download(ui: Ui, name: string, blob: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.hidden = true;
  ui.root.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT);
}

async function copyPicture(ui: Ui): Promise<void> {
  tell(ui, null);
  try {
    if (typeof ClipboardItem !== "function" || !navigator.clipboard?.write) throw new Error("no clipboard");
    await navigator.clipboard.write([new ClipboardItem({ "image/png": pictureOfPage(ui) })]);
    tell(ui, { title: "Copied", text: "The picture is on the clipboard." }, SAID);
  } catch {
    tell(ui, { title: "Not copied", text: "This page is not allowed to copy pictures. Save it as PNG instead." });
  }
}

async function copyPython(ui: Ui): Promise<void> {
  tell(ui, null);
  const text = pythonOf(ui);
  if (await copyText(ui, text)) tell(ui, { title: "Copied", text: "The call is on the clipboard." }, SAID);
  else tell(ui, { title: "Not copied", text: `This page is not allowed to copy. The call is: ${text}` });
}

/** Copy Python's message. */
export async function copyMessage(ui: Ui, text: string): Promise<void> {
  if (await copyText(ui, text)) tell(ui, { title: "Copied", text: "The message is on the clipboard." }, SAID);
  else tell(ui, { title: "Not copied", text: "This page is not allowed to copy. Select the message instead." });
}

/** Return whether a text could be copied. */
async function copyText(ui: Ui, text: string): Promise<boolean> {
  try {
    if (!navigator.clipboard?.writeText) throw new Error("no clipboard");
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyByCommand(ui, text);
  }
}

/** The old way, for pages without a clipboard API, such as those without https. */
function copyByCommand(ui: Ui, text: string): boolean {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "aw-visually-hidden";
  ui.root.append(field);
  field.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    field.remove();
  }
}

const leaving = new WeakMap<Ui, ReturnType<typeof setTimeout>>();

/** Show a message for some milliseconds, or until the next one. */
function tell(ui: Ui, told: Ui["told"]["value"], forMs?: number): void {
  clearTimeout(leaving.get(ui));
  ui.told.value = told;
  if (forMs !== undefined && !ui.stop.aborted) {
    leaving.set(
      ui,
      setTimeout(() => {
        if (ui.told.peek() === told) ui.told.value = null;
      }, forMs),
    );
  }
}

/** Return Python's sentence, followed by the line to run in a cell unless it names one. */
function sentenceOf(why: string, call: string): string {
  const said = why.charAt(0).toUpperCase() + why.slice(1);
  return said.includes("w.") || said.includes("pip ") ? said : `${said} In a cell: ${call}`;
}

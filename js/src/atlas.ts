/** The entry of an atlas: in a notebook, where a kernel sends the cards; or in pages, where scripts bring them. */

import { render as draw, h } from "preact";
import { AtlasApp } from "./atlas/app";
import type { Card, Index, Source } from "./atlas/contents";
import type { ThemePreference } from "./contract/values";
import { detectHost, detectTheme, watchTheme } from "./draw/theme";

interface AtlasModel {
  get(name: "_index"): Index;
  get(name: "theme"): ThemePreference;
  get(name: "selected"): readonly [number, number] | null;
  get(name: "opened"): string | null;
  readonly widget_manager?: Manager;
  get(name: "_card"): { readonly key: string; readonly card: Card } | null;
  set(name: "selected", value: readonly [number, number]): void;
  save_changes(): void;
  send(content: unknown): void;
  on(name: string, hear: (content: Answer) => void): void;
  off(name: string, hear: (content: Answer) => void): void;
}

/** Of ipywidgets: it makes the view of another widget. */
interface Manager {
  get_model(id: string): Promise<unknown>;
  create_view(model: unknown): Promise<{ readonly el: HTMLElement; remove(): void }>;
}

interface Answer {
  readonly id: number;
  readonly result?: unknown;
  readonly error?: string;
}

/** How long a kernel that says nothing is waited for. */
const PATIENCE = 60_000;

function start(el: HTMLElement, source: Source, theme: () => ThemePreference, stop: AbortSignal): () => void {
  const root = document.createElement("div");
  root.className = "attnwidget";
  el.append(root);
  const look = () => {
    root.dataset.host = detectHost(root);
    root.dataset.theme = detectTheme(root, theme());
  };
  look();
  watchTheme(root, look, stop);
  draw(h(AtlasApp, { source }), root);
  stop.addEventListener("abort", () => draw(null, root), { once: true });
  return look;
}

/** For anywidget. */
export function render({ model, el }: { model: AtlasModel; el: HTMLElement }): () => void {
  const end = new AbortController();
  const waiting = new Map<number, (answer: Answer) => void>();
  const hear = (content: Answer) => waiting.get(content.id)?.(content);
  model.on("msg:custom", hear);
  let last = 0;
  const ask = <T>(content: Readonly<Record<string, unknown>>) =>
    new Promise<T>((resolve, reject) => {
      const id = ++last;
      const timer = setTimeout(() => reject(new Error("The kernel does not answer: run the cell again.")), PATIENCE);
      waiting.set(id, ({ result, error }) => {
        clearTimeout(timer);
        waiting.delete(id);
        if (error === undefined) resolve(result as T);
        else reject(new Error(error));
      });
      try {
        model.send({ id, ...content });
      } catch {
        waiting.get(id)?.({ id, error: "The kernel is gone: run the cell again." });
      }
    });
  const cards = new Map<string, Card>();
  const source: Source = {
    index: model.get("_index"),
    chosen: model.get("selected"),
    async card(side, layer, head) {
      const key = `${side}-${layer}-${head}`;
      const saved = model.get("_card");
      if (saved?.key === key) return saved.card;
      const found = cards.get(key) ?? (await ask<Card>({ kind: "card", side, layer, head }));
      cards.set(key, found);
      return found;
    },
    open: model.get("_index").live
      ? (text, layer, head, query, key) => ask<string>({ kind: "open", text, layer, head, query, key })
      : null,
    choose(layer, head) {
      model.set("selected", [layer, head]);
      model.save_changes();
    },
  };
  const look = start(el, source, () => model.get("theme"), end.signal);
  const place = document.createElement("div");
  el.append(place);
  const show = () => showWidget(model, place);
  show();
  model.on("change:theme", look);
  model.on("change:opened", show);
  return () => {
    model.off("msg:custom", hear);
    model.off("change:theme", look);
    model.off("change:opened", show);
    end.abort();
  };
}

/** Show the widget of the text that was opened, below the atlas. */
async function showWidget(model: AtlasModel, place: HTMLElement): Promise<void> {
  const opened = model.get("opened");
  const manager = model.widget_manager;
  if (opened === null || manager === undefined) return;
  const view = await manager.create_view(await manager.get_model(opened.replace("IPY_MODEL_", "")));
  place.replaceChildren(view.el);
  place.scrollIntoView({ block: "nearest" });
}

const arrived = new Map<string, (card: Card) => void>();

/** Called by the script of a card. */
export function card(key: string, found: Card): void {
  arrived.get(key)?.(found);
}

/** For a page: the index is in it, and each card in a script of its own beside it. */
export function page(el: HTMLElement, index: Index, theme: ThemePreference): void {
  const cards = new Map<string, Promise<Card>>();
  const load = (key: string) =>
    new Promise<Card>((resolve, reject) => {
      const script = document.createElement("script");
      arrived.set(key, resolve);
      script.src = `heads/${key}.js`;
      script.onerror = () => {
        cards.delete(key);
        reject(new Error(`heads/${key}.js is missing beside this page.`));
      };
      document.head.append(script);
    });
  const place = /^#(\d+)-(\d+)$/.exec(location.hash);
  const source: Source = {
    index,
    chosen: place === null ? null : [Number(place[1]), Number(place[2])],
    card(side, layer, head) {
      const key = `${side === 1 ? "other-" : ""}${layer}-${head}`;
      const known = cards.get(key) ?? load(key);
      cards.set(key, known);
      return known;
    },
    open: null,
    choose(layer, head) {
      history.replaceState(null, "", `#${layer}-${head}`);
    },
  };
  start(el, source, () => theme, new AbortController().signal);
}

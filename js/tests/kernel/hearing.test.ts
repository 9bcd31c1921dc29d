/** A model to which anywidget lets no message hears Python all the same. */

import { expect, test } from "vitest";
import { hearPython } from "../../src/kernel/hearing";

/** As ipywidgets' and anywidget's models lie over each other. */
class WidgetModel {
  readonly heard: unknown[] = [];
  readonly sent: object[] = [];
  #listener: (message: unknown) => unknown = (message) => this._handle_comm_msg(message);
  comm: { on_msg(listener: (message: unknown) => unknown): void; send(data: object): void } | undefined = {
    on_msg: (listener) => {
      this.#listener = listener;
    },
    send: (data) => void this.sent.push(data),
  };
  fromPython(message: unknown): unknown {
    return this.#listener(message);
  }
  async _handle_comm_msg(message: unknown): Promise<void> {
    this.heard.push(message);
  }
}

class AnyModel extends WidgetModel {
  constructor(readonly ready: Promise<unknown>) {
    super();
  }
  override async _handle_comm_msg(message: unknown): Promise<void> {
    await this.ready;
    await super._handle_comm_msg(message);
  }
}

const proxyOf = (host: unknown) => ({
  get: () => "its-name",
  widget_manager: { get_model: (id: string) => Promise.resolve(id === "its-name" ? host : undefined) },
});
const update = { content: { data: { method: "update", state: { head: 2 } } } };
function tooLate(): Promise<never> {
  const ready = Promise.reject(new Error("[anywidget] Failed to initialize model."));
  ready.catch(() => {}); // nobody may ask
  return ready;
}

test("one that anywidget has given up hears, and asks for what it has missed", async () => {
  const host = new AnyModel(tooLate());
  await expect(host.fromPython(update)).rejects.toThrow("Failed to initialize");
  await hearPython(proxyOf(host));
  await host.fromPython(update);
  expect(host.heard).toEqual([update]);
  expect(host.sent).toEqual([{ method: "request_state" }]);
});

test("one that started in time is left alone", async () => {
  const host = new AnyModel(Promise.resolve());
  const { comm } = host;
  if (comm) comm.on_msg = () => expect.unreachable();
  await hearPython(proxyOf(host));
  expect(host.sent).toEqual([]);
});

test("nothing is done without a kernel, without such models, and where the host has other ones", async () => {
  const saved = new AnyModel(tooLate());
  saved.comm = undefined;
  for (const host of [saved, undefined, { get: () => 1 }]) await hearPython(proxyOf(host));
  await hearPython({ get: () => "its-name" });
  const failing = { get_model: () => Promise.reject(new Error("widget model not found")) };
  await hearPython({ get: () => "its-name", widget_manager: failing });
  const flat = new WidgetModel(); // no class of anywidget's between
  flat._handle_comm_msg = tooLate;
  Object.setPrototypeOf(flat, Object.prototype);
  await hearPython(proxyOf(flat));
  expect([saved.sent, flat.sent]).toEqual([[], []]);
});

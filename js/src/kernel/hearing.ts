/**
 * Messages from Python that anywidget would withhold from a model whose script started late.
 *
 * If that took more than two seconds (a busy page, as when a notebook full of widgets opens), anywidget withholds them
 * for good, without a word in the widget. This module relies on anywidget 0.9 to 0.11.
 */

/** The host's own object behind `model`, which is only a proxy. */
interface HostModel {
  readonly comm_live?: unknown;
  readonly comm?: { on_msg(listener: (message: unknown) => unknown): void; send(data: object): unknown } | undefined;
  _handle_comm_msg(message: unknown): Promise<unknown>;
}

/** A model that knows its own name. */
export interface NamedModel {
  get(name: "uid"): unknown;
  readonly widget_manager?: { get_model?(id: string): Promise<unknown> | undefined } | undefined;
}

/** Not a method that ipywidgets knows: it is ignored, or refused like any other message. */
const NOTHING = { content: { data: { method: "none" } } };

/** Make sure that the model's messages arrive; earlier ones arrive as Python's current state. */
export async function hearPython(model: NamedModel): Promise<void> {
  const host = await hostModel(model);
  const comm = host?.comm;
  if (!host || !comm) return;
  const refused = await host._handle_comm_msg(NOTHING).then(
    () => false,
    () => true,
  );
  const handle = refused ? handlerOfHost(host) : undefined;
  if (handle === undefined) return;
  comm.on_msg((message) => handle.call(host, message));
  comm.send({ method: "request_state" });
}

/** Whether the host knows this model only from a file: the kernel that runs, if any, has no such widget. */
export async function isOrphan(model: NamedModel): Promise<boolean> {
  const host = await hostModel(model);
  return host !== undefined && host.comm === undefined && host.comm_live !== true;
}

async function hostModel(model: NamedModel): Promise<HostModel | undefined> {
  const uid = model.get("uid");
  try {
    const found = typeof uid === "string" ? await model.widget_manager?.get_model?.(uid) : undefined;
    return isHostModel(found) ? found : undefined;
  } catch {
    return undefined; // a host that names its models differently
  }
}

function isHostModel(value: unknown): value is HostModel {
  return typeof value === "object" && value !== null && "_handle_comm_msg" in value;
}

/** Return ipywidgets' own handler of a message, which anywidget's class overrides. */
function handlerOfHost(host: HostModel): HostModel["_handle_comm_msg"] | undefined {
  const found: HostModel["_handle_comm_msg"][] = [];
  for (let of: object | null = host; of !== null; of = Object.getPrototypeOf(of)) {
    if (Object.hasOwn(of, "_handle_comm_msg")) found.push((of as HostModel)._handle_comm_msg);
  }
  return found[1];
}

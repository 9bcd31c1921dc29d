/**
 * Messages from Python, where anywidget keeps them from a model whose script started late.
 *
 * It does so for good, without a word in the widget, where that took more than two seconds: on a page that is busy, as
 * while a notebook full of widgets is opened. What is used of anywidget here is what 0.9 to 0.11 do.
 */

/** What the host itself has by the model's name: `model` is only a proxy of it. */
interface HostModel {
  readonly comm?: { on_msg(listener: (message: unknown) => unknown): void; send(data: object): unknown } | undefined;
  _handle_comm_msg(message: unknown): Promise<unknown>;
}

/** A model that knows its own name. */
export interface NamedModel {
  get(name: "uid"): unknown;
  readonly widget_manager?: { get_model?(id: string): Promise<unknown> | undefined } | undefined;
}

/** No method that ipywidgets knows: it is passed over, or refused where all messages are. */
const NOTHING = { content: { data: { method: "none" } } };

/** See to it that the model's messages arrive; what was sent before comes too, as the state that Python has by now. */
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

async function hostModel(model: NamedModel): Promise<HostModel | undefined> {
  const uid = model.get("uid");
  try {
    const found = typeof uid === "string" ? await model.widget_manager?.get_model?.(uid) : undefined;
    return isHostModel(found) ? found : undefined;
  } catch {
    return undefined; // a host that names its models in another way
  }
}

function isHostModel(value: unknown): value is HostModel {
  return typeof value === "object" && value !== null && "_handle_comm_msg" in value;
}

/** Return what ipywidgets itself does with a message, which anywidget's class lays its own over. */
function handlerOfHost(host: HostModel): HostModel["_handle_comm_msg"] | undefined {
  const found: HostModel["_handle_comm_msg"][] = [];
  for (let of: object | null = host; of !== null; of = Object.getPrototypeOf(of)) {
    if (Object.hasOwn(of, "_handle_comm_msg")) found.push((of as HostModel)._handle_comm_msg);
  }
  return found[1];
}

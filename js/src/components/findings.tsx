/** Likely problems of the selected head: a list in the stages view, a count in all views. */

import { Component, createRef } from "preact";
import type { Deviation, Finding } from "../contract/messages";
import type { Ui } from "../state/ui";
import { headOf, sentence } from "./unfold";

const UNBIDDEN = 1 << 20; // cells; Python checks a larger head only on request

/** Return the differences from other results, once known for the selected head. */
export function deviationOf({ store }: Ui): Deviation | null {
  const found = store.deviation.value;
  const { layer, batch, head } = store;
  const isOf = found?.layer === layer.value && found.batch === batch.value && found.head === head.value;
  return isOf ? found : null;
}

/** The findings about the selected head, once known. */
function findingsOf(ui: Ui): readonly Finding[] | null {
  return deviationOf(ui) === null ? null : ui.store.findings.value;
}

/** Return "2 findings", or "1 note" if there are only notes. */
export function countOf(findings: readonly Finding[]): string {
  const grave = findings.filter(({ severity }) => severity !== "note").length;
  const [many, word] = grave > 0 ? [grave, "finding"] : [findings.length, "note"];
  return many === 0 ? "" : `${many} ${word}${many === 1 ? "" : "s"}`;
}

const SIGNS = { error: "✕", warning: "!", note: "i" } as const;
const wanted = new WeakSet<HTMLElement>(); // widgets that should show the list once it exists

/** Return the kind of the first finding if it is an error, and the number of all others; else their number. */
function firstOf(findings: readonly Finding[]): string {
  const { kind, severity } = findings[0]!;
  if (severity !== "error") return countOf(findings);
  const others = findings.filter(({ severity }) => severity !== "note").length - 1;
  return `${sentenceCase(kind)}${others > 0 ? ` and ${others} more` : ""}`;
}

/** The findings in short, in the toolbar of every view; nothing without findings. */
export function FindingsBadge({ ui, isFolded = false }: { ui: Ui; isFolded?: boolean }) {
  const findings = findingsOf(ui);
  if (findings === null || findings.length === 0) {
    return <CheckedBadge ui={ui} isExamined={findings !== null} isShort={isFolded || ui.mode.value === "narrow"} />;
  }
  const severity = findings[0]!.severity;
  const text = isFolded || ui.mode.value === "narrow" ? countOf(findings) : firstOf(findings);
  return (
    <button
      type="button"
      class="aw-badge"
      data-severity={severity}
      data-aw="badge"
      title={findings.map(({ kind, where }) => (where === "" ? kind : `${kind}, ${where}`)).join("\n")}
      onClick={() => lookAtFindings(ui)}
    >
      <i aria-hidden="true">{SIGNS[severity]}</i>
      {ui.mode.value === "narrow" ? text.split(" ")[0] : text}
      {ui.mode.value === "narrow" && <span class="aw-visually-hidden"> {text.split(" ")[1]}</span>}
    </button>
  );
}

/** The sentence of the first finding, if it is an error, beside a picture that it makes doubtful. */
export function ErrorSaid({ ui }: { ui: Ui }) {
  const first = findingsOf(ui)?.[0];
  if (first?.severity !== "error") return null;
  return (
    <button type="button" class="aw-error-said" title={first.advice} onClick={() => lookAtFindings(ui)}>
      <i aria-hidden="true">{SIGNS.error}</i>
      <span>
        {sentenceCase(first.message)}
        {first.where !== "" && ` (${first.where})`}.
      </span>
    </button>
  );
}

const REASONS = {
  all: "Each row gives the output that the model computed.",
  rows: "Some rows gave the output that the model computed. Click to check all rows of this head.",
  some: "Only some rows were compared with the output of the model, because the output was not kept.",
} as const;

/** Whether the head gives the model's own output, for a captured call. */
function CheckedBadge({ ui, isExamined, isShort }: { ui: Ui; isExamined: boolean; isShort: boolean }) {
  const checked = ui.store.facts.value.checked;
  if (checked === undefined || checked === null) return null;
  const isChecked = checked === "all" || (checked === "rows" && isExamined);
  return (
    <button
      type="button"
      class="aw-badge"
      data-severity={isChecked ? "checked" : "unchecked"}
      data-aw="badge"
      title={REASONS[isChecked ? "all" : checked]}
      onClick={() => lookAtFindings(ui)}
    >
      <i aria-hidden="true">{isChecked ? "✓" : "?"}</i>
      <span class={isShort ? "aw-visually-hidden" : ""}>{isChecked ? "checked" : "not checked"}</span>
    </button>
  );
}

/** Show the list, in the stages view. */
export function lookAtFindings({ store, root }: Ui): void {
  wanted.add(root);
  if (store.view.value !== "stages") store.show({ view: "stages" });
  else reveal(root, root.querySelector<HTMLElement>("[data-aw=findings]"));
}

function reveal(root: HTMLElement, list: HTMLElement | null): void {
  if (list === null || !wanted.delete(root)) return;
  list.scrollIntoView({ block: "nearest" });
  list.focus({ preventScroll: true });
}

/** List the findings of the selected head, and the differences from other results. */
export class Findings extends Component<{ ui: Ui }, { error: string }> {
  override state = { error: "" };
  private list = createRef<HTMLElement>();

  override componentDidMount() {
    requestAnimationFrame(() => reveal(this.props.ui.root, this.list.current)); // once the view is in the page
  }

  private check = async () => {
    const { ui } = this.props;
    this.setState({ error: "" });
    await ui.kernel
      .request("check", headOf(ui).body)
      .catch((error) => !ui.stop.aborted && this.setState({ error: sentence(error) }));
  };

  override render({ ui }: { ui: Ui }, { error }: { error: string }) {
    const { queries, keys } = ui.store.facts.value;
    const findings = findingsOf(ui);
    return (
      <section class="aw-findings" data-aw="findings" aria-label="Findings" tabIndex={-1} ref={this.list}>
        <h4>
          Findings
          {findings !== null && findings.length === 0 && (
            <span class="aw-muted">none: masks, padding, NaN, saturation and the output were checked</span>
          )}
        </h4>
        {findings === null && queries * keys > UNBIDDEN && (
          <p>
            This head is long, so it was not checked.{" "}
            <button type="button" class="aw-link" onClick={this.check}>
              Check this head
            </button>
            {error !== "" && <span role="alert"> {error}</span>}
          </p>
        )}
        {findings !== null && findings.length > 0 && (
          <ul>
            {findings.map((finding) => (
              <Item key={`${finding.kind}${finding.where}`} ui={ui} finding={finding} />
            ))}
          </ul>
        )}
      </section>
    );
  }
}

function Item({ ui, finding }: { ui: Ui; finding: Finding }) {
  const { kind, severity, where, message, advice } = finding;
  return (
    <li data-severity={severity}>
      <i aria-hidden="true">{SIGNS[severity]}</i>
      <div>
        <b>{sentenceCase(kind)}</b>
        <span class="aw-visually-hidden">, {severity}</span>
        {where !== "" &&
          (finding.query === null && finding.key === null ? (
            <span class="aw-muted"> {where}</span>
          ) : (
            <>
              {" "}
              <button type="button" class="aw-link" title="Pin it" onClick={() => pin(ui, finding)}>
                {where}
              </button>
            </>
          ))}
        <p>{sentenceCase(message)}.</p>
        <p class="aw-muted">{advice}</p>
      </div>
    </li>
  );
}

/** The pair of a finding; a missing side keeps the pin, or is the same position as the other side. */
function pin({ store }: Ui, { query, key }: Finding): void {
  const { queries, keys } = store.facts.value;
  store.select({
    query: query ?? store.query.value ?? Math.min(key ?? 0, queries - 1),
    key: key ?? store.key.value ?? Math.min(query ?? 0, keys - 1),
  });
}

const sentenceCase = (text: string) =>
  /^[a-z-]+( |$)/.test(text) && !/^[qkv] /.test(text) ? text[0]!.toUpperCase() + text.slice(1) : text;

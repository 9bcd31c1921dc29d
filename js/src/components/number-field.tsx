/** A number field that follows the current number. */

import { Component, createRef, type TargetedEvent } from "preact";

interface Props {
  readonly label: string;
  /** The current number as text. */
  readonly text: string;
  readonly name?: string;
  readonly placeholder?: string | undefined;
  readonly type?: "number";
  readonly inputMode?: "numeric";
  readonly min?: number;
  readonly step?: number | "any";
  readonly disabled?: boolean;
  readonly onChange?: (event: TargetedEvent<HTMLInputElement>) => void;
  readonly onKeyDown?: (event: KeyboardEvent) => void;
}

/**
 * Edit a number; a new current number replaces what was typed. Typed text survives redraws for other reasons, such as
 * an answer from the kernel; a `value` would overwrite it.
 */
export class NumberField extends Component<Props> {
  private input = createRef<HTMLInputElement>();

  override componentDidUpdate({ text }: Props) {
    if (text !== this.props.text) this.input.current!.value = this.props.text;
  }

  override render({ label, text, ...more }: Props) {
    return <input ref={this.input} inputMode="decimal" aria-label={label} defaultValue={text} {...more} />;
  }
}

/** Return the text typed into a field of a form. */
export const typedIn = (form: EventTarget | null, name: string) =>
  ((form as HTMLFormElement).elements.namedItem(name) as HTMLInputElement).value;

/** A field for a number, which follows the one in force. */

import { Component, createRef, type TargetedEvent } from "preact";

interface Props {
  readonly label: string;
  /** The number in force, as it is shown. */
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
 * Take a number; once another one is in force, that stands in the place of what was typed. What is typed stays while
 * the page draws anew for other reasons, as when an answer comes: a `value` would put it back.
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

/** Return what was typed into a field of a form. */
export const typedIn = (form: EventTarget | null, name: string) =>
  ((form as HTMLFormElement).elements.namedItem(name) as HTMLInputElement).value;

/** A field for a number, which follows the one in force. */

import { Component, createRef } from "preact";

interface Props {
  readonly name: string;
  readonly label: string;
  /** The number in force, as it is shown. */
  readonly text: string;
  readonly placeholder?: string;
}

/** Take a number; once another one is in force, that stands in the place of what was typed. */
export class NumberField extends Component<Props> {
  private input = createRef<HTMLInputElement>();

  override componentDidUpdate({ text }: Props) {
    if (text !== this.props.text) this.input.current!.value = this.props.text;
  }

  override render({ name, label, text, placeholder }: Props) {
    return (
      <input
        ref={this.input}
        name={name}
        inputMode="decimal"
        placeholder={placeholder}
        aria-label={label}
        defaultValue={text}
      />
    );
  }
}

/** Return what was typed into a field of a form. */
export const typedIn = (form: EventTarget | null, name: string) =>
  ((form as HTMLFormElement).elements.namedItem(name) as HTMLInputElement).value;

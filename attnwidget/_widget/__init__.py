"""The widget: traits, selection and what is derived from them.

A change goes one way. A trait is set, by a user or a front-end, and checked against the layers that are shown; other
tensors, rules or words make another `ShownLayers`. `AttentionWidget._refresh` then reads the `Selection`, asks
`TraitBuilders` what each derived trait follows from, and `Derived` makes those again for which that has changed; each
goes into its trait, and from there to the front-end. `ComparisonWidget` adds derived traits of its own. Only the exact
pass, tiles, the survey of all heads and findings send later, from the event loop.
"""

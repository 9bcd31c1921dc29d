"""The widget: its traits, the selection, and what is derived from them.

A change goes one way. A user or a front-end sets a trait, and the part that owns it (`parts`) checks it. Other tensors,
rules or words make another `ShownLayers` (`stores`). `Refreshing._refresh` reads the `Selection` and asks each part for
its rules; `Derived` computes the derived traits whose inputs changed, and ipywidgets sends them. Only the passes
(`passes`) send later, from the event loop.
"""

"""The atlas of a model: what each head does over many texts, as totals that can be added, stored and shown."""

"""HTML files, figures, and the small picture next to a saved widget."""

"""HTML files, figures and the small picture beside a saved widget."""

"""Helpers that know neither attention nor widgets."""

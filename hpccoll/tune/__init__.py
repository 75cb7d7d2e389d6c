"""Choosing which algorithm serves a call."""

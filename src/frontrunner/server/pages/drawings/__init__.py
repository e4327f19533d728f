"""Drawings as geometry: pure functions that give shapes and words, which templates turn into SVG."""

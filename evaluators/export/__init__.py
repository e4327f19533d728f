"""Recipes exported to other tools, and imported from their configurations: one class per tool."""

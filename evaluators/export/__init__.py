"""Recipes in other tools' words: what they are started with, and what of it is a recipe."""

"""A model as a sequence of layers, made of parts: one module for each kind of part."""

"""The parts that the trainer's models are made of, one module per kind of part.

Shapes in the docstrings: B sequences, S tokens of a sequence, D hidden width, H query heads, d
width of a head, F inner width of a feed-forward part, E experts, V vocabulary, and N rows of a
table that has one row per token, or one per token and chosen expert. On a rank that holds a part of
the heads, experts or positions, they are the sizes of that part.
"""

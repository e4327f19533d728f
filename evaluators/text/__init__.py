"""Text to token files: documents read from files, tokenized in parallel, written with what
describes them.
"""

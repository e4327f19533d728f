"""A checker of stores that shares nothing with the code that writes them: plain SQL over what must hold."""

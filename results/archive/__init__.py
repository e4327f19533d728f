"""One campaign as one portable file: JSON lines, each with the hash of itself and all before it."""

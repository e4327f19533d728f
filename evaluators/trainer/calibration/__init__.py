"""The ranks that measure a machine: matrix products, memory, collectives and transfers, all ranks busy at once."""

"""The parts that the trainer's models are made of, one module per kind of part."""

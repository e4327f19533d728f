"""Child process of a dry run: one rank's real training step over fake tensors, its memory and FLOPs.

A program (`python -P -m frontrunner.evaluators.trainer.dry_run`) that builds the engine which probes train with, over
a fake process group of the recipe's full size. Tensors have shapes and no data, collectives return at once. As the rest
of the trainer it imports torch, the standard library and the trainer.
"""

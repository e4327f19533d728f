"""The training probe: a GPT trained by torch-native parallelism, one process a rank.

A job file says what to train, how it is spread over the ranks, and how long; the ranks read it, train, and write
their outcome as JSON files into the job's run folder. The package imports torch, numpy and the standard library, and
nothing else of this project, so that it runs wherever torch does.
"""

"""The training probe: a GPT trained by torch-native parallelism or DeepSpeed, one process per rank.

A job file says what to train, how it is spread over the ranks, and how long; the ranks read it,
train, and write their outcome as JSON files into the job's run folder. The package imports torch,
numpy, the standard library and `frontrunner.spaces`, so that it runs wherever torch does.
"""

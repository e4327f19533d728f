"""The DeepSpeed engine: the trainer's model, data and outputs, stepped by `deepspeed.initialize`.

Only jobs whose recipe says `engine = "deepspeed"` import this package, and with it deepspeed.
"""

"""Forms of parallelism: tensor, context, data with its shardings, and pipeline."""

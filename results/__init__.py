"""What is known: measurements, failures, the store, rankings and their provenance; everything durable."""

"""Results: outcomes, the store that holds them, rankings and provenance."""

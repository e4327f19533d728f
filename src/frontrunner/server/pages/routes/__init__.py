"""The addresses of the pages: each asks a view for its values and lays them out by a template."""

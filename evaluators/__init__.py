"""How a recipe is judged: real training probes, and the simulation that stands beside them."""

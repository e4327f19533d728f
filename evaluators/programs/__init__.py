"""Programs that run for a recipe: the built-in trainer, and commands of the user's own trainer."""

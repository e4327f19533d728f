"""Other trainers as probes: a command made from the recipe, watched by its log, judged like our own probes."""

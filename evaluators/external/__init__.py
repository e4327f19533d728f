"""Other people's trainers as probes: a command made from the recipe, watched by its log, judged like our own probes.

command     what is run for a recipe
template    its arguments, written with recipe fields
patterns    what regular expressions find in a log, with units
reading     a log as steps, peaks and statements
trainers    ready-made arguments and patterns of well-known trainers
keeper      the process that holds a trainer on a leash
evaluator   the `Evaluator` over all of them
"""

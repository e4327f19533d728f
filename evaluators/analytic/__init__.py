"""The analytic model: step time and peak memory of recipes from formulas, for arrays of recipes at
once.
"""

"""What can be searched: model, cluster, problem, recipe, legality, space and presets; pure values,
no devices.
"""

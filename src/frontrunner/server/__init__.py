"""The service: the store and the commands over HTTP, for a team, a browser or a program on another machine.

Nothing in this package knows how to search, measure or rank: each route asks a function of the floors below. What
the package adds is the door: who may ask (`access`), which requests are refused before they are read (`guards`),
how much of everything there may be (`settings.Limits`), and the processes that it starts (`drivers`, `replays`).
"""

"""The service: the store and the commands over HTTP, for a team, a browser or a program on another machine.

Nothing in this package knows how to search, measure or rank: routes call `frontrunner.store.LocalStore`. It adds access
(`auth`, `middleware`), limits (`settings.Limits`), and the processes that it starts (`drivers`, `replays`).
"""

"""The service: the store and the commands over HTTP, for a team, a browser or a program on another
machine.
"""

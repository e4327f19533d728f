"""The routes, a module for each kind of question; each is a few lines around a function of the floors below."""

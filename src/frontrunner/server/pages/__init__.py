"""The service's pages: HTML from templates, drawn by the server and kept up to date in small pieces.

A page's values are made by a plain function, so that they can be tested without a server; templates only lay them out,
and escape all text. No page needs anything but this service.
"""

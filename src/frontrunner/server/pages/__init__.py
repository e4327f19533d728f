"""Pages of the service: HTML from templates, kept up to date in small pieces."""

"""The revisions of the schema, in their order. A released one is never changed."""

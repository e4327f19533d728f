"""Tables of others' measurements on their way into the store: their columns, their units, and what cannot be true."""

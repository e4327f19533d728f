"""Operations and weights of each kind of part of a model."""

"""Operations on more than one node."""

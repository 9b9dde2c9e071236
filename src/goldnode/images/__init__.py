"""Container images: declared in a matrix, locked, built, inspected, smoke-tested, published and promoted."""

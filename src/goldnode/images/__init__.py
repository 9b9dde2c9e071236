"""Container images: declared in a matrix, locked, built, inspected, proved, published and promoted."""

"""The class document: a class, its stack's lock and the facts as the one JSON that nodes, images and checks use."""

"""A node that follows a signed channel: it verifies the channel, asks for leave, applies, boots and reports."""

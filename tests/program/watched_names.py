"""Names that a test binds anew."""

w: object = 0.0

"""The site in a real browser: `make docs-check`, which is `python -m tests.browser` on what `make docs` has built."""

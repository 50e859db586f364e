"""The notebooks of docs/notebooks run: from the first cell to the last, each in a kernel of its own."""

"""The programs, each written anew after a public one. `../forms.py` says what the marks in them mean."""

"""The commands of `barnabas`, one module each; broker/main.py imports the one that is asked for."""

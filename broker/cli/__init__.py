"""The commands of `barnabas`, one module each. Only the module of the command that runs is imported."""

"""How this process starts another one of `barnabas`."""

import sys

# Without -P modules would come from the folder in which somebody works, and that may have a `secrets.py`.
OWN_COMMAND = (sys.executable, "-P", "-m", "barnabas")

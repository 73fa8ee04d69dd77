"""The colours of the report, light and dark."""

# name: light, dark. Matplotlib draws with the light one, so no two may be equal.
COLOURS = {
    "text": ("#1b1f24", "#e6e9ed"),
    "soft": ("#5b6470", "#a3adb9"),
    "line": ("#d5dae0", "#39414b"),
    "page": ("#ffffff", "#14181d"),
    "blue": ("#1f66b0", "#6db3f8"),
    "fill": ("#cfe2f6", "#1d3a57"),
    "rise": ("#b3261e", "#ff9b92"),
    "fall": ("#1b7a4b", "#69d29d"),
    "soon": ("#8a6d00", "#e3c04b"),
    "warn": ("#a85700", "#ffb366"),
    "behind": ("#9c4f3d", "#e0a08f"),
    "back": ("#7a3fb0", "#c9a0f5"),
    "storm": ("#00707d", "#5fd0dd"),
    "never": ("#6b5b4e", "#cbb8a8"),
    "gone": ("#4a5560", "#b6c2cf"),
    "stall": ("#c2410c", "#ff8f5c"),
    "stop": ("#b3202f", "#ff8a95"),
}
LIGHT, DARK = 0, 1
SHARES = ("blue", "fall", "warn", "back", "storm", "soft")  # of the topics in a stacked bar
HATCHES = ("", "//", "..", "xx", "\\\\", "--")


def colour_variables() -> str:
    """The style sheet's variables for all colours, light and dark."""
    light, dark = (";".join(f"--{name}:{both[side]}" for name, both in COLOURS.items()) for side in (LIGHT, DARK))
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"

"""Whether a text can be sent: JSON, arguments, variables and paths may have half a surrogate pair, which cannot."""


def is_utf8(text: str) -> bool:
    """Whether all of its characters have an encoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

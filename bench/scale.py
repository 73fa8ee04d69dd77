"""x"""


def main(kafka): ...

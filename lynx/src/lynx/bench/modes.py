"""What ``lynx bench`` compares."""

from dataclasses import dataclass

from lynx.errors import BadInput


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to move the KV.

    Args:
        name: as in tables and rows.
        codec: name of the codec.
        draft: whether decode starts on the anchor.
    """

    name: str
    codec: str
    draft: bool

    @property
    def without_drafts(self) -> "Mode":
        """The same KV with plain decoding: what this mode's output must equal."""
        return Mode(f"{self.name}, no drafts", self.codec, draft=False)


MODES = (
    Mode("bf16", "bf16", draft=False),
    Mode("int8", "int8", draft=False),
    Mode("int4", "int4", draft=False),
    Mode("kivi4", "kivi4", draft=False),
    Mode("lynx", "nested", draft=True),
    Mode("lynx --codec lynx", "lynx", draft=True),
)


def by_names(names: list[str]) -> list[Mode]:
    """Modes by name, in the order given.

    Raises:
        BadInput: a name is unknown.
    """
    known = {mode.name: mode for mode in MODES}
    for name in names:
        if name not in known:
            raise BadInput(f"mode is {name!r}; use some of {', '.join(map(repr, known))}")
    return [known[name] for name in names]

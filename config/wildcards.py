"""Names that stand for many addresses: in settings' matches, in subscriptions and in diverts.

A name is made of words with a delimiter between them; one word stands for any word, another for any
number of words, none included. Which they are ``wildcard-addresses`` says, as in Artemis.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class WildcardAddresses:
    """``wildcard-addresses``: what names are made of."""

    routing_enabled: bool = True
    """Whether a subscription may be to many addresses; settings' matches always have wildcards."""
    delimiter: str = "."
    any_words: str = "#"
    single_word: str = "*"

    def is_pattern(self, name: str) -> bool:
        """Tell whether a name stands for others."""
        # Asked when an address is first used: most names have neither character.
        if self.any_words not in name and self.single_word not in name:
            return False
        words = name.split(self.delimiter)
        return self.any_words in words or self.single_word in words

    def matcher(self, match: str) -> Callable[[str], bool]:
        """Return what tells whether an address matches; the common kinds cost next to nothing."""
        if match == self.any_words:
            return lambda _: True
        words = match.split(self.delimiter)
        wild = {self.single_word, self.any_words}
        if words[-1] == self.any_words and not wild & set(words[:-1]):
            beginning = match.removesuffix(self.any_words)
            stem = beginning.removesuffix(self.delimiter)
            return lambda address: address == stem or address.startswith(beginning)
        return self._matcher_of_words(words)

    def _matcher_of_words(self, words: list[str]) -> Callable[[str], bool]:
        """Return what goes through an address once, however many wildcards there are.

        How many words of the match the words of the address so far can stand for is a set of
        numbers, and that one number whose bits they are.
        """
        # One of several next to each other says the same.
        any_words, single = self.any_words, self.single_word
        wanted = [
            word
            for word, before in zip(words, ("", *words), strict=False)
            if word != any_words or before != any_words
        ]
        repeats, takes_any = 0, 0
        takes: dict[str, int] = {}
        for at, word in enumerate(wanted):
            if word == any_words:
                repeats |= 1 << at
            elif word == single:
                takes_any |= 1 << at
            else:
                takes[word] = takes.get(word, 0) | 1 << at
        takes = {word: places | takes_any for word, places in takes.items()}
        first = 1 | (repeats & 1) << 1
        whole = 1 << len(wanted)

        def matches(address: str) -> bool:
            reached = first
            for word in address.split(self.delimiter):
                reached = reached & repeats | (reached & takes.get(word, takes_any)) << 1
                reached |= (reached & repeats) << 1
                if not reached:
                    return False
            return bool(reached & whole)

        return matches

    def matches(self, match: str, address: str) -> bool:
        """Tell whether ``match`` matches ``address``."""
        return self._matcher_of_words(match.split(self.delimiter))(address)

    def covers(self, match: str, pattern: str) -> bool:
        """Tell whether ``match`` matches every address that ``pattern`` matches."""
        wanted, given = match.split(self.delimiter), pattern.split(self.delimiter)
        return self._meet(wanted, given, both=False)

    def overlaps(self, match: str, pattern: str) -> bool:
        """Tell whether there can be an address that both match."""
        wanted, given = match.split(self.delimiter), pattern.split(self.delimiter)
        return self._meet(wanted, given, both=True)

    def _meet(self, wanted: list[str], given: list[str], *, both: bool) -> bool:
        """Tell whether ``wanted`` matches all of ``given``, or for ``both`` whether they overlap.

        A table of which beginnings of the one meet which of the other.
        """
        met = [[False] * (len(given) + 1) for _ in range(len(wanted) + 1)]
        met[0][0] = True
        for at, word in enumerate((*wanted, None)):
            for of, other in enumerate((*given, None)):
                if not met[at][of]:
                    continue
                if word == self.any_words:
                    met[at + 1][of] = True
                    if other is not None:
                        met[at][of + 1] = True
                if both and other == self.any_words:
                    met[at][of + 1] = True
                    if word is not None:
                        met[at + 1][of] = True
                if word is not None and other is not None and self._word_meets(word, other, both):
                    met[at + 1][of + 1] = True
        return met[-1][-1]

    def _word_meets(self, word: str, other: str, both: bool) -> bool:  # noqa: FBT001 - as above
        if other == self.any_words:
            return False
        if word == self.single_word or (both and other == self.single_word):
            return True
        return word == other

    def specificity(self, match: str) -> tuple[int, tuple[bool, ...], int]:
        """Return what matches are sorted by, the most specific first."""
        words = match.split(self.delimiter)
        if self.any_words in words:
            return 2, (), -len(match)
        is_single = tuple(word == self.single_word for word in words)
        return int(self.single_word in words), is_single, 0

"""Random work on the journal, compared with a model: sets of seqs."""

import random
from pathlib import Path

import pytest

from orthia.journal import Unit
from tests.file_journal.support import DirectJournal, file_settings, stored
from tests.journal.support import OTHER_QUEUE, QUEUE, payload


@pytest.mark.parametrize("seed", range(12))
def test_random_work_is_what_a_model_says(tmp_path: Path, seed: int) -> None:
    """Sends, acknowledgements, transactions, fan-outs, compactions, stops and crashes, mixed."""
    chance = random.Random(seed)
    s = file_settings(tmp_path, journal_pool_files=chance.choice([-1, 0, 2]))
    token = 1
    journal = DirectJournal(s, token)
    single: set[int] = set()
    shared: dict[int, set[int]] = {}

    def expected() -> list[int]:
        return sorted(single | shared.keys() | {seq for refs in shared.values() for seq in refs})

    for _ in range(150):
        match chance.choices(
            ["add", "delete", "share", "acknowledge", "unit", "keep", "compact", "stop", "crash"],
            [30, 20, 8, 14, 6, 10, 3, 2, 3],
        )[0]:
            case "add":
                texts = ["x" * chance.randrange(2_000) for _ in range(chance.randrange(1, 9))]
                single.update(journal.add(*texts, queue=chance.choice([QUEUE, OTHER_QUEUE])))
            case "delete" if single:
                gone = chance.sample(sorted(single), chance.randrange(1, len(single) + 1))
                journal.delete(*gone)
                single.difference_update(gone)
            case "share":
                unit = Unit()
                unit.add_message([QUEUE, OTHER_QUEUE], payload("y" * chance.randrange(9_000)))
                locations = journal.unit(unit)
                assert locations[0].body is not None
                shared[locations[0].body.seq] = {location.seq for location in locations}
            case "acknowledge" if shared:
                body = chance.choice(sorted(shared))
                seq = shared[body].pop()
                journal.delete(seq)
                if not shared[body]:
                    del shared[body]
            case "unit":
                unit = Unit()
                for _ in range(3):
                    unit.add_message([QUEUE], payload("z" * chance.randrange(500)))
                single.update(location.seq for location in journal.unit(unit))
            case "keep":
                journal.keeper.keep()
            case "compact":
                for files in journal.opened.instances:
                    files.compact()
            case "stop":
                journal.close()
                token += 1
                journal = DirectJournal(s, token)
            case "crash":
                journal.abandon()
                token += chance.randrange(2)
                journal = DirectJournal(s, token)
        assert journal.live() == expected()
    journal.abandon()
    assert stored(s) == expected()

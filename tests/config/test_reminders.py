"""When something that goes on is said again."""

from orthia.config.reminders import Reminder


def test_it_is_said_often_at_first_and_then_once_a_minute() -> None:
    """After 5 s, then after 10, 20, 40 and 60 more, and so on without an end."""
    reminder = Reminder(100.0)
    said = [seconds for now in range(100, 500) if (seconds := reminder.due(float(now))) is not None]
    assert said == [5, 15, 35, 75, 135, 195, 255, 315, 375]


def test_whoever_looks_seldom_is_told_of_the_whole_time() -> None:
    """An attempt that takes long counts too."""
    reminder = Reminder(0.0)
    assert reminder.due(21.0) == 21.0
    assert reminder.due(30.0) is None
    assert reminder.due(31.0) == 31.0

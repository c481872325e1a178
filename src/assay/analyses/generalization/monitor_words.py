"""Sentences about a monitor: its verdict, why its alarm is on, what a reader must know first."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.page.text import number, plural, rounded


DRAWN = 2_000  # readings of the pictures
FAR = 0.05  # distance of a threshold's performance from its target that is worth a caveat
Document = Mapping[str, Any]


def statistic_name(document: Document) -> str:
    """What the rules compare, for an axis."""
    return f"circuit shift ({document['distance']['key']})"


def known_shifts(document: Document) -> tuple[float, ...]:
    """Shifts of the known batches."""
    return tuple((document.get("calibration") or {}).get("shifts") or ())


def verdict(document: Document) -> str:
    """What the readings say, in a sentence or two."""
    readings = document["readings"]
    last, alarms = readings[-1], [each for each in readings if each["alarm"]]
    shift = f"The last batch has a shift of {number(last['shift'], 3)}"
    if known := known_shifts(document):
        least, largest = number(min(known), 3), number(max(known), 3)
        shift += f"; {len(known)} batches in distribution have {least} to {largest}"
    if document.get("rule") is None:
        return f"{shift}. No alarm is set."
    batches = plural(len(readings), "batch")
    if not alarms:
        return f"No alarm in {batches}. {shift}."
    stays = " and stays on" if document["rule"] == "sequential" else ""
    return (
        f"{number(len(alarms))} of {batches} raised the alarm, the first at batch {alarms[0]['index'] + 1}, "
        f"{alarms[0]['time'][:16].replace('T', ' ')} UTC{stays}. {shift}."
    )


def caveats(document: Document) -> list[str]:
    """What a reader must know before acting on the page."""
    notes = []
    readings, threshold = document["readings"], document.get("threshold") or {}
    if len(readings) > DRAWN:
        notes.append(
            f"The figures show the newest {DRAWN:,} of {len(readings):,} batches; the file beside the page, "
            "or the store, has all of them."
        )
    n_reference = (document["reference"].get("task") or {}).get("n")
    sizes = sorted({each["n"] for each in readings})
    if document.get("calibration") is None and n_reference is not None and sizes != [n_reference]:
        notes.append(
            f"The reference circuit is based on {n_reference} images, the batches on "
            f"{', '.join(map(str, sizes))}. Smaller batches have larger shifts by sampling alone, so "
            "thresholds from another batch size do not apply."
        )
    performance, target = threshold.get("performance"), threshold.get("target")
    if performance is not None and target is not None and abs(performance - target) > FAR:
        notes.append(
            f"The threshold corresponds to a performance of {rounded(performance)}, that of "
            f"{threshold['domain']}: no other calibration domain is closer to the target of "
            f"{rounded(target)}."
        )
    if n := sum(len(each["skipped"]) for each in readings) + len(document.get("passed", ())):
        notes.append(
            f"{plural(n, 'image file')} could not be read and {'was' if n == 1 else 'were'} left out."
        )
    return notes


# ------------------------------------------------------------------------------------------------ the alarm


def alarm_reasons(document: Document) -> list[str]:
    """Why the alarm is or was last on: statistic, limit, since when; what it may mean; what to do.

    Returns:
        Three sentences or so; nothing where no alarm was raised.
    """
    episode = _last_episode(document["readings"])
    if not episode:
        return []
    first, last, n = episode[0], episode[-1], len(document["readings"])
    over = document["readings"][-1]["index"] - last["index"]
    since = f"since batch {first['index'] + 1} ({moment(first)} UTC)"
    if over:
        lasted = f"from batch {first['index'] + 1} ({moment(first)} UTC) to batch {last['index'] + 1}"
        when = f"The last alarm lasted {lasted}; {plural(over, 'batch')} since then did not raise it."
    elif len(episode) == n:
        when = f"The alarm is on {since}, the first batch."
    else:
        when = f"The alarm is on {since}, for {plural(len(episode), 'batch')} in a row."
    return [f"{when} {reason(document, last)}", *_meaning(document)]


def moment(reading: Document) -> str:
    """When a batch was observed, to the minute."""
    return str(reading["time"])[:16].replace("T", " ")


def evidence(e_value: float) -> str:
    """An e-value for reading; it may have hundreds of digits."""
    return number(e_value, 3) if e_value < 1e6 else f"{e_value:.2g}"


def reason(document: Document, reading: Document) -> str:
    """Which statistic of a batch is beyond which limit, by the rule in force; empty where none is."""
    if not reading["alarm"]:
        return ""
    batch, key = f"batch {reading['index'] + 1}", document["distance"]["key"]
    shift = f"The circuit shift ({key}) of {batch} is {number(reading['shift'], 3)}"
    if document["rule"] == "threshold":
        threshold = document["threshold"]
        origin = f", which was {where}" if (where := threshold_origin(threshold)) else ""
        return f"{shift}, above the threshold of {number(threshold['value'], 3)}{origin}."
    if document["rule"] == "conformal":
        limit = (document.get("conformal") or {}).get("limit")
        known = len(known_shifts(document))
        above = "" if limit is None else f", above the limit of {number(limit, 3)}"
        p_value = reading["p_value"]
        alpha = f"the alarm is raised at {document['alpha']:g} or less"
        rare = "" if p_value is None else f" (p = {number(p_value, 3)}; {alpha})"
        return f"{shift}{above} that {known} known batches set{rare}."
    needed = 1 / document["alpha"]
    return (
        f"The evidence against no change (e-value) is {evidence(reading['e_value'])} at {batch}; it has "
        f"reached {needed:g}, and the sequential rule stays on from then on."
    )


def threshold_origin(threshold: Document) -> str:
    """What a threshold was read off; empty for one that was given as a number."""
    if not threshold.get("domain") or threshold.get("performance") is None:
        return ""
    where = (
        "interpolated between corrupted domains"
        if threshold.get("method") == "isotonic"
        else f"read off {threshold['domain']}"
    )
    return f"{where}, where performance is {rounded(threshold['performance'])}"


def _last_episode(readings: Sequence[Document]) -> list[Document]:
    """The newest readings in a row that raised the alarm, oldest first."""
    found: list[Document] = []
    for each in reversed(readings):
        if each["alarm"]:
            found.append(each)
        elif found:
            break
    return found[::-1]


def _meaning(document: Document) -> Iterator[str]:
    target = (document.get("threshold") or {}).get("target")
    lower = (
        f" On domains like the calibration's, performance this far away is below {rounded(target)}."
        if document["rule"] == "threshold" and target is not None
        else ""
    )
    yield (
        "It may mean that the images come from another source, that they have changed (camera, light, "
        "processing), or that batches mix classes or days otherwise than the known ones. It does not by "
        f"itself mean that predictions are wrong.{lower}"
    )
    yield (
        "What to do: look at the images of these batches and at the layers that changed, and label some tens "
        "of images to compare the accuracy. If such images are to stay, calibrate a new monitor on them."
    )

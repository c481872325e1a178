"""What a webhook is sent: the event itself, or the message that a chat or a pager expects."""

from collections.abc import Callable, Mapping
from typing import Any

from assay.core.errors import InputError, check_name


Event = Mapping[str, Any]
Body = dict[str, Any]
KEY = "routing_key"  # part of the query of a PagerDuty URL


def sentence(event: Event) -> str:
    """What happened, in one sentence."""
    verb = "raised the alarm" if event["event"] == "alarm" else "no longer raises the alarm"
    place = f"batch {event['batch']}, circuit shift {_shift(event)}"
    return f"{event['monitor']}: {event['model']} {verb} at {place}"


def _shift(event: Event) -> str:
    """The shift with its interval, as far as both are defined."""
    ends = [event["interval"][end] for end in ("low", "high")]
    interval = "" if None in ends else f" [{ends[0]:.3f}, {ends[1]:.3f}]"
    return f"{event['shift']:.3f}{interval}"


def _facts(event: Event) -> dict[str, str]:
    p, page = event["p_value"], event.get("page")  # events of an earlier version have no page
    return {
        "Monitor": str(event["monitor"]),
        "Model": str(event["model"]),
        "Batch": f"{event['batch']}, {event['time']}",
        "Circuit shift": _shift(event),
        "Rule": f"{event['rule']}" + ("" if p is None else f", p {p:.3f}"),
        "Guarantee": str(event["guarantee"]),
        **({"Page": str(page)} if page else {}),
    }


def _slack(event: Event, key: str) -> Body:
    """Incoming webhook of Slack. Names are text: `&`, `<` and `>` would be mark-up."""
    facts = "\n".join(f"{name}: {value}" for name, value in _facts(event).items())
    text = f"{sentence(event)}\n{facts}"
    return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}


def _teams(event: Event, key: str) -> Body:
    """Workflow of Microsoft Teams that posts to a channel: an adaptive card."""
    colour = "attention" if event["event"] == "alarm" else "good"
    facts = [{"title": name, "value": value} for name, value in _facts(event).items()]
    text = {"type": "TextBlock", "text": sentence(event), "wrap": True, "weight": "bolder", "color": colour}
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [text, {"type": "FactSet", "facts": facts}],
    }
    return {
        "type": "message",
        "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}],
    }


def _pagerduty(event: Event, key: str) -> Body:
    """Events API v2 of PagerDuty. Both events of an episode have one key: the second closes the incident."""
    return {
        "routing_key": key,
        "event_action": "trigger" if event["event"] == "alarm" else "resolve",
        "dedup_key": f"assay-{event['monitor_id']}-{event['first_batch']}",
        "payload": {
            "summary": sentence(event)[:1024],
            "source": str(event["monitor"]),
            "severity": "critical",
            "timestamp": event["time"],
            "component": str(event["model"]),
            "custom_details": dict(event),
        },
        **({"links": [{"href": page, "text": "Images of the batch"}]} if (page := event.get("page")) else {}),
    }


FORMATS: dict[str, Callable[[Event, str], Body]] = {
    "generic": lambda event, key: dict(event),
    "slack": _slack,
    "teams": _teams,
    "pagerduty": _pagerduty,
}


def body_of(form: str, key: str) -> Callable[[Event], Body]:
    """What makes the body of a request from an event.

    Args:
        form: `generic`, `slack`, `teams` or `pagerduty`.
        key: Routing key of a PagerDuty integration, empty for the others.

    Raises:
        UnknownNameError: For another format.
        InputError: If PagerDuty lacks its key.
    """
    check_name("webhook format", form, FORMATS)
    if form == "pagerduty" and not key:
        raise InputError(
            f"a PagerDuty webhook needs the key of its integration: give https://HOST/v2/enqueue?{KEY}=KEY"
        )
    return lambda event: FORMATS[form](event, key)

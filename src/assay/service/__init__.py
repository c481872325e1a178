"""What runs for weeks: monitors with their alarms and metrics, and the page of a store."""

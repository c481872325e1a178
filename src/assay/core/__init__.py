"""What everything else stands on: errors, registries, measurements, random streams, untrusted files."""
